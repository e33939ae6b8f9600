"""The model and the data of `bench`: the same numbers for every contestant, and their results in float64.

The model predicts the next character: Embedding → LSTM → Dense. `bench` needs no data of the user: weights and text are
drawn from fixed seeds. This module only needs NumPy, as packed models do.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from cellerate.data.tokenizers import CharacterTokenizer
from cellerate.kernels.lstm import reference
from cellerate.kernels.lstm.spec import Arguments
from cellerate.program import Node, Program
from cellerate.runtime.cell import write_cell

CHECKED_STEPS = 3
"""The number of training steps whose losses are compared."""
CHECKED_ROWS = 2
"""The rows of the batch whose logits are compared."""
READ = 40
"""The number of characters that are read one by one before the logits are compared."""
LEARNING_RATE, EPSILON = 1e-3, 1e-7
"""Keras's defaults for Adam."""
TEMPERATURE = 0.8
PRECISIONS = ("float32", "int8")
# Keras's defaults for Adam.
_MOMENTUM, _VELOCITY = 0.9, 0.999
_TEXT = 20_000
_TRUTH = "truth.npz"
_WEIGHTS = ("table", "kernel", "recurrent_kernel", "bias", "head", "head_bias")
_LSTM = {"activation": "tanh", "recurrent_activation": "sigmoid", "masked_output": "previous_output"}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of the model that the cases are measured on.

    Attributes:
        vocabulary: V.
        embedding: D.
        units: H.
        steps: T.
        batch: B of a training step.
        rows: B of the batches for a trained model.
    """

    vocabulary: int = 96
    embedding: int = 128
    units: int = 256
    steps: int = 100
    batch: int = 64
    rows: tuple[int, int] = (1, 32)


QUICK = Sizes(vocabulary=32, embedding=8, units=16, steps=8, batch=4, rows=(1, 4))
"""For a quick check that everything runs; shows nothing about speed."""


def build(folder: Path, sizes: Sizes) -> None:
    """Write the files for contestants: weights, text, the results in float64, and the packed models."""
    weights = _draw_weights(sizes)
    text = _draw_text(sizes)
    found: dict[str, np.ndarray] = dict(zip(_WEIGHTS, weights, strict=True)) | {"text": text}
    found["losses"] = np.array(_losses(weights, text, sizes))
    found["losses_sparse"] = np.array(_losses(weights, text, sizes, sparse=True))
    found["logits"] = logits_of(weights, rows_of(text, sizes, CHECKED_ROWS))
    found["read"] = logits_of(weights, text[None, :READ])[0, -1]
    np.savez(folder / _TRUTH, **found)  # type: ignore[arg-type]
    for precision in PRECISIONS:
        tokenizer = CharacterTokenizer(characters(sizes)).to_config()
        header = {"task": "text", "payload": {"tokenizer": tokenizer}}
        write_cell(cell_file(folder, precision), program_of(weights), precision=precision, header=header)


def read_truth(folder: Path) -> dict[str, np.ndarray]:
    """The arrays of `build` beside the packed files: the weights by name, "text", "losses", "logits" and "read"."""
    with np.load(folder / _TRUTH) as found:
        return dict(found)


def weights_of(truth: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The weights in Keras's order: table (V, D), kernel, recurrent_kernel, bias, head (H, V) and its bias."""
    return [truth[name] for name in _WEIGHTS]


def cell_file(folder: Path, precision: str) -> Path:
    """The path of the packed model in a precision."""
    return folder / f"{precision}.cell"


def characters(sizes: Sizes) -> str:
    """The characters of the vocabulary, in the order of their ids."""
    return "".join(map(chr, range(ord(" "), ord(" ") + sizes.vocabulary)))


def program_of(weights: list[np.ndarray]) -> Program:
    """The program of the packed files: ids (B, T) → logits (B, T, V)."""
    table, kernel, recurrent_kernel, bias, head, head_bias = weights
    lstm: dict[str, Any] = {**_LSTM, "go_backwards": False, "return_sequences": True}
    arrays = {"kernel": kernel, "recurrent_kernel": recurrent_kernel, "bias": bias}
    nodes = (
        Node("input", "ids", {}, {}, {"shape": (-1, -1), "dtype": "int32"}),
        Node("embedding", "embedding", {"ids": 0}, {"embeddings": table}, {}),
        Node("lstm", "lstm", {"x": 1}, arrays, lstm),
        Node("dense", "head", {"x": 2}, {"kernel": head, "bias": head_bias}, {"activation": "linear"}),
    )
    return Program(nodes, {"logits": 3})


def rows_of(text: np.ndarray, sizes: Sizes, count: int) -> np.ndarray:
    """Windows of the text, (count, T) int32; a larger batch begins with the windows of a smaller one."""
    starts = np.random.default_rng(1).integers(0, len(text) - sizes.steps, max(count, *sizes.rows))[:count]
    return np.ascontiguousarray(text[starts[:, None] + np.arange(sizes.steps)])


class Batches:
    """Batches to train on, in the same order for every contestant."""

    def __init__(self, text: np.ndarray, sizes: Sizes) -> None:
        self._text, self._sizes = text, sizes
        self._random = np.random.default_rng(2)

    def next(self) -> tuple[np.ndarray, np.ndarray]:
        """Return windows from random positions, and the same windows a character later: (B, T) int32 each."""
        first = self._random.integers(0, len(self._text) - self._sizes.steps - 1, self._sizes.batch)
        windows = self._text[first[:, None] + np.arange(self._sizes.steps + 1)]
        return windows[:, :-1], windows[:, 1:]


def logits_of(weights: list[np.ndarray], ids: np.ndarray) -> np.ndarray:
    """The result in float64: ids (B, T) → logits (B, T, V)."""
    table, kernel, recurrent_kernel, bias, head, head_bias = weights
    outputs = reference.forward(Arguments(kernel, recurrent_kernel, bias, x=table[ids])).outputs
    return outputs @ head.astype(np.float64) + head_bias


def error_of(found: Any, expected: np.ndarray) -> float:
    """The error of a result against float64, as a share of its root mean square; infinite if not a number."""
    error = float(np.linalg.norm(np.asarray(found, np.float64) - expected) / np.linalg.norm(expected))
    return error if np.isfinite(error) else float("inf")


def error_of_losses(found: list[float], truth: dict[str, np.ndarray], *, sparse: bool = False) -> float:
    """The largest error of the first losses, as a share of the loss in float64; infinite if a loss is not a number.

    Args:
        found: The losses.
        truth: The arrays that `build` wrote.
        sparse: True if the losses of Keras's Adam on TensorFlow are accepted, too (`_losses`).
    """
    choices = [truth["losses"], *([truth["losses_sparse"]] if sparse else [])]
    error = min(float(np.max(np.abs(np.array(found) - right) / right)) for right in choices)
    return error if np.isfinite(error) else float("inf")


def draw(logits: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Draws an id (B,) int32 from each row of logits (B, V), as a program with NumPy does."""
    likelihoods = np.exp((logits - logits.max(axis=-1, keepdims=True)) / TEMPERATURE).cumsum(axis=-1)
    drawn = (likelihoods < random.random((len(logits), 1)) * likelihoods[:, -1:]).sum(axis=-1)
    return drawn.astype(np.int32)


def _draw_weights(sizes: Sizes) -> list[np.ndarray]:
    """Draw weights of a trained model's scale, so that every gate matters."""
    random = np.random.default_rng(0)
    V, D, H = sizes.vocabulary, sizes.embedding, sizes.units
    shapes = ((V, D), (D, 4 * H), (H, 4 * H), (4 * H,), (H, V), (V,))
    table, *others = (random.standard_normal(shape) for shape in shapes)
    kernel, recurrent_kernel, _, head, _ = (each / np.sqrt(len(each)) for each in others)
    bias = np.zeros(4 * H)
    bias[H : 2 * H] = 1  # Keras's initial bias of forget gates
    made = (table, kernel, recurrent_kernel, bias, head, np.zeros(V))
    return [each.astype(np.float32) for each in made]


def _draw_text(sizes: Sizes) -> np.ndarray:
    """Return ids with frequencies like those of characters: a few common, most rare."""
    shares = 1 / np.arange(1, sizes.vocabulary + 1)
    random = np.random.default_rng(3)
    return random.choice(sizes.vocabulary, _TEXT, p=shares / shares.sum()).astype(np.int32)


def _losses(
    weights: list[np.ndarray], text: np.ndarray, sizes: Sizes, *, sparse: bool = False
) -> list[float]:
    """The losses of the first steps of training with Adam, in float64.

    With `sparse`, Adam steps as in Keras on TensorFlow, where the gradient of an embedding is a list of rows: it
    squares the gradient at each occurrence of a character, not their sum. Later losses differ by up to 1 %.
    """
    kept = [np.array(each, np.float64) for each in weights]
    first, second = ([np.zeros_like(each) for each in kept] for _ in range(2))
    batches, losses = Batches(text, sizes), []
    for taken in range(1, CHECKED_STEPS + 1):
        ids, targets = batches.next()
        loss, gradients, d_x = _gradients(kept, ids, targets)
        squares = [gradient**2 for gradient in gradients]
        if sparse:
            squares[0] = _summed(kept[0], ids, d_x**2)
        losses.append(loss)
        rate = LEARNING_RATE * np.sqrt(1 - _VELOCITY**taken) / (1 - _MOMENTUM**taken)
        for each, m, v, gradient, square in zip(kept, first, second, gradients, squares, strict=True):
            m += (1 - _MOMENTUM) * (gradient - m)
            v += (1 - _VELOCITY) * (square - v)
            each -= rate * m / (np.sqrt(v) + EPSILON)
    return losses


def _gradients(
    weights: list[np.ndarray], ids: np.ndarray, targets: np.ndarray
) -> tuple[float, list[np.ndarray], np.ndarray]:
    """The mean cross-entropy of a batch, and its gradients by the weights and by the embedded characters (B, T, D)."""
    table, kernel, recurrent_kernel, bias, head, head_bias = weights
    forward = reference.forward(Arguments(kernel, recurrent_kernel, bias, x=table[ids]))
    logits = forward.outputs @ head + head_bias
    logits -= logits.max(axis=-1, keepdims=True)
    likelihoods = np.exp(logits)
    sums = likelihoods.sum(axis=-1, keepdims=True)
    picked = np.take_along_axis(logits - np.log(sums), targets[..., None], -1)
    d_logits = likelihoods / sums
    np.put_along_axis(
        d_logits, targets[..., None], np.take_along_axis(d_logits, targets[..., None], -1) - 1, -1
    )
    d_logits /= targets.size
    found = reference.backward(forward, d_logits @ head.T)
    flat = d_logits.reshape(-1, d_logits.shape[-1])
    d_head = forward.outputs.reshape(-1, forward.outputs.shape[-1]).T @ flat
    lstm = [found[name] for name in ("kernel", "recurrent_kernel", "bias")]
    d_table = _summed(table, ids, found["x"])
    return -float(picked.mean()), [d_table, *lstm, d_head, flat.sum(axis=0)], found["x"]


def _summed(table: np.ndarray, ids: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The table (V, D) of the sums of rows (B, T, D) by their ids (B, T)."""
    found = np.zeros_like(table)
    np.add.at(found, ids, rows)
    return found
