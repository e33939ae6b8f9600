import numpy as np
import pytest

from cellerate.report.charts import AnomalyPanel, draw_anomalies
from cellerate.report.charts.anomalies import _thin
from support.report.charts import shown

pytest.importorskip("matplotlib")


def panel(name="load", *, rows=50, at=(), level=None):
    values = np.sin(np.arange(rows) / 5)
    anomalies = np.zeros(rows, bool)
    anomalies[list(at)] = True
    expected = values.copy()
    values[anomalies] += 3
    return AnomalyPanel(name, np.arange(rows), values, expected, expected - 1, expected + 1, anomalies, level)


def drawn(tmp_path, panels):
    draw_anomalies(tmp_path / "chart.svg", panels, "pump")
    return shown(tmp_path / "chart.svg")


def marks(path):
    return path.read_text().count("fill: #d55e00")


def test_anomalies_are_marked_and_counted(tmp_path):
    found = drawn(tmp_path, [panel(at=(20, 30, 41), level=0.99)])
    assert {"pump", "load", "3 anomalies in 50 rows", "anomaly", "value", "expected"} <= set(found.texts)
    assert "99 % interval" in found.texts
    # One more in the legend.
    assert (tmp_path / "chart.svg").read_text().count("<use ") > 0
    three = marks(tmp_path / "chart.svg")
    drawn(tmp_path, [panel(at=(20,))])
    assert three - marks(tmp_path / "chart.svg") == 2


def test_series_without_anomalies_is_drawn(tmp_path):
    found = drawn(tmp_path, [panel()])
    assert {"0 anomalies in 50 rows", "expected range", "anomaly"} <= set(found.texts)
    assert len(found.bands) >= 1


def test_of_many_series_those_with_the_most_anomalies_are_drawn_in_their_order(tmp_path):
    panels = [panel(f"pump {n}", at=range(n % 15)) for n in range(30)]
    found = drawn(tmp_path, panels)
    assert found.panels == 12
    assert "210 anomalies in 1,500 rows · 12 of 30 series, those with the most" in found.texts
    names = [text for text in found.texts if text.startswith("pump ")]
    assert names == [f"pump {n}" for n in (9, 10, 11, 12, 13, 14, 24, 25, 26, 27, 28, 29)]


def test_long_series_is_thinned_and_keeps_its_anomalies_and_its_extremes():
    long = panel(rows=100_000, at=(5_000, 50_000, 99_999))
    long.values[:7] = np.nan
    long.values[70_000] = -9
    # Unusual for its time, and neither high nor low.
    long.values[50_000] = long.values[50_020]
    found = _thin(long)
    assert len(found.values) <= 3000
    assert found.times[found.anomalies].tolist() == [5_000, 50_000, 99_999]
    assert np.nanmin(found.values) == -9
    assert (np.diff(found.times) > 0).all()
    assert _thin(panel()).values.shape == (50,)
