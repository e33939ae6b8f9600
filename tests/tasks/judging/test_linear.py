import numpy as np
import pytest

from cellerate.data.series.series import SeriesData
from cellerate.tasks.judging import linear
from cellerate.tasks.judging.baselines import Baselines
from cellerate.tasks.judging.linear import fit_linear, shares_map

W, H = 5, 3


def series(values, segments):
    return SeriesData(
        values=np.asarray(values, np.float32),
        columns=("a", "b"),
        feature_columns=(0, 1),
        target_columns=(0, 1),
        times=None,
        segments=segments,
        step=None,
        fingerprint="",
    )


def noise(rows, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, 2)).astype(np.float32)


def by_least_squares(values, starts, penalty_share, scale=1.0):
    """The same by an augmented least squares problem, for one target: (W + 1, H)."""
    values = values.astype(np.float64)
    cut = np.array([values[s : s + W + H] - values[s + W - 1] for s in starts]) / scale
    inputs = np.column_stack([cut[:, :W], np.ones(len(starts))])
    penalty = penalty_share * (inputs[:, :W] ** 2).sum() / W + 1e-12
    rows = np.sqrt(penalty) * np.eye(W + 1)[:W]
    return np.linalg.lstsq(np.vstack([inputs, rows]), np.vstack([cut[:, W:], np.zeros((W, H))]), rcond=None)[
        0
    ]


def test_fit_equals_least_squares_with_a_penalty_for_each_target_and_crosses_no_gap():
    values = noise(80)
    data = series(values, ((0, 30, ""), (30, 80, "")))
    found = fit_linear(data.whole(), W, H, {"": np.array([2.0, np.nan])})
    starts = [*range(30 - W - H + 1), *range(30, 80 - W - H + 1)]
    for target, scale in enumerate((2.0, 1.0)):
        expected = by_least_squares(values[:, target], starts, linear._RIDGE, scale)
        np.testing.assert_allclose(found.coefficients[target], expected, atol=1e-9)


def test_fit_in_blocks_equals_that_at_once(monkeypatch):
    data = series(noise(300), ((0, 120, ""), (150, 300, "")))
    at_once = fit_linear(data.whole(), W, H, {"": np.ones(2)})
    monkeypatch.setattr(linear, "_NUMBERS_AT_ONCE", 200)
    np.testing.assert_allclose(
        fit_linear(data.whole(), W, H, {"": np.ones(2)}).coefficients, at_once.coefficients
    )


def test_fit_of_more_windows_than_it_takes_uses_some_spread_over_all(monkeypatch):
    values = noise(200)
    monkeypatch.setattr(linear, "MOST_WINDOWS", 20)
    found = fit_linear(series(values, ((0, 200, ""),)).whole(), W, H, {"": np.ones(2)})
    starts = np.linspace(0, 200 - W - H, 20).astype(int)
    np.testing.assert_allclose(
        found.coefficients[0], by_least_squares(values[:, 0], starts, linear._RIDGE), atol=1e-9
    )


def test_linear_trend_is_continued_and_a_shift_of_the_level_shifts_the_forecast():
    line = np.column_stack([np.arange(100), 3 - 2 * np.arange(100)])
    found = fit_linear(series(line, ((0, 100, ""),)).whole(), W, H, {"": np.array([1.0, 2.0])})
    past = np.stack([line[10 : 10 + W], line[10 : 10 + W] + 1000.0])
    made = found.forecast(past, np.array([[1.0, 2.0]] * 2))
    np.testing.assert_allclose(made[0], line[10 + W : 10 + W + H], atol=1e-2)
    np.testing.assert_allclose(made[1], made[0] + 1000, rtol=1e-9)


def test_series_that_never_changes_leaves_the_fit_of_the_others_in_any_units():
    rising = (np.arange(60)[:, None] + noise(60)) * np.float32(1e4)
    still = np.full((60, 2), np.float32(7e4))
    scales = {"r": np.full(2, 1e4), "s": np.full(2, np.nan)}
    data = series(np.concatenate([rising, still]), ((0, 60, "r"), (60, 120, "s"))).whole()
    alone = series(rising, ((0, 60, "r"),)).whole()
    found = fit_linear(data, W, H, scales)
    np.testing.assert_allclose(
        found.coefficients, fit_linear(alone, W, H, {"r": scales["r"]}).coefficients, rtol=1e-6
    )
    past = np.full((1, W, 2), 7e4)
    np.testing.assert_array_equal(found.forecast(past, np.full((1, 2), np.nan)), np.full((1, H, 2), 7e4))


def test_fit_beside_a_series_that_never_changes_does_not_depend_on_the_units_of_the_data():
    values = np.concatenate([np.arange(60)[:, None] + noise(60), np.full((60, 2), np.float32(7))])
    found = []
    for unit in (1.0, 4096.0):
        data = series(values * np.float32(unit), ((0, 60, "r"), (60, 120, "s"))).whole()
        scales = {"r": np.full(2, unit), "s": np.full(2, np.nan)}
        found.append(fit_linear(data, W, H, scales, {name: np.full(2, 3 * unit) for name in "rs"}))
    np.testing.assert_allclose(found[1].coefficients, found[0].coefficients, rtol=1e-9)


def test_series_of_large_numbers_counts_no_more_than_one_of_small_ones():
    small, large = noise(60, 1), noise(60, 2)
    scales = {"s": np.ones(2), "l": np.full(2, 1e4)}
    values = np.concatenate([small, large * np.float32(1e4)])
    found = fit_linear(series(values, ((0, 60, "s"), (60, 120, "l"))).whole(), W, H, scales)
    alike = fit_linear(
        series(np.concatenate([small, large]), ((0, 60, "s"), (60, 120, "l"))).whole(),
        W,
        H,
        {"s": np.ones(2), "l": np.ones(2)},
    )
    np.testing.assert_allclose(found.coefficients, alike.coefficients, rtol=1e-4, atol=1e-6)


def test_series_that_never_changes_is_forecast_as_it_is():
    found = fit_linear(series(np.full((40, 2), 7.0), ((0, 40, ""),)).whole(), W, H, {"": np.full(2, np.nan)})
    np.testing.assert_allclose(found.forecast(np.full((1, W, 2), 7.0), np.ones((1, 2))), 7.0)


def test_fit_that_would_take_too_much_memory_is_left_out_and_said_so(monkeypatch):
    part = series(noise(40), ((0, 40, ""),)).whole()
    assert Baselines.fit(part, W, H, None).linear is not None
    monkeypatch.setattr(linear, "_MOST_NUMBERS", (W + 1) * (W + 1 + H) - 1)
    found = Baselines.fit(part, W, H, None)
    assert found.linear is None
    assert "memory" in found.why_not_linear


def test_targets_that_are_too_many_for_a_map_each_share_one(monkeypatch):
    values = noise(80)
    part = series(values, ((0, 80, ""),)).whole()
    scales = {"": np.array([2.0, 0.5])}
    assert not shares_map(2, W, H)
    monkeypatch.setattr(linear, "_MOST_NUMBERS", 2 * (W + 1) * (W + 1 + H) - 1)
    assert shares_map(2, W, H)
    found = Baselines.fit(part, W, H, None).linear
    assert found.coefficients.shape == (1, W + 1, H)
    found = fit_linear(part, W, H, scales)
    starts = range(80 - W - H + 1)
    cut = [
        (values[s : s + W + H, t].astype(np.float64) - values[s + W - 1, t]) / scales[""][t]
        for t in range(2)
        for s in starts
    ]
    both = np.array(cut)
    inputs = np.column_stack([both[:, :W], np.ones(len(both))])
    penalty = linear._RIDGE * (both[:, :W] ** 2).sum() / W + 1e-12
    expected = np.linalg.solve(inputs.T @ inputs + np.diag([penalty] * W + [0.0]), inputs.T @ both[:, W:])
    np.testing.assert_allclose(found.coefficients[0], expected, atol=1e-9)
    past = values[None, :W].astype(np.float64)
    made = found.forecast(past, scales[""][None])
    one = past[0, :, 1]
    wanted = one[-1] + (one - one[-1]) @ expected[:W] + expected[W] * 0.5
    np.testing.assert_allclose(made[0, :, 1], wanted)


def test_constant_is_in_the_units_that_were_asked_for():
    part = series(noise(80).cumsum(axis=0) + np.arange(80)[:, None], ((0, 80, ""),)).whole()
    scales, units = {"": np.array([2.0, 3.0])}, {"": np.array([10.0, 0.1])}
    plain, other = fit_linear(part, W, H, scales), fit_linear(part, W, H, scales, units)
    factor = (scales[""] / units[""])[:, None]
    np.testing.assert_allclose(other.coefficients[:, W], plain.coefficients[:, W] * factor, rtol=1e-6)
    past = noise(W, 3)[None].astype(np.float64)
    np.testing.assert_allclose(
        other.forecast(past, units[""][None]), plain.forecast(past, scales[""][None]), rtol=1e-6
    )


@pytest.mark.parametrize("rows", [W, W + H])
def test_part_with_too_few_windows_gives_no_forecast(rows):
    assert fit_linear(series(noise(rows), ((0, rows, ""),)).whole(), W, H, {"": np.ones(2)}) is None
