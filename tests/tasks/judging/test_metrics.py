import dataclasses

import numpy as np
import pytest

from cellerate.data.series.series import SeriesData
from cellerate.tasks.judging.metrics import (
    ERRORS,
    central_intervals,
    covered,
    crps_weights,
    in_sample_errors,
    pinball_losses,
    window_errors,
)

QUANTILES = (0.1, 0.4, 0.5, 0.9)


def series(values, segments):
    return SeriesData(
        values=np.asarray(values, np.float32),
        columns=tuple("abcdef"[: len(values[0])]),
        feature_columns=(0,),
        target_columns=tuple(range(len(values[0]))),
        times=None,
        segments=segments,
        step=None,
        fingerprint="",
    )


def test_forecast_that_is_no_number_has_no_error_that_is_one():
    made = window_errors(np.array([[[np.nan], [1.0]]]), np.array([[[2.0], [1.0]]]))
    assert np.isnan(made).all()


def test_errors_of_windows_equal_those_by_hand():
    # Two windows of two steps and one target: errors 1 and -2; 0 and 3.
    made = window_errors(
        np.array([[[3.0], [1.0]], [[0.0], [-1.0]]]), np.array([[[2.0], [3.0]], [[0.0], [-4.0]]])
    )
    assert ERRORS == ("mae", "mse", "smape")
    # sMAPE: 200 * (1/5 + 2/4) / 2, and 200 * (0 + 3/5) / 2, where 0 for 0 is not an error.
    np.testing.assert_allclose(made, [[[1.5, 2.5, 70]], [[1.5, 4.5, 60]]], rtol=1e-12)


def test_errors_of_targets_are_kept_apart():
    made = window_errors(np.array([[[1.0, 100.0]]]), np.array([[[2.0, 300.0]]]))
    np.testing.assert_allclose(made[0, :, 0], [1, 200])


def test_pinball_losses_equal_the_definition_value_by_value():
    random = np.random.default_rng(0)
    truth, made = random.normal(size=(5, 3, 2)), np.sort(random.normal(size=(5, 3, 2, 4)))
    expected = np.zeros((5, 2, 4))
    for b, h, t, q in np.ndindex(5, 3, 2, 4):
        level, error = QUANTILES[q], truth[b, h, t] - made[b, h, t, q]
        expected[b, t, q] += (level * error if error >= 0 else (level - 1) * error) / 3
    np.testing.assert_allclose(pinball_losses(made, truth, QUANTILES), expected, rtol=1e-12)


def test_crps_of_a_median_alone_is_the_absolute_error():
    truth, made = np.array([[[2.0]]]), np.array([[[[5.0]]]])
    assert (pinball_losses(made, truth, (0.5,)) @ crps_weights((0.5,))).item() == 3.0


def test_crps_of_many_quantiles_is_that_of_the_distribution_they_come_from():
    # Uniform from 0 to 1: the CRPS of y is y^3/3 + (1-y)^3/3, from its definition as an integral.
    quantiles = np.arange(1, 400) / 400
    truth = np.array([0.3, 1.5]).reshape(2, 1, 1)
    made = np.broadcast_to(quantiles, (2, 1, 1, 399))
    found = (pinball_losses(made, truth, quantiles.tolist()) @ crps_weights(quantiles.tolist())).ravel()
    np.testing.assert_allclose(found, [(0.3**3 + 0.7**3) / 3, 1 / 3 + 0.5], atol=1e-4)


def test_crps_weights_of_uneven_quantiles_are_the_shares_that_they_stand_for():
    np.testing.assert_allclose(crps_weights((0.1, 0.5, 0.9)), [0.6, 0.8, 0.6])
    assert crps_weights(QUANTILES).sum() == pytest.approx(2)


def test_central_intervals_are_those_with_as_much_below_as_above():
    assert central_intervals((0.1, 0.2, 0.5, 0.8, 0.9)) == {0.8: (0, 4), 0.6: (1, 3)}
    assert central_intervals((0.025, 0.975)) == {0.95: (0, 1)}
    assert central_intervals(QUANTILES) == {0.8: (0, 3)}
    assert central_intervals((0.5,)) == {}


def test_coverage_counts_values_at_quantiles_and_within_intervals():
    # One window of four steps; quantiles 0.1 and 0.9 are 1 and 3 at each.
    truth = np.array([0.0, 1.0, 3.0, 4.0]).reshape(1, 4, 1)
    made = np.broadcast_to([1.0, 3.0], (1, 4, 1, 2))
    # At most 1: two; at most 3: three; within: the 1 and the 3, ends included.
    np.testing.assert_allclose(covered(made, truth, (0.1, 0.9)), [[[0.5, 0.75, 0.5]]])


def test_in_sample_errors_are_mean_changes_over_a_season_that_cross_no_gap():
    values = [[0, 5], [1, 5], [3, 5], [6, 5], [100, 5], [101, 5], [1, 1], [7, 3]]
    data = series(values, ((0, 4, "x"), (4, 6, "x"), (6, 8, "y")))
    found = in_sample_errors(data.whole(), 1)
    # x: 1, 2, 3 before the gap and 1 behind it; its second target never changes, so MASE has no meaning.
    np.testing.assert_allclose(found["x"], [7 / 4, np.nan])
    np.testing.assert_allclose(found["y"], [6, 2])
    np.testing.assert_allclose(in_sample_errors(data.whole(), 2)["x"], [(3 + 5) / 2, np.nan])
    assert np.isnan(in_sample_errors(data.whole(), 2)["y"]).all()


def test_in_sample_errors_of_a_season_that_repeats_but_for_rounding_are_none():
    wave = np.sin(np.arange(96) * 2 * np.pi / 24)[:, None]
    again = series(np.concatenate([wave, wave + 1e-3 * np.arange(96)[:, None]], axis=1), ((0, 96, "x"),))
    again = dataclasses.replace(again, values=again.values.astype(np.float64) + np.float64(1e-16))
    assert np.abs(again.values[24:, 0] - again.values[:-24, 0]).sum() > 0
    found = in_sample_errors(again.whole(), 24)["x"]
    assert np.isnan(found[0])
    assert found[1] == pytest.approx(0.024, rel=1e-3)


def test_in_sample_errors_in_blocks_equal_those_at_once(monkeypatch):
    values = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    monkeypatch.setattr("cellerate.tasks.judging.metrics._ROWS_AT_ONCE", 7)
    found = in_sample_errors(series(values, ((0, 50, ""),)).whole(), 3)
    np.testing.assert_allclose(
        found[""], np.abs(values[3:].astype(float) - values[:-3]).mean(axis=0), rtol=1e-12
    )
