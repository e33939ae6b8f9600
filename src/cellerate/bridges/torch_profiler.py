"""Reads torch's profiler: which operations ran when, and for which part of a model.

An operation of the forward pass lies within the mark of its part. One of the backward pass has the number of the
operation that it belongs to (`sequence_nr`), and so its part.

Source: "Forward-backward correlation" in the documentation of `torch.autograd.profiler`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from cellerate.bridges.profiled import WINDOW, Event, marked

_BACKWARD = "autograd::engine::evaluate_function"


def scope(name: str) -> contextlib.AbstractContextManager[object]:
    """Names what is computed in it."""
    return record_function(name)


class Recording:
    """torch's profiler; it leaves a trace for Perfetto in a folder.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._folder, self._profile = folder, profile(activities=activities)

    def __enter__(self) -> Recording:
        self._profile.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        # A GPU may lag behind.
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._profile.__exit__(*error)

    def write(self) -> None:
        """Writes the trace as torch does, for TensorBoard and Perfetto."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._profile.export_chrome_trace(str(self._folder / "torch.pt.trace.json"))

    def events(self) -> Iterator[Event]:
        """The recorded pieces."""
        found = [one for one in self._profile.events() or () if one.time_range.end > one.time_range.start]
        on_cpu = [one for one in found if one.device_type == torch.autograd.DeviceType.CPU]
        parts = {
            one.sequence_nr: _around(one)
            for one in sorted(on_cpu, key=lambda one: one.time_range.start)
            if one.scope == 0 and one.sequence_nr >= 0 and not _is_backward(one)
        }
        owners: dict[int, tuple[int | None, bool]] = {}
        for one in on_cpu:
            work = not one.is_user_annotation and one.scope != 7
            part, backward = _around(one), False
            if _is_backward(one):
                part, backward = parts.get(_top(one).sequence_nr, part), True
            owners[one.id] = part, backward
            if work or one.name == WINDOW or marked(one.name) is not None:
                yield _event(one, f"cpu {one.thread}", part, backward, work)
        for one in found:
            if one.device_type != torch.autograd.DeviceType.CPU and not one.is_user_annotation:
                part, backward = owners.get(one.linked_correlation_id, (None, False))
                yield _event(one, f"gpu {one.device_index}.{one.device_resource_id}", part, backward, True)


def _event(one: Any, thread: str, part: int | None, backward: bool, work: bool) -> Event:
    begin, end = 1e3 * one.time_range.start, 1e3 * one.time_range.end
    return Event(thread, begin, end, one.name, part, backward, work)


def _around(one: Any) -> int | None:
    """The innermost part that an event lies in."""
    while one is not None:
        if (part := marked(one.name)) is not None:
            return part
        one = one.cpu_parent
    return None


def _top(one: Any) -> Any:
    """The step of the backward pass that an event lies in."""
    while one.cpu_parent is not None and not one.name.startswith(_BACKWARD):
        one = one.cpu_parent
    return one


def _is_backward(one: Any) -> bool:
    return bool(_top(one).name.startswith(_BACKWARD))
