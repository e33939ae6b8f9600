"""Examples to draw, and the content of an SVG chart."""

import dataclasses
from xml.etree import ElementTree

import numpy as np

from cellerate.runtime.forecast.forecasting import Example

_SVG = "{http://www.w3.org/2000/svg}"
HOURS = np.datetime64("2024-01-01T00", "us") + np.arange(60) * np.timedelta64(1, "h")


def example(
    targets=("load", "price"),
    *,
    start=40,
    horizon=6,
    times=HOURS,
    quantiles=(),
    levels=(),
    truth=True,
    series="",
):
    """The forecast of rows `start`… of a wave, a little too high; its intervals grow with the level."""
    values = np.sin(np.arange(len(times))[:, None] / 4 + np.arange(len(targets)))
    shown, ahead = slice(start - 24, start), slice(start, start + horizon)
    forecast = values[ahead] + 0.1
    return Example(
        targets=targets,
        past_times=times[shown],
        past=values[shown],
        times=times[ahead],
        truth=values[ahead] if truth else None,
        forecast=forecast[..., None] + np.array(quantiles) if quantiles else forecast,
        quantiles=quantiles,
        series=series,
        intervals={level: np.stack([forecast - level, forecast + level], -1) for level in levels},
    )


@dataclasses.dataclass(frozen=True)
class Shown:
    """The content of a chart.

    Attributes:
        texts: All its texts, in their order.
        panels: The number of panels.
        bands: The fill of each area between two lines, panel by panel.
    """

    texts: list[str]
    panels: int
    bands: list[str]


def shown(path):
    """Read an SVG chart; raise an error if it is not XML."""
    groups = [group for group in ElementTree.parse(path).iter(f"{_SVG}g") if group.get("id")]
    return Shown(
        ["".join(text.itertext()) for text in ElementTree.parse(path).iter(f"{_SVG}text")],
        sum(group.get("id").startswith("axes_") for group in groups),
        [
            part.get("style").partition("fill: ")[2].partition(";")[0]
            for group in groups
            if group.get("id").startswith("FillBetweenPolyCollection")
            for part in group.iter()
            if "fill: #" in part.get("style", "")
        ],
    )
