"""Charts as SVG inside a page: no scripts, no image files, colours from the page's style sheet.

`canvas` has the parts that all charts use; each of the others draws one kind of chart.
"""

from cellerate.report.svg.canvas import Chart
from cellerate.report.svg.forecast import ForecastChart
from cellerate.report.svg.lines import Line, LineChart
from cellerate.report.svg.parts import PartBar, PartsChart
from cellerate.report.svg.scatter import Dot, ScatterChart
from cellerate.report.svg.waterfall import Step, WaterfallChart

__all__ = [
    "Chart",
    "Dot",
    "ForecastChart",
    "Line",
    "LineChart",
    "PartBar",
    "PartsChart",
    "ScatterChart",
    "Step",
    "WaterfallChart",
]
