"""The verdict on a forecaster: does it beat the forecasts without a network, and what to try if it does not?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cellerate.data.series import SeriesData
from cellerate.data.times import WEEKDAYS, Frequency
from cellerate.messages import Message, argument, marked
from cellerate.tasks.judging.baselines import LABELS
from cellerate.tasks.settings import SeriesOptions

# In months, microseconds and days, the units of frequencies.
_YEAR, _DAY, _WEEK = 12, 86_400 * 10**6, 7
_NAMES = {"mae": "MAE", "scaled_mae": "MAE in standard deviations", "mase": "MASE"}


def hints_for(options: SeriesOptions, data: SeriesData) -> tuple[str, ...]:
    """The untried ideas that the options and the data allow, with the arguments for them."""
    found = [f"a longer window ({argument('window')})"]
    parts = _calendar_of(data.frequency)
    if parts and not options.calendar and data.times is not None and data.times.dtype.kind == "M":
        found.append(f"{parts} ({argument('calendar')})")
    if options.scaling == "global" and len({name for _, _, name in data.segments}) > 1:
        found.append(f"a scale for each series ({argument('scaling', 'series')})")
    if not options.future and set(data.feature_columns) - set(data.target_columns):
        found.append(f"columns that are known in advance ({argument('future')})")
    return tuple(map(Message, found))


def _calendar_of(frequency: Frequency | None) -> str:
    """The parts of the calendar that differ from row to row at a frequency; "" if none does."""
    if frequency is None:
        return "the hour, the weekday or the month"
    if frequency.unit == "month":
        return "the month" if frequency.step < _YEAR else ""
    days = 1 if frequency.unit in WEEKDAYS else frequency.step / _DAY
    if days < 1:
        return "the hour, the weekday or the month"
    return "the weekday or the month" if days % _WEEK else "the month"


def verdict_of(report: Mapping[str, Any], hints: Sequence[str] = ("a longer window",)) -> dict[str, Any]:
    """Compare a model with the best baseline.

    The model is better only if its MAE (with several targets: in standard deviations) and, if known, its MASE are
    lower. The verdict names the figure in which the model is worse.

    Args:
        report: The figures of `model` and of baselines by their names.
        hints: Ideas to try first if the model is not better.

    Returns:
        `beats_baselines`, `best_baseline` (its name), `figure`, `model` and `baseline` (the values of that figure),
        `change` (the model's over the baseline's, less 1) and the `sentence`.
    """
    names = [name for name in LABELS if name != "model" and name in report]
    found: dict[str, Any] = {}
    for figure in ("mae" if "mae" in report["model"] else "scaled_mae", "mase"):
        if not all(figure in report[name] for name in ("model", *names)):
            continue
        best = min(names, key=lambda name: report[name][figure])
        model, baseline = report["model"][figure], report[best][figure]
        change = model / baseline - 1 if baseline else (0.0 if model == 0 else float("inf"))
        if not found or change > found["change"] + 1e-9:
            found = {
                "beats_baselines": model < baseline,
                "best_baseline": best,
                "figure": figure,
                "model": model,
                "baseline": baseline,
                "change": change,
            }
    return found | {"sentence": _sentence(found, hints)}


def _sentence(found: Mapping[str, Any], hints: Sequence[str]) -> str:
    figure, label = _NAMES[found["figure"]], LABELS[found["best_baseline"]]
    ideas = ", ".join(map(marked, hints))
    values = f"{found['model']:.4g} against {found['baseline']:.4g}"
    share = abs(100 * found["change"])
    amount = f"{share:.0f} %" if share >= 9.5 else f"{share:.1f} %"
    if found["model"] == found["baseline"] == 0:
        return (
            f"As good as {label}, and without any error: what was forecast does not change, or repeats exactly. A "
            "model cannot do better."
        )
    if share < 0.05:
        return Message(
            f"As good as the best baseline, {label}: {figure} {values}. To do better, try: {ideas}, more "
            "training, a smaller model."
        )
    if found["beats_baselines"]:
        return f"Better than every baseline: {figure} {amount} below that of {label} ({values})."
    worse = f"{amount} above" if share < float("inf") else "not below"
    if 100 <= share < float("inf"):
        factor = found["change"] + 1
        # Beside a baseline that is nearly exact, the digits of a larger factor would be rounding.
        worse = f"{factor:,.1f} times" if factor < 1000 else "more than 1,000 times"
    return Message(
        f"Not better than the baselines: {figure} {worse} that of {label} ({values}). To try: "
        f"{ideas}, more training, a smaller model; or use {label} itself, which needs no network."
    )
