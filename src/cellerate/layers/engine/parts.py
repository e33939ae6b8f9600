"""The parts of a model's step: its graph, losses, metrics and optimizer; or the reasons against the engine."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import keras
from keras import optimizers

from cellerate.keras_graph.keras_backend import stored
from cellerate.layers.engine.constraints import projection_of
from cellerate.layers.engine.gradient_norm import norms_of
from cellerate.layers.engine.graph import TrainingGraph, read_training
from cellerate.layers.engine.losses import (
    Measured,
    Objective,
    Observed,
    metrics_of,
    objectives_of,
    sees_masks,
    unknown_losses,
    unknown_metrics,
)
from cellerate.layers.engine.updates import OptimizerUpdate, penalties_of, unknown_update, update_of

# Where a torch module keeps its hooks; on torch a Keras layer is such a module.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# And where a parameter does.
_PARAMETER_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


@dataclasses.dataclass(frozen=True)
class StepParts:
    """The parts of a model's training step.

    Attributes:
        graph: Its graph.
        objectives: Its losses.
        measured: The metrics that the core averages.
        observed: The other metrics.
        update: The update of its optimizer; None for a step that evaluates the model.
        rows_apart: Whether the optimizer gets the gradients of an embedding's repeated rows unsummed, as in stock Keras
            on TensorFlow.
    """

    graph: TrainingGraph
    objectives: Sequence[Objective]
    measured: Sequence[Measured]
    observed: Sequence[Observed]
    update: OptimizerUpdate | None
    rows_apart: bool


def parts_of(model: keras.Model, *, rows_apart: bool, training: bool = True) -> StepParts | tuple[str, ...]:
    """The parts of a model's step; or the reasons why the engine cannot run it.

    Args:
        model: A compiled model whose losses, metrics and optimizer are built.
        rows_apart: As in `StepParts`.
        training: Whether the step trains; if not, it evaluates.
    """
    graph = read_training(model, training)
    objectives = objectives_of(model)
    # Metrics are read together with the losses of their outputs.
    found = objectives if isinstance(objectives, str) else metrics_of(model, objectives, training=training)
    update = update_of(model.optimizer) if training else None
    reasons = [*(graph if isinstance(graph, tuple) else ()), *_own_calls(model)]
    reasons += dict.fromkeys(part for part in (objectives, found, update) if isinstance(part, str))
    reasons += _odd_variables(model) if training else _odd_losses(model)
    if isinstance(graph, tuple) or isinstance(objectives, str) or isinstance(found, str):
        return tuple(reasons)
    if isinstance(update, str) or reasons:
        return tuple(reasons)
    parts = StepParts(graph, objectives, *found, update, rows_apart)
    return tuple(_odd_parts(model, parts)) or parts


def known_reasons(model: keras.Model) -> tuple[str, ...]:
    """The reasons against the engine that are known before the first step."""
    graph = read_training(model)
    reasons = (*(graph if isinstance(graph, tuple) else ()), *_own_calls(model))
    if not (model.built and model.compiled):
        return reasons
    update = unknown_update(model.optimizer)
    found = [*unknown_losses(model), *unknown_metrics(model), *([] if update is None else [update])]
    return (*reasons, *found, *_odd_variables(model))


def _odd_parts(model: keras.Model, parts: StepParts) -> list[str]:
    """The reasons why the engine cannot combine the parts."""
    graph, objectives = parts.graph, parts.objectives
    reasons = []
    masked = [one for one in objectives if graph.outputs[one.output].mask >= 0]
    if sees_masks(parts.update is not None):
        masked_outputs = {one.output for one in masked}
        reasons += [
            f"the engine does not have the metric {one.name!r} of an output with a mask"
            for one in parts.observed
            if one.output in masked_outputs
        ]
    if parts.update is None:
        return reasons
    rows_apart = parts.rows_apart and any(node.op == "embedding" for node in graph.nodes)
    if rows_apart and model.optimizer.clipvalue:
        reasons.append("on TensorFlow, clipvalue clips each of an Embedding's repeated rows separately")
    wants_norms = model.optimizer.clipnorm or norms_of(model.optimizer) is not None
    if rows_apart and parts.update.name == "adamax" and wants_norms:
        reasons.append(
            "on TensorFlow, Adamax sums the absolute gradients of an Embedding's rows, but the step needs their norm"
        )
    if graph.divided and model.optimizer.clipnorm:
        reasons.append("clipnorm clips a weight whose parts belong to several nodes")
    trained = {id(weight.variable) for weight in graph.weights.values()}
    reasons += [
        f"{variable.path} is not a weight of its graph"
        for variable in model.trainable_variables
        if id(variable) not in trained
    ]
    reasons += _unknown_to_optimizer(model)
    if model.optimizer.use_ema and len(model.trainable_variables) != len(
        model.optimizer._trainable_variables
    ):
        reasons.append("its optimizer averages weights that are no longer trainable")
    return reasons


def _unknown_to_optimizer(model: keras.Model) -> list[str]:
    """The mismatch between a built optimizer and the weights trainable now, which Keras will refuse."""
    built = model.optimizer._trainable_variables
    known = {id(variable) for variable in built}
    late = [variable for variable in model.trainable_variables if id(variable) not in known]
    if late:
        return [f"its optimizer was built when {late[0].path} was not trainable"]
    if keras.backend.backend() == "jax" and len(built) != len(model.trainable_variables):
        return ["its optimizer was built for weights that are no longer trainable"]
    return []


def _odd_variables(model: keras.Model) -> list[str]:
    """The reasons why the engine cannot train the variables of a model."""
    reasons = [
        f"{variable.path} has the constraint {type(variable.constraint).__name__}"
        for variable in model.trainable_variables
        if variable.constraint is not None and projection_of(variable.constraint) is None
    ]
    reasons += [
        f"{variable.path} takes its gradient as its value"
        for variable in model.trainable_variables
        if getattr(variable, "overwrite_with_gradient", False)
    ]
    if keras.backend.backend() == "torch":
        reasons += _odd_parameters(model.trainable_variables)
    rate = getattr(model.optimizer, "_learning_rate", None)
    if not isinstance(rate, keras.Variable | optimizers.schedules.LearningRateSchedule):
        reasons.append("its learning rate is a function")
    if not model.trainable_variables:
        reasons.append("it has no trainable weights")
    return reasons + _odd_losses(model)


def _odd_parameters(variables: Sequence[keras.Variable]) -> list[str]:
    """The reasons that torch's own settings of the parameters of variables give."""
    reasons = []
    for variable in variables:
        parameter = stored(variable)
        if not parameter.requires_grad:
            reasons.append(
                f"{variable.path} is frozen by requires_grad; set trainable=False on its layer instead"
            )
        if any(getattr(parameter, hooks) for hooks in _PARAMETER_HOOKS):
            reasons.append(f"{variable.path} has a hook on its gradient")
    return reasons


def _odd_losses(model: keras.Model) -> list[str]:
    """The regularizers and added losses of a model that the engine does not have."""
    regularized = [one for one in model.trainable_variables if getattr(one, "regularizer", None) is not None]
    reasons = [
        f"{variable.path} has the regularizer {type(variable.regularizer).__name__}"
        for variable in regularized
        if penalties_of(variable) is None
    ]
    if len(model.losses) > len(regularized) or any(
        getattr(layer, "activity_regularizer", None) is not None
        for layer in model._flatten_layers(include_self=False)
    ):
        reasons.append("it adds losses of its own")
    return reasons


def _own_calls(model: keras.Model) -> tuple[str, ...]:
    """The layers whose call does more than Keras's own class."""
    return tuple(
        f"{layer.name} has a call of its own, or a hook"
        for layer in model._flatten_layers(include_self=True)
        if _is_replaced(vars(layer).get("call"))
        or not _definer(type(layer), "__call__").__module__.startswith("keras.")
        or any(getattr(layer, hooks, None) for hooks in _HOOKS)
    )


def _is_replaced(call: Any) -> bool:
    """True if a layer's `call` is neither its class's nor Cellerate's."""
    ours = isinstance(call, functools.partial) and call.func.__module__.startswith("cellerate.")
    return call is not None and not ours


def _definer(kind: type, name: str) -> type:
    return next(one for one in kind.__mro__ if name in vars(one))
