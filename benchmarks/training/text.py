"""The speed and quality with which each backend trains the classic character model, beside plain Keras `fit`.

A process holds one Keras backend, so each contestant is this module run with a backend's name. The model is the same
for both: embedding 256, one LSTM of 256 units, batches of 128 windows of 100 characters, Adam 0.002, gradients clipped
to a norm of 1. Plain `fit` keeps freed memory, as `cellerate train` does; its result with the default allocator is
recorded, too.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.processes import as_environment, report_of, result_of, same_allocator
from cellerate.machine.environment import BACKENDS
from cellerate.observe.bench.contestant import allocator_found

LENGTH, BATCH, UNITS, EMBEDDING = 100, 128, 256, 256
LEARNING_RATE, CLIPNORM = 0.002, 1.0
# The timed steps of plain Keras; keras-torch on a CPU takes seconds a step.
STOCK_STEPS = {"tensorflow": 40, "jax": 40, "torch": 8}


def stock(book: Path, backend: str) -> dict[str, Any]:
    """Plain Keras: materialised windows and `fit`, as tutorials do it. Steady speed, first steps left out."""
    os.environ["KERAS_BACKEND"] = backend
    import keras
    import numpy as np

    text = book.read_text(encoding="utf-8-sig").replace("\r\n", "\n")
    characters = {character: number for number, character in enumerate(sorted(set(text)))}
    ids = np.array([characters[character] for character in text], np.int32)
    steps = STOCK_STEPS[backend]
    count = (steps + 3) * BATCH
    x = ids[: count * LENGTH].reshape(count, LENGTH)
    y = ids[1 : count * LENGTH + 1].reshape(count, LENGTH)
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            keras.layers.Embedding(len(characters), EMBEDDING),
            keras.layers.LSTM(UNITS, return_sequences=True),
            keras.layers.Dense(len(characters)),
        ]
    )
    model.compile(
        keras.optimizers.Adam(LEARNING_RATE, clipnorm=CLIPNORM),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    ends: list[float] = []
    clock = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: ends.append(time.perf_counter())
    )
    model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0, callbacks=[clock])
    timed = ends[2:]
    return {
        "characters_per_s": (len(timed) - 1) * BATCH * LENGTH / (timed[-1] - timed[0]),
        "steps": len(timed) - 1,
        "allocator_found": allocator_found(),
        "settings": "fit as it comes, jit_compile='auto', steps_per_execution 1; the case `step` has the faster ways",
    }


def cellerate(book: Path, backend: str, epochs: int) -> dict[str, Any]:
    """`cellerate train text` for whole epochs, with its result on the held-out tail."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        report = report_of(
            "train", "text", book, "-o", f"{folder}/m.keras", "--backend", backend, "--epochs", epochs,
            "--embedding", EMBEDDING, "--units", UNITS, "--batch-size", BATCH, "--length", LENGTH,
            "--learning-rate", LEARNING_RATE, "--clipnorm", CLIPNORM, "--json", "--quiet",
        )  # fmt: skip
        return {
            "characters_per_s": report["training"]["history"][-1]["items_per_s"],
            "epochs": epochs,
            "training_s": report["training"]["seconds"],
            "whole_command_s": time.perf_counter() - start,
            "loss": report["training"]["history"][-1]["loss"],
            "bits_per_character": report["held_out"]["bits_per_character"],
            "held_out_characters": report["held_out"]["characters"],
        }


def run(book: Path, *, quick: bool) -> dict[str, Any]:
    """Both contestants on every backend: plain Keras, Cellerate, plain Keras again, so that drift shows."""
    backends = BACKENDS[:2] if quick else BACKENDS
    result: dict[str, Any] = {
        "book": book.name,
        "model": {"embedding": EMBEDDING, "units": UNITS, "layers": 1},
        "batch_size": BATCH,
        "length": LENGTH,
        "optimizer": {"name": "adam", "learning_rate": LEARNING_RATE, "clipnorm": CLIPNORM},
        "backends": {},
    }
    for backend in backends:
        before = _in_subprocess(book, backend)
        ours = cellerate(book, backend, 1)
        after = _in_subprocess(book, backend)
        stock_allocator = _in_subprocess(book, backend, "stock")
        result["backends"][backend] = {
            "cellerate": ours,
            "keras_fit": [before, after],
            "keras_fit_stock_allocator": stock_allocator,
        }
        print(
            f"{backend:<11} cellerate {ours['characters_per_s']:>9,.0f} characters/s, "
            f"{ours['bits_per_character']:.3f} bits per character after 1 epoch; plain fit "
            f"{before['characters_per_s']:,.0f} and {after['characters_per_s']:,.0f}, with the allocator as it comes "
            f"{stock_allocator['characters_per_s']:,.0f}",
            flush=True,
        )
    return result


def _in_subprocess(book: Path, backend: str, allocator: str = "kept") -> dict[str, Any]:
    found = result_of("training.text", backend, str(book), environment=as_environment(allocator))
    same_allocator([found["allocator_found"]], allocator)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend", choices=BACKENDS)
    parser.add_argument("book", type=Path)
    arguments = parser.parse_args()
    print(json.dumps(stock(arguments.book, arguments.backend)))
