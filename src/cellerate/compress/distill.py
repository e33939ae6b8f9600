"""Distilling: a small model learns from the outputs of a large one, beside the true labels.

A module of its own because it alone trains one model by another; what a step of that computes is in `distiller`.
"""

import functools
import itertools
import statistics
import time
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
    curve,
    endless,
    fine_tune,
    loss_of,
    loss_on,
)
from cellerate.compress.record import CompressionRecord
from cellerate.errors import ConfigError, ModelError
from cellerate.keras_graph.step_graph import gives_probabilities
from cellerate.layers.accelerate import accelerate, restore
from cellerate.models.rewrite import describe, is_functional, rebuild
from cellerate.training.settings import check_number

_LATEST = 100  # steps whose mean stands for the end of a training
# Losses of classes, as classes and as functions.
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
    """Trains a copy of a student on what a teacher says, and on the true labels.

    The soft loss of classes is the divergence of the student's probabilities from the teacher's, both softened
    by the temperature, times its square, so that its gradient stays as large as that of the true labels. The soft
    loss of numbers (forecasts, quantiles, sigmoids) is the mean squared error to the teacher's. Both losses take
    the same sample weights and masks.

    Args:
        teacher: The model to learn from: built, Functional or Sequential, of one output. It is not changed.
        student: The model to train, from the weights that it has: of the same inputs and the same shape of output.
            It is not changed.
        data: To train on, as `fitting.Data`.
        validation: To judge on, four times in the training: the best of the four models is kept. None for `data`,
            and keeps the last.
        loss: The Keras loss of the true labels; None for the one that the student, or else the teacher, was
            compiled with.
        temperature: How much to soften probabilities; for numbers it changes nothing. Of next-character models 1
            was the best: a small student has no room for how unlikely the unlikely ones are.
        weight: The share of the soft loss where the training begins, from 0 to 1; that of the true labels is the
            rest.
        final_weight: The share towards which it goes, in a straight line, up to the last step; None for the same
            throughout. What a teacher says is worth most to a student that knows nothing, and holds one back that
            has come near it.
        steps: How many batches to train on.
        learning_rate: Of Adam, where the training begins; it falls to 0.
        batch_size: Rows of a batch, where data are arrays.
        from_logits: What the outputs of classes are, where `loss` is one of your own: True for logits, False for
            probabilities. None reads it from the loss and the models, and takes outputs for numbers where the loss
            is none of Keras's (sparse) categorical losses.
        compare: Whether to train a twin as well: a copy of the student that sees the same batches as often, and
            the true labels only. It keeps the batches in memory.
        judge: How bad a model is; it takes the place of the loss on `validation`. None for that.
        metric: The name of what `judge` says.
        seed: Of the order of the batches.
        on_step: Told of each step, those of the twin too: how many are done, of how many, and the loss. What it
            raises ends the call.

    Returns:
        The student, not compiled, and a record: its quality before is the teacher's. Its details: "steps";
        "outputs", what they were taken for: "logits", "probabilities" or "values"; "hard_loss" and "soft_loss",
        the mean of the last hundred steps, None where the weights leave it out; "losses", of the steps, at most 200
        of them; "hard_losses", those of the true labels alone, as many; and with `compare` "twin_quality".

    Raises:
        ConfigError: An argument is out of range, or there is no loss.
        DataError: There is no batch.
        ModelError: A model cannot be copied, or the two do not fit together.
        TrainingError: The loss is no longer a finite number.

    Example:
        >>> small, record = distill(teacher, student, (x, y), loss=loss, compare=True)
        >>> record.quality_after < record.details["twin_quality"]
        True

    Source: Hinton, Vinyals & Dean, "Distilling the Knowledge in a Neural Network", 2015; of the share that falls:
        "teacher annealing" of Clark et al., "BAM! Born-Again Multi-Task Networks for Natural Language
        Understanding", 2019.
    """
    started = time.perf_counter()
    check_number("temperature", temperature, above=0)
    check_number("weight", weight, at_least=0, at_most=1)
    final_weight = weight if final_weight is None else final_weight
    check_number("final_weight", final_weight, at_least=0, at_most=1)
    check_number("steps", steps, at_least=1, whole=True)
    check_number("learning_rate", learning_rate, above=0)
    check_number("batch_size", batch_size, at_least=1, whole=True)
    _check_pair(teacher, student)
    hard = _only(loss_of(student if getattr(student, "loss", None) is not None else teacher, loss))
    outputs = _outputs(student, hard, from_logits)
    taken = itertools.islice(endless(data, batch_size, seed), steps)
    batches, again = itertools.tee(taken) if compare else (taken, iter(()))

    def quality(model: keras.Model) -> float:
        if judge is not None:
            return float(judge(model))
        judged = data if validation is None else validation
        return loss_on(model, judged, loss=hard, batch_size=batch_size)

    guide = _exact_copy(teacher)
    if outputs != "values" and from_logits is None:
        guide = _speaking_like(student, guide, outputs)
    accelerate(guide)
    before = quality(guide)
    pupil = accelerate(_exact_copy(student))
    train = functools.partial(fine_tune, loss=hard, steps=steps, learning_rate=learning_rate)
    in_all = 2 * steps if compare else steps
    course = Course(steps, _told_from(0, in_all, on_step))
    soft = SoftLabels(outputs, temperature)
    distiller = Distiller(_in_float32(guide), _in_float32(pupil), soft, (weight, final_weight), course)
    # On the data that it is trained on, what comes last is best.
    looks = judge is not None or validation is not None
    keeper = Keeper(pupil, quality)
    train(distiller, batches, course=course, keeper=keeper if looks else None)
    details = {
        "steps": steps,
        "outputs": outputs,
        "hard_loss": _latest(distiller.hard_losses),
        "soft_loss": _latest(distiller.soft_losses),
        "losses": course.curve(),
        "hard_losses": curve(distiller.hard_losses),
    }
    after = keeper.restore()
    restore(pupil)
    if compare:
        twin = _exact_copy(student)
        keeper = Keeper(twin, quality)
        course = Course(steps, _told_from(steps, in_all, on_step))
        train(twin, again, course=course, keeper=keeper if looks else None)
        details["twin_quality"] = keeper.restore()
    return pupil, CompressionRecord(
        method="distill",
        settings={
            "temperature": temperature,
            "weight": weight,
            "final_weight": final_weight,
            "steps": steps,
            "learning_rate": learning_rate,
            "batch_size": batch_size,
            "seed": seed,
        },
        metric=metric,
        quality_before=before,
        quality_after=after,
        parameters_before=int(teacher.count_params()),
        parameters_after=int(pupil.count_params()),
        seconds=time.perf_counter() - started,
        details=details,
    )


def _latest(losses: list[float]) -> float | None:
    return statistics.fmean(losses[-_LATEST:]) if losses else None


def _told_from(start: int, in_all: int, on_step: OnStep | None) -> OnStep | None:
    """Told of the steps of one of several trainings, counted through."""
    if on_step is None:
        return None
    return lambda done, _, loss: on_step(start + done, in_all, loss)


def _check_pair(teacher: Any, student: Any) -> None:
    """Raises `ModelError` unless both can be copied and take and give the same."""
    for role, model in (("teacher", teacher), ("student", student)):
        if type(model) is not keras.Sequential and not is_functional(model):
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
            f"student {student.name!r} takes {_told(taken)}, teacher {teacher.name!r} {_told(wanted)}: both are "
            "given the same batches. Build the student with the teacher's inputs."
        )
    mine, its = (tuple(model.outputs[0].shape) for model in (student, teacher))
    if not _alike(mine, its):
        raise ModelError(
            f"student {student.name!r} gives {mine}, teacher {teacher.name!r} {its}; expected outputs of one shape, "
            "such as logits of the same vocabulary."
        )


def _alike(first: tuple[int | None, ...], second: tuple[int | None, ...]) -> bool:
    """Whether tensors of two shapes may have one and the same."""
    return len(first) == len(second) and all(
        a == b or a is None or b is None for a, b in zip(first, second, strict=True)
    )


def _told(inputs: list[tuple[tuple[int | None, ...], str]]) -> str:
    return ", ".join(f"{shape} {dtype}" for shape, dtype in inputs)


def _only(loss: Any) -> Any:
    """The loss of the one output, as an object or a function."""
    found = keras.tree.flatten(loss)
    try:
        (one,) = found
        return keras.losses.get(one)
    except ValueError as error:
        raise ConfigError(f"loss is {loss!r}; expected one loss that Keras knows.") from error


def _outputs(model: keras.Model, loss: Any, from_logits: bool | None) -> Outputs:
    """What the outputs of a model are."""
    if from_logits is None:
        if not isinstance(loss, _OF_CLASSES) and loss not in _FUNCTIONS_OF_CLASSES:
            return "values"
        told = isinstance(loss, keras.losses.Loss) and loss.get_config().get("from_logits", False)
        from_logits = bool(told) and not gives_probabilities(model)
    return "logits" if from_logits else "probabilities"


def _speaking_like(student: keras.Model, teacher: keras.Model, outputs: Outputs) -> keras.Model:
    """The teacher with the kind of outputs that the student has: where one of them alone ends in a softmax."""
    if gives_probabilities(teacher) == gives_probabilities(student):
        return teacher
    if gives_probabilities(teacher):
        return _followed(teacher, logits_of) if outputs == "logits" else teacher
    return _followed(teacher, ops.softmax)


def _in_float32(model: keras.Model) -> keras.Model:
    """A model of the same layers whose output is float32: Keras's Distiller wants those of both of one type."""
    return model if model.outputs[0].dtype == "float32" else _followed(model, "linear")


def _followed(model: keras.Model, function: Any) -> keras.Model:
    """A model of the same layers, and a function behind, which is computed in float32."""
    # One that was never called has inputs, but no `input`.
    inputs = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    # A layer and not an operation, for it hands masks on.
    last = keras.layers.Activation(function, dtype="float32")
    return keras.Model(inputs, last(model.outputs[0]), name=model.name)


def _exact_copy(model: keras.Model) -> keras.Model:
    """A copy that also draws the same random numbers, as dropout does."""
    copy = rebuild(model, describe(model))
    for mine, its in zip(copy.variables, model.variables, strict=True):
        mine.assign(ops.convert_to_numpy(its))
    return copy
