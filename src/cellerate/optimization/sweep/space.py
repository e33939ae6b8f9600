"""The space of a search: the values that Optuna may draw, given as lists and ranges like those of a sweep."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from cellerate.errors import ConfigError
from cellerate.messages import argument
from cellerate.optimization.sweep.axes import AXES, Axis, axes_of
from cellerate.optimization.sweep.plan import Base

_EIGHTS_FROM = 16  # sizes from here on are multiples of eight, which fill the vectors of kernels
_EIGHT = 8


@dataclasses.dataclass(frozen=True)
class Dimension:
    """A setting that a search draws.

    Attributes:
        axis: The setting.
        values: The values of a list, one of which is drawn; or both ends of a range.
        ranged: True if the values are the ends of a range.
    """

    axis: Axis
    values: tuple[Any, ...]
    ranged: bool

    def draw(self, trial: Any) -> Any:
        """A value, as a trial of Optuna suggests it."""
        name, kind = self.axis.name, self.axis.kind
        if not self.ranged:
            return trial.suggest_categorical(name, list(self.values))
        low, high = self.values
        if kind == "count":
            return _in_eights(trial.suggest_int(name, low, high, log=True), low, high)
        drawn = trial.suggest_float(name, low, high, log=kind == "rate")
        return float(f"{drawn:.3g}")


def space_of(base: Base, options: Mapping[str, Any]) -> tuple[Dimension, ...]:
    """Return the settings that a search draws: those with several values, or else a default space of the task.

    Args:
        base: The settings that all points share.
        options: The settings as the user gave them.

    Raises:
        ConfigError: A value cannot be used.
    """
    known = axes_of(base.task)
    given = {name: value for name, value in options.items() if name in known}
    found = [_dimension(known[name], value, base.task) for name, value in given.items()]
    several = {one.axis.name: one for one in found if len(one.values) > 1}
    if not several:
        usual = [
            axis
            for axis in known.values()
            if axis.searched and axis.name not in given and not (base.model and axis.part == "architecture")
        ]
        several = {axis.name: _dimension(axis, axis.searched, base.task) for axis in usual}
    if not several:
        raise ConfigError(
            f"there is nothing to search: give a setting a range, such as {argument('learning_rate', '1e-4..1e-2')}."
        )
    return tuple(several[axis.name] for axis in AXES if axis.name in several)


def _dimension(axis: Axis, given: Any, task: str) -> Dimension:
    values = axis.read(given, task)
    ranged = isinstance(given, str) and ".." in given and "," not in given
    return Dimension(axis, (values[0], values[-1]) if ranged else values, ranged)


def _in_eights(value: int, low: int, high: int) -> int:
    if value < _EIGHTS_FROM:
        return value
    rounded = _EIGHT * round(value / _EIGHT)
    return rounded if low <= rounded <= high else value
