"""Compiles the kernels with NVRTC, and keeps the machine code on disk.

It needs NVIDIA's Python packages but no GPU.
"""

from __future__ import annotations

import functools
import importlib
import re
from typing import Any

from cellerate.errors import BackendError
from cellerate.files import cache_dir
from cellerate.kernels.cuda.kernel import Kernel
from cellerate.machine.environment import package_version

CUDA_CORE = (1, 0)
"""The first cuda-core that keeps compiled programs; the extra `cuda` in pyproject.toml asks for the same."""

_CACHE_BYTES = 256 << 20


@functools.cache
def why_unavailable() -> str | None:
    """Why kernels cannot be compiled here, or None if they can."""
    install = "pip install --upgrade 'cellerate[cuda]'"
    version = package_version("cuda-core")
    numbers = re.match(r"(\d+)\.(\d+)", version or "")
    new_enough = (int(numbers[1]), int(numbers[2])) >= CUDA_CORE if numbers else None
    # A version that is too old has its modules elsewhere; it must not be reported as missing.
    if new_enough is not False:
        try:
            importlib.import_module("cuda.core")
            importlib.import_module("cuda.bindings.nvrtc").nvrtcVersion()
        # If the library behind them is missing, the bindings raise an error of their own.
        except (ImportError, RuntimeError) as error:
            return f"NVIDIA's compiler for Python is not installed ({error}): {install}"
        # If the version cannot be read, look for the feature that needs it.
        if new_enough or _keeps_programs():
            return None
    found = f"cuda-core {version}" if version else "a cuda-core without a version"
    return f"{found} is installed; the kernels need {CUDA_CORE[0]}.{CUDA_CORE[1]} or later: {install}"


def _keeps_programs() -> bool:
    """True if this cuda-core has the class that `_cache` needs."""
    try:
        return hasattr(importlib.import_module("cuda.core.utils"), "FileStreamProgramCache")
    except ImportError:
        return False


def build(kernel: Kernel, architecture: str) -> Any:
    """The kernel as machine code.

    Args:
        kernel: What to compile it for.
        architecture: The GPU's, such as "sm_90a".

    Returns:
        A `cuda.core.ObjectCode`.

    Raises:
        BackendError: The compiler is not installed, or it refuses the source.
    """
    reason = why_unavailable()
    if reason is not None:
        raise BackendError(reason)
    try:
        with _cache() as cache:
            return _compiled(kernel, architecture, cache)
    except OSError:
        # If the cache folder cannot be written, the only cost is compiling again.
        return _compiled(kernel, architecture, None)


def _cache() -> Any:
    utils: Any = importlib.import_module("cuda.core.utils")
    return utils.FileStreamProgramCache(cache_dir() / "cuda", max_size_bytes=_CACHE_BYTES)


def _compiled(kernel: Kernel, architecture: str, cache: Any) -> Any:
    core: Any = importlib.import_module("cuda.core")
    # NVRTC 13.0 takes the generic lambdas of device functions for functions of the host, unless told otherwise.
    options = core.ProgramOptions(std="c++20", arch=architecture, device_as_default_execution_space=True)
    program = core.Program(kernel.source, "c++", options)
    try:
        return program.compile("cubin", cache=cache)
    except OSError:
        raise
    # The bindings raise a different error for each library behind them.
    except Exception as error:
        raise BackendError(f"the kernel for {kernel} could not be compiled: {error}") from error
    finally:
        program.close()
