import dataclasses
import json

import numpy as np
import pytest

from cellerate.errors import ConfigError
from cellerate.runtime.forecast.intervals import (
    Calibration,
    check_level,
    conformal_quantile,
    conformity_scores,
    interval,
    interval_coverage,
    point_of,
    scale_floor,
    window_scale,
)

HORIZON, TARGETS = 3, 2


def calibration(windows=400, rows=400, **changes):
    random = np.random.default_rng(3)
    made = Calibration.of(
        np.abs(random.normal(size=(windows, HORIZON, TARGETS))) * [1.0, 10.0],
        np.abs(random.normal(size=(rows, TARGETS))),
        floor=changes.pop("floor", None),
        non_negative=np.array([True, False]),
        until=1_600_000_000_000_000,
    )
    return dataclasses.replace(made, **changes) if made is not None else None


# --- the quantile


@pytest.mark.parametrize(("count", "level"), [(9, 0.8), (19, 0.95), (50, 0.8), (133, 0.95)])
def test_conformal_quantile_of_exchangeable_scores_covers_a_new_one_exactly_as_often_as_promised(
    count, level
):
    trials = 40_000
    draws = np.random.default_rng(count).exponential(size=(count + 1, trials))
    covered = (draws[-1] <= conformal_quantile(draws[:-1], level)).mean()
    rank = np.ceil((count + 1) * level - 1e-9)
    exact = rank / (count + 1)
    assert level - 1e-12 <= exact < level + 1 / (count + 1)
    # Four standard errors of the simulation.
    assert covered == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / trials))


def test_conformal_quantile_takes_the_rank_of_one_more_score_for_each_column():
    scores = np.array([[5.0, 1.0], [1.0, 2.0], [3.0, 3.0], [2.0, 4.0]])
    assert conformal_quantile(scores, 0.8).tolist() == [5.0, 4.0]
    assert conformal_quantile(scores, 0.6).tolist() == [3.0, 3.0]
    # 0.95 of 20 is 19.000000000000004 in float64 when it is computed so.
    assert conformal_quantile(np.arange(19.0)[:, None], 0.95).tolist() == [18.0]


def test_conformal_quantile_of_too_few_scores_is_infinite():
    assert np.isinf(conformal_quantile(np.ones((18, 2)), 0.95)).all()


@pytest.mark.parametrize("level", [0, 1, -0.5, 95, float("nan"), "0.9", True])
def test_level_that_is_no_share_is_refused(level):
    with pytest.raises(ConfigError, match="level must be between 0 and 1"):
        check_level(level)


# --- scores and intervals


@pytest.mark.parametrize("quantiles", [(), (0.5,), (0.1, 0.9), (0.1, 0.5, 0.9)])
def test_truth_is_inside_an_interval_exactly_if_its_score_is_within_reach(quantiles):
    random = np.random.default_rng(5)
    shape = (200, HORIZON, TARGETS, *([len(quantiles)] if quantiles else []))
    # Quantiles that cross now and then, too.
    forecast = random.normal(size=shape)
    if quantiles:
        forecast += 0.3 * np.arange(len(quantiles))
    truth = random.normal(size=shape[:3])
    scores = conformity_scores(truth, forecast, quantiles)
    reach = conformal_quantile(scores, 0.8)
    assert (reach > 0).all()
    both = interval(forecast, quantiles, reach, np.zeros(TARGETS, bool))
    inside = (truth >= both[..., 0]) & (truth <= both[..., 1])
    assert both.shape == (200, HORIZON, TARGETS, 2)
    np.testing.assert_array_equal(inside, scores <= reach)
    assert inside.mean() == pytest.approx(0.8, abs=0.02)


def test_interval_narrowed_by_more_than_its_half_is_its_middle():
    forecast = np.array([[[0.0, 4.0]]])
    for reach, expected in ((-1.0, [1.0, 3.0]), (-5.0, [2.0, 2.0])):
        both = interval(forecast, (0.1, 0.9), np.array([[reach]]), np.array([False]))
        assert both.ravel() == pytest.approx(expected)


def test_interval_of_a_target_that_was_never_negative_ends_at_0():
    both = interval(np.array([[1.0, 1.0], [-9.0, -9.0]]), (), np.full((2, 2), 3.0), np.array([True, False]))
    expected = [[[0.0, 4.0], [-2.0, 4.0]], [[0.0, 0.0], [-12.0, -6.0]]]
    np.testing.assert_allclose(both, expected, atol=1e-9)
    assert both[..., 0, :].min() == 0


def test_scale_of_a_flat_window_is_not_zero():
    past = np.zeros((4, 6, 2))
    past[:3, ::2, 0] = 2.0
    spread = window_scale(past)
    assert spread.tolist() == [[1.0, 0.0]] * 3 + [[0.0, 0.0]]
    assert scale_floor(spread) == pytest.approx([0.1, 1.0])
    # Most windows are flat: the mean stands for the median.
    assert scale_floor(np.array([[0.0], [0.0], [3.0]])) == pytest.approx([0.1])


def test_interval_coverage_counts_the_edges_and_gives_the_mean_width():
    truth = np.array([[1.0], [2.0], [3.0], [9.0]])
    both = np.stack([np.full((4, 1), 1.0), np.array([[2.0], [2.0], [3.5], [8.5]])], axis=-1)
    assert interval_coverage(truth, {0.8: both}) == {"0.8": {"coverage": 0.75, "width": 3.0}}
    # Two targets may have two units.
    both, truth = np.repeat(both, 2, axis=1), np.repeat(truth, 2, axis=1)
    assert interval_coverage(truth, {0.8: both}) == {"0.8": {"coverage": 0.75}}


@pytest.mark.parametrize(
    ("quantiles", "wanted"),
    [
        ((), [[1.0, 2.0, 4.0, 8.0]]),
        ((0.1, 0.5, 0.8, 0.9), [2.0]),
        ((0.1, 0.4, 0.6, 0.9), [3.0]),
        ((0.1, 0.2, 0.3, 0.9), [4.0 + 4.0 / 3]),
        ((0.1, 0.2, 0.3, 0.4), [8.0]),
        ((0.6, 0.7, 0.8, 0.9), [1.0]),
    ],
)
def test_point_forecast_is_the_median_of_quantiles(quantiles, wanted):
    point = point_of(np.array([[1.0, 2.0, 4.0, 8.0]]), quantiles)
    np.testing.assert_allclose(point, wanted, rtol=1e-12)


def test_interval_around_forecasts_that_are_all_off_by_the_same_holds_them_all():
    forecast = np.random.default_rng(1).uniform(1, 1000, (300, HORIZON, TARGETS))
    truth = forecast + 0.1
    scores = conformity_scores(truth, forecast, ())
    kept = Calibration.of(scores, scores[:, 0], floor=None, non_negative=np.zeros(TARGETS, bool), until=None)
    kept = Calibration.from_config(kept.to_config(), HORIZON, TARGETS)
    both = interval(forecast, (), kept.reach_at(0.99), kept.non_negative)
    assert interval_coverage(truth, {0.99: both})["0.99"]["coverage"] == 1


def test_interval_around_large_numbers_is_no_wider_than_its_reach():
    forecast, reach = np.full((1, HORIZON, TARGETS), 1e15), np.full((HORIZON, TARGETS), 10.0)
    both = interval(forecast, (), reach, np.zeros(TARGETS, bool))
    assert (np.abs(both - [1e15 - 10, 1e15 + 10]) <= 2).all()


# --- what is kept


def test_calibration_through_json_gives_the_same_reach():
    made = calibration(floor=np.array([0.5, 0.25]))
    again = Calibration.from_config(json.loads(json.dumps(made.to_config())), HORIZON, TARGETS)
    for level in (0.05, 0.8, 0.87, 0.95, 0.99):
        assert again.reach_at(level) == pytest.approx(made.reach_at(level), rel=2e-5)
        assert again.reach_at(level, rows=True) == pytest.approx(made.reach_at(level, rows=True), rel=2e-5)
    assert (again.windows, again.scored_rows, again.until) == (400, 400, made.until)
    assert again.floor.tolist() == [0.5, 0.25]
    assert again.non_negative.tolist() == [True, False]


def test_calibration_between_kept_levels_reaches_at_least_as_far_as_the_scores_themselves():
    scores = np.abs(np.random.default_rng(0).normal(size=(5000, 1, 1)))
    made = Calibration.of(scores, scores[:, 0], floor=None, non_negative=np.array([False]), until=None)
    for level in (0.65, 0.77, 0.88, 0.91, 0.96, 0.985):
        exact = conformal_quantile(scores, level)
        assert exact - 0.01 <= made.reach_at(level) < 1.08 * exact


def test_calibration_of_few_scores_keeps_only_the_levels_that_these_can_show():
    made = calibration(windows=30)
    assert made.grid[-1] == 0.95
    with pytest.raises(ConfigError, match=r"on 30 held-out windows, enough for levels up to 0\.95"):
        made.reach_at(0.96)
    assert calibration(windows=1).grid.tolist() == [0.1, 0.2, 0.3, 0.4, 0.5]


def test_calibration_of_very_many_targets_keeps_fewer_levels():
    scores = np.ones((200, 60, 100))
    made = Calibration.of(scores, scores[:, 0], floor=None, non_negative=np.zeros(100, bool), until=None)
    assert made.grid.tolist() == [0.5, 0.8, 0.9, 0.95, 0.99]


def test_p_value_of_a_row_is_the_share_of_held_out_rows_as_far_off():
    made = calibration(windows=5000, rows=5000)
    median = made.reach_at(0.5, rows=True)
    assert made.p_values(median[None]) == pytest.approx(0.5)
    assert made.p_values(made.reach_at(0.99, rows=True)[None]) == pytest.approx(0.01)
    assert made.p_values(np.zeros((1, TARGETS))) == pytest.approx(1.0)
    assert made.p_values(np.full((1, TARGETS), 1e9)) == pytest.approx(0.001)
    assert calibration(rows=30).p_values(np.full((1, TARGETS), 1e9)) == pytest.approx(0.05)


@pytest.mark.parametrize(
    "change",
    [
        {"grid": []},
        {"grid": [0.9] * 400},
        {"grid": "x"},
        {"grid": [0.9, 0.8]},
        {"reach": [[1.0]]},
        {"reach": float("inf")},
        {"reach": [[[float("nan")] * TARGETS] * HORIZON] * 18},
        {"rows": [["a", "b"]] * 18},
        {"rows": [[True, False]] * 18},
        {"windows": -1},
        {"windows": 3.5},
        {"scored_rows": 1 << 60},
        {"floor": [0.0, 1.0]},
        {"floor": [1.0]},
        {"non_negative": [1, 0]},
        {"non_negative": [True]},
        {"until": "2020-01-01"},
        {"until": float("nan")},
        {"until": 1 << 70},
        {"more": 1},
    ],
)
def test_calibration_that_is_damaged_is_refused(change):
    config = calibration().to_config() | change
    with pytest.raises(ValueError, match="calibration"):
        Calibration.from_config(config, HORIZON, TARGETS)
    with pytest.raises(ValueError, match="calibration"):
        Calibration.from_config([config], HORIZON, TARGETS)
