"""Text drawn character by character, one stream: a packed model in one call, all contestants by a call a character.

For a contestant that is called for each character, the same NumPy code draws the character. A loop in Keras, inside
one compiled call, needs a program for each backend; the repository has them in `benchmarks/`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cellerate.errors import CellerateError
from cellerate.format import counted
from cellerate.kernels.decoder.contract import Steps
from cellerate.observe.bench.inferring import thread_counts
from cellerate.observe.bench.jobs import Job, timed, timed_anew
from cellerate.observe.bench.model import (
    PRECISIONS,
    READ,
    TEMPERATURE,
    Sizes,
    cell_file,
    characters,
    draw,
    error_of,
    read_truth,
    weights_of,
)

WORK = "one stream"
# The characters of a call that draws them itself.
_CHUNK = 500
Step = Callable[[np.ndarray, Any], tuple[np.ndarray, Any]]
"""ids (1, 1) int32 and the state, None at the start of a text → logits (1, V) and the new state."""


def packed_jobs(folder: Path, sizes: Sizes) -> Iterator[Job]:
    """The jobs of packed models: `generate`, and step by step."""
    from cellerate.runtime.packed import load

    truth = read_truth(folder)
    for precision in PRECISIONS:
        path = cell_file(folder, precision)
        texts = timed_anew(functools.partial(_texts, path, characters(sizes)[:4]))
        error = functools.partial(_error_of_drawing, load(path).steps, truth)
        call = f"generate, {_CHUNK} in a call"
        yield Job(WORK, call, precision, {"as it comes": texts}, error, _CHUNK, anew=True)
        stream = timed_anew(functools.partial(_packed_stream, path))
        job = _stepping(truth, precision, "a call a character", {"as it comes": _packed_step(path)})
        yield job._replace(ways={"as it comes": stream}, anew=True)


def keras_jobs(folder: Path, sizes: Sizes) -> Iterator[Job]:
    """Keras's `predict` and `predict_on_batch` of one step, with the state as an input and an output.

    A stateful layer would be enough on TensorFlow and torch; on JAX, Keras 3.15 forgets its state between two calls.
    """
    import keras

    truth = read_truth(folder)
    layers, H = keras.layers, sizes.units
    ids = keras.Input(batch_shape=(1, 1), dtype="int32")
    h, c = keras.Input(batch_shape=(1, H)), keras.Input(batch_shape=(1, H))
    embedded = layers.Embedding(sizes.vocabulary, sizes.embedding)(ids)
    outputs, *after = layers.LSTM(H, return_state=True)(embedded, initial_state=[h, c])
    model = keras.Model([ids, h, c], [layers.Dense(sizes.vocabulary)(outputs), *after])
    model.set_weights(weights_of(truth))
    zeros = [np.zeros((1, H), np.float32)] * 2

    def predict(ids: np.ndarray, state: Any) -> tuple[np.ndarray, Any]:
        logits, *after = model.predict([ids, *(state or zeros)], verbose=0)
        return logits, after

    def predict_on_batch(ids: np.ndarray, state: Any) -> tuple[np.ndarray, Any]:
        logits, *after = model.predict_on_batch([ids, *(state or zeros)])
        return logits, after

    yield _stepping(truth, "float32", "predict a character", {"as it comes": predict})
    yield _stepping(truth, "float32", "predict_on_batch a character", {"as it comes": predict_on_batch})


def torch_jobs(folder: Path, sizes: Sizes) -> Iterator[Job]:
    """The jobs of torch.nn.LSTM, without gradients."""
    from cellerate.bridges.torch_bench import stepper

    truth = read_truth(folder)
    weights = weights_of(truth)
    ways: dict[str, Step] = {counted(count, "thread"): stepper(weights, count) for count in thread_counts()}
    yield _stepping(truth, "float32", "a call a character", ways)


def runtime_jobs(folder: Path, sizes: Sizes, name: str) -> Iterator[Job | tuple[str, str, str]]:
    """The jobs of another runtime on our exports; for those it cannot run, the work, the precision and the reason."""
    from cellerate.observe.bench import runtimes

    truth = read_truth(folder)
    zeros = [np.zeros((1, sizes.units), np.float32)] * 2

    def stepper(call: Callable[[dict[str, np.ndarray]], list[np.ndarray]]) -> Step:
        def step(ids: np.ndarray, state: Any) -> tuple[np.ndarray, Any]:
            h, c = state or zeros
            logits, *after = call({"ids": ids, "h_0": h, "c_0": c})
            return logits.reshape(1, -1), after

        return step

    for precision in runtimes.PRECISIONS[name]:
        try:
            path = runtimes.exported(folder, name, precision, stateful=True)
        except CellerateError as error:
            yield WORK, precision, str(error)
            continue
        outputs = ["logits", "h_0_next", "c_0_next"]
        ways = {
            counted(count, "thread"): stepper(runtimes.opened(name, path, outputs, count))
            for count in thread_counts()
        }
        yield _stepping(truth, precision, "a call a character", ways)


def _texts(path: Path, prompt: str) -> Callable[[], object]:
    """A function that writes a new text with a packed model at each call."""
    from cellerate.runtime.packed import load

    model, seeds = load(path), itertools.count()
    return lambda: model.generate(prompt, max_tokens=_CHUNK, temperature=TEMPERATURE, seed=next(seeds))


def _packed_step(path: Path) -> Step:
    from cellerate.runtime.packed import load

    steps = load(path).steps

    def step(ids: np.ndarray, state: Any) -> tuple[np.ndarray, Any]:
        after, logits = steps.step(steps.initial_state() if state is None else state, ids[0])
        return logits, after

    return step


def _packed_stream(path: Path) -> _Stream:
    return _Stream(_packed_step(path))


def _error_of_drawing(steps: Steps, truth: dict[str, np.ndarray], _: str) -> float:
    """The larger of two errors: of reading against float64, and of drawing against reading the drawn text."""
    state, (logits,) = steps.read(steps.initial_state(), truth["text"][None, :READ])
    ids, _probabilities, _state, after = steps.generate(state, logits, READ)
    again = steps.read(state, ids[None])[1][0]
    return max(error_of(logits, truth["read"]), error_of(after, again.astype(np.float64)))


def _stepping(truth: dict[str, np.ndarray], precision: str, call: str, ways: dict[str, Step]) -> Job:
    """A job of one step, called from Python, which then draws the next character."""

    def error(way: str) -> float:
        logits: Any = None
        state: Any = None
        for one in truth["text"][:READ]:
            logits, state = ways[way](np.array([[one]], np.int32), state)
        return error_of(np.asarray(logits)[0], truth["read"])

    run = {way: timed(_Stream(step)) for way, step in ways.items()}
    return Job(WORK, call, precision, run, error, 1)


class _Stream:
    """A text that grows by a character with each call."""

    def __init__(self, step: Step) -> None:
        self._step, self._state = step, None
        self._ids, self._random = np.zeros((1, 1), np.int32), np.random.default_rng(4)

    def __call__(self) -> None:
        """Draws a character."""
        logits, self._state = self._step(self._ids, self._state)
        self._ids = draw(np.asarray(logits), self._random)[:, None]
