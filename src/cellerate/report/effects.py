"""Says in words how large a change is and whether it is good.

More is better for some quantities and less for others; only this module knows for which.
"""

from __future__ import annotations

from typing import Literal

from cellerate.format import TIME_UNITS_MS, number, percent, times
from cellerate.report.quality import Interval
from cellerate.report.record import Change

Tone = Literal["", "good", "bad"]

UNCHANGED = 0.005
"""The distance from 1 up to which a factor is called unchanged."""
_UNCHANGED_QUALITY = 0.00005  # as a share: anything less is shown as 0 %


def reach(value: Interval) -> str:
    """The 95 % interval of a quality."""
    return f"{number(value.low, 4)} to {number(value.high, 4)}"


def loss_in_words(loss: float, none: str = "as good") -> str:
    """The loss of quality of a model in words: "as good" or another word for no loss, "0.3 % worse", "2 % better"."""
    shown = percent(abs(loss))
    return none if shown == "0 %" else f"{shown} {'worse' if loss > 0 else 'better'}"


def loss_reach(loss: Interval) -> str:
    """The 95 % interval of a loss of quality, in the same words as its value."""
    if loss.high < 0:
        return f"{percent(-loss.high)} to {percent(-loss.low)} better"
    below = f"{percent(-loss.low)} better" if loss.low < 0 else percent(loss.low)
    return f"{below} to {percent(loss.high)} worse"


def margin(change: Change) -> float:
    """Return how far, as a share, the figure may move while `effect` still calls it unchanged."""
    return _UNCHANGED_QUALITY if change.quantity is None else UNCHANGED


def effect(change: Change) -> tuple[str, Tone]:
    """Return a change in words, and whether it is good: ("34.2x faster", "good"), ("unchanged", "")."""
    better, worse = _words(change)
    if change.quantity is None:
        return _quality_effect(change)
    if change.before == change.after:
        return "unchanged", ""
    if min(change.before, change.after) < 0 or 0 in (change.before, change.after):
        good = (change.after > change.before) == change.higher_is_better
        return (better, "good") if good else (worse, "bad")
    factor = change.factor
    if abs(factor - 1) < UNCHANGED:
        return "unchanged", ""
    if factor > 1:
        return f"{times(factor)} {better}", "good"
    return f"{times(1 / factor) if factor else 'far'} {worse}", "bad"


def _words(change: Change) -> tuple[str, str]:
    if change.unit == "bytes":
        return "smaller", "larger"
    if change.unit.endswith("/s") or change.unit in TIME_UNITS_MS:
        return "faster", "slower"
    return "better", "worse"


def _quality_effect(change: Change) -> tuple[str, Tone]:
    """Describes a change of quality, as a share and not as a factor."""
    gained = change.after - change.before if change.higher_is_better else change.before - change.after
    if gained == 0:
        return "unchanged", ""
    word, tone = ("better", "good") if gained > 0 else ("worse", "bad")
    if change.before == 0:
        return word, tone  # type: ignore[return-value]
    share = abs(gained / change.before)
    if share < _UNCHANGED_QUALITY:
        return "unchanged", ""
    return f"{percent(share)} {word}", tone  # type: ignore[return-value]
