"""Compiles the kernels with NVRTC, and keeps what came out on disk.

A module of its own because it needs NVIDIA's Python packages and no GPU: everything that runs comes after it.
"""

import functools
import importlib
import re
from importlib import resources
from typing import Any

from cellerate.errors import BackendError
from cellerate.files import cache_dir
from cellerate.kernels.cuda.plan import THREADS, Variant
from cellerate.kernels.spec import ACTIVATIONS

_CACHE_BYTES = 256 << 20
_NUMBERS = {"bfloat16": "Bfloat16", "float16": "Float16", "float32": "float"}
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)


@functools.cache
def missing() -> str | None:
    """Why kernels cannot be compiled here, or None if they can."""
    try:
        importlib.import_module("cuda.core")
        importlib.import_module("cuda.bindings.nvrtc").nvrtcVersion()
    # Without the library behind it the bindings raise errors of their own.
    except (ImportError, RuntimeError) as error:
        return f"NVIDIA's compiler for Python is not installed ({error}): pip install 'cellerate[cuda]'"
    return None


def kernel_name(variant: Variant) -> str:
    """The name of the function in what is compiled."""
    return f"cellerate_lstm_{variant.direction}"


def source(variant: Variant) -> str:
    """All the source of one kernel, as one text: that is what it is known by on disk."""
    options = ", ".join(
        [
            _NUMBERS[variant.number],
            str(variant.units),
            str(variant.rows),
            *(
                f"static_cast<Activation>({ACTIVATIONS.index(name)})"
                for name in (variant.activation, variant.recurrent_activation)
            ),
            str(variant.masked).lower(),
            str(variant.dropped).lower(),
        ]
    )
    direction = variant.direction
    entry = f"""
using namespace cellerate::gpu;
using Compiled = Plan<{options}>;
static_assert(sizeof({direction.capitalize()}Shared<Compiled>) == {variant.shared_bytes});
static_assert(kThreads == {THREADS});
extern "C" __global__ __cluster_dims__({variant.blocks}) __launch_bounds__({THREADS}, 1)
void {kernel_name(variant)}(const __grid_constant__ {direction.capitalize()}Arguments<Compiled::Number> in) {{
  lstm_{direction}<Compiled>(in);
}}
"""
    return whole(f"lstm_{direction}.cuh") + entry


def build(variant: Variant, architecture: str) -> Any:
    """The kernel as machine code.

    Args:
        variant: What to compile it for.
        architecture: Of the GPU: "sm_90a".

    Returns:
        A `cuda.core.ObjectCode`.

    Raises:
        BackendError: The compiler is not installed, or refuses.
    """
    reason = missing()
    if reason is not None:
        raise BackendError(reason)
    try:
        with _cache() as cache:
            return _compiled(variant, architecture, cache)
    except OSError:
        # A folder that cannot be written costs the time of a compilation, and nothing else.
        return _compiled(variant, architecture, None)


def _cache() -> Any:
    utils: Any = importlib.import_module("cuda.core.utils")
    return utils.FileStreamProgramCache(cache_dir() / "cuda", max_size_bytes=_CACHE_BYTES)


def _compiled(variant: Variant, architecture: str, cache: Any) -> Any:
    core: Any = importlib.import_module("cuda.core")
    program = core.Program(source(variant), "c++", core.ProgramOptions(std="c++20", arch=architecture))
    try:
        return program.compile("cubin", cache=cache)
    except OSError:
        raise
    # The bindings have an error of their own for each library behind them.
    except Exception as error:
        raise BackendError(f"the kernel for {variant} could not be compiled: {error}") from error
    finally:
        program.close()


def whole(name: str) -> str:
    """A file of the source with what it includes in the place of each `#include`."""
    seen: set[str] = set()

    def text(name: str) -> str:
        seen.add(name)
        found = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
        return _INCLUDE.sub(included, found.replace("#pragma once\n", ""))

    def included(found: re.Match[str]) -> str:
        return "" if found[1] in seen else text(found[1])

    return text(name)
