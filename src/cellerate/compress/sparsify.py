"""Unstructured pruning: sets single weights to zero, which only makes a file smaller once it is compressed.

Unlike with `prune`, the model keeps its shape. Weights are held at zero while the others are trained.
"""

from __future__ import annotations

import functools
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from cellerate.compress.control import check_pruning, pruning_rounds
from cellerate.compress.fitting import (
    Course,
    Data,
    Judge,
    Keeper,
    OnStep,
    checked_data,
    endless,
    fine_tune,
    loss_of,
    loss_on,
)
from cellerate.compress.fixed_batch import rows_per_batch
from cellerate.compress.record import CompressionRecord
from cellerate.errors import ModelError
from cellerate.keras_graph.compiling import compile_as
from cellerate.keras_graph.to_program import read_program
from cellerate.models.rewrite import describe, rebuild
from cellerate.program import PRECISIONS
from cellerate.runtime.cell import write_cell
from cellerate.settings import check_choice, check_number

_REMARK = (
    "No kernel here skips zeros: the model is as fast as before, its file is smaller only once it is compressed. "
    "To be faster, use prune."
)


def sparsify(
    model: keras.Model,
    data: Data,
    *,
    sparsity: float = 0.8,
    scope: Literal["matrix", "model"] = "matrix",
    validation: Data | None = None,
    loss: Any = None,
    rounds: int = 4,
    steps: int = 1000,
    learning_rate: float = 2e-3,
    batch_size: int = 64,
    judge: Judge | None = None,
    metric: str = "loss",
    seed: int = 0,
    on_step: OnStep | None = None,
) -> tuple[keras.Model, CompressionRecord]:
    """Sets the smallest weights of a model to zero, and trains the others.

    This brings no speed: no kernel here skips zeros. It makes the file smaller once it is compressed, as in a
    download or a zip archive; the record says by how much. Training the result further fills the zeros again, so this
    comes last.

    Args:
        model: A built Functional or Sequential model. It is not changed.
        data: Data to train with, as `fitting.Data`.
        sparsity: The share of zeros in the trainable matrices, above 0 and below 1; vectors, such as biases,
            stay as they are.
        scope: Where weights are compared: "matrix" gives each matrix the same share of zeros, "model" takes
            the smallest weights of all matrices together.
        validation: Data to judge on; None for `data`.
        loss: The Keras loss to train and judge with; None for the one the model was compiled with.
        rounds: In how many rounds to remove weights: most of them early, by the cubic schedule, with training
            after each.
        steps: How many batches to train on in all; rounds share them equally, and the last takes the
            remainder too.
        learning_rate: The learning rate at the start of training; it falls to 0.
        batch_size: Rows per batch, if data are arrays.
        judge: Returns how bad a model is; None for the loss on `validation`.
        metric: The name of what `judge` returns.
        seed: The seed for the order of the batches.
        on_step: Called after each training step with how many are done, how many there are, and the loss. If
            it raises, the call ends.

    Returns:
        The model, compiled as the given one was, and a record. Details of the record: "sparsity", the share
        of zeros it has; "matrices", the same by the path of each matrix; "zlib_bytes", the compressed sizes
        of the packed file by precision, "before" and "after", None if the model cannot be packed; "remark";
        "losses", one per step, at most 200 points.

    Raises:
        ConfigError: An argument is out of range, or there is no loss.
        DataError: There is no batch.
        ModelError: The model cannot be rebuilt, or has no matrix to train.
        TrainingError: The loss is no longer a finite number.

    Source: Zhu & Gupta, "To prune, or not to prune", 2017.
    """
    started = time.perf_counter()
    settings: dict[str, Any] = {
        "sparsity": sparsity,
        "scope": scope,
        "rounds": rounds,
        "steps": steps,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "seed": seed,
    }
    check_number("sparsity", sparsity, above=0, below=1)
    check_choice("scope", scope, ("matrix", "model"))
    check_pruning(settings)
    data, validation = checked_data("data", data), checked_data("validation", validation)
    batch_size = rows_per_batch(model, batch_size, data, validation)
    used_loss = loss_of(model, loss) if steps or judge is None else None
    current = rebuild(model, describe(model))
    matrices = _trainable_matrices(current)
    batches = endless(data, batch_size, seed)
    looks = judge is not None or validation is not None
    judged = data if validation is None else validation
    if judge is None:
        judge = functools.partial(loss_on, data=judged, loss=used_loss, batch_size=batch_size)
    before = float(judge(current))
    bytes_before = _compressed(current)
    course = Course(steps, on_step)
    keeper = Keeper(current, judge)
    kept_constraints = [weight.constraint for weight in matrices]
    for gone, trained, last in pruning_rounds(rounds, steps):
        _hold_at_zero(matrices, kept_constraints, sparsity * gone, scope)
        fine_tune(
            current,
            batches,
            loss=used_loss,
            steps=trained,
            learning_rate=learning_rate,
            course=course,
            keeper=keeper if last and looks else None,
        )
    after = keeper.restore()
    parameters = int(model.count_params())
    return compile_as(rebuild(current, describe(current)), model), CompressionRecord(
        method="sparsify",
        settings=settings,
        metric=metric,
        quality_before=before,
        quality_after=after,
        parameters_before=parameters,
        parameters_after=parameters,
        seconds=time.perf_counter() - started,
        details={
            **_zeros(matrices),
            "zlib_bytes": {"before": bytes_before, "after": _compressed(current)},
            "remark": _REMARK,
            "losses": course.curve(),
        },
    )


def _trainable_matrices(model: keras.Model) -> list[Any]:
    """The weights in which single values may be set to zero.

    Raises:
        ModelError: There are none.
    """
    matrices = [weight for weight in model.trainable_weights if len(weight.shape) == 2]
    if not matrices:
        raise ModelError(
            f"model {model.name!r} has no matrix that can be trained: nothing can be set to zero."
        )
    return matrices


def _hold_at_zero(matrices: Sequence[Any], constraints: Sequence[Any], share: float, scope: str) -> None:
    """Sets the smallest weights to zero and holds them there, beside the layers' own constraints."""
    values = [np.asarray(ops.convert_to_numpy(weight), np.float32) for weight in matrices]
    masks = _masks(values, share, scope)
    for weight, mask, constraint in zip(matrices, masks, constraints, strict=True):
        weight.constraint = _Masked(mask, constraint)
        weight.assign(weight.constraint(weight))


def _zeros(matrices: Sequence[Any]) -> dict[str, Any]:
    """The share of zeros in all matrices, and in each; for the record."""
    sizes = [int(np.prod(weight.shape)) for weight in matrices]
    return {
        "sparsity": 1 - sum(map(_nonzero, matrices)) / sum(sizes),
        "matrices": {
            weight.path: 1 - _nonzero(weight) / size for weight, size in zip(matrices, sizes, strict=True)
        },
    }


class _Masked(keras.constraints.Constraint):
    """Holds weights at zero, after applying the layer's own constraint."""

    def __init__(self, mask: np.ndarray, constraint: Any) -> None:
        self._mask, self._constraint = mask, constraint

    def __call__(self, weight: Any) -> Any:
        found = weight if self._constraint is None else self._constraint(weight)
        return ops.multiply(found, ops.cast(self._mask, found.dtype))


def _masks(matrices: Sequence[np.ndarray], share: float, scope: str) -> list[np.ndarray]:
    """For each matrix, 0 where a weight is removed and 1 where it stays; of equal weights the first are removed."""
    if scope == "matrix":
        return [_mask(np.abs(matrix), share) for matrix in matrices]
    flat = _mask(np.concatenate([np.abs(matrix).ravel() for matrix in matrices]), share)
    ends = np.cumsum([matrix.size for matrix in matrices])[:-1]
    return [part.reshape(m.shape) for part, m in zip(np.split(flat, ends), matrices, strict=True)]


def _mask(sizes: np.ndarray, share: float) -> np.ndarray:
    mask = np.ones(sizes.size, np.float32)
    mask[np.argsort(sizes, axis=None, kind="stable")[: round(share * sizes.size)]] = 0
    return mask.reshape(sizes.shape)


def _nonzero(weight: Any) -> int:
    return int(np.count_nonzero(ops.convert_to_numpy(weight)))


def _compressed(model: keras.Model) -> dict[str, int] | None:
    """The compressed size of the packed file in bytes, by precision; None if the model cannot be packed."""
    try:
        program = read_program(model)
    except ModelError:
        return None
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for precision in PRECISIONS:
            path = Path(folder) / f"{precision}.cell"
            write_cell(path, program, precision=precision)
            found[precision] = len(zlib.compress(path.read_bytes()))
    return found
