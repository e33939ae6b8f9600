"""The cases by their names: what each measures, and how long it takes."""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.forecasting import backtest, race as forecasting
from benchmarks.generation import race as generation
from benchmarks.inference import latency, race as inference
from benchmarks.processes import report_of
from benchmarks.quality import compression, optimizing, packing
from benchmarks.serving import load as serving
from benchmarks.training import kernel, loader, planning, scale, steps, text as training, typical

# The inputs lie outside the repository; CELLERATE_BENCH_DATA names another folder with the same files.
DATA = Path(os.environ.get("CELLERATE_BENCH_DATA", ROOT.parent / "shared" / "data")).resolve()


def load(quick: bool) -> dict[str, Any]:
    """Windows/s and memory of the loader, beside tf.data and Keras."""
    return loader.run(quick=quick)


def native(quick: bool) -> dict[str, Any]:
    """The native core alone and oneDNN's LSTM, as a share of this machine's peak."""
    return kernel.run(quick=quick)


def step(quick: bool) -> dict[str, Any]:
    """A training step: Keras in each way that may be its fastest, Cellerate and torch.nn.LSTM in turn."""
    return steps.main_race(DATA / "2600-0.txt", quick=quick)


def variants(quick: bool) -> dict[str, Any]:
    """The same step with masks, other activations, recurrent dropout, both directions, no bias."""
    return steps.variants_race(DATA / "2600-0.txt", quick=quick)


def small(quick: bool) -> dict[str, Any]:
    """The same step with batches of 1 and 8."""
    return steps.small_batches(DATA / "2600-0.txt", quick=quick)


def typical_models(quick: bool) -> dict[str, Any]:
    """A training step of the models of tutorials, idle and beside a busy process: Keras, Cellerate, torch.nn.LSTM."""
    return typical.run(quick=quick)


def loss(quick: bool) -> dict[str, Any]:
    """The loss after 300 and 1,000 steps on each backend, Keras's and ours in float32 and bfloat16."""
    return steps.losses(DATA / "2600-0.txt", quick=quick)


def memory(quick: bool) -> dict[str, Any]:
    """The most memory that a training process holds, Keras's and ours."""
    return steps.memory(DATA / "2600-0.txt", quick=quick)


def text(quick: bool) -> dict[str, Any]:
    """Characters/s and bits per character after one epoch of a book, on each backend, beside plain `fit`."""
    return training.run(DATA / "2600-0.txt", quick=quick)


def generate(quick: bool) -> dict[str, Any]:
    """Text generation: packed models, Keras, ONNX Runtime, OpenVINO, LiteRT and oneDNN, in turn."""
    return generation.run(quick=quick)


def whole_batches(quick: bool) -> dict[str, Any]:
    """Whole batches in one call: six models, packed, in Keras, torch, ONNX Runtime and OpenVINO, in turn."""
    return inference.run(quick=quick)


def one_step(quick: bool) -> dict[str, Any]:
    """One step of one stream from Python, idle and beside a busy process: packed models and the runtimes of others."""
    return latency.run(quick=quick)


def packed_quality(quick: bool) -> dict[str, Any]:
    """Bits per character of a trained model, packed in each precision."""
    return packing.run(DATA / "2600-0.txt", quick=quick)


def optimize(quick: bool) -> dict[str, Any]:
    """`optimize` on a trained model of each task, from the model as Keras runs it to the verdict."""
    return optimizing.run(DATA, quick=quick)


def series(quick: bool) -> dict[str, Any]:
    """Forecasts of oil temperature beside naive ones, on each backend."""
    task = ["--target", "OT", "--window", "96", "--horizon", "24", "--patience", "3"]
    found: dict[str, Any] = {}
    for backend in ("jax",) if quick else training.BACKENDS:
        found[backend] = _train("series", "ETTh1.csv", [*task, "--epochs", "10"], backend)
        test = found[backend]["test"]
        for name in ("model", "last_value", "seasonal_naive"):
            print(f"{backend:<11} {name:<15} MAE {test[name]['mae']:.4f}  MSE {test[name]['mse']:.4f}")
    return found


def forecasters(quick: bool) -> dict[str, Any]:
    """Forecasts of ETTh1 beside Darts and NeuralForecast, all trained for the same time."""
    return forecasting.run(DATA / "ETTh1.csv", quick=quick)


def folds(quick: bool) -> dict[str, Any]:
    """A backtest on ETTh1 beside Darts's with an equal model."""
    return backtest.run(DATA / "ETTh1.csv", quick=quick)


def embed(quick: bool) -> dict[str, Any]:
    """The share of held-out lines that come back out of their vectors."""
    options = ["--units", "256", "--latent", "256", "--learning-rate", "0.003", "--clipnorm", "1"]
    options += ["--schedule", "cosine", "--epochs", "1" if quick else "5"]
    found = _train("embed", "tinyshakespeare.txt", options, "tensorflow")
    held = found["held_out"]
    print(f"token accuracy {held['token_accuracy']:.3f}, written freely {held['free_token_accuracy']:.3f}")
    return found


def compressed(quick: bool) -> dict[str, Any]:
    """The quality that pruned, quantised and distilled models of each task lose, beside controls."""
    return compression.run(DATA, ("text", "series", "lines"), quick=quick)


def smaller(quick: bool) -> dict[str, Any]:
    """Characters/s of the pruned model and the student, packed, beside the original."""
    return compression.run(DATA, ("speed",), quick=quick)


def served(quick: bool) -> dict[str, Any]:
    """The server under load: sessions, texts, a Keras server with the same texts, and more than it has places for."""
    return serving.run(quick=quick)


def rows(quick: bool) -> dict[str, Any]:
    """A hundred million rows: packing, the first step, windows a second, memory; beside Keras's and torch's ways."""
    return scale.run(quick=quick)


def plan(quick: bool) -> dict[str, Any]:
    """The plan of `cellerate plan` for 8, 64 and 512 devices, and its error for two processes here."""
    return planning.run(quick=quick)


CASES: dict[str, Callable[[bool], dict[str, Any]]] = {
    "kernel": native,
    "step": step,
    "variants": variants,
    "small": small,
    "typical": typical_models,
    "loss": loss,
    "memory": memory,
    "loader": load,
    "text": text,
    "generate": generate,
    "inference": whole_batches,
    "latency": one_step,
    "quality": packed_quality,
    "optimize": optimize,
    "series": series,
    "embed": embed,
    "compression": compressed,
    "smaller": smaller,
    "serving": served,
    "scale": rows,
    "plan": plan,
    "forecasting": forecasters,
    "backtest": folds,
}


EXPECTED_S: dict[str, int] = {
    "kernel": 230,
    "step": 840,
    "variants": 240,
    "small": 280,
    "typical": 1500,
    "loss": 420,
    "memory": 105,
    "loader": 100,
    "text": 350,
    "generate": 440,
    "inference": 1200,
    "latency": 240,
    "quality": 200,
    "optimize": 3000,
    "series": 150,
    "embed": 500,
    "compression": 3000,
    "smaller": 45,
    "serving": 300,
    "scale": 500,
    "plan": 400,
    "forecasting": 1500,
    "backtest": 240,
}
"""The time that each case takes on the slowest machine seen so far with 2 cores, in seconds."""
LONG = (
    "typical",
    "loss",
    "text",
    "inference",
    "latency",
    "quality",
    "optimize",
    "series",
    "embed",
    "compression",
    "serving",
    "scale",
    "plan",
    "forecasting",
    "backtest",
)
"""Cases that train models to the end to see how good they become, or run many; they run only by their names."""
BENCH = tuple(name for name in CASES if name not in LONG)
"""Cases that measure this machine, in 40 minutes in all."""


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
