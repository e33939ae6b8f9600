"""What was measured on a GPU, so that nothing is measured twice: which of several ways is the fastest.

A module of its own because the answers outlive the process: they stand in a file of the cache, by the GPU, its driver
and the source of the kernels, and a file that is damaged or cannot be written costs no more than measuring again.
"""

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

# Held to read and write the file, never to measure: a contest between two implementations asks for the times of single
# kernels meanwhile, on torch from a thread of the backward pass. Of two processes that write at once one may lose what
# it measured, and measures it again.
_lock = threading.Lock()


def measured(gpu: str, question: str, measure: Callable[[], Mapping[str, float]] | None) -> dict[str, float]:
    """What `measure` gives, or gave the first time that the question was asked.

    Args:
        gpu: The GPU and its driver, as `launch.gpu_name` gives them.
        question: What is measured; equal questions have equal answers.
        measure: Gives a time above 0, in any unit, for each of some names; None where nothing can be measured, which
            gives no times if there are none yet.
    """
    place = f"{gpu}; {sources.digest()}; {question}"
    with _lock:
        known = _read(_file()).get(place)
    if _is_times(known):
        return dict(known)
    if measure is None:
        return {}
    times = dict(measure())
    with _lock:
        _remember(place, times)
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


def _remember(place: str, times: dict[str, float]) -> None:
    file = _file()
    _read.cache_clear()
    # What other processes have written meanwhile stays.
    every = _read(file)
    every[place] = times
    try:
        with atomic_write(file) as beside:
            beside.write_text(json.dumps(every, indent=1, sort_keys=True), encoding="utf-8")
    except OutputError:
        return  # this process knows it all the same
