"""A part of the GPU suite, in a process of its own: `python -m benchmarks.gpu.part MODULE PART FOLDER [NTH OF]`.

It runs the items of `MODULE.PART()` one by one, without those already in the journal in FOLDER. If an item raises, that
is recorded and the next one starts; after a failure of CUDA it starts in a new process (by `watch`), because results
of this one are no longer reliable.
"""

import ctypes
import faulthandler
import importlib
import os
import re
import signal
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.journal import Item, LeftOutError, Reader, append, ended, journal, log_tail

ANEW = 75
"""The exit status of a process after which a new process must continue."""
_CUDA = re.compile(
    r"cuda error|cuda_error|cuda driver|cudnn|cublas|illegal memory|launch failure", re.IGNORECASE
)
_TOLD_CHARACTERS, _PR_SET_PDEATHSIG = 2000, 1


def run(module: str, part: str, folder: Path, nth: int = 0, of: int = 1) -> int:
    """Run each `of`-th item of a part, from the `nth` on; return the exit status."""
    file = journal(folder, module)
    tell = partial(append, file, part=part, worker=nth)
    known = ended(Reader(file).lines(), part)
    try:
        items = getattr(importlib.import_module(module), part)()[nth::of]
    except (ModuleNotFoundError, LeftOutError) as error:
        if _ours(error):
            raise
        tell(event="left out", item=None, reason=str(error))
        return 0
    tell(event="items", items=[item.name for item in items])
    for item in items:
        if item.name not in known and not _ran(item, partial(tell, item=item.name)):
            return ANEW
    return 0


def _ran(item: Item, tell: Any) -> bool:
    """Run an item and record its outcome; return True if the process can run another."""
    tell(event="begin", limit_s=item.limit_s)
    began = time.monotonic()
    try:
        found = item.run()
        _wait_for_gpu()
        tell(event="done", seconds=time.monotonic() - began, found=found)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError | LeftOutError) and not _ours(error):
            tell(event="left out", reason=str(error))
            return True
        what = {
            "type": type(error).__name__,
            "message": str(error)[:_TOLD_CHARACTERS],
            "traceback": traceback.format_exc()[-_TOLD_CHARACTERS:],
            "log": log_tail(),
        }
        tell(event="failed", seconds=time.monotonic() - began, error=what)
        return not _of_cuda(error)
    return True


def _ours(error: Exception) -> bool:
    """True if the error is a missing module of ours."""
    return isinstance(error, ModuleNotFoundError) and (error.name or "").startswith(
        ("cellerate", "benchmarks")
    )


def _of_cuda(error: BaseException | None) -> bool:
    """True if CUDA failed, or caused the error."""
    while error is not None and not _CUDA.search(f"{type(error).__name__}: {error}"):
        error = error.__cause__ or error.__context__
    return error is not None


def _wait_for_gpu() -> None:
    """Wait for the GPU, so that a failure appears in its own item and not in the next."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def main() -> None:
    """Run a part and exit without module clean-up, which may hang on a broken GPU."""
    # Print the stack after a crash, and when `watch` requests it before a kill.
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # If the suite is killed, only this limit ends the process.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    module, part, folder, *rest = sys.argv[1:]
    code = run(module, part, Path(folder), *map(int, rest))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
