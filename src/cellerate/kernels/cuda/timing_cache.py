"""Remembers what was measured on a GPU, so that nothing is measured twice: which of several ways is the fastest.

The answers outlive the process. They are in a file of the cache folder, by GPU, driver and source of the kernels. If
the file is damaged or cannot be written, the only cost is measuring again.
"""

from __future__ import annotations

import functools
import json
import math
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from cellerate.errors import OutputError
from cellerate.files import atomic_write, cache_dir
from cellerate.kernels.cuda import sources

# Held while the file is read or written, never while measuring: a contest of two implementations asks for the
# times of single kernels meanwhile, in torch from a thread of the backward pass. If two processes write
# at once, one may lose what it measured, and measures it again.
_lock = threading.Lock()


def measured(gpu: str, question: str, measure: Callable[[], Mapping[str, float]] | None) -> dict[str, float]:
    """The times that `measure` returns, or returned when the question was first asked.

    Args:
        gpu: The GPU and its driver, as `launch.gpu_name` names them.
        question: A description of the measurement; equal questions have equal answers.
        measure: Returns times by name, each above 0 and in any unit. None if nothing can be measured now: the answer is
            then empty unless it is already known.
    """
    key = f"{gpu}; {sources.digest()}; {question}"
    with _lock:
        known = _read(_file()).get(key)
    if _is_times(known):
        return dict(known)
    if measure is None:
        return {}
    times = dict(measure())
    with _lock:
        _remember(key, times)
    return times


def _is_times(found: Any) -> TypeGuard[dict[str, float]]:
    return (
        isinstance(found, dict)
        and len(found) > 0
        and all(isinstance(time, float) and 0 < time < math.inf for time in found.values())
    )


def _file() -> Path:
    return cache_dir() / "cuda-times.json"


@functools.lru_cache(maxsize=1)
def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _remember(key: str, times: dict[str, float]) -> None:
    file = _file()
    _read.cache_clear()
    # Read again, to keep what other processes have written meanwhile.
    every = _read(file)
    every[key] = times
    try:
        with atomic_write(file) as beside:
            beside.write_text(json.dumps(every, indent=1, sort_keys=True), encoding="utf-8")
    except OutputError:
        return  # this process still knows it: `every` is what `_read` has cached
