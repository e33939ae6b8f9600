"""What machine this is: versions, cores, memory, devices. The facts a bug report or a benchmark needs.

A leaf of its own because `env`, result files and error messages all state the same facts.
Nothing here imports a framework unless `devices` asks for it.
"""

import functools
import importlib.util
import os
import platform
import re
from pathlib import Path
from typing import Any

import cellerate
from cellerate.errors import BackendError

BACKENDS = ("tensorflow", "jax", "torch")
# Options of mallopt(3): M_MMAP_MAX (map nothing), M_TRIM_THRESHOLD (give nothing back), M_TOP_PAD (grow by 64 MiB),
# M_ARENA_MAX (one heap for all threads: those of threads of their own are given back whatever the threshold).
_KEEP_MEMORY = ((-4, 0), (-1, 2**31 - 1), (-2, 64 << 20), (-8, 1))
# Programs that print one device a line. Keras's own list knows nothing of torch.
_DEVICES = {
    "tensorflow": "import tensorflow as tf; print(*(d.name for d in tf.config.list_logical_devices()), sep='\\n')",
    "jax": "import jax; print(*jax.devices(), sep='\\n')",
    "torch": "import torch as t; print('cpu', *map(t.cuda.get_device_name, range(t.cuda.device_count())), sep='\\n')",
}
# Where the control group of a container keeps its limit and its use: version 2, then 1.
_GROUP_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
_PACKAGES = ("keras", "tensorflow", "jax", "jaxlib", "torch", "numpy", "h5py", "pyarrow", "tokenizers")


def package_version(name: str) -> str | None:
    """The installed version of a distribution, or None. Does not import it."""
    from importlib import metadata  # it brings the whole of `email` along

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

    Order: the argument, then `KERAS_BACKEND`, then the one Keras's own configuration file names,
    then the first installed of jax, tensorflow, torch.

    Args:
        name: "tensorflow", "jax", "torch" or None.

    The process keeps freed memory from then on (`keep_freed_memory`), which JAX profits from only if it is so
    before its threads start.

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
    # TensorFlow prints a page of start-up notes on stderr unless told otherwise.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    keep_freed_memory()
    return chosen


def processors() -> int:
    """How many processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> dict[str, Any]:
    """What computes here: CPU model, usable cores, memory in bytes, operating system."""
    return {
        "cpu": _cpu_model(),
        "cores": processors(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """The installed version of Cellerate and of every package that matters to a result."""
    found = {name: package_version(name) for name in _PACKAGES}
    return {"cellerate": cellerate.__version__} | {k: v for k, v in found.items() if v is not None}


def backend_devices(backend: str) -> list[str]:
    """The devices one backend sees, asked in a process of its own (a process can hold one Keras backend)."""
    import subprocess
    import sys

    found = subprocess.run(  # noqa: S603 (our own interpreter, a constant program)
        [sys.executable, "-c", _DEVICES[backend]], capture_output=True, text=True, check=False
    )
    if found.returncode:
        return [f"cannot be imported: {(found.stderr.strip().splitlines() or ['no message'])[-1]}"]
    return found.stdout.splitlines()


def keep_freed_memory() -> bool:
    """Tells the C library to keep freed memory for the next allocation instead of giving it back each time.

    All frameworks allocate and free the same large arrays at every training step. glibc's malloc maps and
    unmaps each of them, and the kernel clears every page anew: up to half of a step on a CPU. The process then
    stays as large as it once was, and its threads share one heap, as far as they have not begun with another:
    JAX's threads begin with its first computation. `docs/decisions/0004-keep-freed-memory.md` has the measurement.

    Returns:
        Whether the C library took the settings; others than glibc have none.

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
    """The largest resident memory that this process has had, in bytes; None where the system does not say."""
    # Not `getrusage`: on Linux that is never less than what the parent had when it started this process.
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    found = re.search(r"^VmHWM:\s*(\d+) kB", status, re.MULTILINE)
    return None if found is None else int(found[1]) * 1024


def available_memory_bytes() -> int | None:
    """What this process can still take, in bytes: of the machine, and of its control group where that has a limit.

    Returns:
        It, or None where the system does not say.
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

    path = Path(os.environ.get("KERAS_HOME", Path.home() / ".keras")) / "keras.json"
    try:
        backend = json.loads(path.read_text()).get("backend")
    except (OSError, ValueError, AttributeError):
        return None
    # Keras writes "tensorflow" there by itself on first import, so a name that is not installed is no choice.
    return backend if backend in installed_backends() else None


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
