"""The points of a sweep: the combinations of settings, and the points that fit into the time."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cellerate.errors import ConfigError
from cellerate.machine.needs import check_memory
from cellerate.messages import argument
from cellerate.optimization.sweep.axes import AXES, axes_of, check_known, written
from cellerate.optimization.sweep.record import is_stock
from cellerate.optimization.sweep.settings import LEAST_S, SweepSettings
from cellerate.settings import record_of
from cellerate.tasks.settings import RECORDS

MOST_POINTS = 500
START_S = 10.0
"""About the seconds in which a point starts and compiles, until they are measured."""
JUDGING = 0.3
"""About the ratio of a point's whole time to its training time, because it is judged in between."""


@dataclasses.dataclass(frozen=True)
class Base:
    """The settings that all points share.

    Attributes:
        task: "text", "series" or "embed".
        paths: The files of the data.
        parts: The fields of the task's records that differ from the defaults, by the part of each record.
        model: The file of a trained model that each point continues; None for new models.
        backend: The Keras backend.
    """

    task: str
    paths: tuple[str, ...]
    parts: Mapping[str, Mapping[str, Any]]
    model: str | None
    backend: str

    def value(self, name: str) -> Any:
        """The value of a setting that can be swept."""
        axis = axes_of(self.task)[name]
        return self.parts.get(axis.part, {}).get(name, axis.default(self.task))


@dataclasses.dataclass(frozen=True)
class Point:
    """One of the combinations of settings to compare.

    Attributes:
        values: The values of the swept settings, by name.
        control: True if all other points are compared with it.
    """

    values: Mapping[str, Any]
    control: bool = False

    @property
    def key(self) -> str:
        """A unique name, the same in every run."""
        return json.dumps(dict(self.values), sort_keys=True)

    @property
    def label(self) -> str:
        """Its values in a few words: "batch size 128, keras"."""
        words = [_in_words(name, value) for name, value in self.values.items()]
        return ", ".join(filter(None, words)) or "as given"

    @property
    def stock(self) -> bool:
        """True if stock Keras trains it."""
        return is_stock(self.values)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The points of a sweep.

    Attributes:
        base: The settings that they share.
        axes: The values of the swept settings, by name; only settings with several values.
        points: The points, the control first.
    """

    base: Base
    axes: Mapping[str, tuple[Any, ...]]
    points: tuple[Point, ...]


def read_settings(
    task: str,
    paths: Sequence[str],
    options: Mapping[str, Any],
    *,
    backend: str,
    model: str | None = None,
    recorded: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Base, dict[str, tuple[Any, ...]]]:
    """Read the options of a task: the settings that all points share, and the values of the given settings.

    Args:
        task: The task.
        paths: The files of the data.
        options: Settings by name; those of `axes_of(task)` may have several values.
        backend: The Keras backend.
        model: The file of a trained model, or None.
        recorded: The settings that the model was trained with; options override them.

    Raises:
        ConfigError: An option is unknown, or a value cannot be used.
    """
    check_known(task, options)
    if task == "embed" and len(paths) > 1:
        raise ConfigError(f"the data must be the path of one file of lines, not {len(paths)} of them.")
    known = axes_of(task)
    several = {name: known[name].read(given, task) for name, given in options.items() if name in known}
    # In the order of the table, so that the names of points do not depend on the order of options.
    several = {axis.name: several[axis.name] for axis in AXES if axis.name in several}
    single = {name: values[0] for name, values in several.items() if len(values) == 1}
    plain = {name: value for name, value in options.items() if name not in known}
    fields = {**recorded, **plain, **single}
    parts = {part: _given(record, fields) for part, record in RECORDS[task].items()}
    if "device" in single:
        parts["process"] = {"device": single["device"]}
    return Base(task, tuple(str(Path(path).absolute()) for path in paths), parts, model, backend), several


def plan(base: Base, several: Mapping[str, tuple[Any, ...]], settings: SweepSettings) -> Plan:
    """Combine all values with each other, and add the control.

    Args:
        base: The settings that the points share.
        several: The values of each setting that is given.
        settings: The limits of the sweep.

    Raises:
        ConfigError: There is nothing to compare, or more points than can be trained.
    """
    axes = {name: values for name, values in several.items() if len(values) > 1}
    if _beside_stock(axes, several, settings):
        axes["implementation"] = (base.value("implementation"), "keras")
        axes = {axis.name: axes[axis.name] for axis in AXES if axis.name in axes}
    if not axes:
        raise ConfigError(
            "nothing is swept: give a setting several values, such as "
            f"{argument('batch_size', '8..256')} or {argument('learning_rate', '1e-4..1e-2')}."
        )
    count = math.prod(map(len, axes.values()))
    if count > MOST_POINTS:
        sizes = " x ".join(f"{len(values)} of {argument(name)}" for name, values in axes.items())
        raise ConfigError(
            f"that is {count:,} points ({sizes}); at most {MOST_POINTS} can be swept. Give fewer values, sweep one "
            f"setting after the other, or try some of them with {argument('search', True)}."
        )
    control = Point({name: _control(base, name, values) for name, values in axes.items()}, control=True)
    grid = [Point(dict(zip(axes, values, strict=True))) for values in itertools.product(*axes.values())]
    # Beside the control, its other implementations: mostly stock Keras.
    twins = [Point({**control.values, "implementation": one}) for one in axes.get("implementation", ())]
    others = {point.key: point for point in (*twins, *grid) if point.key != control.key}
    return Plan(base, axes, (control, *others.values()))


def settings_of_point(base: Base, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the fields of the task's records for a point, by the part of each record.

    Raises:
        ConfigError: The values contradict each other, or need more memory than the machine has.
    """
    known = axes_of(base.task)
    parts = {part: dict(fields) for part, fields in base.parts.items()}
    for name, value in values.items():
        parts.setdefault(known[name].part, {})[name] = value
    made: dict[str, Any] = {
        part: record_of(record, parts.get(part, {})) for part, record in RECORDS[base.task].items()
    }
    check_memory(made["data"], None if base.model else made["architecture"])
    return parts


def point_cost_s(start_s: float, seconds: float) -> float:
    """About the seconds of a point that trains for `seconds`."""
    return start_s + seconds * (1 + JUDGING)


def within(
    points: Sequence[Point], left_s: float, start_s: float, seconds: float
) -> tuple[float, list[Point], list[Point]]:
    """Fit points into the time left: first each trains for less, then some are left out.

    Args:
        points: The points to train.
        left_s: The seconds left.
        start_s: The seconds in which a point starts.
        seconds: The seconds that each should train for.

    Returns:
        The seconds that each trains for, the points that fit, and the points that do not, spread over all.
    """
    if not points:
        return seconds, [], []
    least = min(seconds, LEAST_S)
    fitting = (left_s / len(points) - start_s) / (1 + JUDGING)
    seconds = min(seconds, max(fitting, least))
    count = min(len(points), max(0, int(left_s / point_cost_s(start_s, seconds))))
    kept = set(_ends_first(len(points))[:count])
    return (
        seconds,
        [point for place, point in enumerate(points) if place in kept],
        [point for place, point in enumerate(points) if place not in kept],
    )


def _ends_first(count: int) -> list[int]:
    """Return all numbers below `count`: both ends first, then in an order that spreads every prefix evenly."""
    order = dict.fromkeys([0, count - 1])
    gaps = [(0, count - 1)]
    while gaps:
        low, high = gaps.pop(0)
        middle = (low + high) // 2
        if middle not in (low, high):
            order[middle] = None
            gaps += [(low, middle), (middle, high)]
    return list(order)


def _beside_stock(
    axes: Mapping[str, Any], several: Mapping[str, tuple[Any, ...]], settings: SweepSettings
) -> bool:
    if settings.beside_stock is not None:
        given = several.get("implementation", ())
        if settings.beside_stock and given and "keras" not in given:
            raise ConfigError(
                f"{argument('beside_stock', True)} and {argument('implementation')} both say who trains: give "
                f"{argument('implementation', 'auto,keras')} alone."
            )
        return settings.beside_stock and not given
    return "batch_size" in axes and {*axes} <= {"batch_size", "device"} and "implementation" not in several


def _control(base: Base, name: str, values: tuple[Any, ...]) -> Any:
    """The value of the control: the task's default; for the device, the one that training would choose."""
    if name == "device":
        return next(device for device in ("auto", "gpu", "cpu") if device in values)
    value = base.value(name)
    if name == "implementation" and value not in values:
        return values[0]
    return value


def _given(record: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are fields of a record, checked and as JSON; defaults are left out."""
    fields = {field.name: field for field in dataclasses.fields(record)}
    own = {name: value for name, value in options.items() if name in fields}
    made: Any = record_of(record, own)
    found = {name: getattr(made, name) for name in own}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
    return {name: value for name, value in plain.items() if not _is_default(value, fields[name].default)}


def _is_default(value: Any, default: Any) -> bool:
    return value == (list(default) if isinstance(default, tuple) else default)


def _in_words(name: str, value: Any) -> str:
    if name in ("implementation", "device", "optimizer", "precision"):
        # Our implementation and the default device need no words.
        return "" if value == "auto" else str(value)
    return f"{name.replace('_', ' ')} {written(value)}"
