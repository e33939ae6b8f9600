"""The losses and metrics of Keras that the engine has: a row each."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import losses, metrics
from keras.src.losses.losses import LossFunctionWrapper
from keras.src.metrics.reduction_metrics import MeanMetricWrapper

from cellerate.kernels.training.cpu import LossRule, MeasureRule

_MEANS = ("sum_over_batch_size", "mean")
_DEFAULTS = {"from_logits": False, "label_smoothing": 0.0, "axis": -1, "ignore_class": None, "delta": 1.0}
# By the function that a loss wraps.
_LOSSES: dict[Any, str] = {
    losses.mean_squared_error: "mean_squared_error",
    losses.mean_absolute_error: "mean_absolute_error",
    losses.huber: "huber",
    losses.log_cosh: "log_cosh",
    losses.binary_crossentropy: "binary_crossentropy",
    losses.categorical_crossentropy: "categorical_crossentropy",
    losses.sparse_categorical_crossentropy: "sparse_categorical_crossentropy",
}
# By the function that a metric wraps.
_MEASURES: dict[Any, str] = {
    metrics.sparse_categorical_accuracy: "sparse_categorical_accuracy",
    metrics.categorical_accuracy: "categorical_accuracy",
    metrics.binary_accuracy: "binary_accuracy",
    losses.mean_absolute_error: "absolute",
    losses.mean_squared_error: "squared",
}


class Objective(NamedTuple):
    """The loss that a model minimises.

    Attributes:
        rule: As the core takes it.
        mean: Whether the loss is the mean over all positions, not their sum.
        factor: The weight of the loss.
    """

    rule: LossRule
    mean: bool
    factor: float


class Measured(NamedTuple):
    """A metric of a model.

    Attributes:
        metric: Keras's, whose `total` and `count` hold the state.
        rule: As the core takes it.
        result: What a mean becomes in the logs.
    """

    metric: keras.Metric
    rule: MeasureRule
    result: Callable[[float], float]


def objective_of(model: keras.Model) -> Objective | str:
    """The loss of a compiled model whose losses are built; or why the engine has it not."""
    compiled = model._compile_loss
    flat = getattr(compiled, "_flat_losses", None) or []
    if len(flat) != 1:
        return f"it has {len(flat)} losses"
    loss, factor = flat[0].loss, flat[0].loss_weights
    name = getattr(loss, "name", type(loss).__name__)
    known = isinstance(loss, LossFunctionWrapper) and _LOSSES.get(getattr(loss, "fn", None))
    if not known or type(loss).call is not LossFunctionWrapper.call:
        return f"the engine has no loss {name!r}"
    given = {**_DEFAULTS, **loss._fn_kwargs}
    odd = [key for key in given if key not in _DEFAULTS]
    if odd or given["axis"] != -1 or given["ignore_class"] is not None:
        return f"the engine does not have the loss {name!r} with these arguments"
    if loss.reduction not in (*_MEANS, "sum"):
        return f"the loss has the reduction {loss.reduction!r}"
    if keras.backend.standardize_dtype(loss.dtype) != "float32":
        return f"the loss is computed in {loss.dtype}"
    smoothing = 0.0 if known.startswith("sparse") else float(given["label_smoothing"])
    rule = LossRule(known, bool(given["from_logits"]), float(given["delta"]), smoothing)
    return Objective(rule, loss.reduction in _MEANS, 1.0 if factor is None else float(factor))


def measured_of(model: keras.Model) -> list[Measured] | str:
    """The metrics of a compiled model besides its loss; or why the engine has one of them not."""
    compiled = model._compile_metrics
    found: list[Measured] = []
    own = [metric for metric in model.metrics if metric not in (model._loss_tracker, compiled)]
    if own:
        return f"the engine does not have the metric {own[0].name!r}"
    if compiled is None:
        return found
    if any(part is not None for part in compiled._flat_weighted_metrics):
        return "it has weighted metrics"
    for part in compiled._flat_metrics:
        for metric in [] if part is None else part.metrics:
            rule = _measure(metric)
            if rule is None:
                return f"the engine does not have the metric {metric.name!r}"
            root = type(metric) is metrics.RootMeanSquaredError
            found.append(Measured(metric, rule, _root if root else float))
    return found


def _measure(metric: Any) -> MeasureRule | None:
    if type(metric) is metrics.RootMeanSquaredError:
        return MeasureRule("squared")
    if (
        not isinstance(metric, MeanMetricWrapper)
        or type(metric).update_state is not MeanMetricWrapper.update_state
    ):
        return None
    name = _MEASURES.get(metric._fn)
    arguments = dict(metric._fn_kwargs)
    threshold = float(arguments.pop("threshold", 0.5))
    # In a step that JAX differentiates, the outputs have lost their mask.
    masked = keras.backend.backend() != "jax"
    return None if name is None or arguments else MeasureRule(name, threshold, masked)


def _root(mean: float) -> float:
    return float(mean**0.5)
