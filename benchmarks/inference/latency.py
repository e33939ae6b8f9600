"""One step of one stream through a stack of LSTMs, from Python: packed models and peers, in turn.

Each contestant is this module run with `--contestant`; it reads requests from its standard input. It keeps the states
as its users would, takes a NumPy array and returns one. If it has several ways or numbers of threads, it runs the
fastest of a trial. All take turns twice: on the quiet machine, and while another process keeps a core busy. Ours is
also timed without Python around it, and compared with the least time to read its weights.
"""

import argparse
import functools
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import processes
from benchmarks.inference.models import cell_file, truth_of
from benchmarks.inference.race import TOLERANCES
from benchmarks.inference.stacks import PUBLISHED, STACKS, Stack, build, inputs_of
from benchmarks.inference.steppers import CONTESTANTS, OUTPUTS, Step
from benchmarks.precisions import PRECISIONS
from benchmarks.processes import Process, busy_process, in_turn, program, refusal, same_allocator
from cellerate.observe.bench.contestant import allocator_found

START_LIMIT_S = 300
BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


def run(*, quick: bool) -> dict[str, Any]:
    """Every stack, all contestants in turn."""
    found: dict[str, Any] = {"tolerances": TOLERANCES, "published": PUBLISHED, "stacks": []}
    names = [*STACKS][:1] if quick else [*STACKS]
    with tempfile.TemporaryDirectory() as folder:
        processes.build("inference.latency", "--build", folder)
        for name in names:
            contestants: dict[str, Process] = {}
            try:
                found["stacks"].append(_race(name, Path(folder), contestants, quick=quick))
            finally:
                for process in contestants.values():
                    process.close()
            _show(found["stacks"][-1])
    return found


def _race(name: str, folder: Path, contestants: dict[str, Process], *, quick: bool) -> dict[str, Any]:
    """The records of one stack; fills in the processes that it starts."""
    jobs: dict[tuple[str, str], dict[str, Any]] = {}
    about, left_out = {}, {}
    for contestant in CONTESTANTS:
        command = program("inference.latency", "--contestant", contestant, name, str(folder))
        process = contestants[contestant] = Process(command, contestant, KERAS_BACKEND="jax")
        try:
            about[contestant] = process.answer(START_LIMIT_S, "start")
        except RuntimeError as error:
            if contestant == "cellerate":
                raise
            left_out[contestant] = str(error)
            del contestants[contestant]
            process.close()
            continue
        for precision, job in about[contestant].pop("jobs").items():
            if job["error"] <= TOLERANCES[precision]:
                jobs[contestant, precision] = job
            elif contestant == "cellerate":
                raise RuntimeError(f"{contestant}, {name}, {precision}: an error of {job['error']:.1e}")
            else:
                left_out[f"{contestant} {precision}"] = (
                    f"an error of {job['error']:.1e} of the root mean square; a step took about "
                    f"{job['about_s'] * 1e6:.3g} µs"
                )
    same_allocator(each["allocator"] for each in about.values())
    seconds, rounds = (0.02, 2) if quick else (0.3, 5)
    quiet = _turns(contestants, jobs, seconds, rounds)
    with busy_process():
        busy = _turns(contestants, jobs, seconds, rounds)
    records = [
        {"contestant": who, "precision": precision, "way": job["way"], "error": job["error"]}
        | {"quiet": summary_of(quiet[who, precision]), "busy": summary_of(busy[who, precision])}
        for (who, precision), job in jobs.items()
    ]
    alone = contestants["cellerate"].ask({"native": 200 if quick else 100_000})
    native = {
        precision: {
            "weight_bytes": each["weight_bytes"],
            "reading_s": each["reading_s"],
            **summary_of(each["seconds"]),
        }
        for precision, each in alone.items()
    }
    return {"stack": name, "records": records, "native": native, "left_out": left_out, "contestants": about}


def _turns(
    contestants: dict[str, Process], jobs: dict[tuple[str, str], Any], seconds: float, rounds: int
) -> dict[tuple[str, str], list[float]]:
    """The seconds of each step of each job, which take turns."""
    found: dict[tuple[str, str], list[float]] = {key: [] for key in jobs}
    for _ in range(rounds):
        for who, precision in in_turn(jobs):
            count = min(50_000, max(8, round(seconds / jobs[who, precision]["about_s"])))
            found[who, precision] += contestants[who].ask({"precision": precision, "steps": count})
    return found


def summary_of(seconds: list[float]) -> dict[str, float]:
    """Median, 99th and 99.9th percentile of the times of steps."""
    from cellerate.measure import as_timing

    timing = as_timing(seconds)
    tails = {"p99_s": timing.percentile_s(0.99), "p99.9_s": timing.percentile_s(0.999)}
    return {**timing.summary(), **tails}


def contestant(name: str, stack: Stack, folder: Path) -> None:
    """The contestant's process: report the errors of its ways and the fastest one, then time steps."""
    try:
        steps, about = _prepared(name, stack, folder)
    except Exception as error:
        print(json.dumps(refusal(error)), flush=True)
        return
    print(json.dumps({"allocator": allocator_found(), "jobs": about}), flush=True)
    x = np.ascontiguousarray(inputs_of(stack)[:1])
    for line in sys.stdin:
        asked = json.loads(line)
        if "native" in asked:
            print(json.dumps(_native(stack, folder, asked["native"])), flush=True)
        else:
            print(json.dumps(_timed(steps[asked["precision"]], x, asked["steps"])), flush=True)


def _prepared(name: str, stack: Stack, folder: Path) -> tuple[dict[str, Step], dict[str, Any]]:
    """The fastest way of each precision, with its facts."""
    truth, inputs = truth_of(stack.model)[0], inputs_of(stack)
    steps, about = {}, {}
    for precision, ways in CONTESTANTS[name](stack, folder).items():
        quick: dict[str, float] = {}
        errors: dict[str, float] = {}
        started: dict[str, Step] = {}
        for way, start in ways.items():
            step = started[way] = start()
            made: Any = None
            for row in inputs:
                made = step(np.ascontiguousarray(row[None]))
            errors[way] = float(np.linalg.norm(np.asarray(made, np.float64) - truth) / np.linalg.norm(truth))
            timed = functools.partial(_timed, step, inputs[:1])
            quick[way] = float(np.median(timed(max(8, min(500, round(0.05 / timed(8)[-1]))))))
        best = min(quick, key=quick.__getitem__)
        steps[precision] = started[best]
        about[precision] = {"way": best, "about_s": quick[best], "error": errors[best]}
    return steps, about


def _timed(step: Step, x: np.ndarray, count: int) -> list[float]:
    clock: Callable[[], float] = time.perf_counter
    seconds = []
    for _ in range(count):
        start = clock()
        step(x)
        seconds.append(clock() - start)
    return seconds


def _native(stack: Stack, folder: Path, count: int) -> dict[str, Any]:
    """Our core without Python: the seconds of each step, and the least seconds to read its weights."""
    import cellerate
    from cellerate.kernels import native

    found = {}
    x = np.ascontiguousarray(inputs_of(stack)[None, :1])
    for precision in PRECISIONS:
        model = cellerate.load(cell_file(folder, stack.name, precision))
        streams, out = model.streams(1), np.empty((1, OUTPUTS), np.float32)
        for _ in range(3):
            streams.push_into(x, out)
        size = stack.weights * BYTES[precision]
        rate = max(native.measure_read(size, threads) for threads in range(1, native.num_threads() + 1))
        found[precision] = {
            "seconds": streams.time_pushes(x, out, count),
            "weight_bytes": size,
            "reading_s": size / rate,
        }
    return found


def _show(found: dict[str, Any]) -> None:
    for precision in PRECISIONS:
        listed = sorted(
            (one for one in found["records"] if one["precision"] == precision),
            key=lambda one: one["quiet"]["median_s"],
        )
        for one in listed:
            told = " ".join(
                f"{name} {one[when][name] * 1e6:.1f}"
                for when in ("quiet", "busy")
                for name in ("median_s", "p99_s", "p99.9_s")
            )
            print(
                f"{found['stack']} {precision:<9} {one['contestant']:<12} µs: {told} ({one['way']})",
                flush=True,
            )
        native = found["native"][precision]
        print(
            f"{found['stack']} {precision:<9} without Python: {native['median_s'] * 1e6:.2f} µs, p99 "
            f"{native['p99_s'] * 1e6:.2f}; reading {native['weight_bytes']:,} bytes takes "
            f"{native['reading_s'] * 1e6:.2f} µs",
            flush=True,
        )
    for name, reason in found["left_out"].items():
        print(f"{found['stack']} {name} takes no part: {reason}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contestant", nargs=2, metavar=("NAME", "STACK"))
    parser.add_argument("--build", action="store_true")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    if arguments.build:
        build(arguments.folder, PRECISIONS)
    else:
        contestant(arguments.contestant[0], STACKS[arguments.contestant[1]], arguments.folder)
