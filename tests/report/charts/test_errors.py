import numpy as np
import pytest

from cellerate.report.charts import draw_errors
from support.report.charts import shown

pytest.importorskip("matplotlib")


def test_errors_are_a_named_line_for_each_forecaster(tmp_path):
    errors = {
        "model": np.arange(50, 74.0),
        "last_value": np.arange(60, 84.0),
        "seasonal_naive": np.full(24, 70.0),
    }
    draw_errors(tmp_path / "chart.svg", errors, "ett", unit="OT")
    found = shown(tmp_path / "chart.svg")
    assert found.panels == 1
    assert {"ett", "model", "last value", "seasonal naive", "steps ahead", "mean absolute error · OT"} <= set(
        found.texts
    )
    # Whole steps, and errors from 0 on.
    assert {"0", "4", "20"} <= set(found.texts)


@pytest.mark.parametrize(
    "errors", [{"model": np.ones(1)}, {"model": np.zeros(3)}, {"model": np.full(3, np.nan)}]
)
def test_errors_of_one_step_or_of_none_are_drawn(tmp_path, errors):
    draw_errors(tmp_path / "chart.svg", errors, "t", measure="MASE")
    texts = shown(tmp_path / "chart.svg").texts
    assert "MASE" in texts
    if len(errors["model"]) == 1:
        # The axis of errors may have a 1, too.
        assert texts[: texts.index("steps ahead")].count("1") == 1
