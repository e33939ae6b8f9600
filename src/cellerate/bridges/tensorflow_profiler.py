"""Reads TensorFlow's profiler: which operations ran when, and for which part of a model.

Operations of a graph carry the scopes around them in their names, those of the backward pass behind "gradient_tape".
What XLA compiled has the names of instructions, and the trace holds the programs that say where each came from.
Operations that run eagerly have no scopes and lie within the mark of their part.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.compiler.xla.service import hlo_pb2
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from cellerate.bridges.profiled import WINDOW, Event, marked

# scope/name:Operation; the parts of the runtime have two colons or none.
_OPERATION = re.compile(r"^[^:]+:_?[A-Z]\w*$")
_EAGER = "EagerLocalExecute: "
# A call of a whole graph, which holds the operations.
_GRAPHS = ("__inference_", "__forward_", "__backward_")
_LOADING = "tf_data"


@contextlib.contextmanager
def scope(name: str) -> Iterator[None]:
    """Names what is computed or built in it."""
    with tf.name_scope(name), tf.profiler.experimental.Trace(name):
        yield


class Recording:
    """TensorFlow's profiler, which writes into a folder; TensorBoard reads it there.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Recording:
        # Each call of a Python function would be an event that costs more than most calls.
        options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0)
        tf.profiler.experimental.start(str(self._folder), options=options)
        return self

    def __exit__(self, *error: object) -> None:
        tf.profiler.experimental.stop()

    def write(self) -> None:
        """The trace is written already."""

    def events(self) -> Iterator[Event]:
        """The recorded pieces."""
        newest = max(self._folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
        space = xplane_pb2.XSpace()
        space.ParseFromString(newest.read_bytes())
        compiled = _compiled(space)
        for plane in space.planes:
            names = {number: metadata.name for number, metadata in plane.event_metadata.items()}
            gpu = plane.name.startswith("/device:GPU")
            for number, line in enumerate(plane.lines):
                if line.name.startswith(_LOADING):
                    continue
                for event in line.events:
                    begin = line.timestamp_ns + event.offset_ps / 1e3
                    end = begin + event.duration_ps / 1e3
                    source = _source(names[event.metadata_id], plane, event, compiled, gpu=gpu)
                    if source is not None:
                        yield _event(f"{plane.name} {number}", begin, end, names[event.metadata_id], source)


def _event(thread: str, begin: float, end: float, name: str, source: str) -> Event:
    mark = name == WINDOW or (name.startswith("cellerate.") and marked(name) is not None)
    backward = "gradient_tape" in source or "transpose(" in source
    return Event(thread, begin, end, name, marked(source), backward, not mark)


def _source(name: str, plane: Any, event: Any, compiled: dict[str, str], *, gpu: bool) -> str | None:
    """The scopes around what an event is; None for one of the runtime."""
    if name == WINDOW or name.startswith("cellerate."):
        return name
    if gpu:
        stats = {plane.stat_metadata[one.metadata_id].name: one for one in event.stats}
        operation = stats.get("tf_op")
        if operation is None:
            return name
        return operation.str_value or plane.stat_metadata[operation.ref_value].name
    if name in compiled:
        return compiled[name]
    if name.startswith(_EAGER) and not name.startswith(_GRAPHS, len(_EAGER)):
        return ""
    return name if _OPERATION.match(name) else None


def _compiled(space: Any) -> dict[str, str]:
    """The origins of the instructions of the programs in a trace; of several programs, those with marks."""
    found: list[dict[str, str]] = []
    for plane in space.planes:
        if plane.name != "/host:metadata":
            continue
        for metadata in plane.event_metadata.values():
            for stat in metadata.stats:
                proto = hlo_pb2.HloProto()
                proto.ParseFromString(stat.bytes_value)
                found.append(sources_of(proto.hlo_module))
    with_marks = [program for program in found if any(marked(name) is not None for name in program.values())]
    return {name: source for program in with_marks or found for name, source in program.items()}


def sources_of(program: Any) -> dict[str, str]:
    """The operation behind each instruction of a program; for a fusion, that of most of its instructions."""
    computations = {one.id: one for one in program.computations}
    found: dict[str, str] = {}
    for computation in program.computations:
        for one in computation.instructions:
            inside = [
                inner.metadata.op_name
                for number in one.called_computation_ids
                for inner in computations[number].instructions
                if marked(inner.metadata.op_name) is not None
            ]
            own = one.metadata.op_name
            usual = Counter(inside).most_common(1)
            found[one.name] = own if marked(own) is not None or not usual else usual[0][0]
    return found
