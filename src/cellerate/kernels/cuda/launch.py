"""Loads and starts the kernels, and passes them their arguments as the GPU reads them.

Only this module talks to the CUDA driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from cellerate.errors import BackendError
from cellerate.kernels.cuda import build
from cellerate.kernels.cuda.kernel import SHARED_BYTES, Kernel, clusters
from cellerate.machine import gpu


class KernelArguments(ctypes.Structure):
    """The arguments of a kernel: each has its own structure, whose field `batch` determines the number of clusters."""

    batch: int


def launch(kernel: Kernel, arguments: KernelArguments, device: int, stream: int) -> None:
    """Starts a kernel, compiling it first if that was never done.

    Args:
        kernel: The kernel.
        arguments: Its arguments; addresses are in the memory of that GPU.
        device: The GPU's number.
        stream: The CUDA stream, as an address.

    Raises:
        BackendError: The kernel cannot be compiled or started.
    """
    driver = _driver()
    config = driver.CUlaunchConfig()
    config.gridDimX = clusters(kernel.rows, arguments.batch) * kernel.blocks
    config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
    config.blockDimX = kernel.threads
    config.sharedMemBytes = kernel.shared_bytes
    config.hStream = driver.CUstream(stream)
    # The kernel itself defines the size of its clusters.
    config.numAttrs = 0
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
    function = _function(kernel, device)
    # The default stream belongs to the current context, and a new Python thread has none.
    with current(device):
        _checked(driver.cuLaunchKernelEx(config, function, ctypes.addressof(pointers), 0))


def handles(kernel: Kernel, device: int) -> tuple[int, int]:
    """The addresses of the driver's cuLaunchKernelEx and of a kernel, for a caller that starts it without Python.

    Raises:
        BackendError: The kernel cannot be compiled, or there is no driver.
    """
    function = int(_function(kernel, device))
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise BackendError(f"the CUDA driver cannot be loaded: {error}. Install NVIDIA's driver.") from error
    return ctypes.cast(library.cuLaunchKernelEx, ctypes.c_void_p).value or 0, function


@functools.cache
def why_unavailable(device: int) -> str | None:
    """Why the kernels cannot run on a GPU; None if they can.

    Args:
        device: The GPU's number.
    """
    try:
        major, minor = _capability(device)
        shared = _attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", device)
    except BackendError as error:
        return str(error)
    if (major, minor) < gpu.KERNELS_CAPABILITY:
        return f"its compute capability is {major}.{minor}; the kernels need 9.0 (Hopper) or later"
    if shared < SHARED_BYTES:
        return f"it has {shared:,} bytes of shared memory per block; the kernels need {SHARED_BYTES:,}"
    return None


@functools.cache
def resident(kernel: Kernel, device: int) -> int:
    """The number of clusters of a kernel a GPU runs at once."""
    driver, function = _driver(), _function(kernel, device)
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = kernel.blocks, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = kernel.threads, 1, 1
    config.sharedMemBytes = kernel.shared_bytes
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    attribute.value.clusterDim.x = kernel.blocks
    attribute.value.clusterDim.y = 1
    attribute.value.clusterDim.z = 1
    config.attrs, config.numAttrs = [attribute], 1
    with current(device):
        return int(_checked(driver.cuOccupancyMaxActiveClusters(function, config)))


class DeviceMemory:
    """Memory of a GPU, freed when nothing refers to this object any more.

    Args:
        count: Bytes, at least 1.
        device: The GPU's number.

    Attributes:
        count: The number of bytes.
        address: Where it begins, a multiple of 256.

    Raises:
        BackendError: The GPU does not have that much free memory.
    """

    def __init__(self, count: int, device: int) -> None:
        self.count, self._device = count, device
        driver = _driver()
        with current(device):
            self.address = int(_checked(driver.cuMemAlloc(count)))
        # Not at exit: the end of the process frees everything.
        weakref.finalize(self, _free, driver, _context(device), self.address).atexit = False

    def write(self, values: np.ndarray) -> None:
        """Copies an array to the beginning of the memory, after all work that the GPU was given before."""
        with current(self._device):
            _checked(_driver().cuMemcpyHtoD(self.address, values.ctypes.data, values.nbytes))

    def read(self, values: np.ndarray, at: int) -> None:
        """Copies the memory from byte `at` on into an array, after all work that the GPU was given before."""
        with current(self._device):
            _checked(_driver().cuMemcpyDtoH(values.ctypes.data, self.address + at, values.nbytes))


def _free(driver: Any, context: Any, address: int) -> None:
    with _pushed(driver, context):
        _checked(driver.cuMemFree(address))


def current(device: int) -> contextlib.AbstractContextManager[None]:
    """Makes a GPU this thread's current one inside a `with`, in the context that frameworks use too."""
    return _pushed(_driver(), _context(device))


@contextlib.contextmanager
def _pushed(driver: Any, context: Any) -> Iterator[None]:
    _checked(driver.cuCtxPushCurrent(context))
    try:
        yield
    finally:
        _checked(driver.cuCtxPopCurrent())


def elapsed_ms(work: Callable[[], None], device: int) -> float:
    """The milliseconds that a GPU takes for the work that a function starts on its default stream."""
    driver = _driver()
    with current(device):
        begin, end = (_checked(driver.cuEventCreate(0)) for _ in range(2))
        try:
            _checked(driver.cuEventRecord(begin, 0))
            work()
            _checked(driver.cuEventRecord(end, 0))
            _checked(driver.cuEventSynchronize(end))
            return float(_checked(driver.cuEventElapsedTime(begin, end)))
        finally:
            for event in (begin, end):
                driver.cuEventDestroy(event)


@functools.cache
def _context(device: int) -> Any:
    driver = _driver()
    return _checked(driver.cuDevicePrimaryCtxRetain(_checked(driver.cuDeviceGet(device))))


@functools.cache
def gpu_name(device: int) -> str:
    """The GPU's name and its driver's CUDA version: the key by which measurements are remembered."""
    driver = _driver()
    name = _checked(driver.cuDeviceGetName(256, _checked(driver.cuDeviceGet(device))))
    version = int(_checked(driver.cuDriverGetVersion()))
    return f"{name.decode(errors='replace').rstrip(chr(0))}, CUDA {version // 1000}.{version % 1000 // 10}"


@functools.cache
def _function(kernel: Kernel, device: int) -> Any:
    """The driver's handle of the kernel, with its shared memory and cluster size allowed."""
    driver = _driver()
    major, minor = _capability(device)
    code = build.build(kernel, f"sm_{major}{minor}a")
    loaded = code.get_kernel(kernel.name).handle
    attributes = driver.CUfunction_attribute
    needs = {
        attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: kernel.shared_bytes,
        attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: 1,
    }
    # A caller that starts it without Python has one function for all GPUs of the same capability.
    for number in range(_checked(driver.cuDeviceGetCount())):
        if _capability(number) == (major, minor):
            for attribute, value in needs.items():
                handle = _checked(driver.cuDeviceGet(number))
                _checked(driver.cuKernelSetAttribute(attribute, value, loaded, handle))
    # The driver loads it now, because the first start may be recorded into a CUDA graph, and loading cannot be.
    with current(device):
        _checked(driver.cuKernelGetFunction(loaded))
    _KEPT.append(code)
    return driver.CUfunction(int(loaded))


def _capability(device: int) -> tuple[int, int]:
    """The compute capability of a GPU."""
    return _attribute("COMPUTE_CAPABILITY_MAJOR", device), _attribute("COMPUTE_CAPABILITY_MINOR", device)


def _attribute(name: str, device: int) -> int:
    driver = _driver()
    which = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(_checked(driver.cuDeviceGetAttribute(which, _checked(driver.cuDeviceGet(device)))))


# The compiled code that functions are part of, and which must live as long as they do.
_KEPT: list[Any] = []


@functools.cache
def _driver() -> Any:
    reason = build.why_unavailable()
    if reason is not None:
        raise BackendError(reason)
    driver: Any = importlib.import_module("cuda.bindings.driver")
    try:
        _checked(driver.cuInit(0))
    # The bindings look for the driver only at this point.
    except (BackendError, RuntimeError) as error:
        reason = next(iter(gpu.facts().problems), str(error).rstrip("."))
        raise BackendError(reason) from error
    return driver


def _checked(answer: tuple[Any, ...]) -> Any:
    """The result of a driver call without its status code. Raises `BackendError` if the call failed."""
    code, *values = answer
    if int(code) != 0:
        raise BackendError(f"a call of the CUDA driver failed: {code!r}")
    return values[0] if values else None
