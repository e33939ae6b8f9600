"""`forecast`, `embed` and `evaluate` on models and packed files."""

import csv
import io
import json
import re

import numpy as np
import pyarrow.parquet as pq
import pytest

from cellerate.runtime.packed import load
from support.error_lines import one_error
from support.report.charts import shown

pytestmark = pytest.mark.keras


def test_forecast_chart_of_many_series_shows_twelve(cellerate, here, small):
    rows = [line.split(",") for line in (here / "s.csv").read_text().splitlines()]
    with (here / "many.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*rows[0], "shop"])
        table.writerows([*row, f"shop {n}"] for n in range(13) for row in rows[1:60])
    settings = [*small["series"], "--series-column", "shop"]
    assert cellerate("train", "series", "many.csv", "-o", "m.keras", *settings, "-q")[0] == 0
    code, _, err = cellerate("forecast", "m.keras", "many.csv", "--plot", "f.svg")
    assert (code, err.count("written: f.svg")) == (0, 1)
    assert shown(here / "f.svg").panels == 12
    assert {"12 of 13 series", "m: the next 2 hours", "shop 0", "shop 12"} <= set(shown(here / "f.svg").texts)


def test_forecast_prints_a_table_and_writes_the_same(cellerate, made, tmp_path):
    code, out, err = cellerate(
        "forecast", made / "series.keras", made / "s.csv", "-o", tmp_path / "f.csv", "--plot", tmp_path / "f.png"
    )  # fmt: skip
    assert code == 0
    rows = list(csv.reader(io.StringIO(out)))
    assert rows[0] == ["time", "load", "load_low80", "load_high80"]
    assert float(rows[1][2]) < float(rows[1][1]) < float(rows[1][3])
    assert [row[0] for row in rows[1:]] == ["2024-01-06 00:00:00", "2024-01-06 01:00:00"]
    written = list(csv.reader(io.StringIO((tmp_path / "f.csv").read_text())))
    assert written[0] == rows[0]
    assert float(written[1][1]) == pytest.approx(float(rows[1][1]), rel=1e-4)
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    assert err.count("written: ") == 2
    _, as_json, _ = cellerate("forecast", made / "series.keras", made / "s.csv", "--json")
    (found,) = json.loads(as_json)["forecasts"]
    assert [row["time"] for row in found["rows"]] == [row[0] for row in rows[1:]]
    _, out, _ = cellerate("forecast", made / "series.keras", made / "s.csv", "--level", "0.5")
    assert out.splitlines()[0] == "time,load,load_low50,load_high50"
    _, out, _ = cellerate("forecast", made / "series.keras", made / "s.csv", "--no-intervals")
    assert out.splitlines()[0] == "time,load"


def test_forecast_table_quotes_the_names_of_series(cellerate, here, small):
    rows = [line.split(",") for line in (here / "s.csv").read_text().splitlines()]
    with (here / "many.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*rows[0], "shop"])
        table.writerows([*row, shop] for shop in ("Bonn, East", 'the "Inn"') for row in rows[1:])
    cellerate(
        "train", "series", "many.csv", "-o", "m.keras", *small["series"], "--series-column", "shop", "-q"
    )
    code, out, _ = cellerate("forecast", "m.keras", "many.csv", "--no-intervals")
    assert code == 0
    found = list(csv.reader(io.StringIO(out)))
    assert {len(row) for row in found} == {3}
    assert [row[0] for row in found[1:]] == ["Bonn, East"] * 2 + ['the "Inn"'] * 2


def test_embed_writes_a_vector_for_every_line_in_both_formats(cellerate, made, tmp_path):
    code, out, err = cellerate("embed", made / "embed.keras", made / "l.txt", "-o", tmp_path / "v.npy")
    assert (code, err) == (0, "")
    assert out == f"{tmp_path / 'v.npy'}: 15 vectors of 6\n"
    code, out, _ = cellerate(
        "embed", made / "embed.keras", made / "l.txt", "-o", tmp_path / "v.parquet", "--json", "--batch-size", "4"
    )  # fmt: skip
    assert json.loads(out) == {"output": str(tmp_path / "v.parquet"), "lines": 15, "dimensions": 6}
    table = pq.read_table(tmp_path / "v.parquet")
    assert table.column("line").to_pylist() == (made / "l.txt").read_text().splitlines()
    np.testing.assert_allclose(
        np.load(tmp_path / "v.npy"), np.array(table.column("vector").to_pylist()), atol=1e-5
    )


def test_packed_models_forecast_and_embed_like_keras_models(cellerate, made, tmp_path):
    for task in ("series", "embed"):
        assert cellerate("pack", made / f"{task}.keras", "-o", tmp_path / f"{task}.cell")[0] == 0

    def tables(model, name):
        words = ["forecast", model, made / "s.csv"]
        code, out, err = cellerate(*words, "-o", tmp_path / name, "--plot", tmp_path / "f.png")
        assert (code, err.count("written: ") + err.count("replaced: ")) == (0, 2)
        _, as_json, _ = cellerate(*words, "--json")
        (found,) = json.loads(as_json)["forecasts"]
        rows = list(csv.reader(io.StringIO(out)))
        assert rows == [
            list(found["rows"][0]),
            *([f"{v:.6g}" if isinstance(v, float) else v for v in r.values()] for r in found["rows"]),
        ]
        return list(csv.reader(io.StringIO((tmp_path / name).read_text())))

    (columns, *found), (expected_columns, *expected) = (
        tables(tmp_path / "series.cell", "packed.csv"),
        tables(made / "series.keras", "keras.csv"),
    )
    assert columns == expected_columns
    assert [row[0] for row in found] == [row[0] for row in expected]
    # The load goes from -1 to 1.
    values = [[float(row[1]) for row in rows] for rows in (found, expected)]
    np.testing.assert_allclose(*values, atol=2e-5, rtol=0)

    vectors = []
    for model, name in ((tmp_path / "embed.cell", "packed.npy"), (made / "embed.keras", "keras.npy")):
        code, out, err = cellerate("embed", model, made / "l.txt", "-o", tmp_path / name, "--batch-size", "4")
        assert (code, out, err) == (0, f"{tmp_path / name}: 15 vectors of 6\n", "")
        vectors.append(np.load(tmp_path / name))
    np.testing.assert_allclose(*vectors, atol=1e-5 * np.ptp(vectors[1]), rtol=0)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ["forecast", "embed.cell", "s.csv"],
            4,
            "task is 'embed', but forecast needs a model of the task 'series'",
        ),
        (
            ["embed", "series.cell", "l.txt"],
            4,
            "task is 'series', but embed needs a model of the task 'embed'",
        ),
        (["forecast", "series.cell", "l.txt"], 3, "l.txt"),
        (["forecast", "series.cell", "s.csv", "-o", "l.txt/f.csv"], 6, "f.csv"),
        (["embed", "embed.cell", "l.txt", "-o", "v.csv"], 2, "v.csv"),
        (["embed", "embed.cell", "zebra.txt"], 3, "'z'"),
        (["embed", "embed.cell", "l.txt", "--batch-size", "0"], 2, "--batch-size "),
        (["embed", "none.cell", "l.txt"], 3, "none.cell"),
        (["forecast", "none.cell", "s.csv"], 3, "none.cell"),
        (["embed", "cut.cell", "l.txt"], 3, "cut.cell is damaged"),
        (["evaluate", "embed.cell", "l.txt"], 4, "embed.cell is a packed model of the task 'embed'"),
        (["evaluate", "embed.cell", "l.txt"], 4, "embed.cell is a packed model of the task 'embed'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_error_of_a_packed_model_is_one_line_with_its_exit_code(cellerate, here, made, words, code, message):
    for task in ("series", "embed"):
        cellerate("pack", made / f"{task}.keras", "-o", f"{task}.cell")
    (here / "cut.cell").write_bytes((here / "embed.cell").read_bytes()[:-7])
    (here / "zebra.txt").write_text("z\nz\n")
    before = sorted(here.rglob("*"))
    found, out, err = cellerate(*words)
    assert (found, out) == (code, "")
    assert message in one_error(err)
    assert sorted(here.rglob("*")) == before


def test_evaluate_of_a_packed_text_model_scores_the_whole_text(cellerate, made, tmp_path):
    cellerate("pack", made / "text.keras", "-o", tmp_path / "t.cell")
    code, out, err = cellerate("evaluate", tmp_path / "t.cell", made / "t.txt", "--json")
    assert (code, err) == (0, "")
    found, wanted = json.loads(out), load(tmp_path / "t.cell").score((made / "t.txt").read_text())
    assert found["bits_per_character"] == pytest.approx(wanted.bits_per_character)
    assert (found["tokens"], found["characters"]) == (wanted.tokens, wanted.characters)
    _, words, _ = cellerate("evaluate", tmp_path / "t.cell", made / "t.txt")
    assert f"{wanted.bits_per_character:.4f}" in words
    # Windows that each start from zeros give a different figure.
    _, keras, _ = cellerate("evaluate", made / "text.keras", made / "t.txt", "--json")
    from cellerate.tasks.inference import evaluate

    in_windows = evaluate(made / "text.keras", made / "t.txt")["bits_per_character"]
    assert json.loads(keras)["bits_per_character"] == pytest.approx(in_windows)
    assert in_windows != pytest.approx(wanted.bits_per_character, rel=1e-6)
    code, out, err = cellerate("evaluate", tmp_path / "t.cell", "nowhere.txt")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "nowhere.txt" in err


@pytest.mark.parametrize(("task", "data"), [("text", "t.txt"), ("series", "s.csv"), ("embed", "l.txt")])
def test_evaluate_prints_the_same_figures_as_text_and_json(cellerate, made, task, data):
    code, out, err = cellerate("evaluate", made / f"{task}.keras", made / data, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["task"] == task
    _, words, _ = cellerate("evaluate", made / f"{task}.keras", made / data)
    if task == "series":
        assert f"judged on {found['windows']:,} windows: " in words
        assert f"{found['model']['mae']:,.4f}" in words
        assert words.splitlines()[-1] == found["verdict"]["sentence"]
        return
    for name, value in found.items():
        assert re.search(rf"^{name}\b", words, re.MULTILINE)
        if isinstance(value, float):
            assert f"{value:,.4f}" in words
