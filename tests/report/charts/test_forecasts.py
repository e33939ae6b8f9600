import dataclasses

import numpy as np
import pytest

from cellerate.data.times.form import TimeForm
from cellerate.report.charts import draw_forecasts
from cellerate.report.charts.forecasts import bands, by_the_clock, middle
from support.report.charts import example, shown

pytest.importorskip("matplotlib")


def drawn(tmp_path, examples, title="title"):
    draw_forecasts(tmp_path / "chart.svg", examples, title)
    return shown(tmp_path / "chart.svg")


def test_chart_has_a_panel_for_each_example_and_target(tmp_path):
    found = drawn(tmp_path, [example(series=name) for name in ("north", "süd")], "two shops")
    assert found.panels == 4
    names = [text for text in found.texts if " · " in text]
    assert names == ["north · load", "north · price", "süd · load", "süd · price"]
    assert "two shops" in found.texts
    assert not [text for text in found.texts if " of " in text]


def test_legend_names_the_intervals_and_the_wider_one_is_lighter_and_below(tmp_path):
    found = drawn(tmp_path, [example(("load",), levels=(0.8, 0.95))])
    assert [text for text in found.texts if text in ("history", "forecast", "truth") or "%" in text] == [
        "history", "forecast", "truth", "80 % interval", "95 % interval"
    ]  # fmt: skip
    outer, inner = found.bands[:2]
    assert int(outer[1:3], 16) > int(inner[1:3], 16)


def test_chart_without_truth_or_intervals_names_neither(tmp_path):
    found = drawn(tmp_path, [example(("load",), truth=False)])
    assert {"history", "forecast"} <= set(found.texts)
    assert not {"truth"} & set(found.texts)
    assert not found.bands


def test_label_of_what_only_one_panel_has_is_in_the_legend_once(tmp_path):
    found = drawn(tmp_path, [example(levels=(0.9,)), example(levels=(0.9,), truth=False, start=30)])
    assert [found.texts.count(label) for label in ("truth", "forecast", "90 % interval")] == [1, 1, 1]


def test_windows_of_one_series_are_told_apart_by_where_they_begin(tmp_path):
    found = drawn(tmp_path, [example(("load",), start=start) for start in (30, 48)])
    assert {"load · from 2024-01-02 06:00", "load · from 2024-01-03"} <= set(found.texts)


def test_one_target_of_several_series_stands_at_the_axis(tmp_path):
    found = drawn(tmp_path, [example(("load",), series=name) for name in "ab"])
    assert {"a", "b"} <= set(found.texts)
    assert found.texts.count("load") == 2


def test_of_many_series_twelve_are_drawn_and_the_chart_says_so(tmp_path):
    found = drawn(tmp_path, [example(("load",), series=f"shop {n}") for n in range(700)])
    assert found.panels == 12
    assert "12 of 700 series" in found.texts
    assert {"shop 0", "shop 318", "shop 699"} <= set(found.texts)


def test_of_many_series_with_several_targets_all_targets_of_fewer_are_drawn(tmp_path):
    found = drawn(tmp_path, [example(tuple("abcde"), series=f"shop {n}") for n in range(30)])
    assert found.panels == 10
    assert "2 of 30 series" in found.texts
    assert {"shop 0 · a", "shop 29 · e"} <= set(found.texts)


def test_of_many_targets_twelve_are_drawn_and_the_chart_says_so(tmp_path):
    found = drawn(
        tmp_path, [example(tuple(f"t{n}" for n in range(20)), start=start) for start in (30, 40, 50)]
    )
    assert found.panels == 12
    assert "1 of 3 forecasts · 12 of 20 targets" in found.texts


def test_bands_are_the_intervals_and_else_those_between_quantiles():
    one = example(levels=(0.5, 0.8, 0.95), quantiles=(0.1, 0.5, 0.9))
    found = bands(one, 1)
    assert [band.label for band in found] == ["95 % interval", "50 % interval"]
    np.testing.assert_array_equal(found[0].low, one.intervals[0.95][:, 1, 0])
    np.testing.assert_array_equal(found[0].high, one.intervals[0.95][:, 1, 1])
    one = example(quantiles=(0.025, 0.1, 0.5, 0.9, 0.975))
    found = bands(one, 1)
    assert [band.label for band in found] == ["95 % interval", "80 % interval"]
    np.testing.assert_array_equal(found[1].low, one.forecast[:, 1, 1])
    np.testing.assert_array_equal(found[1].high, one.forecast[:, 1, 3])


def test_bands_of_lopsided_quantiles_are_not_called_an_interval():
    assert [band.label for band in bands(example(quantiles=(0.1, 0.5, 0.7)), 0)] == ["10 % to 70 % quantile"]
    assert bands(example(quantiles=(0.5,)), 0) == []
    assert bands(example(), 0) == []


def test_middle_is_the_median_and_what_stands_for_it_is_named():
    one = example(quantiles=(0.1, 0.5, 0.9))
    label, line = middle(one, 1)
    assert label == "forecast"
    np.testing.assert_array_equal(line, one.forecast[:, 1, 1])
    assert middle(example(quantiles=(0.2, 0.9)), 0)[0] == "20 % quantile"
    assert middle(example(), 0)[0] == "forecast"


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_values_that_cannot_be_drawn_leave_a_chart(tmp_path, value):
    one = example(("load",), levels=(0.8,))
    one.forecast[2:] = value
    one.intervals[0.8][2:] = value
    assert drawn(tmp_path, [one]).panels == 1


def test_forecast_of_one_step_is_marked(tmp_path):
    counts = []
    for horizon in (1, 12):
        drawn(tmp_path, [example(("load",), horizon=horizon)])
        counts.append((tmp_path / "chart.svg").read_text().count("fill: #0072b2"))
    # The point, and that of the legend.
    assert counts == [2, 0]


def test_times_of_a_zone_are_those_that_its_clock_shows(tmp_path):
    # The clocks of Berlin go from 2:00 to 3:00 at 1:00 UTC.
    times = np.datetime64("2024-03-31T00", "us") + np.arange(60) * np.timedelta64(1, "h")
    zoned = dataclasses.replace(
        example(times=times, start=24, horizon=3), form=TimeForm(zone="Europe/Berlin")
    )
    assert by_the_clock(zoned).past_times[:3].astype("M8[h]").astype(str).tolist() == [
        "2024-03-31T01",
        "2024-03-31T03",
        "2024-03-31T04",
    ]
    assert any("from 2024-04-01 02" in text for text in drawn(tmp_path, [zoned, zoned]).texts)
    numbered = dataclasses.replace(zoned, times=np.arange(3), past_times=np.arange(24) - 24)
    assert by_the_clock(numbered).times.tolist() == [0, 1, 2]
