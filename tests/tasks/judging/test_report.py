import numpy as np
import pytest

from cellerate.tasks.judging.report import Judging, SeriesErrors

ABOUT = Judging(("a", "b"), (), np.array([2.0, 10.0]))


def errors():
    """Three stretches, of series x, y and x, with 1, 2 and 3 windows; last_value errs by 1 in all."""
    model = np.array([[[1.0, 1, 10], [30, 900, 20]], [[4, 8, 0], [0, 0, 0]], [[3, 3, 60], [30, 300, 90]]])
    windows = np.array([1, 2, 3])
    naive = np.ones((3, 2, 3)) * windows[:, None, None]
    scales = np.array([[0.5, np.nan], [4.0, 2.0], [0.5, np.nan]])
    sums = {"model": model, "last_value": naive}
    return SeriesErrors(("x", "y", "x"), windows, sums, np.zeros((3, 2, 0)), np.zeros((3, 2, 0)), scales)


def test_figures_of_each_target_are_in_its_unit_and_only_scaled_ones_are_averaged():
    found = errors().report(ABOUT)
    assert (found["windows"], found["targets"]) == (6, ["a", "b"])
    a, b = found["by_target"]["a"]["model"], found["by_target"]["b"]["model"]
    assert (a["mae"], a["mse"], a["rmse"]) == pytest.approx((8 / 6, 2, 2**0.5))
    assert (b["mae"], b["mse"], b["smape"]) == pytest.approx((10, 200, 110 / 6))
    # MASE: each window's error by its series' scale; b of x has none, so only y's two windows count.
    assert a["mase"] == pytest.approx((1 / 0.5 + 4 / 4 + 3 / 0.5) / 6)
    assert b["mase"] == 0
    assert "mae" not in found["model"]
    assert found["model"]["scaled_mae"] == pytest.approx((8 / 6 / 2 + 10 / 10) / 2)
    assert found["model"]["scaled_mse"] == pytest.approx((2 / 4 + 200 / 100) / 2)
    assert found["model"]["mase"] == pytest.approx(a["mase"] / 2)
    assert found["verdict"]["best_baseline"] == "last_value"


def test_figures_without_any_scale_have_no_mase():
    one = errors().only(np.array([0, 2]))
    found = one.report(ABOUT)
    assert "mase" in found["by_target"]["a"]["model"]
    assert "mase" not in found["by_target"]["b"]["model"]


def test_figures_of_some_stretches_are_those_of_these_alone():
    found = errors().only(np.array([False, True, False])).report(ABOUT)
    assert found["windows"] == 2
    assert found["by_target"]["a"]["model"]["mae"] == 2


def test_ranking_puts_the_worst_series_first_and_those_without_mase_last():
    found = errors().ranking(ABOUT)
    assert [row["series"] for row in found] == ["x", "y"]
    assert [row["windows"] for row in found] == [4, 2]
    assert found[0]["model"]["mase"] == pytest.approx((1 / 0.5 + 3 / 0.5) / 4)
    assert found[0]["last_value"]["scaled_mae"] == pytest.approx((1 / 2 + 1 / 10) / 2)
    unknown = errors()
    unknown.scales[[0, 2]] = np.nan
    assert [row["series"] for row in unknown.ranking(ABOUT)] == ["y", "x"]


def test_ranking_leaves_out_series_without_a_window_and_selects_all_rows_once(monkeypatch):
    many, taken = errors(), []
    more = SeriesErrors(
        (*many.series, "short"),
        np.append(many.windows, 0),
        {name: np.concatenate([sums, np.zeros((1, 2, 3))]) for name, sums in many.sums.items()},
        np.zeros((4, 2, 0)),
        np.zeros((4, 2, 0)),
        np.concatenate([many.scales, np.ones((1, 2))]),
    )
    only = SeriesErrors.only
    monkeypatch.setattr(SeriesErrors, "only", lambda self, chosen: taken.append(chosen) or only(self, chosen))
    assert more.ranking(ABOUT) == many.ranking(ABOUT)
    # Of 100,000 series, a selection for each would look at all of them each time.
    assert sum(isinstance(one, np.ndarray) for one in taken) == 2


def test_quantiles_have_crps_pinball_and_coverage_beside_the_absolute_error_of_points():
    about = Judging(("a",), (0.1, 0.5, 0.9), np.array([2.0]))
    sums = {"model": np.ones((1, 1, 3)), "last_value": np.full((1, 1, 3), 6.0)}
    found = SeriesErrors(
        ("",),
        np.array([2]),
        sums,
        np.array([[[0.2, 1.0, 0.6]]]),
        np.array([[[0.4, 1.0, 1.8, 1.5]]]),
        np.full((1, 1), np.nan),
    ).report(about)
    assert found["pinball"] == pytest.approx({"q0.1": 0.1, "q0.5": 0.5, "q0.9": 0.3})
    # Twice the integral over the quantiles: 0.1 stands for those up to 0.3, 0.9 for those from 0.7 on.
    assert found["model"]["crps"] == pytest.approx(2 * (0.3 * 0.1 + 0.4 * 0.5 + 0.3 * 0.3))
    assert found["model"]["scaled_crps"] == pytest.approx(found["model"]["crps"] / 2)
    assert (found["last_value"]["crps"], found["last_value"]["scaled_crps"]) == (3, 1.5)
    assert found["coverage"] == pytest.approx({"q0.1": 0.2, "q0.5": 0.5, "q0.9": 0.9})
    assert found["interval_coverage"] == pytest.approx({"80%": 0.75})
