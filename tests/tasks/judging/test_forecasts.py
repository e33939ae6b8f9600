import json

import numpy as np
import pytest

from cellerate.data.times.form import TimeForm
from cellerate.runtime.forecast.forecasting import Example
from cellerate.tasks.judging.forecasts import Naive, example_record, forecast_columns, forecast_table

HOUR = np.timedelta64(1, "h").astype("timedelta64[us]")


def minutes(count):
    return np.timedelta64(count, "m").astype("timedelta64[us]")


def example(**changes):
    times = np.array(["2024-02-28T23:00", "2024-02-29T00:00"], "datetime64[us]")
    return Example(
        **(
            {
                "targets": ("load", "price"),
                "past_times": times - HOUR,
                "past": np.zeros((2, 2)),
                "times": times,
                "truth": None,
                "forecast": np.array([[1.5, 2.0], [3.0, 4.25]]),
                "quantiles": (),
            }
            | changes
        )
    )


def test_last_value_repeats_the_last_row_of_each_window():
    past = np.array([[[1.0, 10], [2, 20], [3, 30]], [[4, 40], [5, 50], [6, 60]]])
    found = Naive(2, None).forecast("last_value", past)
    assert found.tolist() == [[[3, 30], [3, 30]], [[6, 60], [6, 60]]]


def test_seasonal_naive_repeats_the_last_season_also_when_the_horizon_is_longer():
    past = np.arange(1.0, 8)[None, :, None]
    found = Naive(5, 3).forecast("seasonal_naive", past)
    assert found[0, :, 0].tolist() == [5, 6, 7, 5, 6]
    assert Naive(2, 3).forecast("seasonal_naive", past)[0, :, 0].tolist() == [5, 6]


@pytest.mark.parametrize(
    ("season", "window", "names"),
    [
        (None, 9, ["last_value"]),
        (1, 9, ["last_value"]),
        (10, 9, ["last_value"]),
        (9, 9, ["last_value", "seasonal_naive"]),
    ],
)
def test_naive_names_only_what_a_window_allows(season, window, names):
    assert Naive(4, season).names(window) == names


def test_forecast_table_of_one_series_has_a_row_a_time():
    columns, rows = forecast_table([example()])
    assert columns == ["time", "load", "price"]
    assert rows == [["2024-02-28 23:00:00", 1.5, 2.0], ["2024-02-29 00:00:00", 3.0, 4.25]]


def test_forecast_table_of_several_series_names_them_and_their_quantiles():
    made = np.arange(8.0).reshape(2, 2, 2)
    some = [
        example(series=name, forecast=made + add, quantiles=(0.1, 0.9)) for name, add in (("a", 0), ("b", 10))
    ]
    columns, rows = forecast_table(some)
    assert columns == ["series", "time", "load_q0.1", "load_q0.9", "price_q0.1", "price_q0.9"]
    assert [row[0] for row in rows] == ["a", "a", "b", "b"]
    assert rows[1][2:] == [4, 5, 6, 7]
    assert rows[2][2:] == [10, 11, 12, 13]


def test_forecast_table_without_times_counts_rows():
    _, rows = forecast_table([example(times=np.array([7, 8]))])
    assert [row[0] for row in rows] == [7, 8]


def test_columns_of_one_name_are_all_there():
    of_level = {0.8: np.array([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])}
    one = example(targets=("time", "time_low80"), series="A", intervals=of_level)
    found = forecast_columns([one], {"fold": [1, 1]}, {"time_true": [0.0, 0.5], "fold": [7, 8]})
    assert list(found) == [
        *("fold", "series", "time", "time_", "time_low80"),
        *("time_low80_", "time_high80", "time_low80_low80", "time_low80_high80", "time_true", "fold_"),
    ]
    assert found["time_"].tolist() == [1.5, 3.0]
    assert found["time_low80"].tolist() == [2.0, 4.25]
    assert found["time_low80_"].tolist() == [1.0, 5.0]
    assert found["fold_"] == [7, 8]
    names, rows = forecast_table([one])
    assert rows[0][: names.index("time_low80")] == ["A", "2024-02-28 23:00:00", 1.5]


def test_example_record_is_json():
    record = json.loads(json.dumps(example_record(example(series="north"))))
    assert record["series"] == "north"
    assert record["rows"][1] == {
        "series": "north",
        "time": "2024-02-29 00:00:00",
        "load": 3.0,
        "price": 4.25,
    }


def test_forecast_table_writes_dates_as_the_data_do():
    form = TimeForm("text", "%d.%m.%Y %H:%M")
    assert [row[0] for row in forecast_table([example(form=form)])[1]] == [
        "28.02.2024 23:00",
        "29.02.2024 00:00",
    ]
    epoch = TimeForm("epoch", unit="s", zone="UTC", whole=True)
    assert [row[0] for row in forecast_table([example(form=epoch)])[1]] == [1_709_161_200, 1_709_164_800]
