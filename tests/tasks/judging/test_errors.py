import dataclasses

import numpy as np
import pytest

from cellerate.data.series.series import open_series
from cellerate.data.settings import Reading
from cellerate.errors import ConfigError
from cellerate.runtime.packed import PackedModel
from cellerate.tasks.judging import errors as series_errors
from cellerate.tasks.judging.errors import baselines_for, forecaster_report, judge_windows, part_of
from cellerate.tasks.judging.evaluation import evaluate_forecaster
from cellerate.tasks.judging.metrics import central_intervals
from cellerate.tasks.opening import forecaster_of
from support import packed_forecaster
from support.packed_forecaster import HORIZON, WINDOW

QUANTILES = (0.2, 0.5, 0.8)
SETTINGS = {"series_column": ["region"], "season": 4, "train_fraction": 0.5, "validation_fraction": 0.1}


@pytest.fixture
def path(tmp_path):
    packed_forecaster.write_series(tmp_path / "s.csv")
    return tmp_path / "s.csv"


def opened(path, *, known=True, precision="float32", quantiles=(), **settings):
    """A packed forecaster, and whether its record says that it was trained on the file."""
    model = packed_forecaster.packed(precision, quantiles=quantiles, **(SETTINGS | settings))
    if known:
        data = forecaster_of(model).open([path])
        header = dict(model.cell.header)
        header["payload"] = header["payload"] | {"data": {"fingerprint": data.fingerprint}}
        object.__setattr__(model.cell, "header", header)
    return model


def by_hand(model: PackedModel, path, begin, train):
    """All figures of both targets, window by window, for the rows from `begin` on of each series of 30 rows."""
    data = open_series(
        [path], Reading(targets=["price", "load"], features=["load", "wind"], series_column=["region"])
    )
    values = np.asarray(data.values, np.float64)[:, [2, 0]]
    found = {name: [] for name in ("model", "last_value", "seasonal_naive")}
    quantiles = model.quantiles or ()
    middle = len(quantiles) // 2
    inside = []
    for first in (0, 30):
        scale = np.abs(values[first + 4 : first + train] - values[first : first + train - 4]).mean(axis=0)
        for origin in range(first + max(begin, WINDOW), first + 30 - HORIZON + 1):
            truth = values[origin : origin + HORIZON]
            made = model.forecast(data.values[origin - WINDOW : origin, :2])
            inside.append((made[..., 0] <= truth) & (truth <= made[..., -1]) if quantiles else truth < 0)
            season = values[[origin - 4 + n % 4 for n in range(HORIZON)]]
            forecasts = (made[..., middle] if quantiles else made, values[[origin - 1] * HORIZON], season)
            for name, one in zip(found, forecasts, strict=True):
                error = np.abs(one - truth)
                smape = 200 * error / (np.abs(one) + np.abs(truth))
                found[name].append([error, error**2, smape, error / scale])
    means = {name: np.mean(one, axis=(0, 2)) for name, one in found.items()}
    return len(inside), means, np.mean(inside)


def test_figures_of_the_held_out_part_equal_those_computed_window_by_window(path):
    model = opened(path, quantiles=QUANTILES)
    found = evaluate_forecaster(forecaster_of(model), [path])
    windows, expected, inside = by_hand(model, path, begin=18, train=15)
    assert (found["windows"], found["part"], found["seen_by_training"]) == (windows, "held-out", 0)
    assert "left_out" not in found
    deviations = np.array([100.0, 4.0])
    for name, (mae, mse, smape, mase) in expected.items():
        for place, target in enumerate(("price", "load")):
            one = found["by_target"][target][name]
            assert one["mae"] == pytest.approx(mae[place], rel=1e-5)
            assert one["rmse"] == pytest.approx(np.sqrt(mse[place]), rel=1e-5)
            assert one["smape"] == pytest.approx(smape[place], rel=1e-5)
            assert one["mase"] == pytest.approx(mase[place], rel=1e-5)
        assert found[name]["mase"] == pytest.approx(mase.mean(), rel=1e-5)
        assert found[name]["scaled_mae"] == pytest.approx((mae / deviations).mean(), rel=1e-5)
    assert list(central_intervals(QUANTILES)) == [0.6]
    assert found["interval_coverage"] == pytest.approx({"60%": inside}, rel=1e-9)
    assert set(found["coverage"]) == {"q0.2", "q0.5", "q0.8"}
    assert set(found["nlinear"]) == set(found["last_value"])
    assert [row["series"] for row in found["by_series"]] in (["n", "s"], ["s", "n"])


def test_part_of_the_data_of_the_training_is_the_held_out_one_unless_all_is_asked_for(path):
    model = forecaster_of(opened(path))
    assert evaluate_forecaster(model, [path])["part"] == "held-out"
    found = evaluate_forecaster(model, [path], part="all")
    # Of 22 windows of each series, 10 lie in the test part.
    assert (found["part"], found["windows"], found["seen_by_training"]) == ("all", 44, 24)
    assert "24 of 44 windows lie in rows that training or validation used" in found["judged"]
    assert found["verdict"]["sentence"].endswith("It was trained on some of these rows.")
    assert "part='held-out'" in found["left_out"]["nlinear"]
    assert "nlinear" not in found


def test_part_of_other_data_is_all_of_them_and_says_that_nobody_knows_what_was_seen(path):
    found = evaluate_forecaster(forecaster_of(opened(path, known=False)), [path])
    assert (found["part"], found["windows"], found["seen_by_training"]) == ("all", 44, None)
    assert "not known" in found["judged"]
    with pytest.raises(ConfigError, match="part must be one of all, held-out, not 'some'"):
        evaluate_forecaster(forecaster_of(opened(path)), [path], part="some")


def test_training_data_without_a_test_part_are_judged_as_a_whole(path):
    model = opened(path, train_fraction=0.9, validation_fraction=0.1)
    assert evaluate_forecaster(forecaster_of(model), [path])["part"] == "all"


def test_test_size_cuts_the_held_out_part(path):
    model = opened(path, train_fraction=0.7, test_size=5)
    found = evaluate_forecaster(forecaster_of(model), [path])
    assert found["windows"] == 2 * (5 - HORIZON + 1)


def test_data_shorter_than_the_test_part_of_training_can_be_judged_as_a_whole(path):
    found = evaluate_forecaster(
        forecaster_of(opened(path, known=False, train_fraction=0.7, test_size=40)), [path]
    )
    assert found["windows"] == 44


def test_packed_model_of_int8_is_judged_by_its_own_forecasts(path):
    exact, rounded = opened(path), opened(path, precision="int8")
    found = [evaluate_forecaster(forecaster_of(model), [path]) for model in (exact, rounded)]
    assert found[1]["model"]["scaled_mae"] == pytest.approx(found[0]["model"]["scaled_mae"], rel=0.05)
    assert found[1]["model"]["scaled_mae"] != found[0]["model"]["scaled_mae"]
    _, expected, _ = by_hand(rounded, path, begin=18, train=15)
    assert found[1]["by_target"]["load"]["model"]["mae"] == pytest.approx(expected["model"][0][1], rel=1e-5)


def test_forecasts_at_origins_see_only_the_window_before_each(path):
    packed = opened(path)
    model = forecaster_of(packed)
    data = model.open([path])
    made = model.forecast_at(data, np.array([WINDOW, 40]))
    expected = [packed.forecast(data.values[o - WINDOW : o, :2]) for o in (WINDOW, 40)]
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)


def test_windows_are_judged_on_a_sample_where_time_is_short_and_on_all_where_it_is_not(path, monkeypatch):
    monkeypatch.setattr(series_errors, "_BATCH", 5)
    model = forecaster_of(opened(path))
    data = model.open([path])
    judged = part_of(model, data, "held-out")
    baselines = baselines_for(model, judged)
    whole = judge_windows(model, judged.part, baselines)
    every = int(whole.windows.sum())
    assert every > 3 * 5
    in_time = judge_windows(model, judged.part, baselines, seconds=3600.0)
    assert in_time.windows.tolist() == whole.windows.tolist()
    for name, sums in whole.sums.items():
        np.testing.assert_allclose(in_time.sums[name], sums, rtol=1e-9)
    counted = []
    short = judge_windows(model, judged.part, baselines, lambda *done: counted.append(done), seconds=0.0)
    assert counted == [(5, every)]
    assert short.windows.tolist() == [5, 0]
    # The windows of one batch: with a part that ends there they are all.
    (first, begin, _), *_ = judged.part.bounds
    few = dataclasses.replace(judged.part, bounds=((first, begin, begin + 5 + HORIZON - 1),))
    alone = judge_windows(model, few, baselines)
    for name, sums in alone.sums.items():
        np.testing.assert_allclose(short.sums[name][:1], sums, rtol=1e-9)
    report = forecaster_report(model, judged, baselines, short)
    assert report["windows"] == 5
    assert len(report["by_series"]) == 1
