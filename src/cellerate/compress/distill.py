"""Distilling: a small model learns from the outputs of a large one and from the true labels.

The computation of one training step is in `distiller`.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from cellerate.compress.distiller import Distiller, Outputs, SoftLabels, logits_of
from cellerate.compress.fitting import (
    Course,
    Data,
    Judge,
    Keeper,
    OnStep,
    WeightedLoss,
    checked_data,
    curve,
    endless,
    fine_tune,
    loss_of,
    loss_on,
)
from cellerate.compress.fixed_batch import rows_per_batch
from cellerate.compress.record import CompressionRecord
from cellerate.errors import ConfigError, ModelError
from cellerate.keras_graph import keras2
from cellerate.keras_graph.compiling import compile_as
from cellerate.keras_graph.step_graph import gives_probabilities
from cellerate.layers.accelerate import accelerate, restore
from cellerate.messages import argument
from cellerate.models.rewrite import describe, is_functional, rebuild
from cellerate.settings import check_counts, check_number

_LATEST = 100  # the mean of this many steps stands for the end of training
# Losses for classes, as Keras classes and as functions.
_OF_CLASSES = (
    keras.losses.CategoricalCrossentropy,
    keras.losses.CategoricalFocalCrossentropy,
    keras.losses.KLDivergence,
    keras.losses.SparseCategoricalCrossentropy,
)
_FUNCTIONS_OF_CLASSES = (
    keras.losses.categorical_crossentropy,
    keras.losses.categorical_focal_crossentropy,
    keras.losses.kl_divergence,
    keras.losses.sparse_categorical_crossentropy,
)


def distill(
    teacher: keras.Model,
    student: keras.Model,
    data: Data,
    *,
    validation: Data | None = None,
    loss: Any = None,
    temperature: float = 1.0,
    weight: float = 1.0,
    final_weight: float | None = 0.0,
    steps: int = 1000,
    learning_rate: float = 4e-3,
    batch_size: int = 64,
    from_logits: bool | None = None,
    compare: bool = False,
    judge: Judge | None = None,
    metric: str = "loss",
    seed: int = 0,
    on_step: OnStep | None = None,
) -> tuple[keras.Model, CompressionRecord]:
    """Trains a copy of a student on a teacher's outputs and on the true labels.

    For classes, the soft loss is the divergence of the student's probabilities from the teacher's. Both are
    softened by the temperature, and the loss is multiplied by its square, so that its gradient stays as large
    as that of the true labels. For numbers (forecasts, quantiles, sigmoids), the soft loss is the mean
    squared error against the teacher's outputs. Both losses use the same sample weights and masks.

    Args:
        teacher: The model to learn from: built, Functional or Sequential, with one output. It is not changed.
        student: The model to train, starting from its current weights, with the teacher's inputs and output
            shape. It is not changed.
        data: The training data, as `fitting.Data`.
        validation: Data to judge on, four times during training; the best of the four models is kept. With
            None, models are judged on `data` and the last one is kept.
        loss: The Keras loss for the true labels; None for the one the student, or else the teacher, was
            compiled with.
        temperature: How much to soften probabilities; it has no effect on numbers. For next-character models,
            1 was best: a small student cannot also learn how unlikely the unlikely characters are.
        weight: The share of the soft loss at the start of training, from 0 to 1; the loss on the true labels
            gets the rest.
        final_weight: The share of the soft loss at the last step, reached in a straight line; None keeps
            `weight` throughout. The teacher helps most while the student knows nothing, and holds the student
            back once it has come near.
        steps: How many batches to train on.
        learning_rate: Adam's learning rate at the start of training; it falls to 0.
        batch_size: Rows per batch, if data are arrays.
        from_logits: What the outputs for classes are, if `loss` is your own: True for logits, False for
            probabilities. None reads it from the loss and the models, and treats outputs as numbers unless
            the loss is one of Keras's (sparse) categorical losses.
        compare: Whether to train a twin as well: a copy of the student that sees the same batches as often,
            but only the true labels. This keeps the batches in memory.
        judge: Returns how bad a model is, in place of the loss on `validation`. None for that loss.
        metric: The name of what `judge` returns.
        seed: The seed for the order of the batches.
        on_step: Called after each step, the twin's included, with how many are done, how many there are, and
            the loss. If it raises, the call ends.

    Returns:
        The student, compiled as the given one was or else as the teacher, and a record, in which the quality
        before is the teacher's. Details of the record:
        "steps"; "outputs", what the outputs were taken for: "logits", "probabilities" or "values";
        "hard_loss" and "soft_loss", means over the last hundred steps, None for a loss whose share is always
        0; "losses", one per step, at most 200 points; "hard_losses", the same for the true labels alone; and
        with `compare`, "twin_quality".

    Raises:
        ConfigError: An argument is out of range, or there is no loss.
        DataError: There is no batch.
        ModelError: A model cannot be copied, or the two do not fit together.
        TrainingError: The loss is no longer a finite number.

    Example:
        >>> small, record = distill(teacher, student, (x, y), loss=loss, compare=True)
        >>> record.quality_after < record.details["twin_quality"]
        True

    Source: Hinton, Vinyals & Dean, "Distilling the Knowledge in a Neural Network", 2015. For the falling
        share: "teacher annealing" in Clark et al., "BAM! Born-Again Multi-Task Networks for Natural Language
        Understanding", 2019.
    """
    started = time.perf_counter()
    settings: dict[str, Any] = {
        "temperature": temperature,
        "weight": weight,
        "final_weight": weight if final_weight is None else final_weight,
        "steps": steps,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "seed": seed,
    }
    _check(settings)
    _check_pair(teacher, student)
    data, validation = checked_data("data", data), checked_data("validation", validation)
    batch_size = settings["batch_size"] = rows_per_batch(student, batch_size, data, validation)
    hard = _only(loss_of(student if getattr(student, "loss", None) is not None else teacher, loss))
    outputs = _outputs(student, hard, from_logits)
    taken = itertools.islice(endless(data, batch_size, seed), steps)
    batches, again = itertools.tee(taken) if compare else (taken, iter(()))
    # Judged on its own training data, the last model is best.
    looks = judge is not None or validation is not None
    if judge is None:
        judged = data if validation is None else validation
        judge = functools.partial(loss_on, data=judged, loss=hard, batch_size=batch_size)
    guide = _guide(teacher, student, outputs, from_logits)
    before = float(judge(guide))
    pupil = accelerate(_exact_copy(student))
    train = functools.partial(fine_tune, loss=hard, steps=steps, learning_rate=learning_rate)
    in_all = 2 * steps if compare else steps
    course = Course(steps, _counted_from(0, in_all, on_step))
    soft = SoftLabels(outputs, temperature)
    shares = (weight, settings["final_weight"])
    distiller = Distiller(_in_float32(guide), _in_float32(pupil), soft, shares, course)
    keeper = Keeper(pupil, judge)
    train(distiller, batches, course=course, keeper=keeper if looks else None)
    details = {"steps": steps, "outputs": outputs, **_losses(distiller, course)}
    after = keeper.restore()
    restore(pupil)
    if compare:
        twin = _exact_copy(student)
        keeper = Keeper(twin, judge)
        course = Course(steps, _counted_from(steps, in_all, on_step))
        train(twin, again, course=course, keeper=keeper if looks else None)
        details["twin_quality"] = keeper.restore()
    compile_as(pupil, student if student.compiled else teacher)
    return pupil, CompressionRecord(
        method="distill",
        settings=settings,
        metric=metric,
        quality_before=before,
        quality_after=after,
        parameters_before=int(teacher.count_params()),
        parameters_after=int(pupil.count_params()),
        seconds=time.perf_counter() - started,
        details=details,
    )


def _check(settings: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for an argument out of range."""
    check_number("temperature", settings["temperature"], above=0)
    for name in ("weight", "final_weight"):
        check_number(name, settings[name], at_least=0, at_most=1)
    check_counts(steps=settings["steps"])
    check_number("learning_rate", settings["learning_rate"], above=0)
    check_number("seed", settings["seed"], at_least=0, whole=True)
    check_counts(batch_size=settings["batch_size"])


def _losses(distiller: Distiller, course: Course) -> dict[str, Any]:
    """The losses of a training; for the record."""
    return {
        "hard_loss": _latest(distiller.hard_losses),
        "soft_loss": _latest(distiller.soft_losses),
        "losses": course.curve(),
        "hard_losses": curve(distiller.hard_losses),
    }


def _latest(losses: list[float]) -> float | None:
    return statistics.fmean(losses[-_LATEST:]) if losses else None


def _counted_from(start: int, in_all: int, on_step: OnStep | None) -> OnStep | None:
    """Wraps `on_step` for one of several trainings, so that steps are counted across all of them."""
    if on_step is None:
        return None
    return lambda done, _, loss: on_step(start + done, in_all, loss)


def _check_pair(teacher: Any, student: Any) -> None:
    """Raises `ModelError` unless both models can be copied and have the same inputs and output shape."""
    for role, model in (("teacher", teacher), ("student", student)):
        if type(model) is not keras.Sequential and not is_functional(model):
            keras2.refuse(model)
            raise ModelError(
                f"{role} is a {type(model).__name__}; expected a Functional or Sequential model. Build it as "
                "keras.Model(inputs, outputs)."
            )
        if not model.built:
            raise ModelError(f"{role} {model.name!r} is not built: give it a keras.Input, or call it.")
        if len(model.outputs) != 1:
            raise ModelError(f"{role} {model.name!r} has {len(model.outputs)} outputs; expected one.")
    taken, wanted = ([(tuple(t.shape), t.dtype) for t in model.inputs] for model in (student, teacher))
    fit = len(taken) == len(wanted) and all(
        _alike(mine[0], its[0]) and mine[1] == its[1] for mine, its in zip(taken, wanted, strict=True)
    )
    if not fit:
        raise ModelError(
            f"student {student.name!r} takes {_signature(taken)}, teacher {teacher.name!r} takes "
            f"{_signature(wanted)}: both are given the same batches. Build the student with the teacher's inputs."
        )
    mine, its = (tuple(model.outputs[0].shape) for model in (student, teacher))
    if not _alike(mine, its):
        raise ModelError(
            f"student {student.name!r} gives {mine}, teacher {teacher.name!r} {its}; expected outputs of the same "
            "shape, such as logits of the same vocabulary."
        )


def _alike(first: tuple[int | None, ...], second: tuple[int | None, ...]) -> bool:
    """True if two tensors of these shapes, None for unknown sizes, can have the same shape."""
    return len(first) == len(second) and all(
        a == b or a is None or b is None for a, b in zip(first, second, strict=True)
    )


def _signature(inputs: list[tuple[tuple[int | None, ...], str]]) -> str:
    return ", ".join(f"{shape} {dtype}" for shape, dtype in inputs)


def _only(loss: Any) -> Any:
    """The loss of the only output, as an object or a function."""
    # Of a single output, the weight changes only the scale.
    found = keras.tree.flatten(loss.loss if isinstance(loss, WeightedLoss) else loss)
    try:
        (one,) = found
        return keras.losses.get(one)
    except ValueError as error:
        raise ConfigError(f"{argument('loss')} is {loss!r}; expected one loss that Keras knows.") from error


def _outputs(model: keras.Model, loss: Any, from_logits: bool | None) -> Outputs:
    """Gives the kind of a model's outputs."""
    if from_logits is None:
        if not isinstance(loss, _OF_CLASSES) and loss not in _FUNCTIONS_OF_CLASSES:
            return "values"
        gives_logits = isinstance(loss, keras.losses.Loss) and loss.get_config().get("from_logits", False)
        from_logits = bool(gives_logits) and not gives_probabilities(model)
    return "logits" if from_logits else "probabilities"


def _guide(
    teacher: keras.Model, student: keras.Model, outputs: Outputs, from_logits: bool | None
) -> keras.Model:
    """An accelerated copy of the teacher, with the student's kind of outputs unless the caller names them."""
    guide = _exact_copy(teacher)
    if outputs != "values" and from_logits is None:
        guide = _speaking_like(student, guide, outputs)
    return accelerate(guide)


def _speaking_like(student: keras.Model, teacher: keras.Model, outputs: Outputs) -> keras.Model:
    """Gives the teacher the student's kind of outputs, if only one of the two ends in a softmax."""
    if gives_probabilities(teacher) == gives_probabilities(student):
        return teacher
    if gives_probabilities(teacher):
        return _followed(teacher, logits_of) if outputs == "logits" else teacher
    return _followed(teacher, ops.softmax)


def _in_float32(model: keras.Model) -> keras.Model:
    """A model of the same layers with float32 output: Keras's Distiller needs both outputs in one dtype."""
    return model if model.outputs[0].dtype == "float32" else _followed(model, "linear")


def _followed(model: keras.Model, function: Any) -> keras.Model:
    """A model of the same layers followed by a function, which is computed in float32."""
    # A Sequential model that was never called has inputs, but no `input`.
    inputs = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    # A layer and not an operation, because a layer passes masks on.
    last = keras.layers.Activation(function, dtype="float32")
    return keras.Model(inputs, last(model.outputs[0]), name=model.name)


def _exact_copy(model: keras.Model) -> keras.Model:
    """A copy that also draws the same random numbers, for example in dropout."""
    copy = rebuild(model, describe(model))
    for mine, its in zip(copy.variables, model.variables, strict=True):
        mine.assign(ops.convert_to_numpy(its))
    return copy
