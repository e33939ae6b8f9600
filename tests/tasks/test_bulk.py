"""Passes into folders of Parquet files, whole and in shares, with packed models made by hand."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.runtime.cell import write_cell
from cellerate.tasks import bulk, inference
from cellerate.tasks.pieces import Pieces
from cellerate.tasks.settings import LineFiles, SeriesFiles
from support import packed_forecaster
from support.runtime import packed_lines
from support.runtime.packed_lines import LINES


@pytest.fixture
def lines(tmp_path, monkeypatch):
    """A model, and lines in files of both kinds in a folder; a piece has four of them."""
    monkeypatch.setattr(bulk, "_LINES_A_PIECE", 4)
    write_cell(tmp_path / "l.cell", packed_lines.program(), precision="float32", header=packed_lines.header())
    folder = tmp_path / "in"
    (folder / "deeper").mkdir(parents=True)
    (folder / "a.txt").write_bytes("\r\n".join(LINES).encode())
    pq.write_table(pa.table({"title": [*LINES[:4], None]}), folder / "deeper" / "b.parquet", row_group_size=2)
    (folder / "_SUCCESS.txt").write_text("not data")
    (folder / ".hidden.txt").write_text("not data")
    return tmp_path


def parts(folder):
    return sorted(path.name for path in folder.glob("*.parquet"))


def test_vectors_of_files_are_those_of_their_lines_in_their_order(lines):
    told = []
    done = bulk.embed_files(
        lines / "l.cell", LineFiles(lines / "in"), lines / "out", progress=lambda *both: told.append(both)
    )
    assert (done.pieces, done.done, done.items) == (5, 5, 15)
    assert told == [(4, 0), (8, 0), (10, 0), (14, 0), (15, 0)]
    table = pq.read_table(lines / "out").to_pydict()
    assert table["line"] == [*LINES, *LINES[:4], ""]
    assert table["row"] == [*range(10), *range(5)]
    assert table["file"] == [str(lines / "in/a.txt")] * 10 + [str(lines / "in/deeper/b.parquet")] * 5
    expected = inference.embed(lines / "l.cell", table["line"])
    np.testing.assert_allclose(np.array(table["vector"]), expected, atol=1e-6)


def test_shares_of_any_number_make_up_the_whole(lines):
    whole = bulk.embed_files(lines / "l.cell", LineFiles(lines / "in"), lines / "whole")
    for number in (2, 0):
        done = bulk.embed_files(lines / "l.cell", LineFiles(lines / "in"), lines / "out", share=(number, 3))
    assert parts(lines / "out") == [f"part-{number:06}.parquet" for number in (0, 2, 3)]
    assert (done.pieces, done.done) == (5, 3)
    before = (lines / "out/part-000002.parquet").stat().st_mtime_ns
    for number in (0, 1):  # another number of processes goes on
        done = bulk.embed_files(lines / "l.cell", LineFiles(lines / "in"), lines / "out", share=(number, 2))
    assert (done.done, done.items) == (whole.pieces, 4)
    assert (lines / "out/part-000002.parquet").stat().st_mtime_ns == before
    np.testing.assert_allclose(
        np.array(pq.read_table(lines / "out")["vector"].to_pylist()),
        np.array(pq.read_table(lines / "whole")["vector"].to_pylist()),
        atol=1e-6,
    )
    assert bulk.embed_files(lines / "l.cell", LineFiles(lines / "in"), lines / "out").items == 0


def test_share_is_the_place_that_a_launcher_names(lines, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = bulk.embed_files(lines / "l.cell", LineFiles(lines / "in"), lines / "out")
    assert parts(lines / "out") == ["part-000001.parquet", "part-000003.parquet"]
    assert done.items == 8


def test_of_passes_that_begin_at_once_the_first_has_the_folder(lines, monkeypatch):
    began = []

    def later(pieces, beside, path):
        if not began:
            began.append(True)
            # Another one, with another setting, begins and ends between the look and the name.
            bulk.embed_files(lines / "l.cell", LineFiles(lines / "in", errors="replace"), lines / "out")
        name(pieces, beside, path)

    name = Pieces._name
    monkeypatch.setattr(Pieces, "_name", later)
    with pytest.raises(ConfigError, match="results of another pass: errors differs"):
        bulk.embed_files(lines / "l.cell", LineFiles(lines / "in"), lines / "out")
    assert len(parts(lines / "out")) == 5


def test_file_system_without_hard_links_will_do(lines, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    assert bulk.embed_files(lines / "l.cell", LineFiles(lines / "in"), lines / "out").items == 15
    assert bulk.embed_files(lines / "l.cell", LineFiles(lines / "in"), lines / "out").items == 0


def test_unknown_character_is_named_with_its_file_and_line(lines):
    (lines / "in/a.txt").write_text("\n".join([*LINES, "zoo"]))
    with pytest.raises(DataError, match=r"a\.txt, counted from line 9: line 3: .*'z'"):
        bulk.embed_files(lines / "l.cell", LineFiles(lines / "in"), lines / "out")
    assert parts(lines / "out") == ["part-000000.parquet", "part-000001.parquet"]
    with pytest.raises(ConfigError, match=r"results of another pass: errors differs\. Remove it"):
        bulk.embed_files(lines / "l.cell", LineFiles(lines / "in", errors="replace"), lines / "out")
    assert (
        bulk.embed_files(lines / "l.cell", LineFiles(lines / "in", errors="replace"), lines / "other").items
        == 16
    )


def test_folder_of_something_else_is_left_alone(lines):
    (lines / "out").mkdir()
    (lines / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="exists and holds no results of a pass"):
        bulk.embed_files(lines / "l.cell", LineFiles(lines / "in"), lines / "out")
    (lines / "out" / "_about.json").write_text("{")
    with pytest.raises(ConfigError, match="exists and holds no results of a pass"):
        bulk.embed_files(lines / "l.cell", LineFiles(lines / "in"), lines / "out")
    assert sorted(path.name for path in (lines / "out").iterdir()) == ["_about.json", "thesis.txt"]


@pytest.mark.parametrize("share", [(2, 2), (-1, 2)])
def test_share_that_cannot_be_is_refused(lines, share):
    with pytest.raises(ConfigError, match="expected the number of this process"):
        bulk.embed_files(lines / "l.cell", LineFiles(lines / "in"), lines / "out", share=share)


def test_changed_data_or_model_is_another_pass(lines):
    bulk.embed_files(lines / "l.cell", LineFiles(lines / "in"), lines / "out")
    (lines / "in/a.txt").write_text("red hat\n")
    with pytest.raises(ConfigError, match="data differs"):
        bulk.embed_files(lines / "l.cell", LineFiles(lines / "in"), lines / "out")
    write_cell(lines / "l.cell", packed_lines.program(), precision="int8", header=packed_lines.header())
    with pytest.raises(ConfigError, match="data and model differ"):
        bulk.embed_files(lines / "l.cell", LineFiles(lines / "in"), lines / "out")


def test_files_without_lines_and_missing_ones_are_refused(lines):
    (lines / "empty.txt").write_text("")
    with pytest.raises(DataError, match=r"empty\.txt has no lines"):
        bulk.embed_files(lines / "l.cell", LineFiles(lines / "empty.txt"), lines / "out")
    with pytest.raises(DataError, match=r"nowhere"):
        bulk.embed_files(lines / "l.cell", LineFiles([lines / "nowhere"]), lines / "out")


# --- series

QUANTILES = (0.2, 0.5, 0.9)


@pytest.fixture
def series(tmp_path, monkeypatch):
    """A forecaster of quantiles, and two series of 30 rows, which have 22 windows each; a piece has 9."""
    monkeypatch.setattr(bulk, "_WINDOWS_A_PIECE", 9)
    monkeypatch.setattr(bulk, "_SERIES_A_PIECE", 1)
    packed_forecaster.write_series(tmp_path / "s.csv")
    header = packed_forecaster.header(
        QUANTILES, series_column=["region"], season=4, train_fraction=0.4, validation_fraction=0.1
    )
    write_cell(
        tmp_path / "f.cell", packed_forecaster.program(quantiles=3), precision="float32", header=header
    )
    return tmp_path


def test_forecasts_of_a_folder_are_those_of_each_series(series):
    done = bulk.forecast_files(series / "f.cell", SeriesFiles(series / "s.csv"), series / "out", share=(1, 2))
    assert (done.pieces, done.done, done.items) == (2, 1, 1)
    done = bulk.forecast_files(series / "f.cell", SeriesFiles(series / "s.csv"), series / "out")
    assert (done.done, done.items) == (2, 1)
    table = pq.read_table(series / "out")
    assert table.schema.field("time").type == pa.timestamp("us")
    table = table.to_pydict()
    assert table["series"] == ["n"] * 3 + ["s"] * 3
    examples = inference.forecast(series / "f.cell", [series / "s.csv"])
    found = np.array([table[f"{name}_q{q}"] for name in ("price", "load") for q in QUANTILES]).T
    expected = np.concatenate([example.forecast.reshape(3, 6) for example in examples])
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    times = np.array(table["time"], "datetime64[us]")
    np.testing.assert_array_equal(times, np.concatenate([example.times for example in examples]))


@pytest.mark.parametrize(("part", "windows"), [("all", 2 * 22), ("held-out", 2 * 13)])
def test_errors_judged_in_pieces_add_up_to_those_of_all_windows(series, part, windows):
    told = []
    first, nothing = bulk.judge_files(
        series / "f.cell", SeriesFiles([series / "s.csv"]), series / "out", part=part, share=(1, 2)
    )
    assert nothing is None
    assert first.done < first.pieces
    done, report = bulk.judge_files(
        series / "f.cell",
        SeriesFiles([series / "s.csv"]),
        series / "out",
        part=part,
        progress=lambda *both: told.append(both),
    )
    assert done.pieces == -(-windows // 9)
    assert first.items + done.items == windows
    assert told[-1] == (done.items, done.items)
    expected = inference.evaluate(series / "f.cell", [series / "s.csv"], part=part)
    assert report["windows"] == windows
    assert list(report) == list(expected)
    assert list(report["seasonal_naive"]) == list(expected["model"])
    for name in ("model", "last_value", "seasonal_naive", "coverage", "pinball", "interval_coverage"):
        for target in ("price", "load"):
            one, other = (each["by_target"][target] for each in (report, expected))
            assert one.get(name) == pytest.approx(other.get(name), rel=1e-9)
        if name in expected:
            assert report[name] == pytest.approx(expected[name], rel=1e-9)
    assert ("nlinear" in report) == (part == "held-out")
    assert [row["series"] for row in report["by_series"]] == [row["series"] for row in expected["by_series"]]


def test_forecaster_without_quantiles_is_judged_in_pieces(series):
    write_cell(
        series / "f.cell",
        packed_forecaster.program(),
        precision="float32",
        header=packed_forecaster.header(series_column=["region"]),
    )
    _, report = bulk.judge_files(series / "f.cell", SeriesFiles([series / "s.csv"]), series / "out")
    expected = inference.evaluate(series / "f.cell", [series / "s.csv"])
    assert list(report) == list(expected)
    assert "coverage" not in report
    assert report["model"] == pytest.approx(expected["model"], rel=1e-9)


def test_errors_are_listed_by_series(series):
    bulk.judge_files(series / "f.cell", SeriesFiles([series / "s.csv"]), series / "out")
    table = pq.read_table(series / "out").to_pydict()
    assert table["series"] == ["n", "n", "n", "s", "s", "s"]
    assert table["windows"] == [9, 9, 4, 5, 9, 8]
    rows = np.loadtxt(series / "s.csv", delimiter=",", skiprows=1, usecols=(2, 3, 4))
    # By hand, of the last piece: windows 14 to 21 of the second series, the last value of load.
    errors = [
        np.abs(rows[[30 + start + 5], 0] - rows[30 + start + 6 : 30 + start + 9, 0])
        for start in range(14, 22)
    ]
    assert table["last_value_mae_load"][-1] == pytest.approx(np.mean(errors), rel=1e-6)


def test_part_that_cannot_be_read_is_named(series):
    bulk.judge_files(series / "f.cell", SeriesFiles([series / "s.csv"]), series / "out")
    (series / "out/part-000003.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"part-000003\.parquet cannot be read: .*Remove it, and start"):
        bulk.judge_files(series / "f.cell", SeriesFiles([series / "s.csv"]), series / "out")


def test_data_in_which_no_window_fits_and_other_tasks_are_refused(series, lines):
    text = (series / "s.csv").read_text().splitlines()
    (series / "short.csv").write_text("\n".join(text[:8]))
    with pytest.raises(DataError, match="no window fits"):
        bulk.judge_files(series / "f.cell", SeriesFiles([series / "short.csv"]), series / "out")
    with pytest.raises(ModelError, match="forecast needs a model of the task 'series'"):
        bulk.judge_files(lines / "l.cell", SeriesFiles([series / "s.csv"]), series / "out")
    with pytest.raises(ConfigError, match="part must be one of all, held-out, not 'some'"):
        bulk.judge_files(series / "f.cell", SeriesFiles([series / "s.csv"]), series / "out", part="some")
    assert not (series / "out").exists()


def test_folder_says_what_it_holds(series):
    bulk.forecast_files(series / "f.cell", SeriesFiles(series / "s.csv"), series / "out")
    about = json.loads((series / "out" / "_about.json").read_text())
    assert about["format"] == "cellerate-pieces-1"
    assert about["task"] == "forecast"
    assert len(about["model"]) == 64
