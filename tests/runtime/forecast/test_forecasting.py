"""Forecasts by a packed model. Its program is made by hand, so that no Keras is needed."""

import csv
import dataclasses
import io
import itertools
import subprocess
import sys

import numpy as np
import pytest

from cellerate.data.series.packing import pack_series
from cellerate.data.settings import Reading
from cellerate.data.windows.scaler import Scaler
from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.program import Program
from cellerate.runtime.cell import Cell, write_cell
from cellerate.runtime.forecast import forecasting
from cellerate.runtime.packed import PackedModel
from cellerate.tasks import inference
from cellerate.tasks.judging.forecasts import example_record, forecast_columns
from support.packed_forecaster import HORIZON, WINDOW, header, packed, program, write_series

# Runs code in a process in which no package that forecasting rows does not need can be imported.
ALONE = """
import sys
class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name in {refused}:
            raise ImportError(name + " must not be imported")
sys.meta_path.insert(0, Refusing())
"""
FRAMEWORKS = ("keras", "jax", "torch", "tensorflow")


def series(*shape):
    return np.random.default_rng(5).normal([20.0, 5.0], [4.0, 0.5], (*shape, 2))


def in_units(made):
    """Scaled forecasts of price and load, in their units."""
    scale, mean = np.array([100.0, 4.0]), np.array([-3.0, 20.0])
    made = np.moveaxis(made.astype(np.float64), 2, -1)
    return np.moveaxis(made * scale + mean, -1, 2)


@pytest.mark.parametrize("quantiles", [(), (0.1, 0.5, 0.9)])
def test_forecast_equals_the_model_in_the_units_of_the_data(quantiles):
    model, rows = packed(quantiles=quantiles), series(4, WINDOW)
    made = model.forecast(rows)
    assert made.shape == (4, HORIZON, 2, *([3] if quantiles else []))
    scaled = ((rows - [20.0, 5.0]) / [4.0, 0.5]).astype(np.float32)
    expected = in_units(model.predict(scaled))
    np.testing.assert_allclose(made, expected, atol=1e-6 * np.ptp(expected), rtol=0)
    # A single window, more rows than the window and lists give the same forecast; float32 rounds the rows.
    np.testing.assert_allclose(model.forecast(rows[1]), made[1], atol=1e-6 * np.ptp(made), rtol=0)
    longer = np.concatenate([np.full((4, 5, 2), np.nan), rows], axis=1)
    np.testing.assert_array_equal(model.forecast(longer), made)
    rounded = model.forecast(rows.astype(np.float32).tolist())
    np.testing.assert_allclose(rounded, made, atol=2e-6 * np.ptp(made), rtol=0)
    np.testing.assert_array_equal(model.forecast(rows.tolist()), made)
    assert model.forecast(rows[:0]).shape == (0, *made.shape[1:])


def test_integer_rows_are_accepted():
    rows = series(WINDOW).round()
    np.testing.assert_array_equal(packed().forecast(rows.astype(np.int64)), packed().forecast(rows))


def test_model_of_one_target_without_a_last_axis_forecasts_with_one():
    known = Scaler(["load", "wind"], [20.0, 5.0], [4.0, 0.5])
    with_axis = packed(what=program(targets=1), target=["load"], scaler=known)
    without = packed(what=program(targets=1, flat=True), target=["load"], scaler=known)
    assert without.forecast(series(WINDOW)).shape == (HORIZON, 1)
    np.testing.assert_array_equal(without.forecast(series(WINDOW)), with_axis.forecast(series(WINDOW)))


def broken(place, value):
    rows = series(3, WINDOW + 4)
    rows[place] = value
    return rows


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (series(WINDOW - 1), f"5 rows, but the model forecasts from {WINDOW}"),
        (series(1), "rows has 1 row, but"),
        (series(2, 3, WINDOW)[..., :0], r"features load, wind, not shape \(2, 3, 6, 0\)"),
        (series(WINDOW)[:, :1], r"features load, wind, not shape \(6, 1\)"),
        (series(WINDOW)[0], r"not shape \(2,\)"),
        (3.0, r"not shape \(\)"),
        ([[1.0, 2.0], [3.0]], "rows of different lengths"),
        ([["a", "b"]] * WINDOW, "not dtype <U1"),
        ([[None, 1.0]] * WINDOW, "not dtype object"),
        (series(WINDOW) > 5, "not dtype bool"),
        (broken((2, 7, 1), np.nan), "holds nan in window 2, row 7, column 'wind'"),
        (broken((0, 4, 0), -np.inf), "holds -inf in window 0, row 4, column 'load'"),
        (broken((0, 4, 0), 1e39), r"holds 1e\+39 in window 0, row 4, column 'load'"),
        (broken((1, 9, 1), np.nan)[1], "holds nan in row 9, column 'wind'"),
    ],
)
def test_rows_that_cannot_be_used_are_refused(rows, message):
    with pytest.raises(DataError, match=message):
        packed().forecast(rows)


@pytest.mark.parametrize(
    "changes",
    [
        *(
            {name: value}
            for name, value in itertools.product(["window", "horizon"], [0, 2.5, True, None, 10**400])
        ),
        *(
            {name: value}
            for name, value in itertools.product(["target", "feature"], [[], None, "load", [1], ["load"] * 2])
        ),
        *(
            {name: value}
            for name, value in itertools.product(["missing", "gaps", "storage"], ["guess", None, ["error"]])
        ),
        *(
            {name: value}
            for name, value in itertools.product(["time_column", "time_zone", "frequency"], [3, ["date"]])
        ),
        {"series_column": 3},
        {"series_column": None},
        {"series_column": [3]},
        {"duplicates": "guess"},
        {"feature": ["wind", "load"]},
        {"future": ["price"]},
        {"future": 3},
        {"quantiles": [0.5, 0.5]},
        {"quantiles": [0.0]},
        {"quantiles": [float("nan")]},
        {"quantiles": "0.5"},
        {"quantiles": 3},
        {"quantiles": [10**400]},
        {"scaler": None},
        {"scaler": {"columns": ["load", "wind", "price"], "mean": [10**400, 0, 0], "scale": [1, 1, 1]}},
        {"scaler": {"columns": ["load", "wind", "price"], "mean": [0, 0, 0], "scale": [1, 0, 1]}},
        {"scaler": {"columns": ["load", "wind", "more"], "mean": [0, 0, 0], "scale": [1, 1, 1]}},
        {"options": None},
        {"options": {}},
        {"options": ["window"]},
    ],
    ids=lambda changes: "-".join(f"{name}-{value!r:.20}" for name, value in changes.items()),
)
def test_damaged_record_is_refused(changes):
    damaged = header()
    for name, value in changes.items():
        place = damaged["payload"]
        (place if name in place else place["options"])[name] = value
    with pytest.raises(ModelError, match="this packed model is damaged") as caught:
        PackedModel(Cell(program(), "float32", damaged)).forecast(series(WINDOW))
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "data",
    [
        3,
        "x",
        {"frequency": 3},
        {"frequency": {}},
        {"frequency": {"unit": "moon", "step": 1, "day": 0, "zone": ""}},
        {"frequency": {"unit": "time", "step": float("nan"), "day": 0, "zone": ""}},
    ],
)
def test_damaged_frequency_is_refused(data):
    damaged = header()["payload"] | {"data": data}
    with pytest.raises(ModelError, match="the task record of this model is damaged"):
        forecasting.forecast_settings(damaged, "this model")


def test_covariate_that_is_a_target_and_no_feature_is_refused():
    damaged = header()
    damaged["payload"]["covariates"] = {"future": ["price"]}
    with pytest.raises(ModelError, match="future columns are none of its features"):
        forecasting.forecast_settings(damaged["payload"], "this model")


@pytest.mark.parametrize("payload", [None, [], "x", {}, 3])
def test_missing_or_malformed_record_is_refused(payload):
    with pytest.raises(ModelError, match="damaged"):
        PackedModel(Cell(program(), "float32", {"task": "series", "payload": payload})).forecast(
            series(WINDOW)
        )


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (program(features=3), "one input .-1, 6, 2. and one output"),
        (program(window=WINDOW + 1), "one input .-1, 6, 2. and one output"),
        (Program(program().nodes, {"a": 3, "b": 2}), "2 outputs"),
        (program(horizon=4), r"gives \(4, 2\) for a window, but its record says \(3, 2\)"),
        (program(targets=1), r"gives \(3, 1\) for a window"),
        (program(quantiles=2), r"gives \(3, 2, 2\) for a window"),
        (program(flat=True), r"gives \(3,\) for a window"),
    ],
)
def test_program_that_is_no_forecaster_of_the_record_is_refused(what, message):
    with pytest.raises(ModelError, match=message):
        packed(what=what).forecast(series(WINDOW))


def test_model_of_another_task_is_refused():
    model = PackedModel(Cell(program(), "float32", header() | {"task": "embed"}))
    for use in (lambda: model.forecast(series(WINDOW)), lambda: model.forecast_files(["s.npy"])):
        with pytest.raises(
            ModelError, match=r"task is 'embed', but forecast needs a model of the task 'series'"
        ):
            use()


def shaken(what, precision, random):
    """The program with its weights moved at random by up to half a step of the precision, as rounding moves them."""

    def move(weights):
        if weights.ndim != 2:
            return weights
        # An int8 has 127 steps up to the largest of its column, a bfloat16 8 significant bits.
        halves = {
            "int8": np.abs(weights).max(axis=0) / 254,
            "bfloat16": np.ldexp(0.5, np.frexp(weights)[1] - 8),
        }
        half = halves[precision]
        return (weights + random.uniform(-half, half, weights.shape)).astype(np.float32)

    nodes = (
        dataclasses.replace(node, arrays={name: move(array) for name, array in node.arrays.items()})
        for node in what.nodes
    )
    return Program(tuple(nodes), what.outputs)


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_narrow_weights_change_forecasts_as_much_as_random_rounding_would(precision):
    rows = series(50, WINDOW)
    exact = packed().forecast(rows)

    def error(made):
        return np.sqrt(np.mean(((made - exact) / [100.0, 4.0]) ** 2))

    random = np.random.default_rng(1)
    draws = [error(packed(what=shaken(program(), precision, random)).forecast(rows)) for _ in range(8)]
    assert min(draws) / 2 < error(packed(precision).forecast(rows)) < 2 * max(draws)


def test_forecast_of_files_continues_each_series_as_forecast_does(tmp_path):
    north, south = write_series(tmp_path / "s.csv")
    model = packed(series_column=["region"])
    found = model.forecast_files([tmp_path / "s.csv"])
    assert [example.series for example in found] == ["n", "s"]
    for example, rows in zip(found, (north, south), strict=True):
        made = model.forecast(rows[:, :2])
        np.testing.assert_allclose(example.forecast, made, atol=1e-6 * np.ptp(made), rtol=0)
        np.testing.assert_allclose(example.past, rows[:, [2, 0]], rtol=1e-6)
        assert example.targets == ("price", "load")
        assert example.truth is None
        assert example.times.astype("datetime64[h]").astype(str).tolist() == [
            "2024-02-29T06", "2024-02-29T07", "2024-02-29T08"
        ]  # fmt: skip


def test_series_forecast_a_few_at_once_are_forecast_alike(tmp_path, monkeypatch):
    write_series(tmp_path / "s.csv")
    model = packed(series_column=["region"], quantiles=(0.2, 0.8))
    together = model.forecast_files([tmp_path / "s.csv"])
    monkeypatch.setattr(forecasting, "_SERIES_AT_ONCE", 1)
    told = []
    by_ones = model.forecast_files([tmp_path / "s.csv"], progress=lambda *both: told.append(both))
    assert told == [(1, 2), (2, 2)]
    for one, other in zip(by_ones, together, strict=True):
        np.testing.assert_allclose(one.forecast, other.forecast, atol=1e-6 * np.ptp(other.forecast), rtol=0)


def test_files_that_are_too_short_or_lack_a_column_are_refused(tmp_path):
    (tmp_path / "s.csv").write_text("load,wind,price\n" + "1,2,3\n" * (WINDOW - 1))
    with pytest.raises(DataError, match="ends with 5 rows"):
        packed().forecast_files([tmp_path / "s.csv"])
    (tmp_path / "s.csv").write_text("load,price\n" + "1,3\n" * WINDOW)
    with pytest.raises(DataError, match="'wind'"):
        packed().forecast_files([str(tmp_path / "s.csv")])


def test_rows_and_npy_files_are_forecast_without_a_framework_or_pyarrow(tmp_path):
    known = Scaler(["0", "1"], [20.0, 5.0], [4.0, 0.5])
    about = header(scaler=known, target=["1", "0"], feature=["0", "1"])
    write_cell(tmp_path / "m.cell", program(), header=about)
    np.save(tmp_path / "s.npy", series(30).astype(np.float32))
    code = ALONE.format(refused=(*FRAMEWORKS, "pyarrow")) + (
        "import cellerate, numpy as np; m = cellerate.load(sys.argv[1])\n"
        "assert np.array_equal(m.forecast(np.load(sys.argv[2])), m.forecast_files([sys.argv[2]])[0].forecast)\n"
        "print(m.forecast_files([sys.argv[2]])[0].times.tolist())"
    )
    words = [tmp_path / "m.cell", tmp_path / "s.npy"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[30, 31, 32]\n", "")


def test_program_forecasts_from_a_file_without_keras_or_a_framework(tmp_path):
    write_series(tmp_path / "s.csv")
    write_cell(tmp_path / "m.cell", program(), header=header(series_column=["region"]))
    code = ALONE.format(refused=FRAMEWORKS) + (
        "from cellerate.cli.main import main; sys.argv = ['cellerate', *sys.argv[1:]]; main()"
    )
    words = ["forecast", tmp_path / "m.cell", tmp_path / "s.csv", "-o", tmp_path / "f.csv"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, f"written: {tmp_path / 'f.csv'}\n")
    columns, *rows = csv.reader(io.StringIO((tmp_path / "f.csv").read_text()))
    assert columns == ["series", "time", "price", "load"]
    assert [row[0] for row in rows] == ["n"] * 3 + ["s"] * 3
    found = packed(series_column=["region"]).forecast_files([tmp_path / "s.csv"])
    assert (
        np.array([row[2:] for row in rows], float).tolist()
        == np.concatenate([e.forecast for e in found]).tolist()
    )
    assert done.stdout.splitlines()[0] == "series,time,price,load"


def write_shops(path, lengths):
    """Series of so many rows each, day by day."""
    lines = ["shop,date,load,wind,price"]
    for shop, rows in lengths.items():
        for row in range(rows):
            lines.append(
                f"{shop},{np.datetime64('2024-01-01') + np.timedelta64(row, 'D')},{20 + row},{5 + row % 2},{-3 + row}"
            )
    path.write_text("\n".join(lines) + "\n")
    return path


def test_series_that_are_too_short_are_left_out_and_named(tmp_path):
    path = write_shops(tmp_path / "s.csv", {"a": 9, "b": WINDOW - 1, "c": WINDOW})
    model = packed(series_column=["shop"])
    assert [example.series for example in model.forecast_files([path])] == ["a", "c"]
    told = []
    write_cell(tmp_path / "m.cell", program(), header=header(series_column=["shop"]))
    examples = inference.forecast(tmp_path / "m.cell", path, notify=told.append)
    assert len(examples) == 2
    assert told == [
        "1 of 3 series left out, because they end with fewer than 6 rows without a gap: b (5 rows)"
    ]


def test_series_that_are_all_too_short_are_refused(tmp_path):
    path = write_shops(tmp_path / "s.csv", {"a": 3, "b": WINDOW - 1})
    with pytest.raises(DataError, match=r"the longest of 2 series, 'b', ends with 5 rows.*needs 6"):
        packed(series_column=["shop"]).forecast_files([path])


def test_reading_options_may_differ_from_training(tmp_path):
    path = write_shops(tmp_path / "s.csv", {"a": 9})
    path.write_text(path.read_text() + "a,2024-01-09,28,5,7\na,2024-01-10,,5,7\n")
    write_cell(tmp_path / "m.cell", program(), header=header(series_column=["shop"]))
    with pytest.raises(DataError, match="missing='drop'"):
        inference.forecast(tmp_path / "m.cell", path)
    with pytest.raises(DataError, match="duplicates='first'"):
        inference.forecast(tmp_path / "m.cell", path, missing="ffill")
    (found,) = inference.forecast(tmp_path / "m.cell", path, missing="ffill", duplicates="last")
    assert found.times[0] == np.datetime64("2024-01-11")
    assert found.past[-2].tolist() == [7, 28]


@pytest.mark.parametrize(
    ("times", "following"),
    [
        ([f"2023-10-25 {hour}:00:00+02:00" for hour in range(16, 24)], "2023-10-26 00:00:00+02:00"),
        ([f"{1_674_690_000 + 3600 * n}" for n in range(8)], 1_674_690_000 + 8 * 3600),
        ([f"2020-{month:02}" for month in range(5, 13)], "2021-01"),
        ([f"{day:02}.01.2020" for day in (20, 21, 22, 23, 24, 27, 28, 29, 30, 31)], "03.02.2020"),
        (["20200224", "20200225", "20200226", "20200227", "20200228", "20200229"], 20200301),
    ],
)
def test_times_of_forecasts_go_on_in_the_form_of_the_file(tmp_path, times, following):
    lines = ["date,load,wind,price", *(f"{time},{20 + n},5,{n}" for n, time in enumerate(times))]
    (tmp_path / "s.csv").write_text("\n".join(lines) + "\n")
    write_cell(tmp_path / "m.cell", program(), header=header())
    (example,) = inference.forecast(tmp_path / "m.cell", tmp_path / "s.csv")
    assert example_record(example)["rows"][0]["time"] == following
    code = "from cellerate.cli.main import main; import sys; sys.argv = ['cellerate', *sys.argv[1:]]; main()"
    words = ["forecast", tmp_path / "m.cell", tmp_path / "s.csv", "-o", tmp_path / "f.csv"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.splitlines()[1].split(",")[0] == str(following)
    assert (tmp_path / "f.csv").read_text().splitlines()[1].split(",")[0] == str(following)


def test_parquet_of_forecasts_has_times_with_their_zone(tmp_path):
    lines = [
        "date,load,wind,price",
        *(f"2023-10-25 {hour}:00:00+02:00,20,5,{hour}" for hour in range(16, 24)),
    ]
    (tmp_path / "s.csv").write_text("\n".join(lines) + "\n")
    examples = packed().forecast_files([tmp_path / "s.csv"])
    column = forecast_columns(examples)["time"]
    assert str(column.type) == "timestamp[us, tz=+02:00]"
    assert column[0].as_py().isoformat() == "2023-10-26T00:00:00+02:00"


def test_packed_series_refuses_other_reading_options(tmp_path):
    pack_series(
        write_shops(tmp_path / "s.csv", {"a": 9}), tmp_path / "s.series", Reading(series_column="shop")
    )
    write_cell(tmp_path / "m.cell", program(), header=header(series_column=["shop"]))
    assert len(inference.forecast(tmp_path / "m.cell", tmp_path / "s.series")) == 1
    with pytest.raises(ConfigError, match=r"duplicates is 'mean'.*packed, with 'error'"):
        inference.forecast(tmp_path / "m.cell", tmp_path / "s.series", duplicates="mean")
