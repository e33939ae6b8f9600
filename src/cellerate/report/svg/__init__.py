"""Charts as SVG inside a page: no scripts, no image files, colours from the page's style sheet.

`canvas` has the parts that all charts use; each of the others draws one kind of chart.
"""

from cellerate.report.svg.bars import Bar, BarChart, RatioChart
from cellerate.report.svg.canvas import Chart, clean
from cellerate.report.svg.forecast import ForecastChart
from cellerate.report.svg.lines import Line, LineChart
from cellerate.report.svg.parts import WAITING, PartBar, PartsChart
from cellerate.report.svg.scatter import Dot, Kind, ScatterChart
from cellerate.report.svg.waterfall import WaterfallChart, WaterfallStep

__all__ = [
    "WAITING",
    "Bar",
    "BarChart",
    "Chart",
    "Dot",
    "ForecastChart",
    "Kind",
    "Line",
    "LineChart",
    "PartBar",
    "PartsChart",
    "RatioChart",
    "ScatterChart",
    "WaterfallChart",
    "WaterfallStep",
    "clean",
]
