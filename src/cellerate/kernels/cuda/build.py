"""Compiles the kernels with NVRTC, and keeps what came out on disk.

A module of its own because it needs NVIDIA's Python packages and no GPU: everything that runs comes after it.
"""

import functools
import importlib
import re
from importlib import resources
from typing import Any

from cellerate.environment import package_version
from cellerate.errors import BackendError
from cellerate.files import cache_dir
from cellerate.kernels.cuda.generation import ROW_BYTES, Generator
from cellerate.kernels.cuda.plan import Variant
from cellerate.kernels.spec import ACTIVATIONS

Kernel = Variant | Generator
"""What a kernel is compiled for."""

CUDA_CORE = (1, 0)
"""The first cuda-core that keeps compiled programs; the extra `cuda` in pyproject.toml asks for the same."""

_CACHE_BYTES = 256 << 20
_NUMBERS = {"bfloat16": "Bfloat16", "float16": "Float16", "float32": "float", "tf32": "Tf32"}
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)


@functools.cache
def missing() -> str | None:
    """Why kernels cannot be compiled here, or None if they can."""
    install = "pip install --upgrade 'cellerate[cuda]'"
    version = package_version("cuda-core")
    numbers = re.match(r"(\d+)\.(\d+)", version or "")
    new_enough = (int(numbers[1]), int(numbers[2])) >= CUDA_CORE if numbers else None
    # Of one that is too old the modules are elsewhere; it must not be told that there is none.
    if new_enough is not False:
        try:
            importlib.import_module("cuda.core")
            importlib.import_module("cuda.bindings.nvrtc").nvrtcVersion()
        # Without the library behind it the bindings raise errors of their own.
        except (ImportError, RuntimeError) as error:
            return f"NVIDIA's compiler for Python is not installed ({error}): {install}"
        # What says no version that can be read is asked for what its versions differ in.
        if new_enough or _keeps_programs():
            return None
    found = f"cuda-core {version}" if version else "a cuda-core without a version"
    return f"{found} is installed; the kernels need {CUDA_CORE[0]}.{CUDA_CORE[1]} or later: {install}"


def _keeps_programs() -> bool:
    """Whether this cuda-core has what `_cache` takes."""
    try:
        return hasattr(importlib.import_module("cuda.core.utils"), "FileStreamProgramCache")
    except ImportError:
        return False


def kernel_name(kernel: Kernel) -> str:
    """The name of the function in what is compiled."""
    return "cellerate_generate" if isinstance(kernel, Generator) else f"cellerate_lstm_{kernel.direction}"


def source(kernel: Kernel) -> str:
    """All the source of one kernel, as one text: that is what it is known by on disk."""
    return _generate_source(kernel) if isinstance(kernel, Generator) else _lstm_source(kernel)


def _lstm_source(variant: Variant) -> str:
    tiers = variant.tiers
    options = ", ".join(
        [
            _NUMBERS[variant.number],
            str(variant.units),
            str(variant.block_units),
            str(variant.rows),
            *(_activation(name) for name in (variant.activation, variant.recurrent_activation)),
            str(variant.masked).lower(),
            str(variant.dropped).lower(),
            f"Tiers<{tiers.registers}, {tiers.shared}>",
        ]
    )
    direction = variant.direction
    entry = f"""
using namespace cellerate::gpu;
using Compiled = Plan<{options}>;
static_assert(sizeof({direction.capitalize()}Shared<Compiled>) == {variant.shared_bytes});
static_assert(Compiled::kThreads == {variant.threads});
extern "C" __global__ __cluster_dims__({variant.blocks}) __launch_bounds__({variant.threads}, 1)
void {kernel_name(variant)}(const __grid_constant__ {direction.capitalize()}Arguments<Compiled::Number> in) {{
  lstm_{direction}<Compiled>(in);
}}
"""
    return whole(f"lstm_{direction}.cuh") + entry


def _generate_source(generator: Generator) -> str:
    layers, tiers = generator.layers, generator.tiers
    tables: dict[str, list[Any]] = {
        "int units": [layer.units for layer in layers],
        "Activation activation": [_activation(layer.activation) for layer in layers],
        "Activation recurrent_activation": [_activation(layer.recurrent_activation) for layer in layers],
        "int registers": [one.registers for one in tiers],
        "int shared": [one.shared for one in tiers],
    }
    functions = "".join(
        f"""
  CELLERATE_DEVICE static constexpr {name}(int n) {{
    const {name.split()[0]} of[] = {{{", ".join(map(str, values))}}};
    return of[n];
  }}"""
        for name, values in tables.items()
    )
    entry = f"""
using namespace cellerate::gpu;
struct Chain {{
  using Number = {_NUMBERS[generator.number]};
  static constexpr int kBlockUnits = {generator.block_units}, kRows = {generator.rows}, kLayers = {len(layers)};
  static constexpr int kVocabulary = {generator.vocabulary}, kOutputs = {generator.outputs};
  static constexpr bool kMasksZero = {str(generator.masks_zero).lower()};
  static constexpr bool kSharedLogits = {str(generator.shared_logits).lower()};
  static constexpr bool kSharedTable = {str(generator.shared_table).lower()};{functions}
}};
using Compiled = GeneratePlan<Chain>;
static_assert(sizeof(GenerateShared<Compiled>) == {generator.shared_bytes});
static_assert(Compiled::kThreads == {generator.threads} && Compiled::kBlocks == {generator.blocks});
static_assert(sizeof(Row) == {ROW_BYTES});
extern "C" __global__ __cluster_dims__({generator.blocks}) __launch_bounds__({generator.threads}, 1)
void {kernel_name(generator)}(const __grid_constant__ GenerateArguments in) {{
  generate<Compiled>(in);
}}
"""
    return whole("generate.cuh") + entry


def _activation(name: str) -> str:
    return f"static_cast<Activation>({ACTIVATIONS.index(name)})"


def build(variant: Kernel, architecture: str) -> Any:
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


def _compiled(variant: Kernel, architecture: str, cache: Any) -> Any:
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
