"""The conditions of a measurement: allocator, threads, memory, the kernel that runs, and the load of the machine.

This module only reads what the system reports; `records` decides which of it a published figure needs.
"""

import ctypes
import os
import platform
import re
import subprocess
import time
from pathlib import Path
from typing import Any

from cellerate.kernels import native
from cellerate.observe.bench import load
from cellerate.observe.bench.load import Times, times

SETTLE_S, IDLE_S = 1.0, 2.0
"""The seconds for the system to clean up ended processes, and the seconds to watch the idle machine."""
WATCHED_S = SETTLE_S + IDLE_S
"""The time that `idle` takes."""
_SET_CHILD_SUBREAPER = 36
_ALLOCATORS = re.compile(r"/lib(jemalloc|tcmalloc|mimalloc|hoard|snmalloc)[^/\n]*")
_ALLOCATOR_VARIABLES = re.compile(r"MALLOC_|JE_MALLOC|TCMALLOC_|MIMALLOC_|GLIBC_TUNABLES$")
_THREAD_VARIABLES = re.compile(
    r"(OMP|GOMP|KMP|MKL|OPENBLAS|TF_NUM|ORT|XLA_FLAGS$|CELLERATE_(THREADS|TARGET)$)"
)


def allocator() -> dict[str, Any]:
    """The malloc of this process and the variables that set one; a contestant's own setting is in its result."""
    try:
        found = sorted(set(_ALLOCATORS.findall(Path("/proc/self/maps").read_text())))
    except OSError:
        found = []
    preloaded = [Path(one).name for one in re.split("[ :]+", os.environ.get("LD_PRELOAD", "")) if one]
    libc = " ".join(platform.libc_ver())
    return {"library": ", ".join(found) or libc, "preloaded": preloaded} | _settings(_ALLOCATOR_VARIABLES)


def threads() -> dict[str, Any]:
    """The number of threads of the native core, and the variables that set the threads of the libraries."""
    core = native.num_threads() if native.why_unavailable() is None else None
    return {"core": core} | _settings(_THREAD_VARIABLES)


def kernel() -> str:
    """The native core's target, or that there is none."""
    return native.target() if native.why_unavailable() is None else "none: Keras's own kernels"


def memory_speed() -> str | None:
    """The speed of the memory modules, as "4800 MT/s"; None if unknown, as in virtual machines."""
    try:
        told = subprocess.run(["dmidecode", "-t", "17"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return None
    found = re.findall(r"Configured (?:Memory|Clock) Speed: (\d+ \S+)", told)
    return ", ".join(sorted(set(found))) or None


def adopt_orphans() -> None:
    """Become the parent of orphaned grandchildren, whose time would otherwise count as other load.

    Source: prctl(2), PR_SET_CHILD_SUBREAPER; only Linux has it.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def shares(before: Times | None, after: Times | None) -> dict[str, float | None]:
    """The share of processor time that other processes and virtual machines took between two moments."""
    others, stolen = load.shares(before, after)
    return {"others": others, "stolen": stolen}


def idle() -> dict[str, Any]:
    """The load of the machine without our work: averages over 1, 5 and 15 minutes, and the share of others."""
    time.sleep(SETTLE_S)
    before = times()
    time.sleep(IDLE_S)
    return {"average": list(os.getloadavg()), **shares(before, times())}


def _settings(pattern: re.Pattern[str]) -> dict[str, dict[str, str]]:
    return {"environment": {name: os.environ[name] for name in sorted(os.environ) if pattern.match(name)}}
