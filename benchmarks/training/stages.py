"""A stack of LSTMs in one process, and divided over two: by its layers, in stages, or by the rows of a batch.

Every way is `cellerate train text` with the same settings and seed, so all must have the same curve; otherwise the case
ends. On a machine of two cores, each of two processes has one core.
"""

import csv
import functools
import itertools
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.processes import as_environment, cellerate

BACKENDS = ("jax", "torch")
ALONE, ONE_CORE = "one process", "one process on one core"
WAYS: Mapping[str, Sequence[str]] = {
    ALONE: (),
    ONE_CORE: (),
    "two stages": ("--stages", "2"),
    "two processes, each with half of the rows": ("--processes", "2"),
}
LAYERS, UNITS, EMBEDDING, BATCH, LENGTH = 4, 512, 64, 32, 64
STEPS, EPOCHS = 6, 4  # the first epoch compiles and does not count
QUICK_UNITS, QUICK_STEPS, QUICK_EPOCHS = 32, 3, 2
TOLERANCE = 1e-4


def run(book: Path, *, quick: bool) -> dict[str, Any]:
    """Train in each way on each backend that can train in several processes."""
    units, steps, epochs = (QUICK_UNITS, QUICK_STEPS, QUICK_EPOCHS) if quick else (UNITS, STEPS, EPOCHS)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text.txt")
        text.write_text(book.read_text(encoding="utf-8")[-(steps * BATCH * LENGTH + 1) :], encoding="utf-8")
        sizes = ("--layers", LAYERS, "--units", units, "--embedding", EMBEDDING, "--length", LENGTH)
        options = [*map(str, sizes), "--batch-size", str(BATCH), "--epochs", str(epochs)]
        for number, backend in enumerate(BACKENDS):
            ways = list(WAYS)
            # The first way changes with each backend.
            for way in ways[number:] + ways[:number]:
                made = _trained(
                    text, Path(folder, f"{backend} {ways.index(way)}.keras"), backend, way, options
                )
                found.setdefault(backend, {})[way] = made
                print(f"{backend:<6} {way:<42} {1e3 * made['step_s'][0]:.0f} ms a step", flush=True)
            found[backend] = {way: found[backend][way] for way in ways}
            check(backend, found[backend])
    return {
        "layers": LAYERS,
        "units": units,
        "embedding": EMBEDDING,
        "batch_size": BATCH,
        "length": LENGTH,
        "steps": steps,
        "backends": found,
    }


def _trained(text: Path, output: Path, backend: str, way: str, options: Sequence[str]) -> dict[str, Any]:
    """Train in one way; return the median, shortest and longest step time of the epochs, and other facts."""
    words = cellerate("train", "text", text, "-o", output, "--backend", backend, *options, *WAYS[way])
    words += ["--validation-fraction", "0", "--log-every", "1", "--no-probe", "--json", "--quiet"]
    pinned = functools.partial(os.sched_setaffinity, 0, {min(os.sched_getaffinity(0))})
    done = subprocess.run(
        words,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=as_environment("kept"),
        preexec_fn=pinned if way == ONE_CORE else None,
    )
    training = json.loads(done.stdout)["training"]
    steps_s = sorted(epoch["seconds"] / epoch["steps"] for epoch in training["history"][1:])
    with output.with_suffix(".run").joinpath("curve.csv").open() as file:
        curve = [float(row["loss"]) for row in csv.DictReader(file)]
    with output.with_suffix(".run").joinpath("telemetry.csv").open() as file:
        memory = [float(row["machine/memory_bytes"] or 0) for row in csv.DictReader(file)]
    stages = training["stages"]
    return {
        "step_s": [steps_s[len(steps_s) // 2], steps_s[0], steps_s[-1]],
        "memory_bytes": [one["memory_bytes"] for one in stages] or [max(memory)],
        "bubble": stages[0]["bubble"] if stages else None,
        "waiting": [one["waiting"] for one in stages],
        "chunks": stages[0]["chunks"] if stages else None,
        "stages": [one["layers"] for one in stages],
        "kernels": training["kernels"],
        "curve": curve,
    }


def check(backend: str, ways: Mapping[str, Mapping[str, Any]]) -> None:
    """End the case unless all ways have the curve of one process.

    Raises:
        SystemExit: A curve differs.
    """
    expected = ways[ALONE]["curve"]
    for way, found in ways.items():
        pairs = itertools.zip_longest(found["curve"], expected, fillvalue=float("nan"))
        if not expected or not all(abs(ours / theirs - 1) <= TOLERANCE for ours, theirs in pairs):
            raise SystemExit(f"{backend}, {way}: the curve is not that of one process")


def staged(result: Mapping[str, Any]) -> list[list[str]]:
    """A row a backend and way."""
    head = [
        f"{result['layers']} LSTMs of {result['units']}, batch {result['batch_size']}, "
        f"length {result['length']}",
        "A step",
        "Characters/s",
        "Speed",
        "Bubble",
        "Memory of each process",
    ]
    return [head, *_rows(result)]


def _rows(result: Mapping[str, Any]) -> Iterator[list[str]]:
    from cellerate.format import milliseconds, percent, short, size

    for backend, ways in result["backends"].items():
        alone = ways[ALONE]["step_s"][0]
        for way, found in ways.items():
            median, low, high = found["step_s"]
            waited = ", ".join(map(percent, found["waiting"]))
            yield [
                f"{backend}, {way}",
                f"{milliseconds(1e3 * median)} ({milliseconds(1e3 * low)} to {milliseconds(1e3 * high)})",
                short(result["batch_size"] * result["length"] / median),
                f"{alone / median:.2f}x",
                "" if found["bubble"] is None else f"{percent(found['bubble'])}; waited {waited}",
                ", ".join(map(size, found["memory_bytes"])),
            ]
