import struct

import numpy as np
import pytest

from cellerate.errors import BackendError, ConfigError, OutputError
from cellerate.report.charts import check_chart, draw_forecasts
from cellerate.runtime.forecasting import Example

pytest.importorskip("matplotlib")


def example(*, times=True, quantiles=(), truth=True, **changes):
    rows = np.arange(13)
    stamps = np.datetime64("2024-01-01T00", "us") + rows * np.timedelta64(1, "h") if times else rows
    values = np.column_stack([np.sin(rows), np.cos(rows)])
    forecast = values[10:]
    if quantiles:
        forecast = forecast[..., None] + np.array(quantiles)
    settings = {
        "targets": ("load", "price"),
        "past_times": stamps[:10],
        "past": values[:10],
        "times": stamps[10:],
        "truth": values[10:] if truth else None,
        "forecast": forecast,
        "quantiles": quantiles,
    }
    return Example(**(settings | changes))


def png_size(path):
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert content.endswith(b"IEND\xaeB`\x82")
    return struct.unpack(">II", content[16:24])


@pytest.mark.parametrize(
    "examples",
    [
        [example()],
        [example(times=False, truth=False)],
        [example(quantiles=(0.1, 0.5, 0.9))],
        [example(quantiles=(0.5,), truth=False)],
        [example(series=name) for name in ("north", "süd", "")],
        [example(targets=("a$\\frac$", "x_{")), example(targets=("$", "_hidden"), series="$y$")],
    ],
    ids=["times", "rows", "quantiles", "one-quantile", "several", "formulas"],
)
def test_chart_is_a_png_with_a_panel_for_each_example_and_target(tmp_path, examples):
    draw_forecasts(tmp_path / "chart.png", examples, "title with $\\bad$")
    width, height = png_size(tmp_path / "chart.png")
    # Two panels a row, each wider than high.
    assert width > 1500
    assert height == pytest.approx(130 * (3.2 * len(examples) + 0.6), abs=2)
    assert [path.name for path in tmp_path.iterdir()] == ["chart.png"]


def test_chart_of_a_single_panel_is_half_as_wide(tmp_path):
    one = example(targets=("load",), past=np.zeros((10, 1)), truth=None, forecast=np.ones((3, 1)))
    draw_forecasts(tmp_path / "chart.png", [one], "one")
    assert png_size(tmp_path / "chart.png")[0] == 845


def test_chart_replaces_an_older_one_and_a_failure_leaves_it(tmp_path, monkeypatch):
    path = tmp_path / "chart.png"
    path.write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full_disk)
        with pytest.raises(OutputError, match="disk is full"):
            draw_forecasts(path, [example()], "t")
    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["chart.png"]
    draw_forecasts(path, [example()], "t")
    png_size(path)


def full_disk(handle):
    raise OSError(28, "No space left on device")


def test_chart_that_cannot_be_written_is_refused_beforehand(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="is a file"):
        check_chart(tmp_path / "file" / "chart.png")
    with pytest.raises(ConfigError, match=r"chart\.pdf"):
        check_chart(tmp_path / "chart.pdf")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BackendError, match=r"cellerate\[plots\]"):
        check_chart(tmp_path / "chart.png")
