"""Reads JAX's profiler: which instructions ran when, and for which part of a model.

The trace names XLA's instructions. The compiled program says which operation each came from, with the scopes around
it, and whether it was differentiated: `transpose(jvp(scope))` is the backward pass.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from cellerate.bridges.profiled import WINDOW, Event, marked

Sources = dict[str, str]
"""For each instruction the name of its operation, with the scopes around it."""
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")
_SOURCE = re.compile(r'op_name="([^"]*)"')
_CALLED = re.compile(r"(?:calls|to_apply)=%?([\w.\-]+)")


@contextlib.contextmanager
def scope(name: str) -> Iterator[None]:
    """Names what is computed or built in it."""
    with jax.named_scope(name), jax.profiler.TraceAnnotation(name):
        yield


class Recording:
    """JAX's profiler, which writes into a folder; TensorBoard reads it there.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._options = jax.profiler.ProfileOptions()
        # Each call of a Python function would be an event that costs more than most calls.
        self._options.python_tracer_level = 0

    def __enter__(self) -> Recording:
        jax.profiler.start_trace(str(self._folder), profiler_options=self._options)
        return self

    def __exit__(self, *error: object) -> None:
        jax.profiler.stop_trace()

    def write(self) -> None:
        """The trace is written already."""

    def events(self) -> list[Event]:
        """The recorded pieces."""
        newest = max(self._folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
        programs: dict[str, Sources] = {}
        with warnings.catch_warnings():
            # Python 3.13 warns of a type that JAX makes when it is first needed; as an error it would end the process.
            warnings.simplefilter("ignore", DeprecationWarning)
            made = [
                self._event(f"{plane.name} {number}", event, programs)
                for plane in jax.profiler.ProfileData.from_file(str(newest)).planes
                for number, line in enumerate(plane.lines)
                for event in line.events
            ]
        return [event for event in made if event is not None]

    def _event(self, thread: str, event: Any, programs: dict[str, Sources]) -> Event | None:
        name, begin = event.name, event.start_ns
        end = begin + event.duration_ns
        if name == WINDOW or (name.startswith("cellerate.") and marked(name) is not None):
            return Event(thread, begin, end, name, marked(name), False, False)
        stats = dict(event.stats)
        if "hlo_op" not in stats:
            return None
        module = str(stats.get("hlo_module"))
        if module not in programs:
            programs[module] = _sources(module)
        source = programs[module].get(str(stats["hlo_op"]), "")
        return Event(thread, begin, end, name, marked(source), "transpose(" in source, True)


def _sources(module: str) -> Sources:
    """The origins of a program's instructions; of several programs of that name, the program with marks counts."""
    texts = [
        program.to_string()
        for executable in jax.devices()[0].client.live_executables()
        for program in executable.hlo_modules()
        if program.name == module
    ]
    with_marks = [text for text in texts if marked(text) is not None]
    found: Sources = {}
    for text in with_marks or texts:
        found |= sources_of(text)
    return found


def sources_of(text: str) -> Sources:
    """Return the operation behind each instruction.

    A fusion has one operation's name, if any, though it may hold many: where it names no part of a model, that which
    most of its instructions belong to stands for it.

    Args:
        text: The program, as XLA prints it.
    """
    found: Sources = {}
    inside: dict[str, list[str]] = {}
    called: dict[str, str] = {}
    computation = ""
    for line in text.splitlines():
        if (begin := _COMPUTATION.match(line)) is not None:
            computation = begin[1]
            continue
        if (instruction := _INSTRUCTION.match(line)) is None:
            continue
        if (source := _SOURCE.search(line)) is not None:
            found[instruction[1]] = source[1]
            inside.setdefault(computation, []).append(source[1])
        if (other := _CALLED.search(line)) is not None:
            called[instruction[1]] = other[1]
    for name, callee in called.items():
        if marked(found.get(name, "")) is None:
            named = Counter(source for source in inside.get(callee, ()) if marked(source) is not None)
            if named:
                found[name] = named.most_common(1)[0][0]
    return found
