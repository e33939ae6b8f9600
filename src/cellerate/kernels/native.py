"""The native core: whether it is installed, its instruction set and threads, and calls to it on NumPy arrays.

Only this module imports the extension `cellerate.kernels._core`. bfloat16 arrays have the dtype of `ml_dtypes`,
which every framework that knows bfloat16 installs.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from cellerate.errors import BackendError, ConfigError


@functools.cache
def why_unavailable() -> str | None:
    """Why the native core is not installed, or None if it is."""
    try:
        importlib.import_module("cellerate.kernels._core")
    except ImportError as error:
        return (
            f"the native core is not installed ({error}): Cellerate was installed where it could not be compiled. "
            "Install a C++20 compiler (Debian, Ubuntu: apt-get install g++ python3-dev) and Cellerate again."
        )
    return None


@functools.cache
def _module() -> ModuleType:
    return importlib.import_module("cellerate.kernels._core")


@functools.cache
def core() -> ModuleType:
    """The extension module.

    Raises:
        BackendError: It is not installed.
        ConfigError: `CELLERATE_TARGET` names a target that is unknown or cannot run here.
    """
    reason = why_unavailable()
    if reason is not None:
        raise BackendError(reason)
    module = _module()
    try:
        module.target()
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return module


def target() -> str:
    """The instruction set in use.

    Returns:
        "amx", "avx512bf16", "avx512vnni", "avx512", "avx2vnni", "avx2", "neondot", "neon" or "scalar".
    """
    return str(core().target())


def set_target(name: str) -> None:
    """Sets the instruction set for all calls from now on: one of `available_targets`."""
    try:
        core().set_target(name)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def available_targets() -> list[str]:
    """The instruction sets that this machine and build can run, fastest first."""
    return list(core().available_targets())


def num_threads() -> int:
    """The number of threads a call may use: `set_num_threads`, else `CELLERATE_THREADS`, else one per physical core."""
    try:
        return int(core().thread_count())
    except ValueError as error:
        raise ConfigError(str(error)) from None


def set_num_threads(count: int) -> None:
    """Sets how many threads the native core may use, in this process and from now on.

    Args:
        count: At least 1.

    Raises:
        ConfigError: `count` is not a whole number from 1 to 1024.
        BackendError: The core is not installed.
    """
    if isinstance(count, bool) or not isinstance(count, int):
        raise ConfigError(f"count: expected a whole number of threads, got {count!r}")
    try:
        core().set_thread_count(count)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"count: expected a number of threads from 1 to 1024, got {count}") from error


def measure_peak(precision: str = "float32") -> float:
    """The peak rate of the multiply-add units on `num_threads` threads, in operations per second.

    Takes some tenths of a second. A multiply-add counts as two operations. On a target without bfloat16 products,
    "bfloat16" measures float32 products.

    Args:
        precision: The precision of the factors, one of `program.PRECISIONS`; int4 is multiplied as int8.
    """
    return max(float(core().measure_peak(precision, num_threads())) for _ in range(3))


def multiplies_bfloat16() -> bool:
    """True if the instruction set in use has bfloat16 products; False if the core is not installed."""
    return why_unavailable() is None and bool(core().bfloat16_products())


def measure_read(size: int, threads: int = 1) -> float:
    """The bytes per second at which threads read `size` bytes repeatedly, each its own part.

    This rate limits a step of one row, which reads all weights once. Takes some tenths of a second.

    Args:
        size: The number of bytes, at least some kilobytes.
        threads: The number of threads.
    """
    return max(float(core().measure_read(size, threads)) for _ in range(3))


class Phases(NamedTuple):
    """The times of the phases of layers while they were watched.

    Attributes:
        backward: Whether these are backward passes.
        inputs: Input features of the layer.
        units: Units of the layer.
        vocabulary: Rows of the table in which the layer looks up its inputs; 0 without one.
        calls: The number of calls.
        seconds: The seconds of each phase in all calls, on their first threads.
    """

    backward: bool
    inputs: int
    units: int
    vocabulary: int
    calls: int
    seconds: dict[str, float]


@contextlib.contextmanager
def watched_phases() -> Iterator[list[Phases]]:
    """Times the phases of all layers of this process within a `with`; the list is filled at its end."""
    found: list[Phases] = []
    core().watch_phases(True)
    try:
        yield found
    finally:
        core().watch_phases(False)
        found += [Phases(*each) for each in core().phase_times()]


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An uninitialized array that starts on a cache line, so that TensorFlow takes it over without a copy."""
    bytes_needed = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(bytes_needed + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + bytes_needed].view(dtype).reshape(shape)


def storage_types() -> tuple[str, ...]:
    """The dtypes in which the core takes x, states and outputs, by NumPy's names; none if it is not installed."""
    return own_list("STORAGE_TYPES", ())


def own_list(name: str, otherwise: Any) -> Any:
    """A list of the core's, such as its `CALLS`; `otherwise` if the core is not installed."""
    return otherwise if why_unavailable() is not None else getattr(_module(), name)


def call(name: str, inputs: tuple[Any, ...], results: tuple[Any, ...], options: tuple[int, ...] = ()) -> None:
    """Makes one of the core's `CALLS` with contiguous arrays or None. Raises `ConfigError` if one does not fit."""
    try:
        core().call(name, options, tuple(map(_plain, inputs)), tuple(map(_plain, results)))
    except (ValueError, IndexError) as error:
        raise ConfigError(str(error)) from None


def _plain(array: np.ndarray | None) -> np.ndarray | None:
    """The array in the core's form: bfloat16 as uint16, since NumPy cannot pass bfloat16 on."""
    return array.view(np.uint16) if array is not None and array.dtype.name == "bfloat16" else array
