"""Quantising: gives a model the weights that a packed file will keep; Keras can still judge and train it.

The file format (`runtime.cell`) decides how each weight is kept. This module chooses the rounding by what it
costs: the scale of each column of a kernel, and whether to train the model briefly so that it adapts.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from cellerate.compress.control import ahead, stretches
from cellerate.compress.fitting import (
    Course,
    Data,
    Judge,
    OnStep,
    checked_data,
    endless,
    fine_tune,
    loss_of,
    loss_on,
)
from cellerate.compress.fixed_batch import rows_per_batch
from cellerate.compress.packed_outputs import inputs_by_name
from cellerate.compress.record import CompressionRecord, QualityGate
from cellerate.errors import ConfigError, ModelError
from cellerate.keras_graph.compiling import compile_as
from cellerate.keras_graph.to_program import read_program, read_weights
from cellerate.models.rewrite import describe, rebuild
from cellerate.program import PRECISIONS, Program
from cellerate.runtime.cell import kept_bytes, kept_types, narrowed
from cellerate.runtime.cell_format import INT4, INT8
from cellerate.runtime.narrowing import GROUP, rounded
from cellerate.runtime.program import Engine
from cellerate.settings import check_choice, check_number

# Shares of its largest magnitude that a column may be clipped to, starting with all of it. Near 1 they lie close
# together: even a small change of the scale there moves every other weight across a rounding boundary.
_SHARES = tuple(1.0 - 0.4 * np.linspace(0.0, 1.0, 21) ** 2)
_CALIBRATION_BATCHES = 8
STRETCHES = 4  # in which a rounded model is trained
# An input that the batches never show may still occur: counted as this share of the mean of the other inputs.
_LEAST_MOMENT = 1e-4

_Moments = dict[tuple[int, str], np.ndarray]
"""For each kernel, by node number and array name: E[x²] (K,) of its input."""

PackedJudge = Callable[[keras.Model, str], float]
"""Returns how bad a model is once it is packed in a precision; less is better."""


@dataclasses.dataclass(frozen=True)
class _Candidate:
    """One way to round.

    Attributes:
        kept: Its name in the record.
        quality: How bad the model is with it, less is better; None if nothing can judge it.
        weights: All weights of the model.
    """

    kept: str
    quality: float | None
    weights: list[np.ndarray]

    def better_than(self, other: _Candidate) -> bool:
        """True if it was judged better; a NaN is worse than anything."""
        mine, theirs = (
            math.inf if one.quality is None or math.isnan(one.quality) else one.quality
            for one in (self, other)
        )
        return mine < theirs


@dataclasses.dataclass(frozen=True)
class _Work:
    """A copy of the model, whose weights are replaced again and again.

    Attributes:
        model: The copy.
        precision: The precision that its weights are rounded to.
        judge: Returns how bad a model is once it is packed in a precision; None if nothing can judge.
    """

    model: keras.Model
    precision: str
    judge: PackedJudge | None

    def quality(self, precision: str) -> float | None:
        """Judges the model with its current weights, packed in a precision."""
        return None if self.judge is None else float(self.judge(self.model, precision))

    def rounded(self, kept: str, floats: Sequence[np.ndarray], moments: _Moments) -> _Candidate:
        """Rounds weights and leaves them in the model; kernels whose inputs are known are clipped first."""
        self.model.set_weights(floats)
        program, weights = read_weights(self.model)
        program = narrowed(_clipped(program, moments, self.precision), self.precision)
        for (number, name), weight in weights.items():
            array = program.nodes[number].arrays[name]
            if array.ndim == 2:
                weight.assign(array)
        found = _weights(self.model)
        return _Candidate(kept, self.quality(self.precision), found)


def quantize(
    model: keras.Model,
    data: Data | None = None,
    *,
    precision: str = "int8",
    validation: Data | None = None,
    loss: Any = None,
    gate: QualityGate | None = None,
    steps: int = 200,
    learning_rate: float = 1e-4,
    batch_size: int = 64,
    judge: Judge | None = None,
    judge_packed: PackedJudge | None = None,
    metric: str = "loss",
    seed: int = 0,
    on_step: OnStep | None = None,
) -> tuple[keras.Model, CompressionRecord]:
    """Rounds the weights of a model to those that a packed file of a precision keeps.

    Packing the resulting model in this precision changes no weight. A packed file also rounds the inputs of its
    products, so the loss is that of the outputs which the file has on this machine; only a model with stateful layers
    is judged as Keras computes it, in float32.

    - Plain: every weight is rounded to its nearest value; a column of an int8 kernel has 127 steps up to its
      largest magnitude, one of 32 rows of an int4 kernel 8.
    - Calibrated (int8 and int4, with data): such a column is clipped where clipping costs its outputs less than
      coarser steps would. The cost is the squared error of each weight times the mean square of its input over a few
      batches. The result is kept if the model is better with it.
    - Fine-tuned (with data, and a gate that the better of the two above does not pass): the rounded model is
      trained, what it learns is added to the unrounded weights, and these are rounded again; four times. The
      best model of all is kept.

    Args:
        model: A built Functional or Sequential model, of layers that can be packed. It is not changed.
        data: Data to calibrate and fine-tune with, as `fitting.Data`; None for plain rounding.
        precision: "int8", "int4" or "bfloat16"; `runtime.cell` says how each weight is kept.
        validation: Data to judge on; None for `data`.
        loss: The Keras loss to train and judge with; None for the one the model was compiled with.
        gate: How much worse the model may become without being fine-tuned; None for any amount.
        steps: How many batches to fine-tune on in all.
        learning_rate: The learning rate of fine-tuning.
        batch_size: Rows per batch, if data are arrays.
        judge: Returns how bad a model is, which Keras computes in float32; None for the loss of the packed file on
            `validation`.
        judge_packed: In place of `judge`, returns how bad a model is once it is packed in a precision; the original is
            judged in "float32".
        metric: The name of what the judge returns.
        seed: The seed for the order of the batches.
        on_step: Called after each step of fine-tuning with how many are done, how many there are, and the
            loss. If it raises, the call ends.

    Returns:
        The model, compiled as the given one was, and a record. Details of the record: "precision"; "bytes_before" and
        "bytes_after", the size of the weights as float32 and in the file; "calibrated", the paths of the
        kernels whose inputs were observed; "qualities", one for each way that was judged; "kept", the way the
        model was rounded: "plain", "calibrated" or "fine-tuned"; "passed", the gate's answer, or None.

    Raises:
        ConfigError: An argument is out of range; there is a gate but nothing to judge by, or two judges; or there are
            data but neither a loss nor a judge.
        DataError: The data do not fit the model.
        ModelError: A layer cannot be packed (the message names all such layers), or weights have a dtype that
            cannot hold the rounded values.
        TrainingError: The loss is no longer a finite number.

    Example:
        >>> small, record = quantize(model, (x, y), loss="mse", gate=QualityGate(0.01))
        >>> record.details["kept"]
        'calibrated'

    Source: Courbariaux et al., "BinaryConnect", 2015, for keeping unrounded weights beside the rounded ones;
        Frantar et al., "GPTQ", 2022, for the error of outputs, of which only the diagonal is used here.
    """
    started = time.perf_counter()
    _check(precision, gate, steps, learning_rate, batch_size, seed)
    data, validation = checked_data("data", data), checked_data("validation", validation)
    batch_size = rows_per_batch(model, batch_size, data, validation)
    program = read_program(model)
    judging = _judge(model, data, validation, loss, batch_size, judge, judge_packed)
    if gate is not None and judging is None:
        raise ConfigError("gate needs something to judge by: give data, validation or judge.")
    may_train = gate is not None and data is not None and steps > 0
    tuned_loss = loss_of(model, loss) if may_train else None
    work = _Work(rebuild(model, describe(model)), precision, judging)
    _settle(work.model, program, precision)
    before = work.quality("float32")
    floats = _weights(work.model)
    batches = None if data is None else endless(data, batch_size, seed)
    moments: _Moments = {}
    course = Course(steps, on_step)
    best = work.rounded("plain", floats, moments)
    qualities = {best.kept: best.quality}
    if batches is not None and precision != "bfloat16":
        seen, batches = ahead(batches, _CALIBRATION_BATCHES)
        moments = _observed(model, program, seen)
        calibrated = work.rounded("calibrated", floats, moments)
        qualities[calibrated.kept] = calibrated.quality
        best = calibrated if calibrated.better_than(best) else best
    if may_train and batches is not None and not _passed(gate, before, best):
        train = functools.partial(
            fine_tune, batches=batches, loss=tuned_loss, learning_rate=learning_rate, course=course
        )
        tuned = _fine_tuned(work, best, floats, moments if best.kept == "calibrated" else {}, train, steps)
        qualities[tuned.kept] = tuned.quality
        best = tuned if tuned.better_than(best) else best
    parameters = int(model.count_params())
    return compile_as(rebuild(model, describe(model), best.weights), model), CompressionRecord(
        method="quantize",
        settings={
            "precision": precision,
            "max_loss": None if gate is None else gate.max_loss,
            "steps": steps,
            "learning_rate": learning_rate,
            "batch_size": batch_size,
            "seed": seed,
        },
        metric=metric,
        quality_before=before,
        quality_after=best.quality,
        parameters_before=parameters,
        parameters_after=parameters,
        seconds=time.perf_counter() - started,
        details={
            "precision": precision,
            "bytes_before": kept_bytes(program, "float32"),
            "bytes_after": kept_bytes(program, precision),
            "calibrated": [f"{program.nodes[number].name}/{name}" for number, name in moments],
            "qualities": qualities,
            "kept": best.kept,
            "passed": _passed(gate, before, best),
            "losses": course.curve(),
        },
    )


def _check(
    precision: str, gate: QualityGate | None, steps: int, learning_rate: float, batch_size: int, seed: int
) -> None:
    """Raises `ConfigError` for an argument out of range."""
    narrow = PRECISIONS[1:]
    check_choice("precision", precision, narrow)
    if gate is not None and not isinstance(gate, QualityGate):
        raise ConfigError(f"gate must be a QualityGate or None, not {type(gate).__name__}.")
    check_number("steps", steps, at_least=0, whole=True)
    check_number("learning_rate", learning_rate, above=0)
    check_number("batch_size", batch_size, at_least=1, whole=True)
    check_number("seed", seed, at_least=0, whole=True)


def _settle(model: keras.Model, program: Program, precision: str) -> None:
    """Merges the low-rank updates of a copy, and refuses matrices that cannot hold all values of a precision.

    `program` must be the original's: Keras forgets how a low-rank update was scaled when it rebuilds a layer.
    """
    for (number, name), weight in read_weights(model)[1].items():
        array = program.nodes[number].arrays[name]
        dtype = keras.backend.standardize_dtype(weight.variable.dtype)
        if array.ndim == 2 and dtype not in ("float32", "float64", precision):
            raise ModelError(
                f"{weight.variable.path} is {dtype}, which cannot hold all values of {precision}; keep the weights in "
                f'float32, with a dtype policy such as "mixed_{dtype}".'
            )
        if weight.update is not None:
            weight.assign(array)


def _judge(
    model: keras.Model,
    data: Data | None,
    validation: Data | None,
    loss: Any,
    batch_size: int,
    judge: Judge | None,
    judge_packed: PackedJudge | None,
) -> PackedJudge | None:
    """Gives the judge of the models; None if there is nothing to judge on."""
    if judge_packed is not None:
        if judge is not None:
            raise ConfigError("there are judge and judge_packed; expected one of them.")
        return judge_packed
    judged = data if validation is None else validation
    if judge is not None:
        return lambda model, precision: judge(model)
    if judged is None:
        return None
    loss = loss_of(model, loss)
    return lambda model, precision: loss_on(
        model, judged, loss=loss, batch_size=batch_size, precision=precision
    )


def _weights(model: keras.Model) -> list[np.ndarray]:
    """Copies of all weights."""
    return [np.array(weight) for weight in model.get_weights()]


def _passed(gate: QualityGate | None, before: float | None, found: _Candidate) -> bool | None:
    if gate is None or before is None or found.quality is None:
        return None
    return gate.passes(before, found.quality)


def _fine_tuned(
    work: _Work,
    start: _Candidate,
    floats: Sequence[np.ndarray],
    moments: _Moments,
    train: Callable[..., float],
    steps: int,
) -> _Candidate:
    """Trains rounded weights in stretches, adds what they learn to unrounded ones, and gives the best rounding."""
    best, rounded_weights = None, start.weights
    work.model.set_weights(rounded_weights)
    for count in stretches(steps, STRETCHES):
        train(work.model, steps=count)
        # Training moves a weight by less than a rounding step: without the part rounded off, it would stay.
        learnt = zip(floats, _weights(work.model), rounded_weights, strict=True)
        floats = [whole + (after - before) for whole, after, before in learnt]
        found = work.rounded("fine-tuned", floats, moments)
        rounded_weights = found.weights
        best = found if best is None or found.better_than(best) else best
    return start if best is None else best


def _observed(model: keras.Model, program: Program, batches: Sequence[tuple[Any, ...]]) -> _Moments:
    """Observes the inputs of a model's kernels over batches.

    It runs the program and not the model, because in a program every product is a node of its own, even
    inside wrappers and nested models.
    """
    types = kept_types(program, "int8")
    nodes = list(program.nodes)
    # The id of an array → where it first occurs, and the nodes of its inputs, each with its mask's node.
    uses: dict[int, tuple[tuple[int, str], list[tuple[int, int | None]]]] = {}
    for number, node in enumerate(program.nodes):
        for name, array in node.arrays.items():
            if types[id(array)] != INT8:
                continue
            source, mask = node.inputs["x"], node.inputs.get("mask")
            if name == "recurrent_kernel":
                # Its inputs are the outputs without the last; a masked step repeats one of them.
                source, mask = number, None
                if not node.options["return_sequences"]:
                    source = len(nodes)
                    nodes.append(
                        dataclasses.replace(node, options={**node.options, "return_sequences": True})
                    )
            uses.setdefault(id(array), ((number, name), []))[1].append((source, mask))
    wanted = {number for _, read in uses.values() for pair in read for number in pair if number is not None}
    if not wanted:
        return {}
    engine = Engine(Program(tuple(nodes), {str(number): number for number in sorted(wanted)}))
    moments: _Moments = {key: np.zeros(1) for key, _ in uses.values()}
    for batch in batches:
        found = engine.run(inputs_by_name(model, program, batch[0]))
        for key, read in uses.values():
            for source, mask in read:
                x = found[str(source)]
                live = x if mask is None else x[found[str(mask)]]
                rows = live.reshape(-1, x.shape[-1]).astype(np.float64)
                moments[key] = moments[key] + np.einsum("nk,nk->k", rows, rows)
    return moments


def _clipped(program: Program, moments: _Moments, precision: str) -> Program:
    """Gives a program with the columns of its kernels clipped to round best."""
    types = kept_types(program, precision)
    clipped = {}
    for (number, name), moment in moments.items():
        array = program.nodes[number].arrays[name]
        clipped[id(array)] = _clip(array, moment, types[id(array)])
    nodes = (
        dataclasses.replace(
            node, arrays={name: clipped.get(id(array), array) for name, array in node.arrays.items()}
        )
        for node in program.nodes
    )
    return Program(tuple(nodes), program.outputs)


def _clip(kernel: np.ndarray, moment: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Clips each column of a kernel (K, N), for int4 each group, so that Σ_k E[x_k²] (W_kn - q(W_kn))² is smallest.

    A file needs only the clipped kernel: each scale follows from the largest remaining magnitude.
    """
    moment = moment + _LEAST_MOMENT * moment.mean()
    rows = GROUP if dtype == INT4 else len(kernel)
    parts = [slice(first, first + rows) for first in range(0, len(kernel), rows)]
    return np.concatenate([_clip_rows(kernel[part], moment[part], dtype) for part in parts])


def _clip_rows(kernel: np.ndarray, moment: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Clips each column of a kernel whose rows share a scale."""
    largest = np.abs(kernel).max(axis=0)
    limits, least = largest, np.full(kernel.shape[1], np.inf)
    for share in _SHARES:
        limit = largest * np.float32(share)
        error = moment @ np.square(kernel - rounded(np.clip(kernel, -limit, limit), dtype))
        limits, least = np.where(error < least, limit, limits), np.minimum(error, least)
    return np.clip(kernel, -limits, limits)
