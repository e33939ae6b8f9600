import numpy as np
import pytest

from cellerate.report.charts import draw_backtest
from cellerate.report.charts.backtest import _truth
from support.report.charts import example, shown

pytest.importorskip("matplotlib")


def drawn(tmp_path, folds):
    draw_backtest(tmp_path / "chart.svg", folds, "a backtest")
    return shown(tmp_path / "chart.svg")


def test_each_fold_has_a_colour_a_band_and_a_marked_origin(tmp_path):
    found = drawn(tmp_path, [[example(("load",), start=start, levels=(0.8, 0.95))] for start in (30, 36, 42)])
    assert found.panels == 1
    assert {"a backtest", "3 folds", "load", "truth", "95 % interval", "origin of a fold"} <= set(found.texts)
    assert "80 % interval" not in found.texts
    assert len(found.bands) == len(set(found.bands)) == 3


def test_backtest_of_many_series_draws_six_panels_and_says_so(tmp_path):
    folds = [[example(series=f"shop {n}", start=start) for n in range(50)] for start in (30, 40)]
    found = drawn(tmp_path, folds)
    assert found.panels == 6
    assert "2 folds · 3 of 50 series" in found.texts
    assert {"shop 0 · load", "shop 0 · price", "shop 49 · price"} <= set(found.texts)


def test_fold_that_lacks_a_series_keeps_its_colour(tmp_path):
    all_folds = drawn(tmp_path, [[example(("load",), start=start, levels=(0.8,))] for start in (30, 36, 42)])
    folds = [
        [example(("load",), series=name, start=30, levels=(0.8,)) for name in names] for names in ("a", "b")
    ]
    found = drawn(tmp_path, folds)
    assert found.bands == all_folds.bands[:2]


def test_truth_has_each_time_once_and_keeps_what_a_later_fold_knows():
    # The first fold does not know rows 30 to 35; the second has 30 and 31 in its past.
    folds = [(0, example(("load",), start=30, truth=False)), (1, example(("load",), start=32, horizon=2))]
    times, values = _truth(folds, 0)
    assert (np.diff(times) == np.timedelta64(1, "h")).all()
    known = np.isfinite(values)
    assert times[known][-1] == np.datetime64("2024-01-02T09")
    assert not known[-1]
    np.testing.assert_allclose(values[known], np.sin(np.arange(6, 34) / 4))
