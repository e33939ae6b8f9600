"""The cases by their names, with a description and the expected time of each."""

import dataclasses
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.forecasting import backtest, race as forecasting
from benchmarks.generation import race as generation
from benchmarks.inference import latency, race as inference
from benchmarks.processes import report_of
from benchmarks.quality import compression, optimizing, packing
from benchmarks.serving import load as serving
from benchmarks.training import kernel, loader, planning, scale, stages, steps, text, typical
from cellerate.machine.environment import BACKENDS

# The inputs lie outside the repository; CELLERATE_BENCH_DATA names another folder with the same files.
DATA = Path(os.environ.get("CELLERATE_BENCH_DATA", ROOT.parent / "shared" / "data")).resolve()
BOOK, ETT = DATA / "2600-0.txt", DATA / "ETTh1.csv"


@dataclasses.dataclass(frozen=True)
class Case:
    """A measurement in a separate process, which gives one record.

    Attributes:
        run: Measures the case; takes `quick`, whether a shorter run is enough.
        says: A description of the measurement.
        expected_s: Its seconds on the slowest machine with 2 cores seen so far.
        long: Whether it trains models to the end to judge them, or many models; such a case runs only by its name.
    """

    run: Callable[..., dict[str, Any]]
    says: str
    expected_s: int
    long: bool = False


def _series(*, quick: bool) -> dict[str, Any]:
    """Forecasts of oil temperature beside naive ones, on each backend."""
    task = ["--target", "OT", "--window", "96", "--horizon", "24", "--patience", "3"]
    found: dict[str, Any] = {}
    for backend in ("jax",) if quick else BACKENDS:
        found[backend] = _train("series", "ETTh1.csv", [*task, "--epochs", "10"], backend)
        test = found[backend]["test"]
        for name in ("model", "last_value", "seasonal_naive"):
            print(f"{backend:<11} {name:<15} MAE {test[name]['mae']:.4f}  MSE {test[name]['mse']:.4f}")
    return found


def _embed(*, quick: bool) -> dict[str, Any]:
    """The share of held-out lines reconstructed from their vectors."""
    options = ["--units", "256", "--latent", "256", "--learning-rate", "0.003", "--clipnorm", "1"]
    options += ["--schedule", "cosine", "--epochs", "1" if quick else "5"]
    found = _train("embed", "tinyshakespeare.txt", options, "tensorflow")
    held = found["held_out"]
    print(f"token accuracy {held['token_accuracy']:.3f}, written freely {held['free_token_accuracy']:.3f}")
    return found


def _train(task: str, data: str, options: list[str], backend: str) -> dict[str, Any]:
    """The JSON report of one `cellerate train`, and its time."""
    with tempfile.TemporaryDirectory() as folder:
        output = ("-o", f"{folder}/m.keras", "--backend", backend)
        start = time.perf_counter()
        report = report_of("train", task, DATA / data, *output, *options, "--json", "--quiet")
    report["whole_command_s"] = time.perf_counter() - start
    report["options"] = options
    for name in ("output", "run_folder"):
        report["training"].pop(name)
    report.pop("chart", None)
    return report


CASES = {
    "kernel": Case(
        kernel.run, "The native core alone and oneDNN's LSTM, as a share of this machine's peak.", 230
    ),
    "step": Case(
        partial(steps.main_race, BOOK),
        "A training step: Keras in each way that may be its fastest, Cellerate and torch.nn.LSTM in turn.",
        840,
    ),
    "variants": Case(
        partial(steps.variants_race, BOOK),
        "The same step with masks, other activations, recurrent dropout, both directions, no bias.",
        240,
    ),
    "small": Case(partial(steps.small_batches, BOOK), "The same step with batches of 1 and 8.", 280),
    "typical": Case(
        typical.run,
        "A training step of the models of tutorials, idle and beside a busy process: Keras, Cellerate, torch.nn.LSTM.",
        1500,
        long=True,
    ),
    "typical-avx2": Case(
        typical.with_avx2,
        "The same for models of at most 128 units, everybody kept to AVX2, which most people's machines have.",
        900,
        long=True,
    ),
    "loss": Case(
        partial(steps.losses, BOOK),
        "The loss after 300 and 1,000 steps on each backend, Keras's and ours in float32 and bfloat16.",
        420,
        long=True,
    ),
    "memory": Case(
        partial(steps.memory, BOOK), "The most memory that a training process holds, Keras's and ours.", 105
    ),
    "loader": Case(loader.run, "Windows/s and memory of the loader, beside tf.data and Keras.", 100),
    "text": Case(
        partial(text.run, BOOK),
        "Characters/s and bits per character after one epoch of a book, on each backend, beside plain `fit`.",
        350,
        long=True,
    ),
    "generate": Case(
        generation.run,
        "Text generation: packed models, Keras, ONNX Runtime, OpenVINO, LiteRT and oneDNN, in turn.",
        440,
    ),
    "inference": Case(
        inference.run,
        "Whole batches in one call: six models, packed, in Keras, torch, ONNX Runtime and OpenVINO, in turn.",
        1200,
        long=True,
    ),
    "latency": Case(
        latency.run,
        "One step of one stream from Python, idle and beside a busy process: packed models and the runtimes of others.",
        480,
        long=True,
    ),
    "quality": Case(
        partial(packing.run, BOOK),
        "Bits per character of a trained model, packed in each precision.",
        200,
        long=True,
    ),
    "optimize": Case(
        partial(optimizing.run, DATA),
        "`optimize` on a trained model of each task, from the model as Keras runs it to the verdict.",
        3000,
        long=True,
    ),
    "series": Case(
        _series, "Forecasts of oil temperature beside naive ones, on each backend.", 150, long=True
    ),
    "embed": Case(_embed, "The share of held-out lines that come back out of their vectors.", 500, long=True),
    "compression": Case(
        partial(compression.run, DATA, ("text", "series", "lines")),
        "The quality that pruned, quantised and distilled models of each task lose, beside controls.",
        3000,
        long=True,
    ),
    "smaller": Case(
        partial(compression.run, DATA, ("speed",)),
        "Characters/s of the pruned model and the student, packed, beside the original.",
        45,
    ),
    "serving": Case(
        serving.run,
        "The server under load: sessions, texts, a Keras server with the same texts, and more than it has places for.",
        300,
        long=True,
    ),
    "scale": Case(
        scale.run,
        "A hundred million rows: packing, the first step, windows a second, memory; beside Keras's and torch's ways.",
        500,
        long=True,
    ),
    "stages": Case(
        partial(stages.run, BOOK),
        "Four layers of 512 in one process, in two stages, and in two processes that share rows.",
        300,
        long=True,
    ),
    "plan": Case(
        planning.run,
        "The plan of `cellerate plan` for 8, 64 and 512 devices, and its error for two processes here.",
        400,
        long=True,
    ),
    "forecasting": Case(
        partial(forecasting.run, ETT),
        "Forecasts of ETTh1 beside Darts and NeuralForecast, all trained for the same time.",
        1500,
        long=True,
    ),
    "backtest": Case(
        partial(backtest.run, ETT), "A backtest on ETTh1 beside Darts's with an equal model.", 240, long=True
    ),
}
BENCH = tuple(name for name, case in CASES.items() if not case.long)
"""Cases that measure this machine, in 40 minutes in all."""
