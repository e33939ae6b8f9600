"""Generating text a character at a time: packed models, and every other way that can run the same model.

A process holds one Keras backend, so each contestant is this module, started with the contestant's name. It reads
requests from its standard input, so that all take turns in one run.

The model: embedding 256, one LSTM, a dense layer to 96 characters, the same seeded weights everywhere. The name of a
job says what the timed call contains:

- `loop`: 500 characters a call, drawn inside. `generate`: ours, 20,000 and more in a call.
- `drawn`: a call a character, drawn inside; only torch, which does not compile the loop.
- `draw`, `step`, `eager`, `predict`, `predict_on_batch`: a call a character, drawn outside by NumPy.
- `logits` (ours: `step`): a call a character, nothing drawn.
- `sequence`: a text of 1000 characters judged in one call, one character after the other. `score`: ours, a long text
  in 64 parts side by side.
- "float32" and "int8" of ONNX Runtime: its LSTM node alone, without embedding, head and draw, which favours it.
"""

import argparse
import functools
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.generation.model import truth_of
from benchmarks.generation.peers import (
    CHARACTERS,
    CHUNK,
    EMBEDDING,
    TEMPERATURE,
    TEXT,
    Job,
    V,
    clocked,
    error_of,
    in_chunks,
    keras_jobs,
    one_by_one,
)
from benchmarks.generation.runtimes import RUNTIMES, runtime_jobs
from benchmarks.generation.ways import sequences
from benchmarks.precisions import PRECISIONS
from benchmarks.processes import Process, build, cellerate, in_turn, program, refusal, same_allocator
from cellerate.machine.environment import BACKENDS
from cellerate.observe.bench.contestant import allocator_found

STREAMS = 64
# The allowed error, relative to the root mean square. bfloat16 and int8 as in tests/runtime/test_packed.py,
# where the rounded weights of the file are the reference.
TOLERANCES = {"float32": 1e-4, "bfloat16": 2.0**-7, "int8": 2.0**-5}
# Keras keeps c in bfloat16, too: over the 40 steps, the rounding grows by their root, a factor of 6.
KERAS_BFLOAT16 = 2.0**-5
CONTESTANTS = ("cellerate", *RUNTIMES, *BACKENDS)
# The time limit to compile everything and to try one thread and two.
START_LIMIT_S = 240


def generate(model: Any, state: np.ndarray, logits: np.ndarray, count: int) -> int:
    """Draw `count` characters of one stream in one native call."""
    from cellerate.kernels.decoder.sampling import SamplingRules

    return len(model.steps.generate(state, logits, count, SamplingRules(temperature=TEMPERATURE, seed=1))[0])


def streams(model: Any, state: np.ndarray, logits: np.ndarray, count: int) -> int:
    """Draw `count` characters in all of `STREAMS` streams in one native call."""
    from cellerate.kernels.decoder.sampling import Request, SamplingRules

    each = -(-count // STREAMS)
    requests = [Request(each, SamplingRules(temperature=TEMPERATURE, seed=seed)) for seed in range(STREAMS)]
    rows = (STREAMS, 1)
    drawn, _, _ = model.steps.generate_rows(np.tile(state, rows), np.tile(logits, rows), requests)
    return sum(len(one.ids) for one in drawn)


def score(model: Any, text: str, count: int) -> int:
    """Judge a text of `count` characters."""
    return model.score((text * (count // len(text) + 1))[:count]).characters


def step(model: Any, count: int) -> tuple[list[float], int]:
    """Read `count` characters, one call each from Python; return the seconds of each step."""
    stepper, ids, seconds = model.stepper(), np.zeros(1, np.int32), []
    for _ in range(count):
        start = time.perf_counter()
        stepper.step(ids)
        seconds.append(time.perf_counter() - start)
    return seconds, 1


def cellerate_jobs(folder: Path, _: str) -> tuple[dict[str, Job], dict[str, Any]]:
    """Packed models in each precision."""
    import cellerate

    truth = np.load(folder / "truth.npz")
    jobs: dict[str, Job] = {}
    errors: dict[str, float] = {}
    for precision in PRECISIONS:
        model = cellerate.load(folder / f"{precision}.cell")
        state, (logits,) = model.steps.read(model.steps.initial_state(), truth["ids"][None])
        # In a narrower precision, the rounded weights of the file are the reference.
        rounded = truth if precision == "float32" else truth_of(_weights(model))
        errors[precision] = error_of(logits, rounded["logits"])
        text = model.generate("The ", max_tokens=20_000, temperature=TEMPERATURE, seed=1)
        judged = "".join(CHARACTERS[place] for place in truth["text"])
        judge = functools.partial(model.score, judged, context=None)
        # The check compares the likelihood of the text with its float64 reference.
        errors[f"sequence {precision}"] = error_of(-judge().nats_per_token * TEXT, truth["likelihood"])
        one = functools.partial(_step, model.steps)
        zeros = [model.steps.initial_state()]
        loop = _loop(model.steps)
        # Reading the drawn characters again must give the same logits.
        drawn, _, after = loop(state, logits)
        errors[f"loop {precision}"] = error_of(after, model.steps.read(state, drawn[None])[1][0])
        jobs |= {
            f"loop {precision}": clocked(functools.partial(in_chunks, loop, [state, logits])),
            f"generate {precision}": clocked(functools.partial(generate, model, state, logits)),
            f"streams {precision}": clocked(functools.partial(streams, model, state, logits)),
            f"score {precision}": clocked(functools.partial(score, model, text)),
            f"step {precision}": functools.partial(step, model),
            f"draw {precision}": functools.partial(one_by_one, one, zeros, True),
            f"sequence {precision}": functools.partial(sequences, judge),
        }
    settings = "cellerate.load of the packed file; generate, streams and score are one native call"
    return jobs, {"errors": errors, "settings": settings}


def _weights(model: Any) -> dict[str, np.ndarray]:
    """The weights of a packed file, in the form for `truth_of`."""
    arrays = {node.op: node.arrays for node in model.cell.program.nodes}
    lstm, dense = arrays["lstm"], arrays["dense"]
    names = ("kernel", "recurrent_kernel", "bias")
    head = {"head": dense["kernel"], "head_bias": dense["bias"]}
    return {"table": arrays["embedding"]["embeddings"]} | {name: lstm[name] for name in names} | head


def _loop(steps: Any) -> Any:
    """Draw as many characters in a call as the loops of the peers."""
    positions = itertools.count(step=CHUNK)

    def loop(state: np.ndarray, logits: np.ndarray) -> Any:
        rules = SamplingRules(temperature=TEMPERATURE, seed=1)
        drawn, _, state, logits = steps.generate(state, logits, CHUNK, rules, position=next(positions))
        return drawn, state, logits

    from cellerate.kernels.decoder.sampling import SamplingRules

    return loop


def _step(steps: Any, ids: np.ndarray, state: Any) -> Any:
    state, logits = steps.step(state, ids)
    return logits, state


def jobs_of(folder: Path, name: str) -> tuple[dict[str, Job], dict[str, Any]]:
    """The jobs of a contestant, and facts about it. Raises `RefusedError` if it cannot run."""
    if name in RUNTIMES:
        return runtime_jobs(folder, name)
    return (cellerate_jobs if name == "cellerate" else keras_jobs)(folder, name)


def contestant(folder: Path, name: str) -> None:
    """The contestant's process: print its jobs, then read requests and write times."""
    try:
        jobs, about = jobs_of(folder, name)
    except Exception as error:
        print(json.dumps(refusal(error)), flush=True)
        return
    print(json.dumps({"jobs": list(jobs), "allocator": allocator_found(), **about}), flush=True)
    for line in sys.stdin:
        job, count = json.loads(line)
        seconds, made = jobs[job](count)
        print(json.dumps({"seconds": seconds, "characters": made}), flush=True)


class Contestant:
    """A process that draws characters and reports the time.

    Raises:
        RefusedError: It cannot take part.
        RuntimeError: It ended, or its results are wrong.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        backend = {"KERAS_BACKEND": name} if name in BACKENDS else {}
        self._process = Process(program("generation.race", name, str(folder)), name, **backend)
        self.about = self._process.answer(START_LIMIT_S, "start")
        check(name, self.about)

    def run(self, job: str, count: int) -> tuple[list[float], int]:
        """Generate about `count` characters; return the seconds of each call, and the characters of one."""
        done = self._process.ask([job, count])
        return done["seconds"], done["characters"]

    def close(self) -> None:
        """End the process."""
        self._process.close()


def bound(key: str) -> float:
    """The allowed error of a key of "errors", whose last word is the precision, float32 by default."""
    word = key.split()[-1]
    allowed = KERAS_BFLOAT16 if word == "mixed_bfloat16" else TOLERANCES.get(word, TOLERANCES["float32"])
    # The sum over a text averages out the errors of its characters.
    return allowed / TEXT**0.5 if key.startswith("sequence") else allowed


def check(name: str, about: dict[str, Any]) -> None:
    """Move wrong or unchecked jobs from "jobs" to "left_out".

    A job is checked by the error under its own name, under its precision, and of a step's logits in its precision: over
    a whole text, errors would average out.

    Raises:
        RuntimeError: Such a job is ours.
    """
    errors, left_out = about["errors"], about.setdefault("left_out", {})
    for job in [*about["jobs"]]:
        precision = job.split()[-1]
        keys = (job, precision, f"logits {precision}", job.replace("bfloat16", "mixed_bfloat16"))
        found = {key: errors[key] for key in keys if key in errors}
        wrong = dict.fromkeys(
            f"an error of {error:.1e} of the root mean square"
            for key, error in found.items()
            if not error <= bound(key)
        )
        if reason := "; ".join(wrong) or ("" if found else "nothing has checked what it computes"):
            if name == "cellerate":
                raise RuntimeError(f"{name}, {job}: {reason}")
            about["jobs"].remove(job)
            # The reason shows that the job was not left out for being fast.
            took = about.get("about_s", {}).get(job)
            left_out[job] = f"{reason}; a character took about {took * 1e6:.3g} µs" if took else reason


def race(contestants: list[Contestant], *, seconds: float, rounds: int) -> list[dict[str, Any]]:
    """Let contestants take turns, each job for about `seconds` in all, and return the records of the jobs."""
    from cellerate.measure import as_timing

    same_allocator(each.about["allocator"] for each in contestants)
    # The number of characters of a turn, by contestant and job.
    turns = {
        (each, job): _turn(each, job, seconds / rounds) for each in contestants for job in each.about["jobs"]
    }
    taken: dict[tuple[Contestant, str], list[float]] = {turn: [] for turn in turns}
    sizes: dict[tuple[Contestant, str], int] = {}
    for _ in range(rounds):
        for each, job in in_turn(turns):
            times, sizes[each, job] = each.run(job, turns[each, job])
            taken[each, job] += times
    records = []
    for (each, job), times in taken.items():
        records.append(record_of(each.name, job, as_timing(times), sizes[each, job]))
    return records


def record_of(contestant: str, job: str, timing: Any, characters: int) -> dict[str, Any]:
    """The entry of a job in a result, from the `Timing` of its calls of `characters` characters each.

    Only a call that returns one character has a latency; the time of a longer call is not divided.
    """
    record = {"contestant": contestant, "job": job, "characters": characters, **timing.summary()}
    record["characters_per_s"] = characters / timing.median_s
    return record | ({"p99_s": timing.percentile_s(0.99)} if characters == 1 else {})


def _turn(each: Contestant, job: str, seconds: float) -> int:
    """The number of characters drawn in the given time; the first calls compile and do not count."""
    count = 8
    for _ in range(3):
        times, made = each.run(job, count)
        rate = made * len(times) / sum(times)
        count = max(8, round(rate * seconds / 4))
    if made == 1:
        return max(8, min(4_000, round(rate * seconds)))
    return max(20_000 if job.startswith("generate ") else 8, round(rate * seconds))


def process(folder: Path, *, runs: int) -> dict[str, Any]:
    """The whole `cellerate generate` of 1000 characters, from the start of Python to its end."""
    from cellerate.measure import time_alternating

    def write(precision: str) -> None:
        command = cellerate("generate", folder / f"{precision}.cell", "The ", "-n", 1000, "--seed", 1)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    work = {precision: functools.partial(write, precision) for precision in PRECISIONS}
    return {name: timing.summary() for name, timing in time_alternating(work, repeats=runs).items()}


def run(*, quick: bool) -> dict[str, Any]:
    """Every contestant of each size in turn."""
    found: dict[str, Any] = {
        "embedding": EMBEDDING,
        "vocabulary": V,
        "temperature": TEMPERATURE,
        "streams": STREAMS,
    }
    found["sizes"] = []
    for units in (128,) if quick else (128, 512):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            build("generation.model", str(units), name)
            contestants: list[Contestant] = []
            left_out: dict[str, Any] = {}
            try:
                for name in CONTESTANTS:
                    try:
                        contestants.append(Contestant(folder, name))
                    except RuntimeError as refused:
                        if name == "cellerate":
                            raise
                        print(f"H={units:<4} {name} takes no part: {refused}", flush=True)
                        left_out[name] = {"refused": str(refused), "jobs": []}
                records = race(contestants, seconds=0.2 if quick else 1.0, rounds=2 if quick else 5)
            finally:
                for each in contestants:
                    each.close()
            found["sizes"].append(
                {
                    "units": units,
                    "contestants": {each.name: each.about for each in contestants} | left_out,
                    "records": records,
                    "process_of_1000": process(folder, runs=1 if quick else 5),
                }
            )
        _show(found["sizes"][-1])
    return found


def _show(size: dict[str, Any]) -> None:
    for record in size["records"]:
        latency = f"  p99 {record['p99_s'] * 1e6:,.1f} µs" if "p99_s" in record else ""
        print(
            f"H={size['units']:<4} {record['contestant']:<11} {record['job']:<18} "
            f"{record['characters_per_s']:>12,.0f} characters/s{latency}"
        )
    for precision, times in size["process_of_1000"].items():
        print(
            f"H={size['units']:<4} whole process, 1000 characters, {precision:<9} {times['median_s']:.3f} s"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contestant", choices=CONTESTANTS)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    contestant(arguments.folder, arguments.contestant)
