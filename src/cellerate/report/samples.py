"""The outputs of models for the same input, side by side: texts, forecasts, or lines that it writes back."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from cellerate import format as shown
from cellerate.report.record import Candidate, ForecastSample, Run
from cellerate.report.svg import ForecastChart
from cellerate.report.tables import NONE, FigureTable, TableCell, cells, cut, named, table, thinned

_MOST_MODELS = 8
_MOST_FORECASTS = 6
_MOST_LINES = 40


@dataclasses.dataclass(frozen=True)
class TextSample:
    """A model's continuation of a prompt."""

    model: str
    role: str
    prompt: str
    text: str


@dataclasses.dataclass(frozen=True)
class ForecastGroup:
    """One forecast by each model: a chart for each, and one table for all."""

    title: str
    charts: tuple[ForecastChart, ...]
    table: FigureTable


@dataclasses.dataclass(frozen=True)
class Samples:
    """All samples of a run; fields it has no samples for are empty.

    Attributes:
        prompt: The input of all models, if it is the same.
        texts: One for each model.
        lines: A table with a row for each line and a column for each model.
        forecasts: One group for each forecast.
        bands: Whether forecasts have bounds.
        left_out: A sentence, if not all models are shown.
    """

    prompt: str = ""
    texts: tuple[TextSample, ...] = ()
    lines: FigureTable | None = None
    forecasts: tuple[ForecastGroup, ...] = ()
    bands: bool = False
    left_out: str = ""

    def __bool__(self) -> bool:
        return bool(self.texts or self.lines or self.forecasts)


def samples(run: Run) -> Samples:
    """Collects the samples: the original and the chosen model first, then the others in the order they were made."""
    chosen = run.verdict.chosen if run.verdict else None
    having = [one for one in run.candidates if one.sample is not None]
    original = run.candidates[0] if run.candidates else None
    having.sort(key=lambda one: (one is not original, one.id != chosen))
    models = having[:_MOST_MODELS]
    left_out = ""
    if len(having) > len(models):
        left_out = f"{len(models)} of {len(having)} models are shown; report.json has all samples."
    if run.task == "embed" and (lines := _lines(models)):
        return Samples(lines=lines, left_out=left_out)
    groups = _forecasts(models)
    texts = tuple(
        TextSample(one.title, _role(one, original, chosen), cut(one.sample.prompt), cut(one.sample.text))
        for one in models
        if one.sample and (one.sample.text or one.sample.prompt)
    )
    prompts = {one.prompt for one in texts}
    prompt = prompts.pop() if len(prompts) == 1 else ""
    if prompt:
        texts = tuple(dataclasses.replace(one, prompt="") for one in texts)
    bands = any(f.low for one in models if one.sample for f in one.sample.forecasts)
    return Samples(prompt=prompt, texts=texts, forecasts=groups, bands=bands, left_out=left_out)


def _role(one: Candidate, original: Candidate | None, chosen: str | None) -> str:
    return ", ".join(["original"] * (one is original) + ["chosen"] * (one.id == chosen))


def _lines(models: Sequence[Candidate]) -> FigureTable | None:
    """The lines of a prompt beside each model's reconstruction; None if they do not match."""
    prompts = {one.sample.prompt for one in models if one.sample}
    if len(prompts) != 1:
        return None
    lines = prompts.pop().split("\n")
    columns = [one.sample.text.split("\n") for one in models if one.sample]
    if any(len(column) != len(lines) for column in columns):
        return None
    rows = [
        cells(line, *(_returned(line, column[n]) for column in columns))
        for n, line in enumerate(lines[:_MOST_LINES])
    ]
    return table(
        "Lines, and what each model makes of their vectors", ("Line", *(one.title for one in models)), rows
    )


def _returned(line: str, back: str) -> TableCell:
    if back == line:
        return TableCell("✓ the same", tone="good")
    return TableCell(f"≠ {cut(back)}")


def _forecasts(models: Sequence[Candidate]) -> tuple[ForecastGroup, ...]:
    count = max((len(one.sample.forecasts) for one in models if one.sample), default=0)
    groups = []
    for n in range(min(count, _MOST_FORECASTS)):
        known = [
            (one, one.sample.forecasts[n]) for one in models if one.sample and n < len(one.sample.forecasts)
        ]
        span = tuple(value for _, f in known for value in (*f.truth, *f.forecast, *f.low, *f.high))
        ends = (min(span), max(span)) if span else ()
        title = named(known[0][1].title, f"Forecast {n + 1}")
        charts = tuple(_forecast(one, forecast, ends) for one, forecast in known)
        groups.append(ForecastGroup(title, charts, _forecast_table(title, known)))
    return tuple(groups)


def _forecast(one: Candidate, forecast: ForecastSample, span: tuple[float, ...]) -> ForecastChart:
    pairs = list(zip(forecast.truth, forecast.forecast, strict=False))
    error = sum(abs(a - b) for a, b in pairs) / len(pairs) if pairs else None
    said = f"{len(forecast.forecast)} steps ahead"
    if forecast.forecast:
        said += f", from {shown.number(forecast.forecast[0])} to {shown.number(forecast.forecast[-1])}"
    if error is not None:
        said += f"; on average {shown.number(error)} beside what came"
    return ForecastChart(
        one.title, f"{forecast.title}: {said}.", forecast.past, forecast.truth, forecast.forecast, forecast.low,
        forecast.high, span,
    )  # fmt: skip


def _forecast_table(title: str, known: Sequence[tuple[Candidate, ForecastSample]]) -> FigureTable:
    first = known[0][1]
    length = max(len(f.forecast) for _, f in known)
    rows = []
    for n in range(max(length, len(first.truth))):
        row: list[str | TableCell] = [
            f"{n + 1}",
            shown.number(first.truth[n], 4) if n < len(first.truth) else NONE,
        ]
        for _, f in known:
            band = (
                f"{shown.number(f.low[n], 4)} to {shown.number(f.high[n], 4)}"
                if n < min(len(f.low), len(f.high))
                else ""
            )
            row.append(TableCell(shown.number(f.forecast[n], 4), note=band) if n < len(f.forecast) else NONE)
        rows.append(cells(*row))
    kept, remark = thinned(rows)
    return FigureTable(
        f"{title}: what came and what was forecast",
        (">Step", ">What came", *(f">{one.title}" for one, _ in known)),
        kept,
        remark,
    )
