"""Parts of the GPU suite that fail in every way there is, in place of those that need a GPU."""

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu.journal import Item, LeftOutError

SLEEPER = "FAKE_SLEEPER"


def process() -> dict[str, Any]:
    return {"pid": os.getpid()}


def raises(kind: type[Exception], message: str) -> Callable[[], dict[str, Any]]:
    def run() -> dict[str, Any]:
        raise kind(message)

    return run


def caused() -> dict[str, Any]:
    try:
        raise RuntimeError("CUDA_ERROR_LAUNCH_FAILED")
    except RuntimeError as error:
        raise ValueError("no message of CUDA's") from error


def ends(how: Callable[[], Any]) -> Callable[[], dict[str, Any]]:
    def run() -> dict[str, Any]:
        print("the last words", flush=True)
        how()
        raise AssertionError("unreachable")

    return run


def hangs() -> dict[str, Any]:
    sleeper = subprocess.Popen(["sleep", "60"])
    Path(os.environ[SLEEPER]).write_text(str(sleeper.pid))
    time.sleep(60)
    return {}


def poisoned() -> dict[str, Any]:
    return {"errors": {"outputs": float("nan"), "h_T": 0.5}, "right": False}


def needs_package() -> dict[str, Any]:
    import no_such_package  # noqa: F401

    return {}


def needs_our_module() -> dict[str, Any]:
    import cellerate.no_such_module  # noqa: F401

    return {}


def faults() -> list[Item]:
    return [
        Item("first", process),
        Item("an exception", raises(ValueError, "planted")),
        Item("after an exception", process),
        Item("CUDA's", raises(RuntimeError, "CUDA error: an illegal memory access was encountered")),
        Item("after CUDA's", process),
        Item("caused by CUDA's", caused),
        Item("an abort", ends(os.abort)),
        Item("a segmentation fault", ends(lambda: ctypes.string_at(0))),
        Item("after a crash", process),
        Item("a hang", hangs, 0.4),
        Item("after a hang", process),
        Item("a NaN", poisoned),
        Item("what JSON has not", lambda: {"found": object()}),
        Item("a package", needs_package),
        Item("a mistake", needs_our_module),
        Item("what is not there", raises(LeftOutError, "not here")),
        Item("last", process),
    ]


def device() -> list[Item]:
    return [Item("kernels", lambda: {"gpu": "a fake", "architecture": "sm_90a", "versions": {"cuda": "0"}})]


def no_device() -> list[Item]:
    return [Item("kernels", raises(RuntimeError, "the driver is not there"))]


def fine() -> list[Item]:
    return [Item(f"{n}", process) for n in range(3)]


def many() -> list[Item]:
    return [Item(f"{n}", lambda: time.sleep(0.01) or process()) for n in range(12)]


def endless() -> list[Item]:
    return [Item("short", process), Item("long", hangs), Item("never", process)]


def without_package() -> list[Item]:
    import no_such_package  # noqa: F401

    return []


def ends_before_its_items() -> list[Item]:
    sys.exit(3)
