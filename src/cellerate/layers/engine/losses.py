"""The Keras losses and metrics that the engine supports: one row each."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, NamedTuple

import keras
from keras import losses, metrics
from keras.src import tree
from keras.src.losses.losses import LossFunctionWrapper
from keras.src.metrics.reduction_metrics import MeanMetricWrapper

from cellerate.keras_graph.graph import functional_graph
from cellerate.kernels.training.cpu import Kinks, LossRule, MeasureRule

_SEVERAL = (
    "it has several losses for its only output: Keras takes the first or all, by the form of the targets"
)
# On TensorFlow and torch Keras multiplies by the value that a variable has in each step.
_MOVING_WEIGHT = "a weight of its losses is a tensor or a variable, whose value may change"
_BY_WEIGHT = "mean_with_sample_weight"
_MEANS = ("sum_over_batch_size", "mean", _BY_WEIGHT)
# The registered name of Cellerate's own loss, in `models.losses`, which this room does not import.
_QUANTILES = "cellerate>QuantileLoss"
_DEFAULTS = {"from_logits": False, "label_smoothing": 0.0, "axis": -1, "ignore_class": None}
# Keras's function, whose name the core shares → the function's own arguments, in the core's order, with defaults.
_LOSSES: dict[str, dict[str, float]] = {
    "mean_squared_error": {},
    "mean_absolute_error": {},
    "mean_absolute_percentage_error": {},
    "mean_squared_logarithmic_error": {},
    "huber": {"delta": 1.0},
    "log_cosh": {},
    "poisson": {},
    "hinge": {},
    "squared_hinge": {},
    "categorical_hinge": {},
    "kl_divergence": {},
    "cosine_similarity": {},
    "binary_crossentropy": {},
    "binary_focal_crossentropy": {"alpha": 0.25, "gamma": 2.0, "apply_class_balancing": False},
    "categorical_crossentropy": {},
    "categorical_focal_crossentropy": {"alpha": 0.25, "gamma": 2.0},
    "sparse_categorical_crossentropy": {},
}
_KINKS = {
    "jax": Kinks(1.0, -1.0, 0.5, 0.0, 0.5, selects=False),
    "tensorflow": Kinks(0.0, math.nan, 1.0, 0.0, 1.0, 0.0),
    "torch": Kinks(),
}
# The function that a metric wraps → the core's name of the measure.
_MEASURES: dict[Any, str] = {
    metrics.sparse_categorical_accuracy: "sparse_categorical_accuracy",
    metrics.categorical_accuracy: "categorical_accuracy",
    metrics.binary_accuracy: "binary_accuracy",
    losses.mean_absolute_error: "absolute",
    losses.mean_squared_error: "squared",
}


# Names for which Keras takes the metric that fits the targets.
_CHOSEN_BY_SHAPE = frozenset({"accuracy", "acc", "crossentropy", "ce"})


class Objective(NamedTuple):
    """A loss of a model.

    Attributes:
        rule: The loss in the core's form.
        mean: Whether the loss is the mean over all positions, not the sum.
        by_weight: Whether the mean is divided by the sum of the sample weights.
        factor: The weight of the loss in the total loss.
        output: The index of the model output that it compares.
        tracker: The metric that keeps the mean of the loss, if the model has several losses.
    """

    rule: LossRule
    mean: bool
    by_weight: bool
    factor: float
    output: int
    tracker: keras.Metric | None


class Measured(NamedTuple):
    """A metric of a model that is a mean, which the core averages.

    Attributes:
        metric: The Keras metric, whose `total` and `count` hold the state.
        name: The name in the logs.
        output: The index of the model output that it compares.
        rule: The metric in the core's form.
        result: Turns the mean into the value in the logs.
    """

    metric: keras.Metric
    name: str
    output: int
    rule: MeasureRule
    result: Callable[[float], float]


class Observed(NamedTuple):
    """Any other metric, which Keras computes from the outputs.

    Attributes:
        metric: The Keras metric.
        name: The name in the logs.
        output: The index of the model output that it compares.
        weighted: Whether it uses the sample weights.
    """

    metric: keras.Metric
    name: str
    output: int
    weighted: bool


def objectives_of(model: keras.Model) -> list[Objective] | str:
    """The built losses of a compiled model; or why the engine does not support one of them."""
    compiled = model._compile_loss
    flat = getattr(compiled, "_flat_losses", None) or []
    if not flat:
        return "it has no loss"
    structure = compiled._y_pred_build_structure
    if len(flat) > 1 and not tree.is_nested(structure):
        return _SEVERAL
    places = tree.pack_sequence_as(structure, list(range(len(tree.flatten(structure)))))
    trackers = list(compiled.metrics) or [None] * len(flat)
    found = []
    for (path, loss, factor, _), tracker in zip(flat, trackers, strict=True):
        rule = _loss_rule(loss)
        if isinstance(rule, str):
            return rule
        if factor is not None and not isinstance(factor, Real):
            return _MOVING_WEIGHT
        place = places
        for step in path:
            place = place[step]
        mean, by_weight = loss.reduction in _MEANS, loss.reduction == _BY_WEIGHT
        weight = 1.0 if factor is None else float(factor)
        found.append(Objective(rule, mean, by_weight, weight, place, tracker))
    return found


def unknown_losses(model: keras.Model) -> list[str]:
    """The reasons against losses that the engine or Keras does not have, before they are built."""
    given = tree.flatten(getattr(model._compile_loss, "_user_loss", None))
    graph = functional_graph(model)
    if len(given) > 1 and graph is not None and not tree.is_nested(graph._outputs_struct):
        return [_SEVERAL]
    rules = [_loss_rule(loss) if (loss := _as_loss(one)) is not None else _misnamed(one) for one in given]
    weights = tree.flatten(getattr(model._compile_loss, "_user_loss_weights", None))
    moving = any(one is not None and not isinstance(one, Real) for one in weights)
    return [*(rule for rule in rules if isinstance(rule, str)), *([_MOVING_WEIGHT] if moving else [])]


def _as_loss(given: Any) -> keras.losses.Loss | None:
    """A loss passed to `compile`, by name or as a function, as Keras builds it; None if there is none."""
    try:
        found = losses.get(given)
    except (TypeError, ValueError):
        # Keras refuses it in its own words when it builds the losses.
        return None
    if found is None or isinstance(found, keras.losses.Loss):
        return found
    return LossFunctionWrapper(found, name=getattr(found, "__name__", type(found).__name__))


def _misnamed(given: Any) -> str | None:
    """Why Keras refuses an unknown loss; None for the loss None, which leaves an output without a loss."""
    if given is None:
        return None
    nearest = (*difflib.get_close_matches(str(given), _LOSSES, 1), "mean_squared_error")[0]
    return f"Keras has no loss {given!r}: expected one of keras.losses, such as {nearest!r}"


def unknown_metrics(model: keras.Model) -> list[str]:
    """The names of metrics that Keras refuses in the first step."""
    compiled = model._compile_metrics
    given = [getattr(compiled, name, None) for name in ("_user_metrics", "_user_weighted_metrics")]
    names = [one for one in tree.flatten(given) if isinstance(one, str) and one not in _CHOSEN_BY_SHAPE]
    return [f"Keras has no metric {name!r}" for name in dict.fromkeys(names) if not _is_metric(name)]


def _is_metric(name: str) -> bool:
    try:
        return metrics.get(name) is not None
    except ValueError:
        return False


def _loss_rule(loss: Any) -> LossRule | str:
    """A loss in the core's form; or why the engine does not support it."""
    name = getattr(loss, "name", type(loss).__name__)
    if getattr(loss, "reduction", None) not in (*_MEANS, "sum"):
        return f"the loss {name!r} has the reduction {getattr(loss, 'reduction', None)!r}"
    if keras.backend.standardize_dtype(loss.dtype) != "float32":
        return f"the loss {name!r} is computed in {loss.dtype}"
    if keras.saving.get_registered_name(type(loss)) == _QUANTILES:
        return LossRule("quantile", levels=loss.quantiles)
    known = getattr(getattr(loss, "fn", None), "__name__", "")
    kind = type(loss)
    if isinstance(loss, LossFunctionWrapper) and (
        kind.call is not LossFunctionWrapper.call or kind.__call__ is not keras.losses.Loss.__call__
    ):
        return f"the loss {name!r} has a call of its own, in its class {kind.__name__}"
    if (
        not isinstance(loss, LossFunctionWrapper)
        or known not in _LOSSES
        or loss.fn is not getattr(losses, known)
    ):
        nearest = (*difflib.get_close_matches(name, _LOSSES, 1), "mean_squared_error")[0]
        return f"the engine has no loss {name!r}: expected one of keras.losses, such as {nearest!r}"
    own = _LOSSES[known]
    given = {**_DEFAULTS, **own, **loss._fn_kwargs}
    expected = {**_DEFAULTS, "axis": -1, "ignore_class": None}
    for key, value in given.items():
        fixed = key in ("axis", "ignore_class")
        if (
            (fixed and value != expected[key])
            or (key in {"label_smoothing", *own} and not isinstance(value, Real))
            or key not in {**expected, **own}
        ):
            return f"the engine does not have the loss {name!r} with {key}={value!r}"
    smoothing = 0.0 if known.startswith("sparse") else float(given["label_smoothing"])
    backend = keras.backend.backend()
    numbers = [float(given[key]) for key in own]
    if known == "binary_focal_crossentropy":
        # On TensorFlow, Keras recovers the logits behind a sigmoid.
        numbers.append(float(backend == "tensorflow"))
    return LossRule(
        known,
        bool(given["from_logits"]),
        tuple(numbers),
        smoothing,
        least=float(keras.config.epsilon()),
        kinks=_KINKS[backend],
    )


def slope_of_absolute_at_zero() -> float:
    """The derivative of |x| at 0 on the active backend."""
    return _KINKS[keras.backend.backend()].size_at_zero


def sees_masks(training: bool) -> bool:
    """True if metrics see the masks of outputs: in JAX's training steps the outputs have lost their masks."""
    return not (training and keras.backend.backend() == "jax")


def metrics_of(
    model: keras.Model, objectives: Sequence[Objective], *, training: bool
) -> tuple[list[Measured], list[Observed]] | str:
    """The metrics of a compiled model besides its losses; or why the engine does not support one of them.

    Args:
        model: The model, whose metrics are built.
        objectives: Its losses.
        training: Whether the step trains; if not, it evaluates.
    """
    compiled = model._compile_metrics
    measured: list[Measured] = []
    observed: list[Observed] = []
    known = {id(metric) for metric in (model._loss_tracker, compiled)}
    known |= {id(objective.tracker) for objective in objectives}
    own = [metric for metric in model.metrics if id(metric) not in known]
    if own:
        return f"the engine does not have the metric {own[0].name!r}"
    if compiled is None or not compiled.metrics:
        return measured, observed
    rules = {objective.output: objective.rule for objective in reversed(objectives)}
    # `result` gives the metrics the unique names that Keras uses in the logs.
    names = iter(compiled.result())
    lists = [(part, output, False) for output, part in enumerate(compiled._flat_metrics)]
    lists += [(part, output, True) for output, part in enumerate(compiled._flat_weighted_metrics)]
    for part, output, weighted in lists:
        for metric in [] if part is None else part.metrics:
            name = next(names)
            if output not in rules:
                return f"the output of the metric {name!r} has no loss"
            rule = _measure(metric, sees_masks(training), weighted)
            comparable = rule is not None and (
                rule.name.startswith("sparse") == rules[output].takes_ids
                and not rules[output].levels
                and not rules[output].takes_signs
            )
            if rule is None or not comparable:
                observed.append(Observed(metric, name, output, weighted))
                continue
            root = type(metric) is metrics.RootMeanSquaredError
            measured.append(Measured(metric, name, output, rule, _root if root else float))
    return measured, observed


def _measure(metric: Any, masked: bool, weighted: bool) -> MeasureRule | None:
    if type(metric) is metrics.RootMeanSquaredError:
        return MeasureRule("squared", masked=False, weighted=weighted)
    if (
        not isinstance(metric, MeanMetricWrapper)
        or type(metric).update_state is not MeanMetricWrapper.update_state
        or type(metric).result is not MeanMetricWrapper.result
    ):
        return None
    name = _MEASURES.get(metric._fn)
    arguments = dict(metric._fn_kwargs)
    threshold = float(arguments.pop("threshold", 0.5))
    return None if name is None or arguments else MeasureRule(name, threshold, masked, weighted)


def _root(mean: float) -> float:
    return float(mean**0.5)
