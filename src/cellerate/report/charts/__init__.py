"""Charts of series as PNG or SVG files, for a report or a talk; the only package that needs matplotlib.

`canvas` has what all charts share: the check of a path, colours, the grid of panels, the time axis and the file. Each
of the others draws one kind of chart.
"""

from cellerate.report.charts.anomalies import AnomalyPanel, draw_anomalies
from cellerate.report.charts.backtest import draw_backtest
from cellerate.report.charts.canvas import check_chart
from cellerate.report.charts.curves import Curves, draw_curves
from cellerate.report.charts.errors import draw_errors
from cellerate.report.charts.forecasts import draw_forecasts

__all__ = [
    "AnomalyPanel",
    "Curves",
    "check_chart",
    "draw_anomalies",
    "draw_backtest",
    "draw_curves",
    "draw_errors",
    "draw_forecasts",
]
