import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from cellerate.runtime.forecast.forecasting import Example
from cellerate.tasks import inference
from cellerate.tasks.judging.forecast_frame import Forecasts
from support.packed_forecaster import packed

TIMES = np.datetime64("2024-01-01", "us") + np.arange(2) * np.timedelta64(1, "D")


def example(series, *, quantiles=()):
    shape = (2, 1, len(quantiles)) if quantiles else (2, 1)
    return Example(
        targets=("y",),
        past_times=TIMES,
        past=np.zeros((2, 1)),
        times=TIMES,
        truth=None,
        forecast=np.arange(np.prod(shape), dtype=float).reshape(shape),
        quantiles=quantiles,
        series=series,
    )


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("CELLERATE_CACHE", str(tmp_path / "cache"))


def test_forecasts_are_a_tuple_and_a_table():
    forecasts = Forecasts([example("a"), example("b")])
    assert isinstance(forecasts, tuple) and [one.series for one in forecasts] == ["a", "b"]
    expected = {"series": ["a", "a", "b", "b"], "time": [*TIMES.tolist()] * 2, "y": [0.0, 1.0, 0.0, 1.0]}
    assert forecasts.to_arrow().to_pydict() == expected
    assert forecasts.to_polars().to_dict(as_series=False) == expected
    frame = forecasts.to_pandas()
    assert isinstance(frame, pd.DataFrame) and list(frame.columns) == ["series", "time", "y"]
    assert frame["time"].dtype.kind == "M"
    assert pa.RecordBatchReader.from_stream(forecasts).read_all().to_pydict() == expected


def test_quantiles_have_columns_of_their_own():
    assert Forecasts([example("", quantiles=(0.1, 0.9))]).to_arrow().column_names == [
        "time",
        "y_q0.1",
        "y_q0.9",
    ]


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "arrow"])
def test_forecast_of_a_frame_is_that_of_its_file(kind, tmp_path):
    rows = np.random.default_rng(0).normal([20.0, 5.0, -3.0], 1.0, (30, 3))
    days = np.datetime64("2024-01-01", "us") + np.arange(30) * np.timedelta64(1, "D")
    columns = {"price": rows[:, 2], "date": days, "wind": rows[:, 1], "load": rows[:, 0]}
    pd.DataFrame(columns).to_csv(tmp_path / "t.csv", index=False)
    model = packed()
    (expected,) = inference.forecast(model, tmp_path / "t.csv")
    made = inference.forecast(model, kind(columns))
    np.testing.assert_allclose(made[0].forecast, expected.forecast)
    assert made.to_arrow().column("time").to_pylist() == expected.times.tolist()
    (again,) = model.forecast_files(kind(columns))
    np.testing.assert_array_equal(again.forecast, made[0].forecast)


def test_forecast_takes_the_options_of_tables_and_tells_how_it_read(tmp_path):
    lines = ["price;wind;load", *(f"{n},5;5,25;20" for n in range(30))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    said: list[str] = []
    inference.forecast(packed(), tmp_path / "t.csv", notify=said.append)
    assert said == [
        f"{tmp_path / 't.csv'} read as: ';' between columns, ',' decimal",
        "no time column found: rows count as steps; name it with time_column",
    ]
    inference.forecast(packed(), tmp_path / "t.csv", decimal="comma", separator=";")
