"""Generating text a character at a time: packed models, stock Keras, the LSTM node of ONNX Runtime.

A module of its own because a process holds one Keras backend: each contestant is this file run with
`--contestant`, told over its standard input what to draw next, so that all take turns in one run. ONNX Runtime
is a contestant in the interpreter that CELLERATE_BENCH_PYTHON names, where Cellerate need not be installed:
nothing of it is imported above.

The model: embedding 256, one LSTM, a dense layer to 96 characters, the same seeded weights everywhere.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from generation_peers import (
    CHARACTERS,
    EMBEDDING,
    TEMPERATURE,
    Job,
    V,
    clocked,
    error_of,
    keras_jobs,
    onnx_jobs,
)

STREAMS = 64
BACKENDS = ("tensorflow", "jax", "torch")
# The error allowed, as a share of the root mean square. bfloat16 and int8 as in tests/runtime/test_packed.py,
# where the file's own rounded weights are the truth.
TOLERANCES = {"float32": 1e-4, "bfloat16": 2.0**-7, "int8": 2.0**-5}
PRECISIONS = tuple(TOLERANCES)
# A pool of OpenMP threads spins for so long after its last work, and would slow the next contestant.
SPINNING_S = 0.25


def generate(model: Any, state: np.ndarray, logits: np.ndarray, count: int) -> int:
    """Draws `count` characters of one stream in one native call."""
    from cellerate.kernels.decoder.sampling import SamplingRules

    return len(model.steps.generate(state, logits, count, SamplingRules(temperature=TEMPERATURE, seed=1))[0])


def streams(model: Any, state: np.ndarray, logits: np.ndarray, count: int) -> int:
    """Draws `count` characters in all of `STREAMS` streams in one native call."""
    from cellerate.kernels.decoder.sampling import Request, SamplingRules

    each = -(-count // STREAMS)
    requests = [Request(each, SamplingRules(temperature=TEMPERATURE, seed=seed)) for seed in range(STREAMS)]
    rows = (STREAMS, 1)
    drawn, _, _ = model.steps.generate_rows(np.tile(state, rows), np.tile(logits, rows), requests)
    return sum(len(one.ids) for one in drawn)


def score(model: Any, text: str, count: int) -> int:
    """Judges a text of `count` characters."""
    return model.score((text * (count // len(text) + 1))[:count]).characters


def step(model: Any, count: int) -> tuple[list[float], int]:
    """Reads `count` characters, each from Python; the seconds of each step."""
    stepper, ids, seconds = model.stepper(), np.zeros(1, np.int32), []
    for _ in range(count):
        start = time.perf_counter()
        stepper.step(ids)
        seconds.append(time.perf_counter() - start)
    return seconds, 1


def cellerate_jobs(folder: Path, backend: str) -> tuple[dict[str, Job], dict[str, Any]]:
    """Packed models in each precision."""
    import cellerate

    truth = np.load(folder / "truth.npz")
    jobs: dict[str, Job] = {}
    errors: dict[str, float] = {}
    for precision in PRECISIONS:
        model = cellerate.load(folder / f"{precision}.cell")
        state, (logits,) = model.steps.read(model.steps.initial_state(), truth["ids"][None])
        # Of rounded weights the file's own are the truth.
        rounded = None if precision == "float32" else model.predict(truth["ids"][None])[0, -1]
        errors[precision] = error_of(logits, truth["logits"] if rounded is None else rounded)
        text = model.generate("The ", max_tokens=20_000, temperature=TEMPERATURE, seed=1)
        jobs |= {
            f"generate {precision}": clocked(functools.partial(generate, model, state, logits)),
            f"streams {precision}": clocked(functools.partial(streams, model, state, logits)),
            f"score {precision}": clocked(functools.partial(score, model, text)),
            f"step {precision}": functools.partial(step, model),
        }
    return jobs, {"errors": errors}


def contestant(folder: Path, name: str) -> None:
    """The other end: says what it can do, then reads what to run, writes times."""
    jobs, about = {"cellerate": cellerate_jobs, "onnxruntime": onnx_jobs}.get(name, keras_jobs)(folder, name)
    print(json.dumps({"jobs": list(jobs), **about}), flush=True)
    for line in sys.stdin:
        job, count = json.loads(line)
        seconds, made = jobs[job](count)
        print(json.dumps({"seconds": seconds, "characters": made}), flush=True)


def build(folder: Path, units: int) -> None:
    """The model as Keras saves it, packed in each precision, and what float64 says of some characters."""
    import keras

    import cellerate
    from cellerate.data.tokenizer import CharacterTokenizer
    from cellerate.kernels.lstm import reference
    from cellerate.models.storage import TaskRecord

    keras.utils.set_random_seed(0)
    embedding = keras.layers.Embedding(
        V, EMBEDDING, embeddings_initializer=keras.initializers.RandomNormal(stddev=1)
    )
    lstm, dense = keras.layers.LSTM(units, return_sequences=True), keras.layers.Dense(V)
    model = keras.Sequential([keras.Input((None,), dtype="int32"), embedding, lstm, dense])
    model.save(folder / "model.keras")
    record = TaskRecord("text", {"tokenizer": CharacterTokenizer(CHARACTERS).to_config()})
    for precision in PRECISIONS:
        cellerate.pack(model, folder / f"{precision}.cell", precision=precision, record=record)
    table, kernel, recurrent_kernel, bias, head, head_bias = model.get_weights()
    ids = np.random.default_rng(0).integers(0, V, 40)
    h = reference.forward(table[ids][None], kernel, recurrent_kernel, bias).h_T[0]
    lstm_weights = {"kernel": kernel, "recurrent_kernel": recurrent_kernel, "bias": bias}
    np.savez(folder / "truth.npz", ids=ids, x=table[ids], h=h, logits=h @ head + head_bias, **lstm_weights)


class Contestant:
    """A process that draws characters and says how long it took.

    Raises:
        RuntimeError: It ended, or what it computes is not what it should be.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
        if name in BACKENDS:
            environment["KERAS_BACKEND"] = name
        peer = os.environ.get("CELLERATE_BENCH_PYTHON", sys.executable)
        command = [
            peer if name == "onnxruntime" else sys.executable,
            __file__,
            "--contestant",
            name,
            str(folder),
        ]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.about = self._answer()
        for job, error in self.about.get("errors", {}).items():
            if not error <= TOLERANCES.get(job, TOLERANCES["float32"]):
                raise RuntimeError(f"{name}, {job}: an error of {error:.1e} of the root mean square")

    def run(self, job: str, count: int) -> tuple[list[float], int]:
        """Makes about `count` characters; the seconds of each call, and the characters of one."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps([job, count]) + "\n")
        self._process.stdin.flush()
        done = self._answer()
        return done["seconds"], done["characters"]

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the contestant {self.name} ended with {self._process.wait()}")
        return json.loads(line)


def race(contestants: list[Contestant], *, seconds: float, rounds: int) -> list[dict[str, Any]]:
    """Lets contestants take turns, each job for about `seconds` in all, and gives the records of the jobs."""
    from cellerate.measure import as_timing

    # How many characters a turn is of, by contestant and job.
    turns = {
        (each, job): _turn(each, job, seconds / rounds) for each in contestants for job in each.about["jobs"]
    }
    taken: dict[tuple[Contestant, str], list[float]] = {turn: [] for turn in turns}
    sizes: dict[tuple[Contestant, str], int] = {}
    for _ in range(rounds):
        last = None
        for (each, job), count in turns.items():
            if each is not last:
                time.sleep(SPINNING_S)
            last = each
            times, sizes[each, job] = each.run(job, count)
            taken[each, job] += times
    records = []
    for (each, job), times in taken.items():
        records.append(record_of(each.name, job, as_timing(times), sizes[each, job]))
    return records


def record_of(contestant: str, job: str, timing: Any, characters: int) -> dict[str, Any]:
    """What a result keeps of the `Timing` of a job's calls, each of so many characters.

    A latency is the time of one call that returns one character; a call of more has none, and what it takes is not
    divided into one.
    """
    record = {"contestant": contestant, "job": job, "characters": characters, **timing.summary()}
    record["characters_per_s"] = characters / timing.median_s
    return record | ({"p99_s": timing.percentile_s(0.99)} if characters == 1 else {})


def _turn(each: Contestant, job: str, seconds: float) -> int:
    """How many characters take so long; the first calls compile and are not counted."""
    count = 8
    for _ in range(3):
        times, made = each.run(job, count)
        rate = made * len(times) / sum(times)
        count = max(8, round(rate * seconds / 4))
    if each.name == "cellerate" and job.startswith("step "):
        return 4_000
    return max(20_000 if job.startswith("generate ") else 8, round(rate * seconds))


def process(folder: Path, *, runs: int) -> dict[str, Any]:
    """The whole `cellerate generate` of 1000 characters, from the start of Python to its end."""
    from cellerate.measure import time_alternating

    program = str(Path(sys.executable).parent / "cellerate")

    def write(precision: str) -> None:
        command = [program, "generate", str(folder / f"{precision}.cell"), "The ", "-n", "1000"]
        subprocess.run([*command, "--seed", "1"], check=True, stdout=subprocess.DEVNULL)

    work = {precision: functools.partial(write, precision) for precision in PRECISIONS}
    return {name: timing.summary() for name, timing in time_alternating(work, repeats=runs).items()}


def ratios(records: list[dict[str, Any]]) -> dict[str, Any]:
    """How many times as fast ours are; None where the peer was not there."""
    speed = {(record["contestant"], record["job"]): record["characters_per_s"] for record in records}
    ours = {precision: speed["cellerate", f"generate {precision}"] for precision in PRECISIONS}
    stock = {key: rate for key, rate in speed.items() if key[0] in BACKENDS}
    fastest = max(stock, key=stock.__getitem__)
    predict = max(rate for (_, job), rate in stock.items() if job == "predict")
    found: dict[str, Any] = {"fastest_stock_keras": " ".join(fastest)}
    for precision in PRECISIONS:
        # ONNX Runtime has no bfloat16 here; its float32 stands beside ours.
        peer = speed.get(("onnxruntime", "int8" if precision == "int8" else "float32"))
        found[precision] = {
            "over_onnxruntime": peer and ours[precision] / peer,
            "over_fastest_stock_keras": ours[precision] / stock[fastest],
            "over_keras_predict": ours[precision] / predict,
            "over_float32": ours[precision] / ours["float32"],
        }
    return found


def run(*, quick: bool) -> dict[str, Any]:
    """Every contestant of each size in turn."""
    found: dict[str, Any] = {
        "embedding": EMBEDDING,
        "vocabulary": V,
        "temperature": TEMPERATURE,
        "streams": STREAMS,
    }
    found["sizes"] = []
    names = ["cellerate", "onnxruntime", *(["jax"] if quick else BACKENDS)]
    for units in (128,) if quick else (128, 512):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            subprocess.run(
                [sys.executable, __file__, "--build", str(units), name],
                check=True,
                env=os.environ | {"KERAS_BACKEND": "jax"},
            )
            contestants: list[Contestant] = []
            try:
                for name in names:
                    contestants.append(Contestant(folder, name))
                records = race(contestants, seconds=0.3 if quick else 3, rounds=2 if quick else 5)
            finally:
                for each in contestants:
                    each.close()
            found["sizes"].append(
                {
                    "units": units,
                    "contestants": {each.name: each.about for each in contestants},
                    "records": records,
                    "process_of_1000": process(folder, runs=1 if quick else 10),
                    "ratios": ratios(records),
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
    if missing := size["contestants"]["onnxruntime"].get("missing"):
        print(
            f"H={size['units']:<4} onnxruntime is left out: {missing}; CELLERATE_BENCH_PYTHON names another Python"
        )
    for precision, times in size["process_of_1000"].items():
        print(
            f"H={size['units']:<4} whole process, 1000 characters, {precision:<9} {times['median_s']:.3f} s"
        )
    for name, ratio in size["ratios"].items():
        shown = (
            ratio
            if isinstance(ratio, str)
            else ", ".join(f"{k} {v and round(v, 2)}" for k, v in ratio.items())
        )
        print(f"H={size['units']:<4} {name}: {shown}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contestant")
    parser.add_argument("--build", type=int)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    if arguments.build:
        build(arguments.folder, arguments.build)
    else:
        contestant(arguments.folder, arguments.contestant)
