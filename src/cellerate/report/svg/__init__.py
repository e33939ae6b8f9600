"""Charts as SVG that stands in a page: no script, no image file, colours from the page's style sheet.

`canvas` has what all charts are made of; `lines`, `scatter`, `waterfall` and `forecast` are a chart each.
"""

from cellerate.report.svg.canvas import Chart
from cellerate.report.svg.forecast import ForecastChart
from cellerate.report.svg.lines import Line, LineChart
from cellerate.report.svg.scatter import Dot, ScatterChart
from cellerate.report.svg.waterfall import Step, WaterfallChart

__all__ = ["Chart", "Dot", "ForecastChart", "Line", "LineChart", "ScatterChart", "Step", "WaterfallChart"]
