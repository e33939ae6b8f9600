"""Facts about this machine for bug reports and benchmarks: versions, cores, memory, devices.

Nothing here imports a framework; `backend_devices` starts one in a separate process.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import re
from pathlib import Path
from typing import Any

import cellerate
from cellerate.errors import BackendError
from cellerate.files import home_dir
from cellerate.machine.processor import describe

BACKENDS = ("tensorflow", "jax", "torch")
TITLES = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "torch"}
"""The backends in their official spelling."""
TENSORFLOW_PACKAGES = ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu")
"""The distributions that bring TensorFlow."""
PROBE_VARIABLE = "CELLERATE_PROBE"
"""The environment variable with the file for the result of a training that only times a few steps."""
STAGES_VARIABLE, CHUNKS_VARIABLE = "CELLERATE_STAGES", "CELLERATE_CHUNKS"
"""The environment variables with the number of stages of a model, and of chunks of time."""
LAUNCHED_VARIABLE = "CELLERATE_LAUNCHED"
"""The environment variable that marks a process as already started by its command, so that it starts no others."""
# Options of mallopt(3): M_MMAP_MAX (map nothing), M_TRIM_THRESHOLD (give nothing back), M_TOP_PAD (grow by 64 MiB),
# M_ARENA_MAX (one heap for all threads, because per-thread heaps give memory back whatever the threshold).
_KEEP_MEMORY = ((-4, 0), (-1, 2**31 - 1), (-2, 64 << 20), (-8, 1))
# Programs that print one device per line. Keras's own list does not cover torch.
_DEVICES = {
    "tensorflow": "import tensorflow as tf; print(*(d.name for d in tf.config.list_logical_devices()), sep='\\n')",
    "jax": "import jax; print(*jax.devices(), sep='\\n')",
    "torch": "import torch as t; print('cpu', *map(t.cuda.get_device_name, range(t.cuda.device_count())), sep='\\n')",
}
# Where the control group of a container stores its limit and its use: version 2, then version 1.
_GROUP_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
# A backend comes under several names, of which one is installed; JAX finds its devices by plugins.
_PACKAGES = (
    *("keras", "keras-nightly", "tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu"),
    *("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm7-plugin", "libtpu", "torch"),
    *("numpy", "h5py", "pyarrow", "tokenizers"),
)


def package_version(name: str) -> str | None:
    """The installed version of a distribution, or None. Does not import it."""
    from importlib import metadata  # here, because it imports all of `email`

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def require(package: str, extra: str, purpose: str) -> None:
    """Raises `BackendError` naming the extra to install if `package` cannot be imported."""
    if importlib.util.find_spec(package) is None:
        raise BackendError(
            f"{purpose} needs the package {package!r}, which is not installed. "
            f"Install it with: pip install 'cellerate[{extra}]'"
        )


@functools.cache
def installed_backends() -> list[str]:
    """The Keras backends that are installed here, in Keras's own order."""
    return [name for name in BACKENDS if importlib.util.find_spec(name) is not None]


def select_backend(name: str | None = None) -> str:
    """Chooses the Keras backend for this process, before Keras is imported.

    The choice is the first of: the argument, `KERAS_BACKEND`, the backend in Keras's own configuration file,
    the first installed of jax, tensorflow, torch.

    From then on the process keeps freed memory (`keep_freed_memory`). JAX profits only if that is set before
    its threads start.

    Args:
        name: "tensorflow", "jax", "torch" or None.

    Returns:
        The backend's name; `KERAS_BACKEND` is set to it.

    Raises:
        BackendError: The name is unknown, or that backend or Keras is not installed.
    """
    chosen = name or os.environ.get("KERAS_BACKEND") or _configured_backend()
    installed = installed_backends()
    if chosen is None:
        if not installed:
            raise BackendError(
                "no Keras backend is installed. Install one with: pip install 'cellerate[jax]' "
                "(or cellerate[torch], cellerate[tensorflow])"
            )
        chosen = next(b for b in ("jax", "tensorflow", "torch") if b in installed)
    if chosen not in BACKENDS:
        raise BackendError(
            f"unknown backend {chosen!r}: expected one of {', '.join(BACKENDS)}"
            + ("" if name else " (it comes from KERAS_BACKEND or Keras's configuration file)")
            + "."
        )
    if chosen not in installed:
        here = ", ".join(installed) or "none"
        raise BackendError(
            f"backend {chosen!r} is not installed (installed here: {here}). "
            f"Install it with: pip install 'cellerate[{chosen}]'"
        )
    require("keras", chosen, f"backend {chosen!r}")
    os.environ["KERAS_BACKEND"] = chosen
    # Otherwise TensorFlow prints a page of start-up notes on stderr.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    keep_freed_memory()
    return chosen


def processors() -> int:
    """The number of processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    """The memory of the machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def machine() -> dict[str, Any]:
    """The CPU's product name and description (`processor.describe`), usable cores, memory in bytes, system."""
    return {
        "cpu": _cpu_model(),
        "processor": describe(),
        "cores": processors(),
        "memory_bytes": memory_bytes(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """The installed versions of Cellerate and of every package that matters to a result."""
    found = {name: package_version(name) for name in _PACKAGES}
    return {"cellerate": cellerate.__version__} | {k: v for k, v in found.items() if v is not None}


def backend_devices(backend: str) -> list[str]:
    """The devices that a backend finds, in a new process, because a process can hold only one Keras backend."""
    import subprocess
    import sys

    found = subprocess.run(  # noqa: S603 (our own interpreter, a constant program)
        [sys.executable, "-c", _DEVICES[backend]], capture_output=True, text=True, check=False
    )
    if found.returncode:
        return [f"cannot be imported: {(found.stderr.strip().splitlines() or ['no message'])[-1]}"]
    return found.stdout.splitlines()


def keep_freed_memory() -> bool:
    """Tells the C library to keep freed memory for later allocations instead of returning it each time.

    All frameworks allocate and free the same large arrays at every training step. glibc's malloc maps and
    unmaps each of them, and the kernel clears every page again, which takes up to half of a step on a CPU.
    With the new settings the process never shrinks below its largest size. Its threads share one heap, apart
    from threads that already have another; JAX's threads start with its first computation. For measurements
    see `docs/decisions/0004-keep-freed-memory.md`.

    Returns:
        Whether the C library accepted the settings; only glibc has them.

    Source: mallopt(3), the Linux manual.
    """
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if platform.libc_ver()[0] == "glibc" else None
    if mallopt is None:
        return False
    return all(mallopt(option, value) == 1 for option, value in _KEEP_MEMORY)


def resident_memory_bytes() -> int:
    """The resident memory of this process, in bytes.

    Raises:
        BackendError: The package `psutil` is not installed.
    """
    require("psutil", "train", "measuring memory")
    import psutil

    return int(psutil.Process().memory_info().rss)


def peak_memory_bytes() -> int | None:
    """The largest resident memory this process has had, in bytes; None if the system does not report it."""
    # Not `getrusage`: on Linux it gives at least the memory the parent had when it started this process.
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    found = re.search(r"^VmHWM:\s*(\d+) kB", status, re.MULTILINE)
    return None if found is None else int(found[1]) * 1024


def available_memory_bytes() -> int | None:
    """The memory this process can still take, in bytes: from the machine, and within its control group's limit.

    Returns:
        The number of bytes, or None if the system does not report it.
    """
    try:
        memory = dict(re.findall(r"^(\w+):\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE))
        free = int(memory["MemAvailable"]) * 1024
    except (OSError, KeyError):
        return None
    for limit, used in _GROUP_LIMITS:
        try:
            left = int(Path(limit).read_text()) - int(Path(used).read_text())
        except (OSError, ValueError):  # no such group, or "max"
            continue
        free = min(free, max(0, left))
    return free


def _configured_backend() -> str | None:
    """The backend that Keras's own `keras.json` names, or None."""
    import json

    path = Path(os.environ.get("KERAS_HOME") or home_dir() / ".keras") / "keras.json"
    try:
        backend = json.loads(path.read_text()).get("backend")
    except (OSError, ValueError, AttributeError):
        return None
    # Keras writes "tensorflow" there on first import, so a backend that is not installed was not chosen by the user.
    return backend if backend in installed_backends() else None


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
