"""The native core: whether it is installed, and whether it uses all of the processor.

Its facts are passed in, because this room must not import the modules that ask the core.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from cellerate.format import percent, short
from cellerate.machine.doctor.finding import Finding, parted, read
from cellerate.machine.doctor.processors import Peak, Processors, rates
from cellerate.program import PRECISIONS

TOPIC = "native core"
Measure = Callable[[str, str, int], float]
"""The peak rate of a target, in a precision, on a number of threads, in operations per second."""
# The instructions that each target needs, by their names in Linux; the targets of a processor, fastest first.
_AVX512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_NEEDED = {
    "amx": {*_AVX512, "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16"},
    "avx512bf16": {*_AVX512, "avx512_vnni", "avx512_bf16"},
    "avx512vnni": {*_AVX512, "avx512_vnni"},
    "avx512": _AVX512,
    "avx2vnni": {"avx2", "fma", "avx_vnni"},
    "avx2": {"avx2", "fma"},
    "neondot": {"asimddp"},
    "neon": {"asimd"},
}
# Threads on separate cores each reach nearly this share of the speed of one thread alone.
_OWN_CORES = 0.8
# Two measurements of the same rate differ by less.
_AS_FAST = 0.8
_VARIABLES = ("CELLERATE_TARGET", "CELLERATE_THREADS")


@dataclasses.dataclass(frozen=True)
class Core:
    """The native core's facts about itself.

    Attributes:
        missing: Why it is not installed; None if it is.
        refused: Why it does not start, because of a setting; None if it does.
        target: The instruction set in use.
        targets: The targets that this machine and build can run, fastest first.
        threads: The most threads of a call.
        measure: Measures the peak rate of a target in a precision on some threads; None measures nothing.
    """

    missing: str | None = None
    refused: str | None = None
    target: str = ""
    targets: tuple[str, ...] = ()
    threads: int = 0
    measure: Measure | None = None


def check_core(core: Core, found: Processors, root: Path) -> Iterator[Finding]:
    """Check whether the native core computes, with the widest instructions and on all cores.

    Args:
        core: The core's facts about itself.
        found: The processors to compute on.
        root: The root folder of the machine's files.
    """
    if core.missing is not None:
        said, fix = parted(core.missing)
        cost = "Keras's own kernels train and predict, and NumPy runs packed models"
        yield Finding(TOPIC, "problem", said, cost, fix)
    elif core.refused is not None:
        names = [name for name in _VARIABLES if name in core.refused]
        cost = "nothing that needs the native core runs"
        yield Finding(TOPIC, "problem", core.refused, cost, f"unset {' '.join(names or _VARIABLES)}")
    else:
        yield from _running(core, found, root)


def peak_of(core: Core) -> Peak | None:
    """The core's peak in float32 by the number of threads; None if it measures nothing.

    Args:
        core: The core's facts about itself.
    """
    measure, target = core.measure, core.target
    return None if measure is None else lambda threads: measure(target, "float32", threads)


def _running(core: Core, found: Processors, root: Path) -> Iterator[Finding]:
    peak = peak_of(core)
    faults = [*_target(core), *_build(core, root), *_threads(core, found, peak)]
    if peak is not None and 1 < core.threads <= found.best:
        faults += _shared_cores(core.threads, peak)
    yield from faults
    if not faults:
        reached = f", at most {_flops(peak(core.threads))} in float32, measured" if peak else ""
        yield Finding(TOPIC, "ok", f"{core.target} on {_of_threads(core.threads)}{reached}")
    yield from _bfloat16(core)


def _target(core: Core) -> Iterator[Finding]:
    """A narrower instruction set than the machine can run."""
    best, measure = core.targets[0], core.measure
    if core.target == best:
        return
    cost = "its products are slower"
    if measure is not None:
        rates_now = (
            f"{_flops(measure(core.target, precision, core.threads))} of "
            f"{_flops(measure(best, precision, core.threads))} in {precision}"
            for precision in PRECISIONS
            if precision != "int4"  # multiplied as int8
        )
        cost += f", measured: {', '.join(rates_now)}"
    said = f"CELLERATE_TARGET={core.target}, where {best} can run"
    yield Finding(TOPIC, "problem", said, cost, "unset CELLERATE_TARGET")


def _build(core: Core, root: Path) -> Iterator[Finding]:
    """Instructions that the processor has and the build lacks, because its compiler did not know them."""
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", read(root / "proc/cpuinfo") or "", re.MULTILINE)
    had = set() if flags is None else set(flags[1].split())
    best = next((target for target, needed in _NEEDED.items() if needed <= had), None)
    if best is not None and best not in core.targets:
        yield Finding(
            TOPIC,
            "problem",
            f"it was compiled without {best}, which this processor has",
            f"it computes with {core.targets[0]}",
            "install a newer C++20 compiler (g++ 11 knows all of them), and Cellerate again",
        )


def _threads(core: Core, found: Processors, peak: Peak | None) -> Iterator[Finding]:
    """Fewer threads than cores, or more than can run."""
    said = f"it uses {_of_threads(core.threads)}"
    if core.threads < found.best:
        measured = f": {rates(peak, core.threads, found.best)}" if peak else ""
        yield Finding(
            TOPIC,
            "problem",
            f"{said}, and there are {found.best} cores",
            f"it computes on {core.threads} of {found.best} cores{measured}",
            f"unset CELLERATE_THREADS, or export CELLERATE_THREADS={found.best}",
        )
    elif core.threads > found.most:
        yield Finding(
            TOPIC,
            "problem",
            f"{said}, and {found.most} can run at once",
            "its threads wait for each other at every time step, each for one that does not run",
            f"export CELLERATE_THREADS={found.best}",
        )


def _shared_cores(threads: int, peak: Peak) -> Iterator[Finding]:
    """Processors that share cores, although the machine presents them as separate ones."""
    share = peak(threads) / (threads * peak(1))
    if share < _OWN_CORES:
        yield Finding(
            TOPIC,
            "note",
            f"{_of_threads(threads)} reach {_flops(peak(threads))}, and one alone {_flops(peak(1))}",
            f"each gives {percent(share)} of what it gives alone, measured: its processors are halves of cores, "
            "or the machine slows down under load",
            "on a rented machine two virtual processors are often one core: count cores when you choose one",
        )


def _bfloat16(core: Core) -> Iterator[Finding]:
    """A processor that takes longer for products of bfloat16 than of float32."""
    if core.measure is None:
        return
    narrow, wide = (core.measure(core.target, kind, core.threads) for kind in ("bfloat16", "float32"))
    if narrow < _AS_FAST * wide:
        yield Finding(
            TOPIC,
            "note",
            f"{core.target} reaches {_flops(narrow)} in bfloat16 and {_flops(wide)} in float32, measured",
            "a layer whose products decide its speed is slower in bfloat16 on this processor, for half the memory",
            "choose by measuring: `cellerate train ... --precision auto`",
        )


def _flops(rate: float) -> str:
    return f"{short(rate)}FLOP/s"


def _of_threads(count: int) -> str:
    return f"{count} threads" if count > 1 else "1 thread"
