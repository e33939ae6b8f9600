import pytest

pytest.importorskip("matplotlib")

from cellerate.report.charts import Curves, draw_curves

LINES = [("Cellerate, GPU", [(1, 20.0), (64, 2.0), (4096, 0.1)]), ("stock Keras", [(1, 900.0), (64, 90.0)])]


def test_curves_have_a_tick_at_each_size_and_plain_numbers(tmp_path):
    panels = [
        Curves(LINES, "batch size", "µs for a window", 2, log_y=True),
        Curves(LINES[:1], "batch size", "loss", 2),
    ]
    draw_curves(tmp_path / "chart.svg", panels, "series: batch size", "2 cores")
    text = (tmp_path / "chart.svg").read_text()
    for words in ("series: batch size", "2 cores", "Cellerate, GPU", "stock Keras", "µs for a window"):
        assert words in text
    for tick in ("1", "64", "4096", "1,000", "0.1"):
        assert f">{tick}</text>" in text
    # Powers would be formulas, which charts do not read.
    assert "mathdefault" not in text


def test_curves_of_rates_and_of_plain_numbers_are_drawn(tmp_path):
    panels = [
        Curves([("a", [(1e-4, 1.0), (1e-3, 2.0)])], "learning rate", "loss", 10),
        Curves([("a", [(0.0, 1.0), (0.2, 2.0)])], "dropout", "loss"),
    ]
    draw_curves(tmp_path / "chart.png", panels, "t")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
