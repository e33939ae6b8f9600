"""The settings that a sweep can vary: one table for the command line, Python, the page and the search.

A row names a setting, the record that has it, and the notation for several values.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from cellerate.errors import ConfigError
from cellerate.messages import argument
from cellerate.settings import attribute_docs
from cellerate.tasks.settings import RECORDS

TaskName = Literal["text", "series", "embed"]
Kind = Literal["count", "rate", "share", "switch", "choice"]
Device = Literal["auto", "cpu", "gpu"]

_WIDEST = 1e12  # a range of rates: the factor from one end to the other
_SWITCHES = {"on": True, "yes": True, "true": True, "off": False, "no": False, "false": False}
_SHARE_STEP = 0.1
_HOW: Mapping[str, str] = {
    "count": "Several: 32,64 or a range such as 16..256, which doubles.",
    "rate": "Several: 0.001,0.01 or a range such as 1e-4..1e-2, in factors of about 3.",
    "share": "Several: 0,0.2 or a range such as 0..0.3, in steps of 0.1.",
    "switch": "on, off, or both.",
    "choice": "Several with commas between them.",
}


@dataclasses.dataclass(frozen=True)
class Axis:
    """A setting that a sweep can vary.

    Attributes:
        name: Its name, which is also the name of the option.
        kind: The notation of values: "count" (a whole number), "rate" and "share" (numbers), "switch", "choice".
        part: The record that has it: "data", "architecture" or "training"; "process" for settings of the process.
        searched: The values that a search draws from by default, in the user's notation; "" to leave the setting
            unchanged.
    """

    name: str
    kind: Kind
    part: str
    searched: str = ""

    def choices(self, task: str) -> tuple[str, ...]:
        """The words that a choice may be."""
        if self.name == "device":
            return get_args(Device)
        found = get_args(typing.get_type_hints(RECORDS[task][self.part])[self.name])
        # A sweep measures each precision, so "auto", which measures, is not one of them.
        return tuple(word for word in found if (self.name, word) != ("precision", "auto"))

    def default(self, task: str) -> Any:
        """The value in a task that does not set it."""
        return "auto" if self.part == "process" else getattr(RECORDS[task][self.part], self.name)

    def help(self, task: str) -> str:
        """The help of its option."""
        if self.part == "process":
            words = "Where to train: auto, cpu, gpu."
        else:
            words = attribute_docs(RECORDS[task][self.part])[self.name]
        return f"{words} {_HOW[self.kind]}"

    def read(self, given: Any, task: str) -> tuple[Any, ...]:
        """Return the values that a user gives: a text in the notation of the command line, a value, or a sequence.

        Raises:
            ConfigError: The values cannot be used.
        """
        entries = given.split(",") if isinstance(given, str) else given
        if isinstance(entries, str) or not isinstance(entries, Iterable):
            entries = [entries]
        values: list[Any] = []
        for entry in entries:
            values += (
                self._several(entry.strip(), task) if isinstance(entry, str) else [self._one(entry, task)]
            )
        if not values:
            raise ConfigError(f"{argument(self.name)} is empty: give a value, or several.")
        return tuple(dict.fromkeys(values))

    def _several(self, text: str, task: str) -> Sequence[Any]:
        if not text:
            raise ConfigError(
                f"{argument(self.name)} has an empty entry: leave out the comma before or after it."
            )
        if self.kind == "switch" and text.lower() == "both":
            return (False, True)
        if ".." not in text or self.kind in ("switch", "choice"):
            return (self._one(text, task),)
        first, _, last = text.partition("..")
        low, high = self._one(first.strip(), task, text), self._one(last.strip(), task, text)
        if low >= high:
            raise ConfigError(
                f"{argument(self.name)} has the range {text!r}, which must rise: write the lower end first."
            )
        if self.kind == "count":
            return _doubling(low, high)
        return _by_threes(low, high, self.name) if self.kind == "rate" else _by_tenths(low, high)

    def _one(self, given: Any, task: str, within: str = "") -> Any:
        """One value, of its type."""
        shown = f"the range {within!r}" if within else repr(given)
        if self.kind == "choice":
            words = self.choices(task)
            if given not in words:
                more = ": a sweep measures both itself" if (self.name, given) == ("precision", "auto") else ""
                raise ConfigError(
                    f"{argument(self.name)} must be one of {', '.join(words)}, not {given!r}{more}."
                )
            return given
        if self.kind == "switch":
            switch = given if isinstance(given, bool) else _SWITCHES.get(str(given).lower())
            if switch is None:
                raise ConfigError(f"{argument(self.name)} must be on, off or both, not {given!r}.")
            return switch
        whole = self.kind == "count"
        value: Any
        least = 1 if whole else 0
        try:
            value = (int if whole else float)(given) if isinstance(given, str) else given
        except ValueError:
            value = None
        usable = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        bounded = usable and math.isfinite(value) and (value > 0 if self.kind == "rate" else value >= least)
        if not bounded or (self.kind == "share" and not value < 1):
            wanted = {
                "count": "whole numbers of at least 1",
                "rate": "numbers above 0",
                "share": "numbers of at least 0 and below 1",
            }[self.kind]
            raise ConfigError(f"{argument(self.name)} must be {wanted}, not {shown}.")
        return value if whole else float(value)


AXES: tuple[Axis, ...] = (
    Axis("batch_size", "count", "data", "16..256"),
    Axis("length", "count", "data"),
    Axis("window", "count", "data", "48..192"),
    Axis("max_length", "count", "data"),
    Axis("units", "count", "architecture", "32..256"),
    Axis("layers", "count", "architecture", "1,2"),
    Axis("embedding", "count", "architecture"),
    Axis("latent", "count", "architecture"),
    Axis("cell", "choice", "architecture"),
    Axis("bidirectional", "switch", "architecture"),
    Axis("layer_norm", "switch", "architecture"),
    Axis("tie_weights", "switch", "architecture"),
    Axis("dropout", "share", "architecture", "0..0.3"),
    Axis("recurrent_dropout", "share", "architecture"),
    Axis("decoder_dropout", "share", "architecture"),
    Axis("optimizer", "choice", "training", "adam,adamw,nadam"),
    Axis("learning_rate", "rate", "training", "3e-4..1e-2"),
    Axis("accumulate", "count", "training"),
    Axis("schedule", "choice", "training"),
    Axis("precision", "choice", "training"),
    Axis("implementation", "choice", "training"),
    Axis("device", "choice", "process"),
)
"""All axes, in the order of options, columns and labels."""


def axes_of(task: str) -> dict[str, Axis]:
    """The settings of a task that can be varied, by name."""
    records = RECORDS[task]
    return {
        axis.name: axis
        for axis in AXES
        if axis.part == "process" or axis.name in {one.name for one in dataclasses.fields(records[axis.part])}
    }


def check_known(task: str, options: Iterable[str]) -> None:
    """Raises `ConfigError` for an option that none of a task's records has."""
    known = {"device"} | {one.name for record in RECORDS[task].values() for one in dataclasses.fields(record)}
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), 1)
            meant = f"; did you mean {near[0]!r}?" if near else "."
            raise ConfigError(
                f"{name!r} is not a setting of training on {task}{meant} Those that take several values are "
                f"{', '.join(axes_of(task))}."
            )


def written(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _doubling(low: int, high: int) -> list[int]:
    values = [low]
    while values[-1] * 2 < high:
        values.append(values[-1] * 2)
    return [*values, high]


def _by_threes(low: float, high: float, name: str) -> list[float]:
    """From one end to the other, by factors of 3 and 10 / 3: 1e-4, 3e-4, 1e-3 and so on."""
    if high / low > _WIDEST:
        raise ConfigError(
            f"{argument(name)} has a range of {written(low)} to {written(high)}: make it narrower, such as 1e-4..1e-2."
        )
    values = [low]
    while True:
        power, third = divmod(len(values), 2)
        after = float(f"{low * 10**power * (3 if third else 1):.12g}")
        if after >= high * 0.999:
            return [*values, high]
        values.append(after)


def _by_tenths(low: float, high: float) -> list[float]:
    count = math.ceil((high - low) / _SHARE_STEP - 1e-9)
    return [round(low + place * _SHARE_STEP, 6) for place in range(count)] + [high]
