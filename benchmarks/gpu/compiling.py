"""Compile all kernels of the GPU suite beforehand: `compiled`, a part whose items several processes share.

It needs no GPU. The compiled kernels stay in the cache on disk, where the other parts find them.
`python -m benchmarks.gpu.compiling` does the same without the suite and its time limit.
"""

import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

from benchmarks.gpu import sizes
from benchmarks.gpu.journal import Item, LeftOutError
from cellerate.kernels.cuda import build
from cellerate.kernels.cuda.kernel import Kernel
from cellerate.kernels.decoder.cuda.plan import Generator
from cellerate.machine.environment import processors

ARCHITECTURE = "GPU_SUITE_ARCHITECTURE"
"""The variable with the architecture; Hopper's if it is not set."""


def compiled() -> list[Item]:
    """One item for each kernel."""
    if reason := build.why_unavailable():
        raise LeftOutError(reason)
    return [Item(_name(kernel), partial(_compile, kernel)) for kernel in sizes.kernels()]


def _name(kernel: Kernel) -> str:
    if isinstance(kernel, Generator):
        what = "+".join(str(layer.units) for layer in kernel.layers)
        return f"generate {kernel.precision} H{what} V{kernel.vocabulary} rows {kernel.rows}"
    extra = [kernel.activation] * (kernel.activation != "tanh") + ["masked"] * kernel.masked
    extra += ["recurrent dropout"] * kernel.dropped + [kernel.way] * (kernel.way != "plain")
    return " ".join([kernel.direction, kernel.precision, f"H{kernel.units}", *extra, f"rows {kernel.rows}"])


def _compile(kernel: Kernel) -> dict[str, Any]:
    code = build.build(kernel, os.environ.get(ARCHITECTURE, "sm_90a"))
    return {"bytes": len(code.code)}


def main() -> None:
    """Compile all kernels in as many processes as there are processors."""
    with ProcessPoolExecutor(processors()) as pool:
        list(pool.map(_compile, sizes.kernels(), chunksize=8))  # raises the errors of the processes


if __name__ == "__main__":
    main()
