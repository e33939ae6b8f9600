"""A GPU in place of the driver: compiles the CUDA kernels with the C++ compiler and runs them on the CPU.

It cannot check that the PTX of `kernels/cuda` does the same as its replacement in `cuda_emulated.h`.
"""

import contextlib
import ctypes
import functools
import hashlib
import shutil
import subprocess
import tempfile
import threading
import time
import types
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as real_driver

from cellerate.kernels.cuda import build, launch, sources
from cellerate.kernels.cuda.kernel import SHARED_BYTES, Kernel
from cellerate.kernels.decoder.cuda.plan import Generator
from cellerate.kernels.lstm.cuda.plan import Variant
from cellerate.machine.environment import processors
from support.activation_names import IN_KERNELS

Answer = tuple[Any, ...]
_SUCCESS = real_driver.CUresult.CUDA_SUCCESS
_NO_CONTEXT = (real_driver.CUresult.CUDA_ERROR_INVALID_CONTEXT, None)

seed = 1
"""Of the order in which threads take turns; tests set others."""

_RUN = """
extern "C" const char* run(const {arguments}* in, int clusters, unsigned seed) {{
  static std::string told;
  try {{
    emulated::launch(clusters, Compiled::kBlocks, {threads}, {shared_bytes}, seed, [&] {{ {name}(*in); }});
  }} catch (const std::exception& error) {{
    told = error.what();
    return told.c_str();
  }}
  return nullptr;
}}
// As the driver's: it is given the kernel itself in place of a handle, and the structure that begins with the grid.
extern "C" int launch_kernel(const unsigned* grid, void*, void** arguments, void**) {{
  using In = {arguments};
  return run(static_cast<const In*>(*arguments), *grid / Compiled::kBlocks, 1) == nullptr ? 0 : 1;
}}
"""

_ACTIVATION = """
using namespace cellerate::gpu;
template <Activation kKind>
void compute(const float* x, float* values, float* derivatives, int count) {
  for (int n = 0; n < count; ++n) {
    values[n] = activate<kKind, float>(x[n]);
    // As backward has it: from the value alone, where that is enough.
    derivatives[n] = derivative<kKind>(derivative_from_value(kKind) ? values[n] : x[n], values[n]);
  }
}
extern "C" void tanh_of_cell(const float* c, float* values, float* slopes, int count) {
  for (int n = 0; n < count; ++n) {
    const ValueAndSlope found = value_and_slope_of_cell<activation_of(Activation::kTanh), Bfloat16>(c[n]);
    values[n] = found.value;
    slopes[n] = found.slope;
  }
}
extern "C" void activation(int place, const float* x, float* values, float* derivatives, int count) {
  using Compute = void (*)(const float*, float*, float*, int);
  const Compute of[] = {@EACH@};
  of[place](x, values, derivatives, count);
}
"""


# Kept between runs, because each backend runs the same kernels in its own process; `make clean` removes it.
_FOLDER = Path(__file__).parents[3] / "build" / "emulated"
_HEADER = Path(__file__).with_name("cuda_emulated.h")
_HEADERS = (_HEADER, _HEADER.with_name("cuda_cluster.h"))
_FLAGS = ("-std=c++20", "-O1", "-fPIC", "-DCELLERATE_EMULATED", "-Wall", "-Wextra")


@functools.cache
def _compiled(variant: Kernel) -> ctypes.CDLL:
    generates = isinstance(variant, Generator)
    arguments = (
        "GenerateArguments" if generates else f"{variant.direction.capitalize()}Arguments<Compiled::Number>"
    )
    run = _RUN.format(
        arguments=arguments,
        threads=variant.threads,
        shared_bytes=variant.shared_bytes,
        name=variant.name,
    )
    found = _library(variant.source + run)
    found.run.restype = ctypes.c_char_p
    return found


def _library(source: str) -> ctypes.CDLL:
    """The library of a source, compiled unless an earlier run compiled it."""
    include = _header()
    name = hashlib.sha256((include.name + source).encode()).hexdigest()[:24]
    library = _FOLDER / f"{name}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=_FOLDER) as folder:
            file = Path(folder) / "kernel.cpp"
            file.write_text(source)
            command = [
                "g++",
                *_FLAGS,
                "-Werror",
                "-shared",
                f"-I{include}",
                str(file),
                "-o",
                f"{folder}/kernel.so",
            ]
            subprocess.run(command, check=True)
            Path(folder, "kernel.so").rename(library)
    return ctypes.CDLL(str(library))


@functools.cache
def _header() -> Path:
    """The folder with cuda_emulated.h, precompiled because it would take most of the time of compiling a kernel."""
    version = subprocess.run(["g++", "--version"], check=True, capture_output=True).stdout
    texts = b"".join(header.read_bytes() for header in _HEADERS)
    digest = hashlib.sha256(version + repr(_FLAGS).encode() + texts).hexdigest()[:24]
    found = _FOLDER / digest
    if not found.exists():
        _FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_FOLDER) as folder:
            header = Path(folder) / "include" / _HEADER.name
            header.parent.mkdir()
            for each in _HEADERS:
                shutil.copy(each, header.parent)
            # Without -w, g++ warns that a header is compiled by itself.
            command = ["g++", *_FLAGS, "-w", "-x", "c++-header", str(header), "-o", f"{header}.gch"]
            subprocess.run(command, check=True)
            # Another process may have made the folder first.
            with contextlib.suppress(OSError):
                header.parent.rename(found)
    return found


def activation(name: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The values of an activation and its derivatives, as the kernels compute them for float32.

    Args:
        name: One of `activation_names.IN_KERNELS`.
        x: (N,) float32.
    """
    results = np.empty_like(x), np.empty_like(x)
    _activations().activation(IN_KERNELS.index(name), *_addresses(x, *results), len(x))
    return results


def tanh_of_cell(c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """tanh(c) and its derivatives, as backward computes them for bfloat16; `c` (N,) float32."""
    results = np.empty_like(c), np.empty_like(c)
    _activations().tanh_of_cell(*_addresses(c, *results), len(c))
    return results


def _addresses(*arrays: np.ndarray) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(array.ctypes.data) for array in arrays]


@functools.cache
def _activations() -> ctypes.CDLL:
    each = ", ".join(f"compute<{sources.activation(name)}>" for name in IN_KERNELS)
    return _library(sources.whole("lstm.cuh") + _ACTIVATION.replace("@EACH@", each))


def handles(variant: Variant, device: int = 0) -> tuple[int, int]:
    """Replaces `cellerate.kernels.cuda.launch.handles`: a launcher, which needs no kernel handle."""
    found = _compiled(variant).launch_kernel
    return ctypes.cast(found, ctypes.c_void_p).value or 0, 0


def prepare(variants: Iterable[Kernel]) -> None:
    """Compile the kernels that tests will need, on all cores."""
    _header()  # once, before the threads start
    with ThreadPoolExecutor(processors()) as pool:
        list(pool.map(_compiled, set(variants)))


class Driver:
    """The driver's functions that `launch` calls, on the CPU's memory; the structures are the real driver's.

    Like the real driver, it refuses to allocate, copy, time or start anything in a thread without a current context.

    Args:
        clusters: How many clusters each GPU runs at once.
        count: How many GPUs there are.

    Attributes:
        contexts: The numbers of the GPUs in whose contexts kernels were started, in order.
        memory: The allocated memory, by its address.
    """

    def __init__(self, clusters: int, count: int) -> None:
        self._clusters, self._count = clusters, count
        self._kernels: list[Kernel] = []
        self.memory: dict[int, np.ndarray] = {}
        self._here = threading.local()
        self.contexts: list[int] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(real_driver, name)
        if name.startswith("cu"):
            raise NotImplementedError(f"the emulated driver has no {name}")
        return found

    def build(self, kernel: Kernel, architecture: str) -> Any:
        """Replaces `build.build`: `launch` needs only a handle of the machine code."""
        assert architecture == "sm_90a"
        self._kernels.append(kernel)
        handle = real_driver.CUkernel(len(self._kernels))
        return types.SimpleNamespace(get_kernel=lambda name: types.SimpleNamespace(handle=handle))

    def cuInit(self, flags: int) -> Answer:  # noqa: N802 (the driver's own names, here and below)
        return (_SUCCESS,)

    def cuDriverGetVersion(self) -> Answer:  # noqa: N802
        return _SUCCESS, 13000

    def cuDeviceGetCount(self) -> Answer:  # noqa: N802
        return _SUCCESS, self._count

    def cuDeviceGet(self, number: int) -> Answer:  # noqa: N802
        if not 0 <= number < self._count:
            return (real_driver.CUresult.CUDA_ERROR_INVALID_DEVICE, None)
        return _SUCCESS, real_driver.CUdevice(number)

    def cuDeviceGetName(self, size: int, device: Any) -> Answer:  # noqa: N802
        return _SUCCESS, b"emulated".ljust(size, b"\0")

    def cuDeviceGetAttribute(self, which: Any, device: Any) -> Answer:  # noqa: N802
        names = real_driver.CUdevice_attribute
        values = {
            names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: 9,
            names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: 0,
            names.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: SHARED_BYTES,
        }
        return _SUCCESS, values[which]

    def cuDevicePrimaryCtxRetain(self, device: Any) -> Answer:  # noqa: N802
        return _SUCCESS, int(device)

    def cuCtxPushCurrent(self, context: int) -> Answer:  # noqa: N802
        self._stack().append(context)
        return (_SUCCESS,)

    def cuCtxPopCurrent(self) -> Answer:  # noqa: N802
        return _SUCCESS, self._stack().pop()

    def cuMemAlloc(self, count: int) -> Answer:  # noqa: N802
        if not self._stack():
            return _NO_CONTEXT
        # NaNs, so that reading memory before it is written shows.
        held = np.full(count + 256, 0xFF, np.uint8)
        address = -(-held.ctypes.data // 256) * 256
        self.memory[address] = held[address - held.ctypes.data :][:count]
        return _SUCCESS, address

    def cuMemFree(self, address: int) -> Answer:  # noqa: N802
        if not self._stack():
            return _NO_CONTEXT
        del self.memory[address]
        return (_SUCCESS,)

    def cuMemcpyHtoD(self, to: int, source: int, count: int) -> Answer:  # noqa: N802
        return self._copied(to, source, to, count)

    def cuMemcpyDtoH(self, to: int, source: int, count: int) -> Answer:  # noqa: N802
        return self._copied(to, source, source, count)

    def _copied(self, to: int, source: int, place: int, count: int) -> Answer:
        if not self._stack():
            return _NO_CONTEXT
        if not any(at <= place and place + count <= at + len(held) for at, held in self.memory.items()):
            raise RuntimeError("a copy goes beyond the memory of the GPU")
        ctypes.memmove(to, source, count)
        return (_SUCCESS,)

    def cuEventCreate(self, flags: int) -> Answer:  # noqa: N802
        return (_SUCCESS, [0.0]) if self._stack() else _NO_CONTEXT

    def cuEventRecord(self, event: list[float], stream: int) -> Answer:  # noqa: N802
        event[0] = time.perf_counter()
        return (_SUCCESS,)

    def cuEventSynchronize(self, event: list[float]) -> Answer:  # noqa: N802
        return (_SUCCESS,)

    def cuEventElapsedTime(self, begin: list[float], end: list[float]) -> Answer:  # noqa: N802
        return _SUCCESS, 1e3 * (end[0] - begin[0])

    def cuEventDestroy(self, event: list[float]) -> Answer:  # noqa: N802
        return (_SUCCESS,)

    def cuKernelSetAttribute(self, attribute: Any, value: int, kernel: Any, device: Any) -> Answer:  # noqa: N802
        return (_SUCCESS,)

    def cuKernelGetFunction(self, kernel: Any) -> Answer:  # noqa: N802
        return (_SUCCESS, kernel) if self._stack() else _NO_CONTEXT

    def cuOccupancyMaxActiveClusters(self, function: Any, config: Any) -> Answer:  # noqa: N802
        return (_SUCCESS, self._clusters) if self._stack() else _NO_CONTEXT

    def cuLaunchKernelEx(self, config: Any, function: Any, pointers: int, extra: int) -> Answer:  # noqa: N802
        if not self._stack():
            return _NO_CONTEXT
        kernel = self._kernels[int(function) - 1]
        if (config.blockDimX, config.sharedMemBytes) != (kernel.threads, kernel.shared_bytes):
            return (real_driver.CUresult.CUDA_ERROR_INVALID_VALUE,)
        self.contexts.append(self._stack()[-1])
        (arguments,) = (ctypes.c_void_p * 1).from_address(pointers)
        told = _compiled(kernel).run(
            ctypes.c_void_p(arguments), config.gridDimX // kernel.blocks, ctypes.c_uint(seed)
        )
        if told is not None:
            # The kernel did something that would fail on a GPU, or it hangs.
            raise RuntimeError(told.decode())
        return (_SUCCESS,)

    def _stack(self) -> list[int]:
        if not hasattr(self._here, "stack"):
            self._here.stack = []
        found: list[int] = self._here.stack
        return found


def replace_driver(patch: pytest.MonkeyPatch, clusters: int = 2, count: int = 1) -> Driver:
    """Replace the real driver with an emulated one of `count` GPUs, each of which runs `clusters` at once."""
    driver = Driver(clusters, count)
    # Only `launch` gets the replaced `build`; other code still compiles for a GPU.
    patch.setattr(launch, "build", types.SimpleNamespace(**vars(build) | {"build": driver.build}))
    patch.setattr(launch, "_driver", lambda: driver)
    for name in ("why_unavailable", "resident", "gpu_name", "_context", "_function"):
        # New caches, which keep the answers of this driver only as long as it is in place.
        patch.setattr(launch, name, functools.cache(getattr(launch, name).__wrapped__))
    return driver
