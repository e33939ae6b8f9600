"""Quantising: the weights that a packed file will keep, in a model that Keras can still judge and train.

The file (`runtime.cell`) decides what is kept how; here the rounding is chosen by what it costs: which scale each
column of a kernel has, and whether the model is trained a little to live with it.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from cellerate.compress.fitting import Course, Data, Judge, OnStep, endless, fine_tune, loss_of, loss_on
from cellerate.compress.record import CompressionRecord, QualityGate
from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.keras_graph.to_program import read_program, read_weights
from cellerate.models.rewrite import describe, rebuild
from cellerate.program import Program
from cellerate.runtime.cell import PRECISIONS, kept_bytes, kept_types, narrowed, rounded
from cellerate.runtime.cell_format import INT8
from cellerate.runtime.engine import Engine
from cellerate.training.settings import check_number

# What a clipped column keeps of its largest magnitude, the whole first. Close to it even a small change of the scale
# moves every other weight to another side of its steps.
_SHARES = tuple(1.0 - 0.4 * np.linspace(0.0, 1.0, 21) ** 2)
_CALIBRATION_BATCHES = 8
_STRETCHES = 4
# An input that the batches never show may come all the same: as a share of what the others are on average.
_LEAST_MOMENT = 1e-4

_Moments = dict[tuple[int, str], np.ndarray]
"""Of each kernel, by the number of its node and its name: E[x²] (K,) of what it is multiplied with."""


@dataclasses.dataclass(frozen=True)
class _Candidate:
    """One way to round.

    Attributes:
        kept: Its name in the record.
        quality: What it is worth, less is better; None where nothing can judge it.
        weights: All weights of the model.
    """

    kept: str
    quality: float | None
    weights: list[np.ndarray]

    def better_than(self, other: "_Candidate") -> bool:
        """Whether it was judged to be better; a NaN is worse than anything."""
        mine, theirs = (
            math.inf if one.quality is None or math.isnan(one.quality) else one.quality
            for one in (self, other)
        )
        return mine < theirs


@dataclasses.dataclass(frozen=True)
class _Work:
    """A copy of the model, whose weights come and go.

    Attributes:
        model: It.
        precision: What its weights are rounded to.
        judge: What judges it, if anything does.
    """

    model: keras.Model
    precision: str
    judge: Judge | None

    def quality(self) -> float | None:
        """What the model is worth as it is."""
        return None if self.judge is None else float(self.judge(self.model))

    def rounded(self, kept: str, floats: Sequence[np.ndarray], moments: _Moments) -> _Candidate:
        """Rounds weights, clipped for the inputs of the kernels where those are known; the model keeps them."""
        self.model.set_weights(floats)
        program, weights = read_weights(self.model)
        program = narrowed(_clipped(program, moments), self.precision)
        for (number, name), weight in weights.items():
            array = program.nodes[number].arrays[name]
            if array.ndim == 2:
                weight.assign(array)
        found = _weights(self.model)
        return _Candidate(kept, self.quality(), found)


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
    metric: str = "loss",
    seed: int = 0,
    on_step: OnStep | None = None,
) -> tuple[keras.Model, CompressionRecord]:
    """Rounds the weights of a model to those that a packed file of a precision keeps.

    What Keras makes of the model that comes out is what the packed file will make of it, but for the order of
    sums: packing it in this precision changes no weight.

    - Plain: every weight goes to its nearest value; a column of an int8 kernel has 127 steps up to its largest
      magnitude.
    - Calibrated (int8, with data): a column is clipped where that costs its outputs less than the coarser steps
      do, judged by the squared error of each weight times the mean square of its input over a few batches. It is
      kept if the model is better for it.
    - Fine-tuned (with data and a gate that the better of these does not pass): the rounded model is trained,
      what it learns is added to weights that were not rounded, and these are rounded anew, four times. The best
      model of all is kept.

    Args:
        model: A built Functional or Sequential model, of layers that can be packed. It is not changed.
        data: To calibrate and to fine-tune with, as `fitting.Data`; None for plain rounding.
        precision: "int8" or "bfloat16"; `runtime.cell.PRECISIONS` says which weights are kept how.
        validation: To judge on; None for `data`.
        loss: The Keras loss to train and judge with; None for the one that the model was compiled with.
        gate: How much worse the model may become before it is fine-tuned; None for any.
        steps: How many batches to fine-tune on, in all.
        learning_rate: Of the fine-tuning.
        batch_size: Rows of a batch, where data are arrays.
        judge: How bad a model is; None for the loss on `validation`.
        metric: The name of what `judge` says.
        seed: Of the order of the batches.
        on_step: Told of each step of the fine-tuning: how many are done, of how many, and the loss. What it raises
            ends the call.

    Returns:
        The model, not compiled, and a record. Its details: "precision"; "bytes_before" and "bytes_after", of the
        weights as float32 and in the file; "calibrated", the paths of the kernels whose inputs were looked at;
        "qualities", of each way that was judged; "kept", the way that the model was rounded: "plain",
        "calibrated" or "fine-tuned"; "passed", whether it passes the gate, None without one.

    Raises:
        ConfigError: An argument is out of range; a gate is given and nothing to judge by; there are data and
            neither a loss nor a judge.
        DataError: The data do not fit the model.
        ModelError: A layer cannot be packed (the message names all of those), or weights have a type that cannot
            hold what they are rounded to.
        TrainingError: The loss is no longer a finite number.

    Example:
        >>> small, record = quantize(model, (x, y), loss="mse", gate=QualityGate(0.01))
        >>> record.details["kept"]
        'calibrated'

    Source: Courbariaux et al., "BinaryConnect", 2015, for the weights that are kept beside the rounded ones; Frantar
        et al., "GPTQ", 2022, for the error of outputs, of which this takes the diagonal.
    """
    started = time.perf_counter()
    _check(precision, gate, steps, learning_rate, batch_size)
    program = read_program(model)
    judge = _judge(model, data, validation, loss, batch_size, judge)
    if gate is not None and judge is None:
        raise ConfigError("gate needs something to judge by: give data, validation or judge.")
    may_train = gate is not None and data is not None and steps > 0
    tuned_loss = loss_of(model, loss) if may_train else None

    work = _Work(rebuild(model, describe(model)), precision, judge)
    _settle(work.model, program, precision)
    before = work.quality()
    floats = _weights(work.model)
    batches = None if data is None else endless(data, batch_size, seed)
    moments: _Moments = {}
    course = Course(steps, on_step)
    best = work.rounded("plain", floats, moments)
    qualities = {best.kept: best.quality}
    if batches is not None and precision == "int8":
        moments = _observed(model, program, batches)
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

    result = rebuild(model, describe(model))
    result.set_weights(best.weights)
    parameters = int(model.count_params())
    return result, CompressionRecord(
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
    precision: str, gate: QualityGate | None, steps: int, learning_rate: float, batch_size: int
) -> None:
    """Raises `ConfigError` for an argument out of range."""
    narrow = PRECISIONS[1:]
    if precision not in narrow:
        raise ConfigError(f"precision must be one of {', '.join(narrow)}; got {precision!r}.")
    if gate is not None and not isinstance(gate, QualityGate):
        raise ConfigError(f"gate must be a QualityGate or None; got {type(gate).__name__}.")
    check_number("steps", steps, at_least=0, whole=True)
    check_number("learning_rate", learning_rate, above=0)
    check_number("batch_size", batch_size, at_least=1, whole=True)


def _settle(model: keras.Model, program: Program, precision: str) -> None:
    """Merges the low-rank updates of a copy, and refuses matrices that cannot hold all values of a precision.

    The program is that of the original: Keras forgets how a low-rank update was scaled when it builds a layer again.
    """
    for (number, name), weight in read_weights(model)[1].items():
        array = program.nodes[number].arrays[name]
        dtype = keras.backend.standardize_dtype(weight.variable.dtype)
        if array.ndim == 2 and dtype not in ("float32", "float64", precision):
            raise ModelError(
                f"{weight.variable.path} is {dtype}, which has not all values of {precision}; keep the weights in "
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
) -> Judge | None:
    """What judges the models; None where there is nothing to judge on."""
    judged = data if validation is None else validation
    if judge is not None or judged is None:
        return judge
    return functools.partial(loss_on, data=judged, loss=loss_of(model, loss), batch_size=batch_size)


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
    """The best rounded model of a training in which the rounded weights learn and others keep what they learnt."""
    best, rounded_weights = None, start.weights
    work.model.set_weights(rounded_weights)
    for count in np.diff(np.linspace(0, steps, _STRETCHES + 1).astype(int)).tolist():
        if count == 0:
            continue
        train(work.model, steps=count)
        # Training moves a weight by less than the rounding does: without what was rounded off it would stay.
        learnt = zip(floats, _weights(work.model), rounded_weights, strict=True)
        floats = [whole + (after - before) for whole, after, before in learnt]
        found = work.rounded("fine-tuned", floats, moments)
        rounded_weights = found.weights
        best = found if best is None or found.better_than(best) else best
    return start if best is None else best


def _observed(model: keras.Model, program: Program, batches: Iterator[tuple[Any, ...]]) -> _Moments:
    """What the kernels of a model are multiplied with over a few batches.

    The program runs, and not the model: in it every product is a node of its own, also inside of wrappers and
    nested models.
    """
    types = kept_types(program, "int8")
    nodes = list(program.nodes)
    # The id of an array → where it first is, and the nodes that give its inputs, with those of their masks.
    uses: dict[int, tuple[tuple[int, str], list[tuple[int, int | None]]]] = {}
    for number, node in enumerate(program.nodes):
        for name, array in node.arrays.items():
            if types[id(array)] != INT8:
                continue
            source, mask = node.inputs["x"], node.inputs.get("mask")
            if name == "recurrent_kernel":
                # Multiplied with the outputs but for the last; what stands at masked steps is one of them.
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
    for _ in range(_CALIBRATION_BATCHES):
        found = engine.run(_by_name(model, program, next(batches)[0]))
        for key, read in uses.values():
            for source, mask in read:
                x = found[str(source)]
                live = x if mask is None else x[found[str(mask)]]
                rows = live.reshape(-1, x.shape[-1]).astype(np.float64)
                moments[key] = moments[key] + np.einsum("nk,nk->k", rows, rows)
    return moments


def _by_name(model: keras.Model, program: Program, x: Any) -> dict[str, np.ndarray]:
    """The inputs of a batch as a program takes them."""
    names = list(program.inputs)
    if isinstance(x, Mapping):
        by_key = not isinstance(model, keras.Sequential) and isinstance(model.input, Mapping)
        try:
            x = {key: x[key] for key in model.input} if by_key else [x[name] for name in names]
        except KeyError as error:
            raise DataError(f"data lacks the input {error}; expected {', '.join(names)}.") from error
    arrays = keras.tree.flatten(x)
    if len(arrays) != len(names):
        raise DataError(
            f"data has {len(arrays)} inputs in a batch; expected {len(names)}: {', '.join(names)}."
        )
    found = {}
    for (name, number), values in zip(program.inputs.items(), arrays, strict=True):
        options = program.nodes[number].options
        shape, dtype = options["shape"], str(options["dtype"])
        array = np.asarray(keras.ops.convert_to_numpy(values))
        # As Keras takes them: ids as any numbers, a last axis of 1 left out.
        array = array.astype(dtype, copy=False)
        if isinstance(shape, tuple) and array.ndim == len(shape) - 1 and shape[-1] == 1:
            array = array[..., np.newaxis]
        found[name] = array
    return found


def _clipped(program: Program, moments: _Moments) -> Program:
    """A program with the columns of its kernels clipped to what rounds best."""
    clipped = {}
    for (number, name), moment in moments.items():
        array = program.nodes[number].arrays[name]
        clipped[id(array)] = _clip(array, moment)
    nodes = (
        dataclasses.replace(
            node, arrays={name: clipped.get(id(array), array) for name, array in node.arrays.items()}
        )
        for node in program.nodes
    )
    return Program(tuple(nodes), program.outputs)


def _clip(kernel: np.ndarray, moment: np.ndarray) -> np.ndarray:
    """A kernel (K, N) clipped, column by column, to what makes Σ_k E[x_k²] (W_kn - q(W_kn))² least.

    A clipped column is all that a file needs to know: its scale is the largest magnitude that is left / 127.
    """
    moment = moment + _LEAST_MOMENT * moment.mean()
    largest = np.abs(kernel).max(axis=0)
    limits, least = largest, np.full(kernel.shape[1], np.inf)
    for share in _SHARES:
        limit = largest * np.float32(share)
        error = moment @ np.square(kernel - rounded(np.clip(kernel, -limit, limit), INT8))
        limits, least = np.where(error < least, limit, limits), np.minimum(error, least)
    return np.clip(kernel, -limits, limits)
