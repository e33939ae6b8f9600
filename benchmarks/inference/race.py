"""Whole batches through a model in one call: packed models, and every other runtime for the same model.

A process holds one Keras backend, so each contestant is this module run with `--contestant`; it reads requests from its
standard input, so that all take turns in one run. Each gets the same weights and the same rows as NumPy arrays, and
returns NumPy arrays; the timed call is the one that its users would make. If a contestant has several ways or numbers
of threads, it runs the fastest of a trial of the same size.
"""

import argparse
import functools
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import processes
from benchmarks.inference.models import (
    BATCHES,
    CHECKED,
    MODELS,
    STREAMED,
    batch_of,
    build,
    cell_file,
    products,
    truth_of,
)
from benchmarks.inference.peers import PEERS, versions
from benchmarks.precisions import PRECISIONS
from benchmarks.processes import Process, RefusedError, in_turn, program, refusal, same_allocator
from cellerate.observe.bench.contestant import allocator_found

# The allowed error of up to four layers, relative to the root mean square in float64: float32 as for one layer over
# 100 steps; for 8 products whose errors have no common sign, bfloat16's 2^-9 and int8's 1/254 of each factor, with a
# little for the errors of earlier steps in a state.
TOLERANCES = {"float32": 1e-4, "bfloat16": 2.0**-6, "int8": 2.0**-5}
START_LIMIT_S = 240
# What finding the fastest way of a precision may take. Only bfloat16 takes longer, where the processor lacks it: up to
# 25 seconds a call.
CHOOSING_LIMIT_S = 40


def run(*, quick: bool) -> dict[str, Any]:
    """Every model and batch, all contestants in turn."""
    from cellerate.kernels import native

    found: dict[str, Any] = {"tolerances": TOLERANCES, "cells": [], "contestants": {}, "refused": {}}
    found["peak_operations_per_s"] = {precision: native.measure_peak(precision) for precision in PRECISIONS}
    found["products"] = {name: products(model) for name, model in MODELS.items()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes.build("inference.race", "--build", name)
        contestants: dict[str, Process] = {}
        try:
            for name in PEERS:
                backend = {"KERAS_BACKEND": name} if name in ("jax", "tensorflow") else {}
                command = program("inference.race", "--contestant", name, str(folder))
                process = Process(command, name, **backend)
                try:
                    found["contestants"][name] = process.answer(START_LIMIT_S, "start")
                    contestants[name] = process
                except RuntimeError as error:
                    if name == "cellerate":
                        raise
                    found["refused"][name] = str(error)
                    print(f"{name} takes no part: {error}", flush=True)
            same_allocator(about["allocator"] for about in found["contestants"].values())
            models = list(MODELS)[:1] if quick else list(MODELS)
            for model, batch in itertools.product(models, BATCHES[:2] if quick else BATCHES):
                cell = race(
                    contestants, model, batch, seconds=0.02 if quick else 0.15, rounds=2 if quick else 5
                )
                found["cells"].append(cell)
                _show(cell)
        finally:
            for process in contestants.values():
                process.close()
        found["streams"] = streams(folder, quick=quick)
    return found


def streams(folder: Path, *, quick: bool) -> dict[str, Any]:
    """The number of steps a second many independent streams of a small forecaster take, all one step a call."""
    import cellerate
    from cellerate.measure import as_timing

    (name, model), count = next(iter(STREAMED.items())), 100 if quick else 10_000
    found: dict[str, Any] = {
        "model": name,
        "count": count,
        "products": products(model) // model.steps,
        "records": [],
    }
    steps = np.random.default_rng(1).standard_normal((count, 1, model.width), np.float32)
    for precision in PRECISIONS:
        many = cellerate.load(cell_file(folder, name, precision)).streams(count)
        for _ in range(20):
            many.push(steps)
        timing = as_timing(_timed(functools.partial(many.push, steps), 5 if quick else 200))
        record = {"precision": precision, **timing.summary(), "p99_s": timing.percentile_s(0.99)}
        found["records"].append(record)
        print(f"{count:,} streams of {name}, {precision}: {count / timing.median_s:,.0f} steps/s", flush=True)
    return found


def race(
    contestants: dict[str, Process], model: str, batch: int, *, seconds: float, rounds: int
) -> dict[str, Any]:
    """One model and batch: each contestant and precision in turn, each for about `seconds` a round."""
    from cellerate.measure import as_timing

    jobs: dict[tuple[str, str], dict[str, Any]] = {}
    left_out: dict[str, str] = {}
    for name, process in list(contestants.items()):
        try:
            made = process.ask({"model": model, "batch": batch}, START_LIMIT_S, f"compile {model}, B={batch}")
        except RefusedError as error:
            if name == "cellerate":
                raise
            # Its process has ended.
            del contestants[name]
            left_out[name] = str(error)
            continue
        for precision, job in made.items():
            if reason := wrong(precision, job):
                if name == "cellerate":
                    raise RuntimeError(f"{name}, {model}, B={batch}, {precision}: {reason}")
                left_out[f"{name} {precision}"] = reason
            else:
                jobs[name, precision] = job
    taken: dict[tuple[str, str], list[float]] = {key: [] for key in jobs}
    for turn in range(rounds):
        # Three calls are enough for a slow job.
        due = [key for key, job in jobs.items() if turn < 3 or job["about_s"] <= seconds]
        for name, precision in in_turn(due):
            calls = min(2000, max(1, round(seconds / jobs[name, precision]["about_s"])))
            taken[name, precision] += contestants[name].ask({"precision": precision, "calls": calls})
    records = []
    for (name, precision), times in taken.items():
        timing = as_timing(times)
        about = {key: jobs[name, precision][key] for key in ("way", "error")}
        record = {"contestant": name, "precision": precision, **about, **timing.summary()}
        records.append(record | ({"p99_s": timing.percentile_s(0.99)} if batch == 1 else {}))
    return {"model": model, "batch": batch, "records": records, "left_out": left_out}


def wrong(precision: str, job: dict[str, Any]) -> str:
    """The reason not to time a job; empty if it is timed."""
    if "refused" in job:
        return str(job["refused"])
    if not job["error"] <= TOLERANCES[precision]:
        took_ms = job["about_s"] * 1e3
        return f"an error of {job['error']:.1e} of the root mean square; a call took about {took_ms:.3g} ms"
    return ""


def contestant(name: str, folder: Path) -> None:
    """The contestant's process: prepare a model and batch, report the error of each precision, then time calls."""
    jobs: dict[str, Callable[[], Any]] = {}
    print(json.dumps({"allocator": allocator_found(), "versions": versions(name)}), flush=True)
    prepared: dict[str, Any] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        if "calls" in asked:
            print(json.dumps(_timed(jobs[asked["precision"]], asked["calls"])), flush=True)
            continue
        try:
            if asked["model"] not in prepared:
                prepared = {asked["model"]: PEERS[name](asked["model"], MODELS[asked["model"]], folder)}
            jobs, about = _prepared(prepared[asked["model"]], asked["model"], asked["batch"])
        except Exception as error:
            refused = refusal(error)
            about = {precision: refused for precision in PRECISIONS}  # noqa: C420 (it is not changed)
        print(json.dumps(about), flush=True)


def _prepared(ways: Any, model: str, batch: int) -> tuple[dict[str, Callable[[], Any]], dict[str, Any]]:
    """The fastest way of each precision, with its facts."""
    x = np.ascontiguousarray(batch_of(MODELS[model], batch))
    truth = truth_of(MODELS[model])[: min(CHECKED, batch)]
    jobs, about = {}, {}
    for precision, choices in ways.items():
        quick: dict[str, float] = {}
        start = time.perf_counter()
        for way, call in choices.items():
            if quick and time.perf_counter() - start > CHOOSING_LIMIT_S:
                break
            job = functools.partial(call, x)
            job()
            quick[way] = once = _timed(job, 1)[0]
            if once < 0.05:
                quick[way] = min(once, *_timed(job, min(200, round(0.05 / once))))
        best = min(quick, key=quick.__getitem__)
        jobs[precision] = functools.partial(choices[best], x)
        made = np.asarray(jobs[precision](), np.float64)[: len(truth)]
        error = float(np.linalg.norm(made - truth) / np.linalg.norm(truth))
        about[precision] = {"way": best, "about_s": quick[best], "error": error}
    return jobs, about


def _timed(job: Callable[[], Any], calls: int) -> list[float]:
    seconds = []
    for _ in range(calls):
        start = time.perf_counter()
        job()
        seconds.append(time.perf_counter() - start)
    return seconds


def _show(cell: dict[str, Any]) -> None:
    for precision in PRECISIONS:
        listed = sorted(
            (one for one in cell["records"] if one["precision"] == precision), key=lambda one: one["median_s"]
        )
        told = ", ".join(f"{one['contestant']} {one['median_s'] * 1e3:.3f}" for one in listed)
        print(f"{cell['model']:<24} B={cell['batch']:<4} {precision:<9} ms: {told}", flush=True)
    for name, reason in cell["left_out"].items():
        print(f"{cell['model']:<24} B={cell['batch']:<4} {name} takes no part: {reason}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contestant", choices=list(PEERS))
    parser.add_argument("--build", action="store_true")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    if arguments.build:
        build(arguments.folder)
    else:
        contestant(arguments.contestant, arguments.folder)
