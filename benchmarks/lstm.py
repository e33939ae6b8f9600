"""The character-model training step through `model.fit`: Keras's own code, Cellerate's kernels, torch.nn.LSTM.

A module of its own because a process holds one Keras backend: each contestant is this file run with
`--contestant`, told over its standard input how many steps to run next. So the contestants take turns in one
run, and a drift of the machine's speed hits all alike.

The model: embedding 256, one LSTM, a dense layer to V characters; 128 windows of 100 characters of a real book,
Adam 0.001, gradients clipped to a norm of 1.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cellerate.measure import as_timing

BATCH, LENGTH, EMBEDDING = 128, 100, 256
LEARNING_RATE, CLIPNORM = 1e-3, 1.0
# What a layer is asked for beyond the plain one; "random mask" leaves out a third of the steps.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "random mask": {},
    "relu": {"activation": "relu"},
    "recurrent dropout": {"recurrent_dropout": 0.2},
    "bidirectional": {},
    "no bias": {"use_bias": False},
}


class Contestant:
    """A process that trains one model and says how long each step took."""

    def __init__(self, book: Path, **settings: Any) -> None:
        self.settings = settings
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": settings["backend"]}
        if settings.get("device") == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        command = [sys.executable, __file__, "--contestant", json.dumps(settings), str(book)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.seconds: list[float] = []
        self.losses: list[float] = []
        self.peak_bytes = 0
        self.ran: dict[str, str | None] = {}

    def steps(self, count: int, *, timed: bool = True, batch: int | None = None) -> list[float]:
        """Runs so many steps, of another batch than that of its settings if one is given, and keeps their times.

        Returns:
            Their losses.
        """
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{count} {batch or self.settings['batch']}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the contestant {self.settings} ended with {self._process.wait()}")
        done = json.loads(line)
        if timed:
            # The first step of a `fit` also sets it up.
            self.seconds += done["seconds"][1:]
        self.losses += done["losses"]
        self.peak_bytes = done["peak_bytes"]
        self.ran = done["ran"]
        return list(done["losses"])

    def record(self) -> dict[str, Any]:
        """What a result file keeps."""
        timing = as_timing(self.seconds)
        tokens = self.settings["batch"] * LENGTH
        return {
            **self.settings,
            **timing.summary(),
            "characters_per_s": tokens / timing.median_s,
            "peak_bytes": self.peak_bytes,
            "ran": self.ran,
        }

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def contestant(book: Path, settings: dict[str, Any]) -> None:
    """The other end: reads step counts, writes times and losses."""
    text = book.read_text(encoding="utf-8-sig").replace("\r\n", "\n")
    characters = sorted(set(text))
    numbers = {character: number for number, character in enumerate(characters)}
    import numpy as np

    ids = np.array([numbers[character] for character in text], np.int32)
    starts = np.random.default_rng(0)
    train = _torch_loop if settings["implementation"] == "torch.nn.LSTM" else _keras_fit
    run, ran = train(len(characters), settings)
    for line in sys.stdin:
        count, batch = map(int, line.split())
        seconds, losses = run([_batch(ids, batch, starts) for _ in range(count)])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        done = {"seconds": seconds, "losses": losses, "peak_bytes": peak, "ran": ran()}
        print(json.dumps(done), flush=True)


def _batch(ids: Any, batch: int, starts: Any) -> tuple[Any, Any]:
    """Windows that begin where chance will have it, and the same a character later."""
    import numpy as np

    first = starts.integers(0, len(ids) - LENGTH - 1, batch)
    windows = ids[first[:, None] + np.arange(LENGTH + 1)]
    return windows[:, :-1], windows[:, 1:]


# Runs steps and gives their times and losses; and says what ran, layer by layer.
Training = tuple[Callable[[list[Any]], tuple[list[float], list[float]]], Callable[[], dict[str, str | None]]]


def _keras_fit(vocabulary: int, settings: dict[str, Any]) -> Training:
    if settings["implementation"] != "keras":
        import cellerate

        cellerate.select_backend(settings["backend"])
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(settings["policy"])
    variant = settings.get("variant", "plain")
    layer = keras.layers.LSTM(settings["units"], return_sequences=True, **VARIANTS[variant])
    ids = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(vocabulary, EMBEDDING)(ids)
    if variant == "bidirectional":
        x = keras.layers.Bidirectional(layer)(x)
    elif variant == "random mask":
        x = layer(x, mask=keras.ops.not_equal(ids % 3, 0))
    else:
        x = layer(x)
    model = keras.Model(ids, keras.layers.Dense(vocabulary)(x))
    model.compile(
        keras.optimizers.Adam(LEARNING_RATE, clipnorm=CLIPNORM),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    if settings["implementation"] != "keras":
        cellerate.accelerate(model, settings["implementation"])

    class Clock(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.ends: list[float] = []
            self.losses: list[float] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.ends.append(time.perf_counter())
            # Keras gives the mean of the epoch so far.
            self.losses.append(float(logs["loss"]))

    def run(batches: list[Any]) -> tuple[list[float], list[float]]:
        x = np.concatenate([inputs for inputs, _ in batches])
        y = np.concatenate([targets for _, targets in batches])
        clock = Clock()
        start = time.perf_counter()
        model.fit(x, y, batch_size=len(batches[0][0]), epochs=1, shuffle=False, verbose=0, callbacks=[clock])
        times = np.diff([start, *clock.ends])
        means = np.array(clock.losses)
        count = np.arange(1, len(means) + 1)
        losses = np.diff(np.concatenate([[0.0], means * count]))
        return times.tolist(), losses.tolist()

    def ran() -> dict[str, str | None]:
        if settings["implementation"] == "keras":
            return {}
        found = cellerate.explain(model)
        kernels = {layer.path: layer.kernel for layer in found.layers}
        return {**kernels, "training step": found.training_step}

    return run, ran


def _torch_loop(vocabulary: int, settings: dict[str, Any]) -> Training:
    import torch

    torch.manual_seed(0)
    embedding = torch.nn.Embedding(vocabulary, EMBEDDING)
    lstm = torch.nn.LSTM(EMBEDDING, settings["units"], batch_first=True)
    dense = torch.nn.Linear(settings["units"], vocabulary)
    parameters = [*embedding.parameters(), *lstm.parameters(), *dense.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE)
    loss_of = torch.nn.CrossEntropyLoss()

    def run(batches: list[Any]) -> tuple[list[float], list[float]]:
        seconds, losses = [], []
        for inputs, targets in batches:
            start = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=settings["policy"] == "mixed_bfloat16"):
                logits = dense(lstm(embedding(torch.from_numpy(inputs)))[0])
                loss = loss_of(logits.float().flatten(0, 1), torch.from_numpy(targets).long().flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, CLIPNORM)
            optimizer.step()
            losses.append(loss.item())
            seconds.append(time.perf_counter() - start)
        return seconds, losses

    return run, dict


def race(
    book: Path, contestants: list[dict[str, Any]], *, seconds: float, rounds: int = 3
) -> list[dict[str, Any]]:
    """Lets contestants take turns, each for about `seconds` in all, and gives their records."""
    running = [Contestant(book, **settings) for settings in contestants]
    try:
        for each in running:
            each.steps(2, timed=False)
            each.steps(4)
        counts = [max(3, round(seconds / rounds / as_timing(each.seconds).median_s)) + 1 for each in running]
        for each in running:
            each.seconds.clear()
        for _ in range(rounds):
            for each, count in zip(running, counts, strict=True):
                each.steps(min(count, 200))
        records = [each.record() for each in running]
    finally:
        for each in running:
            each.close()
    for record in records:
        print(
            f"H={record['units']:<4} B={record['batch']:<4} {record.get('variant', 'plain'):<18} "
            f"{record['backend']:<11} {record['implementation']:<14} {record['policy']:<15} "
            f"{record['median_s'] * 1e3:8.1f} ms  {record['characters_per_s'] / 1e3:7.1f} k characters/s",
            flush=True,
        )
    return records


def main_race(book: Path, *, quick: bool) -> dict[str, Any]:
    """Every contestant of one size against the others."""
    found: dict[str, Any] = {"batch": BATCH, "length": LENGTH, "embedding": EMBEDDING, "races": []}
    for units in (128,) if quick else (128, 256, 512):
        contestants = []
        for backend in ("jax",) if quick else ("tensorflow", "jax", "torch"):
            contestants.append(_settings(backend, units, "keras", "float32"))
            for policy in ("float32", "mixed_bfloat16"):
                contestants.append(_settings(backend, units, "cellerate-cpu", policy))
        for policy in () if quick else ("float32", "mixed_bfloat16"):
            contestants.append(_settings("torch", units, "torch.nn.LSTM", policy))
        found["races"].append(race(book, contestants, seconds=2 if quick else 12))
    return found


def variants_race(book: Path, *, quick: bool) -> dict[str, Any]:
    """Each variant of the layer, ours and Keras's own."""
    backend, units = "jax", 128 if quick else 256
    found: dict[str, Any] = {"backend": backend, "units": units}
    names = ["plain", "random mask"] if quick else list(VARIANTS)
    for policy in ("float32",) if quick else ("float32", "mixed_bfloat16"):
        contestants = [
            {**_settings(backend, units, implementation, policy), "variant": name}
            for name in names
            for implementation in ("cellerate-cpu", "keras")
        ]
        found[policy] = race(book, contestants, seconds=2 if quick else 6)
    return found


def small_batches(book: Path, *, quick: bool) -> dict[str, Any]:
    """Batches of 1 and 8."""
    found: dict[str, Any] = {"races": []}
    for batch in (1,) if quick else (1, 8):
        for units in (128,) if quick else (128, 256, 512):
            contestants = [
                {**_settings(backend, units, implementation, "float32"), "batch": batch}
                for backend in (("jax",) if quick else ("tensorflow", "jax"))
                for implementation in ("keras", "cellerate-cpu")
            ]
            if not quick:
                ours = _settings("torch", units, "cellerate-cpu", "float32")
                contestants.append({**ours, "batch": batch})
            found["races"].append(race(book, contestants, seconds=1 if quick else 4))
    return found


def losses(book: Path, *, quick: bool) -> dict[str, Any]:
    """The loss after 300 steps: Keras in float32 beside ours in float32 and bfloat16, same seed and batches."""
    steps, found = 20 if quick else 300, []
    for units in (128,) if quick else (128, 256, 512):
        for implementation, policy in (
            ("keras", "float32"),
            ("cellerate-cpu", "float32"),
            ("cellerate-cpu", "mixed_bfloat16"),
        ):
            each = Contestant(book, **_settings("jax", units, implementation, policy))
            curve = each.steps(steps)
            each.close()
            last = sum(curve[-20:]) / 20
            found.append({**each.settings, "steps": steps, "mean_of_last_20": last, "curve": curve})
            print(f"H={units:<4} {implementation:<14} {policy:<15} loss {last:.4f}", flush=True)
    return {"losses": found}


def memory(book: Path, *, quick: bool) -> dict[str, Any]:
    """What a process that trains holds at most: three of each, ten steps, each step's loss waited for."""
    found = []
    for units in (128,) if quick else (128, 256, 512):
        for implementation, policy in (
            ("keras", "float32"),
            ("cellerate-cpu", "float32"),
            ("cellerate-cpu", "mixed_bfloat16"),
        ):
            peaks = []
            for _ in range(1 if quick else 3):
                each = Contestant(book, **_settings("jax", units, implementation, policy))
                each.steps(10)
                each.close()
                peaks.append(each.peak_bytes)
            found.append({**each.settings, "peak_bytes": sorted(peaks)})
            middle = sorted(peaks)[len(peaks) // 2] / 1e6
            print(f"H={units:<4} {implementation:<14} {policy:<15} {middle:.0f} MB at most", flush=True)
    return {"processes": found}


def _settings(backend: str, units: int, implementation: str, policy: str) -> dict[str, Any]:
    return {
        "backend": backend,
        "units": units,
        "implementation": implementation,
        "policy": policy,
        "batch": BATCH,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contestant", type=json.loads, required=True)
    parser.add_argument("book", type=Path)
    arguments = parser.parse_args()
    contestant(arguments.book, arguments.contestant)
