"""A GPU in place of the driver: compiles the CUDA kernels with the C++ compiler and runs them on the CPU.

What it cannot tell is whether the PTX of `kernels/cuda/device.cuh` says what `cuda_emulated.h` does in its place.
"""

import contextlib
import ctypes
import functools
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from cellerate.environment import processors
from cellerate.kernels.cuda import build
from cellerate.kernels.cuda.generation import Generator
from cellerate.kernels.cuda.launch import Arguments
from cellerate.kernels.cuda.plan import Variant, clusters
from cellerate.kernels.spec import ACTIVATIONS

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
#include <utility>
using namespace cellerate::gpu;
template <int kind>
void compute(const float* x, float* values, float* derivatives, int count) {
  constexpr auto kKind = static_cast<Activation>(kind);
  for (int n = 0; n < count; ++n) {
    values[n] = activate<kKind, float>(x[n]);
    // As backward has it: from the value alone, where that is enough.
    derivatives[n] = derivative<kKind>(derivative_from_value(kKind) ? values[n] : x[n], values[n]);
  }
}
extern "C" void activation(int kind, const float* x, float* values, float* derivatives, int count) {
  [&]<int... kinds>(std::integer_sequence<int, kinds...>) {
    ((kinds == kind ? compute<kinds>(x, values, derivatives, count) : void()), ...);
  }(std::make_integer_sequence<int, static_cast<int>(Activation::kCount)>());
}
"""


# Kept from run to run, as each backend runs the same kernels in a process of its own; `make clean` removes it.
_FOLDER = Path(__file__).parents[2] / "build" / "emulated"
_HEADER = Path(__file__).with_name("cuda_emulated.h")
_FLAGS = ("-std=c++20", "-O1", "-fPIC", "-DCELLERATE_EMULATED", "-Wall", "-Wextra")


@functools.cache
def _compiled(variant: build.Kernel) -> ctypes.CDLL:
    generates = isinstance(variant, Generator)
    arguments = (
        "GenerateArguments" if generates else f"{variant.direction.capitalize()}Arguments<Compiled::Number>"
    )
    run = _RUN.format(
        arguments=arguments,
        threads=variant.threads,
        shared_bytes=variant.shared_bytes,
        name=build.kernel_name(variant),
    )
    found = _library(build.source(variant) + run)
    found.run.restype = ctypes.c_char_p
    return found


def _library(source: str) -> ctypes.CDLL:
    """A source as a library, compiled if it never was."""
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
    """The folder with cuda_emulated.h, compiled in advance: most of the time of a kernel would go into that."""
    version = subprocess.run(["g++", "--version"], check=True, capture_output=True).stdout
    digest = hashlib.sha256(version + repr(_FLAGS).encode() + _HEADER.read_bytes()).hexdigest()[:24]
    found = _FOLDER / digest
    if not found.exists():
        _FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_FOLDER) as folder:
            header = Path(folder) / "include" / _HEADER.name
            header.parent.mkdir()
            shutil.copy(_HEADER, header)
            # That a header is compiled by itself is what it warns of.
            command = ["g++", *_FLAGS, "-w", "-x", "c++-header", str(header), "-o", f"{header}.gch"]
            subprocess.run(command, check=True)
            # Another process may have been faster.
            with contextlib.suppress(OSError):
                header.parent.rename(found)
    return found


def activation(name: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The values of an activation and its derivatives, as the kernels compute them for float32.

    Args:
        name: One of `spec.ACTIVATIONS`.
        x: (N,) float32.
    """
    results = np.empty_like(x), np.empty_like(x)
    addresses = [ctypes.c_void_p(array.ctypes.data) for array in (x, *results)]
    _activations().activation(ACTIVATIONS.index(name), *addresses, len(x))
    return results


@functools.cache
def _activations() -> ctypes.CDLL:
    return _library(build.whole("activations.cuh") + _ACTIVATION)


def handles(variant: Variant, device: int = 0) -> tuple[int, int]:
    """As `cellerate.kernels.cuda.launch.handles`: a launcher, which needs no kernel beside it."""
    found = _compiled(variant).launch_kernel
    return ctypes.cast(found, ctypes.c_void_p).value or 0, 0


def prepare(variants: Iterable[build.Kernel]) -> None:
    """Compiles kernels that will be wanted, on as many cores as there are."""
    _header()  # once, before there are threads
    with ThreadPoolExecutor(processors()) as pool:
        list(pool.map(_compiled, set(variants)))


def launch(
    variant: build.Kernel, arguments: Arguments, device: int = 0, stream: int = 0, *, seed: int = 1
) -> None:
    """As `cellerate.kernels.cuda.launch.launch`, on memory of the CPU.

    Args:
        variant: Which kernel.
        arguments: Of it.
        device: Not looked at.
        stream: Not looked at.
        seed: Of the order in which the threads take turns.

    Raises:
        RuntimeError: The kernel did what a GPU would not forgive, or hangs.
    """
    count = ctypes.c_int(clusters(variant.rows, arguments.batch))
    told = _compiled(variant).run(ctypes.byref(arguments), count, ctypes.c_uint(seed))
    if told is not None:
        raise RuntimeError(told.decode())


class Memory:
    """As `cellerate.kernels.cuda.launch.Memory`, of the CPU; NaNs, so that what is read before it was written shows."""

    def __init__(self, count: int, device: int = 0) -> None:
        self.count = count
        self._bytes = np.full(count + 256, 0xFF, np.uint8)
        self.address = -(-self._bytes.ctypes.data // 256) * 256

    def write(self, values: np.ndarray) -> None:
        if values.nbytes > self.count:
            raise RuntimeError("a copy goes beyond the end of the memory")
        ctypes.memmove(self.address, values.ctypes.data, values.nbytes)

    def read(self, values: np.ndarray, at: int) -> None:
        if at + values.nbytes > self.count:
            raise RuntimeError("a copy begins beyond the end of the memory")
        ctypes.memmove(values.ctypes.data, self.address + at, values.nbytes)


def replace_driver(patch: pytest.MonkeyPatch, clusters: int = 2) -> None:
    """Puts this in the place of the driver, of a GPU that runs so many clusters at once."""
    from cellerate.kernels.cuda import launch as real

    replaced = {
        "Memory": Memory,
        "launch": launch,
        "resident": lambda kernel, device: clusters,
        "current": lambda device: contextlib.nullcontext(),
        "missing": lambda device=0: None,
    }
    for name, value in replaced.items():
        patch.setattr(real, name, value)
