"""The conclusions of a sweep: the fastest point, the point that learns best, and points that equal them.

Everything is computed from the record. Functions import NumPy, because the command line imports this module.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from cellerate.format import loss as loss_words, milliseconds, short
from cellerate.optimization.sweep.record import PointRecord, SweepRecord, is_stock

Along = Literal["seconds", "steps"]

RESAMPLES = 2000
"""The number of bootstrap resamples of the judging batches, for an interval."""
_SURE = (0.025, 0.975)
_MOST_NAMED = 3
_ALIKE = 0.1  # the items of two parts that are compared batch by batch may differ by this share
_FEW = 0.25  # of the control's steps
_LEAST_BATCHES = 2  # that an interval needs


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval.

    Attributes:
        value: The figure.
        low: The lower end of the interval.
        high: The upper end.
    """

    value: float
    low: float
    high: float

    @property
    def certain(self) -> bool:
        """True if the interval leaves no doubt about its sign."""
        return self.low > 0 or self.high < 0


@dataclasses.dataclass(frozen=True)
class Standing:
    """A point compared with the control after equally long training.

    Attributes:
        point: The point.
        loss: Its validation loss, in the unit of the record; None if it is not finite, or if it trained for less.
        beside_control: Its loss minus the control's; None for the control itself.
        train_loss: Its training loss at about that time.
    """

    point: PointRecord
    loss: Estimate | None
    beside_control: Estimate | None
    train_loss: float | None


def equal_training(record: SweepRecord, along: Along) -> float:
    """Return the longest training that all measured points have had, in seconds or in steps.

    For steps, points with far fewer steps than the control do not count: stock Keras may take one step while others
    take a thousand, and losses after one step say nothing about a point.
    """
    measured = [point for point in record.points if point.comparable]
    least = 0.0
    if along == "steps" and (control := next((point for point in measured if point.control), None)):
        least = _FEW * control.steps
    return min((getattr(point, along) for point in measured if getattr(point, along) >= least), default=0.0)


def judged_along(record: SweepRecord) -> Along:
    """The measure of training that is equal where points are compared: steps if a number was given, else seconds."""
    return "steps" if record.settings.get("steps") else "seconds"


def equal_words(record: SweepRecord, digits: int) -> str:
    """The training after which points are compared: after 2.65 s of training, after 20 steps."""
    along = judged_along(record)
    at = equal_training(record, along)
    return f"after {at:.{digits}g} s of training" if along == "seconds" else f"after {at:,.0f} steps"


def standings(record: SweepRecord, along: Along) -> list[Standing]:
    """All measured points beside the control, after equal seconds or equal steps."""
    at = equal_training(record, along)
    measured = [point for point in record.points if point.measured]
    control = next((point for point in measured if point.control), None)
    found = []
    for point in measured:
        if getattr(point, along) < at:
            found.append(Standing(point, None, None, None))
            continue
        own = _losses_at(point, along, at)
        beside = None
        if control is not None and point is not control:
            beside = _difference(own, _losses_at(control, along, at), record.in_bits)
        found.append(
            Standing(point, _mean(own, record.in_bits), beside, _train_loss(point, along, at, record))
        )
    return found


def judge(record: SweepRecord) -> dict[str, Any]:
    """Return the verdict of a sweep, for its record.

    Returns:
        `sentence`; `fastest`, `best` and `chosen`, labels of points; `as_fast` and `as_good`, the points that cannot
        be told apart from them; `equal_seconds` and `equal_steps`. Only `sentence` if no point was measured.
    """
    measured = [point for point in record.points if point.comparable]
    if not measured:
        return {"sentence": "No point was measured."}
    fastest, as_fast = fastest_of(measured)
    found = standings(record, judged_along(record))
    # Stock Keras is there for its speed only: each of its steps learns the same.
    ours = [one for one in found if not is_stock(one.point.values)]
    best, as_good = best_of(ours or found, record)
    chosen = _chosen(best, as_good)
    equal = {f"equal_{along}": equal_training(record, along) for along in ("seconds", "steps")}
    sentence = f"{_speed_words(record, fastest, as_fast)} {_loss_words(record, found, best, as_good)}"
    return {
        "sentence": sentence.strip(),
        "fastest": fastest.label,
        "as_fast": [point.label for point in as_fast],
        "best": None if best is None else best.label,
        "as_good": [point.label for point in as_good],
        "chosen": None if chosen is None else chosen.label,
        **equal,
    }


def fastest_of(points: Sequence[PointRecord]) -> tuple[PointRecord, list[PointRecord]]:
    """The point that takes the least time for an item, and those whose intervals overlap with its own."""
    fastest = max(points, key=lambda point: point.items_per_s)
    high = fastest.item_s[1]
    return fastest, [point for point in points if point is not fastest and point.item_s[0] <= high]


def best_of(found: Sequence[Standing], record: SweepRecord) -> tuple[PointRecord | None, list[PointRecord]]:
    """The point with the lowest validation loss after equal training, and those that cannot be told apart from it."""
    known = [one for one in found if one.loss is not None]
    if not known:
        return None, []
    best = min(known, key=lambda one: one.loss.value if one.loss is not None else 0.0)
    along = judged_along(record)
    at = equal_training(record, along)
    own = _losses_at(best.point, along, at)
    alike = []
    for one in known:
        if one is best:
            continue
        beside = _difference(_losses_at(one.point, along, at), own, record.in_bits)
        if beside is None or not beside.certain:
            alike.append(one.point)
    return best.point, alike


def difference_of_tests(point: PointRecord, control: PointRecord, in_bits: float) -> Estimate | None:
    """The difference of a point's loss on the test part from the control's."""
    return _difference(_as_arrays(point.test), _as_arrays(control.test), in_bits)


def mean_of_test(point: PointRecord, in_bits: float) -> Estimate | None:
    """A point's loss on the test part."""
    return _mean(_as_arrays(point.test), in_bits)


def _chosen(best: PointRecord | None, as_good: Sequence[PointRecord]) -> PointRecord | None:
    """The point to train: the control if nothing is better, else the best."""
    return next((point for point in as_good if point.control), best)


def _speed_words(record: SweepRecord, fastest: PointRecord, as_fast: Sequence[PointRecord]) -> str:
    item = record.item.removesuffix("s")
    words = (
        f"Per {item}, {fastest.label} is the fastest: {short(fastest.items_per_s)} {record.item}/s, "
        f"{milliseconds(1e3 * fastest.step.median_s)} a step"
    )
    control = next((point for point in record.points if point.control and point.measured), None)
    if as_fast:
        words += f" (not distinguishable from {_named(as_fast)})"
    if control is not None and control is not fastest and control not in as_fast:
        factor = fastest.items_per_s / control.items_per_s
        words += f", {factor:.3g} times as many as the control ({control.label})"
    return f"{words}."


def _loss_words(
    record: SweepRecord,
    found: Sequence[Standing],
    best: PointRecord | None,
    as_good: Sequence[PointRecord],
) -> str:
    if best is None:
        return "No point has a finite validation loss."
    by_point = {id(one.point): one for one in found}
    after = equal_words(record, 3)
    loss = by_point[id(best)].loss
    assert loss is not None  # noqa: S101 (the best has one)
    unit = "" if record.unit == "loss" else f" {record.unit}"
    alike = f", not distinguishable from {_named(as_good)}" if as_good else ""
    if best.control:
        return f"Nothing learns more than the control, {best.label}: {loss_words(loss.value)}{unit} {after}{alike}."
    words = f"The lowest validation loss {after} is that of {best.label}, {loss_words(loss.value)}{unit}"
    control = next((one for one in found if one.point.control and one.loss is not None), None)
    beside = by_point[id(best)].beside_control
    if control is None or control.loss is None or beside is None:
        return f"{words}{alike}."
    low, high = sorted((abs(beside.low), abs(beside.high)))
    words += f", beside {loss_words(control.loss.value)} of the control ({control.point.label})"
    if control.point in as_good:
        return f"{words}: not distinguishable, so the control stays."
    return f"{words}: {loss_words(low)} to {loss_words(high)} lower{alike}."


def _named(points: Sequence[PointRecord]) -> str:
    labels = [point.label for point in points]
    more = len(labels) - _MOST_NAMED
    shown = labels[:_MOST_NAMED] if more > 1 else labels
    return "; ".join(shown) + (f" and {more} more" if more > 1 else "")


def _losses_at(point: PointRecord, along: Along, at: float) -> Any:
    """Return the (batches, 2) losses and weights of a point after training up to `at`, interpolated linearly."""
    import numpy as np

    judged = sorted(point.judged, key=lambda one: (one["steps"], one["seconds"]))
    arrays = [
        np.array([[np.nan if loss is None else loss for loss in one["losses"]], one["weights"]]).T
        for one in judged
    ]
    places = np.array([one[along] for one in judged], float)
    after = int(np.clip(np.searchsorted(places, at), 0, len(judged) - 1))
    before = max(0, after - 1)
    span = places[after] - places[before]
    share = 1.0 if span <= 0 else float(np.clip((at - places[before]) / span, 0, 1))
    if share == 1.0:
        return arrays[after]
    return (1 - share) * arrays[before] + share * arrays[after]


def _train_loss(point: PointRecord, along: Along, at: float, record: SweepRecord) -> float | None:
    known = [one for one in point.judged if one.get("train_loss") is not None]
    if not known:
        return None
    nearest = min(known, key=lambda one: abs(one[along] - at))
    return float(nearest["train_loss"]) * record.in_bits


def _mean(losses: Any, factor: float) -> Estimate | None:
    """The mean loss over batches, with the interval of a bootstrap over them."""
    import numpy as np

    if not len(losses) or not np.isfinite(losses).all():
        return None
    drawn = _drawn(len(losses))
    values, weights = losses.T
    resampled = (values * weights)[drawn].sum(axis=1) / weights[drawn].sum(axis=1)
    low, high = np.quantile(resampled, _SURE)
    return Estimate(
        float(np.average(values, weights=weights)) * factor, float(low) * factor, float(high) * factor
    )


def _difference(one: Any, other: Any, factor: float) -> Estimate | None:
    """Return the mean difference of two points: batch by batch if they are judged on the same batches.

    None if a loss is not finite, or if the batches are too few to rule out chance.
    """
    import numpy as np

    few = min(len(one), len(other)) < _LEAST_BATCHES
    if few or not (np.isfinite(one).all() and np.isfinite(other).all()):
        return None
    value = np.average(one[:, 0], weights=one[:, 1]) - np.average(other[:, 0], weights=other[:, 1])
    # Windows of other lengths cover about the same stretches.
    if one.shape == other.shape and np.allclose(one[:, 1].sum(), other[:, 1].sum(), rtol=_ALIKE):
        drawn = _drawn(len(one))
        weights = (one[:, 1] + other[:, 1]) / 2
        resampled = ((one[:, 0] - other[:, 0]) * weights)[drawn].sum(axis=1) / weights[drawn].sum(axis=1)
    else:
        means = [
            (each[:, 0] * each[:, 1])[drawn].sum(axis=1) / each[:, 1][drawn].sum(axis=1)
            for seed, each in enumerate((one, other))
            for drawn in [_drawn(len(each), seed)]
        ]
        resampled = means[0] - means[1]
    low, high = np.quantile(resampled, _SURE)
    return Estimate(float(value) * factor, float(low) * factor, float(high) * factor)


def _drawn(count: int, seed: int = 0) -> Any:
    """Return (RESAMPLES, count) indices of batches, drawn with replacement; the same in every call."""
    import numpy as np

    return np.random.default_rng(seed).integers(0, count, (RESAMPLES, count))


def _as_arrays(losses: Sequence[Sequence[float]]) -> Any:
    import numpy as np

    return np.array(losses, float).reshape(-1, 2)
