"""The program of a contestant: prepares its jobs, reports their errors, then runs the requested jobs, line by line.

It is a separate process, because a process holds one Keras backend, one allocator and one pool of threads. It starts
with a description of the contestant as JSON; then it reads requests and writes answers, a line of JSON each.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from cellerate.kernels import native
from cellerate.machine.environment import select_backend, versions
from cellerate.observe.bench.jobs import Job, timed
from cellerate.observe.bench.model import PRECISIONS, QUICK, Sizes, build

PROTOCOL = 1
"""The version of the protocol between the two processes, which shows versions of Cellerate that do not fit."""
BOUNDS = {"training": 1e-4, "float32": 1e-4, "int8": 2.0**-5}
"""The largest error of a result against float64: of losses as a share of the loss, of logits of their root mean square.

float32: the rounding errors of a hundred steps. int8: 1/254 of each factor, and the errors of earlier steps."""
YARDSTICK = "yardstick"
_TRIAL_S = 0.05
_LARGE = 64 << 20
Jobs = Iterable[Job | tuple[str, str, str]]


def main() -> None:
    """Run the contestant that the first argument describes: "case", "contestant", "folder" and "sizes"."""
    request = json.loads(sys.argv[1])
    answers = own_stdout()
    folder = Path(request["folder"])
    sizes = Sizes(**{**request["sizes"], "rows": tuple(request["sizes"]["rows"])})
    if request["case"] == "build":
        build(folder, sizes)
        # A quick run does not measure speed.
        _say(answers, {"protocol": PROTOCOL, "peaks": {} if sizes == QUICK else _peaks()})
    else:
        serve(jobs_of(request["case"], request["contestant"], folder, sizes), answers)


def jobs_of(case: str, name: str, folder: Path, sizes: Sizes) -> Jobs:
    """The jobs of a contestant.

    Args:
        case: "train", "infer" or "generate".
        name: The contestant's name in `cases.contestants`.
        folder: The folder with the truth.
        sizes: The sizes of the model.
    """
    if name == YARDSTICK:
        return [_yardstick()]
    kind, _, backend = name.partition("-")
    if backend:
        select_backend(backend)
    if case == "train":
        if kind == "torch":
            from cellerate.observe.bench.plain_torch import training_jobs

            return training_jobs(folder, sizes)
        from cellerate.observe.bench.training import fit_jobs

        return fit_jobs(folder, sizes, accelerated=kind == "cellerate")
    from cellerate.observe.bench import generating, inferring

    room: Any = inferring if case == "infer" else generating
    makers: dict[str, Callable[[Path, Sizes], Jobs]] = {
        "cellerate": room.packed_jobs,
        "keras": room.keras_jobs,
        "torch": room.torch_jobs,
    }
    made: Jobs = makers[kind](folder, sizes) if kind in makers else room.runtime_jobs(folder, sizes, kind)
    return made


def serve(jobs: Jobs, answers: TextIO) -> None:
    """Report the prepared jobs and their errors, then answer requests until there are no more.

    Nothing is timed before a request, because other contestants run while this one starts.

    Args:
        jobs: The jobs; for those that cannot run, the work, the precision and the reason.
        answers: The stream for answers.
    """
    prepared: list[Job] = []
    results: list[dict[str, Any]] = []
    for job in jobs:
        if not isinstance(job, Job):
            work, precision, reason = job
            results.append({"work": work, "precision": precision, "call": "", "refused": reason})
            continue
        about = {"work": job.work, "precision": job.precision, "call": job.call, "items": job.items}
        bound = BOUNDS["training" if job.work == "training" else job.precision]
        error = max(job.error(way) for way in job.ways)
        results.append({**about, "anew": job.anew, "error": error, "bound": bound, "number": len(prepared)})
        prepared.append(job)
    _say(
        answers,
        {"protocol": PROTOCOL, "allocator": allocator_found(), "versions": versions(), "jobs": results},
    )
    for line in sys.stdin:
        asked = json.loads(line)
        ways = prepared[asked["number"]].ways
        if "samples" not in asked:
            _say(answers, {way: _about_s(run) for way, run in ways.items()})
            continue
        samples, each = asked["samples"], asked["each"]
        seconds = np.array(ways[asked["way"]](samples * each)).reshape(samples, each)
        _say(answers, seconds.mean(axis=1).tolist())


def key_of(work: str, precision: str, call: str) -> str:
    """The key that tells the jobs of a contestant apart."""
    return f"{work}, {precision}, {call}"


def allocator_found() -> str:
    """The allocator setting of this process, measured: "kept" if a large block comes out of the heap, else "stock".

    "unknown" if the C library does not report it.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return "unknown"

    class Info(ctypes.Structure):
        _fields_ = [(f"field{place}", ctypes.c_size_t) for place in range(10)]

    libc.mallinfo2.restype = Info
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    before = libc.mallinfo2().field3  # the number of blocks with a mapping of their own
    block = libc.malloc(_LARGE)
    mapped = libc.mallinfo2().field3 - before
    libc.free(block)
    return "stock" if mapped else "kept"


def own_stdout() -> TextIO:
    """Stdout for answers alone: output of libraries goes to stderr."""
    sys.stdout.flush()
    kept = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return kept


def _about_s(run: Callable[[int], list[float]]) -> float:
    """The rough time of a call."""
    run(1)
    once = run(1)[0]
    return min(once, *run(max(1, min(50, round(_TRIAL_S / max(once, 1e-9))))))


def _peaks() -> dict[str, float]:
    """The peak of multiply-adds here, in operations a second; empty without a native core."""
    if native.why_unavailable() is not None:
        return {}
    return {precision: native.measure_peak(precision) for precision in PRECISIONS}


def _yardstick() -> Job:
    """Return work that changes of Cellerate do not affect, and that depends only on the speed of one processor.

    A digest only needs registers and the nearest cache: its time differs by less than 0.1 % between processes, the time
    of matrix products by 2 %.
    """
    content = bytes(range(256)) * 256

    def work() -> None:
        for _ in range(10):
            hashlib.sha256(content).digest()

    return Job(YARDSTICK, "SHA-256", "float32", {YARDSTICK: timed(work)}, lambda _: 0.0, 1)


def _say(answers: TextIO, value: Any) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
