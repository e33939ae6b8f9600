"""The chart of a forecast: the past, the values that came, the forecast, and its bounds."""

from __future__ import annotations

import dataclasses

from markupsafe import Markup

from cellerate.report.svg import canvas
from cellerate.report.svg.canvas import Box, Chart, Scale

_PAST_HORIZONS = 2  # how much of the past to show, in forecast lengths, so that the forecast is not a sliver
_MOST_PAST = 1200


@dataclasses.dataclass(frozen=True)
class ForecastChart(Chart):
    """A forecast.

    Attributes:
        past: Values up to now.
        truth: Values from now on; may be shorter than the forecast.
        forecast: Forecast values from now on.
        low: Lower bounds, or ().
        high: Upper bounds, or ().
        span: Further values that the axis must hold, so that charts to be compared share one axis.
    """

    past: tuple[float, ...]
    truth: tuple[float, ...]
    forecast: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    span: tuple[float, ...] = ()

    def body(self, width: float) -> tuple[Markup, float]:
        """See `Chart.body`."""
        later = max(len(self.forecast), len(self.truth), 1)
        past = self.past[-min(_PAST_HORIZONS * later, _MOST_PAST) :]
        values = [*past, *self.truth, *self.forecast, *self.low, *self.high, *self.span] or [0.0, 1.0]
        bottom = 150.0
        y = Scale.around(values, bottom, 10, zero_below=0.0)
        y_ticks = canvas.linear_ticks(y, 4)
        box = Box(canvas.beside_ticks(y_ticks), 10, width - 4, bottom)
        x = Scale(float(-len(past)), float(later), box.left, box.right)
        count = int((box.right - box.left) / 55) + 1
        x_ticks = [tick for tick in canvas.linear_ticks(x, count) if tick[0] == int(tick[0])]
        parts = [
            canvas.frame(box, x_ticks, y_ticks, x, y, "steps", ""),
            canvas.line(x(0), box.top, x(0), box.bottom, "now"),
        ]
        # Starts at the last known point, so that the lines join and the band of a single step covers an area.
        joint = [(x(0), y(past[-1]))] if past else []
        if self.low and self.high:
            count = min(len(self.low), len(self.high))
            edge = [(x(n + 1), y(self.low[n])) for n in range(count)]
            back = [(x(n + 1), y(self.high[n])) for n in reversed(range(count))]
            if len(joint) + count > 1:
                parts.append(canvas.path([*joint, *canvas.thin(edge), *canvas.thin(back)], "band"))
            else:
                parts.append(canvas.line(*edge[0], *back[0], "interval"))
        before = [(x(n - len(past)), y(value)) for n, value in enumerate(past, 1)]
        after = [
            [*joint, *((x(n), y(value)) for n, value in enumerate(values, 1))]
            for values in (self.truth, self.forecast)
        ]
        for places, class_ in zip((before, *after), ("past", "truth", "forecast"), strict=True):
            if len(places) > 1:
                parts.append(canvas.path(canvas.thin(places), class_))
        return Markup("").join(parts), bottom + 40
