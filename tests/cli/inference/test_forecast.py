import json

import numpy as np
import pytest

from cellerate.runtime.cell import write_cell
from support import packed_forecaster


def write_model(folder):
    write_cell(
        folder / "f.cell",
        packed_forecaster.program(),
        precision="float32",
        header=packed_forecaster.header(),
    )


@pytest.mark.parametrize(
    ("step", "ahead"),
    [("1h", "3 hours"), ("1D", "3 days"), ("15m", "3 rows"), (None, "3 rows")],
)
def test_chart_title_states_the_horizon(cellerate, tmp_path, monkeypatch, step, ahead):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path)
    rows = [["load", "wind", "price"], *np.random.default_rng(0).normal(size=(20, 3)).round(3).tolist()]
    if step is not None:
        every = np.timedelta64(int(step[:-1]), step[-1])
        times = np.datetime64("2024-01-01", "m") + np.arange(20) * every
        rows = [[time, *row] for time, row in zip(["time", *times.astype(str)], rows, strict=True)]
    (tmp_path / "s.csv").write_text("\n".join(",".join(map(str, row)) for row in rows) + "\n")
    code, _, err = cellerate("forecast", "f.cell", "s.csv", "--plot", "f.svg", "-q")
    assert code == 0, err
    assert f"f: the next {ahead}<" in (tmp_path / "f.svg").read_text()


def test_output_of_another_format_is_refused_before_the_data_are_read(cellerate, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path)
    code, _, err = cellerate("forecast", "f.cell", "missing.csv", "-o", "out.xlsx")
    assert code == 2
    assert err == "error: the output ends in .csv or .parquet, or is a folder, and out.xlsx is neither.\n"
    assert not (tmp_path / "out.xlsx").exists()


def test_json_lists_the_series_that_are_too_short(cellerate, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = packed_forecaster.packed(series_column=["region"])
    write_cell(tmp_path / "f.cell", model.cell.program, header=model.cell.header)
    packed_forecaster.write_series(tmp_path / "s.csv")
    lines = (tmp_path / "s.csv").read_text().splitlines()
    kept = [line for line in lines if ",s," not in line]
    short = [line for line in lines if ",s," in line][-2:]
    (tmp_path / "s.csv").write_text("\n".join([*kept, *short]) + "\n")
    code, out, err = cellerate("forecast", "f.cell", "s.csv", "--json", "-q")
    assert code == 0, err
    found = json.loads(out)
    assert found["left_out_series"] == {"s": 2}
    assert "s" not in [one["series"] for one in found["forecasts"]]


def test_replaced_file_is_reported(cellerate, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path)
    np.savetxt(
        "s.csv",
        np.random.default_rng(0).normal(size=(20, 3)),
        delimiter=",",
        header="load,wind,price",
        comments="",
    )
    for word in ("written", "replaced"):
        _, _, err = cellerate("forecast", "f.cell", "s.csv", "-o", "out.csv", "-q")
        assert f"{word}: out.csv" in err
