"""The Keras optimizers that the engine supports, one row each, and the numbers of their steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import optimizers, regularizers

from cellerate.kernels.training.cpu import Numbers, TrainedWeight, UpdateRule
from cellerate.layers.engine.gradient_norm import norms_of
from cellerate.layers.engine.losses import slope_of_absolute_at_zero

_FLOAT = np.float32
# The optimizer methods whose replacement changes the update.
_METHODS = frozenset({"apply", "apply_gradients", "update_step", "stateless_apply", "_clip_gradients"})


class OptimizerUpdate(NamedTuple):
    """The rule by which an optimizer changes weights.

    Attributes:
        name: The core's name of the update.
        slots: The optimizer's lists of variables, in the order of the update's slots; None for an absent slot.
        numbers: Computes the numbers of the update from the learning rate and the step, which counts from 1, and from
            the product if there is one.
        product: A variable of the optimizer that each update first multiplies by `multiplier`.
        multiplier: Computes the factor of the product from the step.
    """

    name: str
    slots: tuple[Sequence[Any] | None, ...]
    numbers: Callable[..., tuple[float, ...]]
    product: Any = None
    multiplier: Callable[[int], float] | None = None


def update_of(optimizer: Any) -> OptimizerUpdate | str:
    """The update of a built optimizer; or why the engine does not support it."""
    reason = unknown_update(optimizer)
    return _ROWS[_kind(optimizer)](optimizer) if reason is None else reason


def _kind(optimizer: Any) -> type[keras.optimizers.Optimizer]:
    kind = type(optimizer)
    # On torch Keras uses a subclass that updates many variables at once.
    kinds = kind.__mro__ if kind.__module__.startswith("keras.src.backend.torch.") else (kind,)
    return next((each for each in kinds if each in _ROWS), kind)


def unknown_update(optimizer: Any) -> str | None:
    """Why the engine does not support an optimizer, built or not; None if it does."""
    if _kind(optimizer) not in _ROWS:
        return f"the engine has no optimizer {type(optimizer).__name__}"
    if optimizer.loss_scale_factor:
        return "the engine does not support an optimizer's loss_scale_factor"
    replaced = _METHODS & vars(optimizer).keys()
    if norms_of(optimizer) is not None:
        replaced -= {"apply"}
    if replaced:
        return f"its optimizer replaces its method {min(replaced)}"
    return None


def rule_of(optimizer: Any, update: OptimizerUpdate) -> UpdateRule:
    """The update and the clipping of an optimizer, in the core's form."""
    if optimizer.clipnorm:
        return UpdateRule(update.name, "norm", float(optimizer.clipnorm))
    if optimizer.global_clipnorm:
        return UpdateRule(update.name, "global_norm", float(optimizer.global_clipnorm))
    if optimizer.clipvalue:
        return UpdateRule(update.name, "value", float(optimizer.clipvalue))
    return UpdateRule(update.name)


def trained_weight(
    optimizer: Any, update: OptimizerUpdate | None, variable: Any, array: Callable[[Any], np.ndarray]
) -> TrainedWeight:
    """A weight and its optimizer variables, in the core's form.

    Args:
        optimizer: The optimizer.
        update: Its update; None for a step that evaluates, where the weight matters only to its regularizer.
        variable: The weight's variable.
        array: Returns the engine's array of a variable.
    """
    penalties = penalties_of(variable) or (0.0, 0.0, 0.0)
    if update is None:
        return TrainedWeight(array(variable), (), penalties=penalties)
    index = optimizer._get_variable_index(variable)

    def kept(variables: Sequence[Any] | None) -> np.ndarray | None:
        return None if variables is None else array(variables[index])

    return TrainedWeight(
        array(variable),
        tuple(map(kept, update.slots)),
        kept(optimizer._accumulated_gradients) if optimizer.gradient_accumulation_steps else None,
        kept(optimizer._model_variables_moving_average) if optimizer.use_ema else None,
        bool(optimizer.weight_decay) and bool(optimizer._use_weight_decay(variable)),
        penalties,
    )


def in_parts(weight: TrainedWeight, divided: bool) -> list[TrainedWeight]:
    """A weight, or its parts along the first axis if it is divided."""
    if not divided:
        return [weight]

    def part(array: np.ndarray | None, index: int) -> np.ndarray | None:
        return None if array is None else array[index]

    return [
        weight._replace(
            values=values,
            slots=tuple(part(slot, index) for slot in weight.slots),
            accumulated=part(weight.accumulated, index),
            average=part(weight.average, index),
        )
        for index, values in enumerate(weight.values)
    ]


def kept_by(optimizer: Any, update: OptimizerUpdate) -> list[Any]:
    """The variables of an optimizer that have the size of a weight."""
    lists = [
        *update.slots,
        optimizer._accumulated_gradients if optimizer.gradient_accumulation_steps else None,
        optimizer._model_variables_moving_average if optimizer.use_ema else None,
    ]
    return [each for variables in lists for each in variables or () if each is not None]


def penalties_of(variable: Any) -> tuple[float, float, float] | None:
    """l1 and l2 of a weight's regularizer and the slope of |w| at 0; None for an unknown regularizer."""
    regularizer = getattr(variable, "regularizer", None)
    if regularizer is None:
        return 0.0, 0.0, 0.0
    if type(regularizer) not in (regularizers.L1, regularizers.L2, regularizers.L1L2):
        return None
    l1, l2 = (keras.ops.convert_to_numpy(getattr(regularizer, name, 0.0)) for name in ("l1", "l2"))
    # The slope at 0 depends on the backend: on JAX, l1 moves a bias that starts at zero.
    return float(l1), float(l2), slope_of_absolute_at_zero()


def average_weight(values: np.ndarray, average: np.ndarray, numbers: Numbers) -> None:
    """Updates the moving average of a weight in a step that only accumulates gradients, like Keras."""
    average[...] = average * _FLOAT(numbers.kept) + values * _FLOAT(1 - numbers.kept)
    if numbers.averaged:
        values[...] = average


def has_penalty(variable: Any) -> bool:
    """True if a weight has a regularizer."""
    return getattr(variable, "regularizer", None) is not None


class StepCounter:
    """Counts the steps of an optimizer, and computes the numbers of each step.

    Args:
        optimizer: The optimizer.
        update: Its update.
        array: Returns the engine's array of a variable.
    """

    def __init__(self, optimizer: Any, update: OptimizerUpdate, array: Callable[[Any], np.ndarray]) -> None:
        self._optimizer, self._update, self._array = optimizer, update, array
        rate = optimizer._learning_rate
        self._rate = rate if isinstance(rate, keras.Variable) else None
        self._schedule = rate
        self._schedule_step: keras.Variable | None = None
        self._norms = norms_of(optimizer)
        # Keras's compiled function keeps these settings, too; on torch a change makes a new counter.
        self._decay = float(optimizer.weight_decay or 0.0)
        self._average = (float(optimizer.ema_momentum), optimizer.ema_overwrite_frequency or None)
        if not optimizer.use_ema:
            self._average = 0.0, None
        self._every = optimizer.gradient_accumulation_steps or 1
        self._product: float | None = None

    @property
    def variables(self) -> list[Any]:
        """The variables that the counter reads or changes."""
        return [
            one
            for one in (self._optimizer._iterations, self._rate, self._norms, self._update.product)
            if one is not None
        ]

    def numbers(self) -> Numbers:
        """The numbers of the next step; call `count` after the step."""
        self._product = None
        done = int(self._array(self._optimizer._iterations))
        # Keras counts updates, not steps.
        updates = done // self._every
        share = 1.0 if self._every == 1 else 1 / self._every if (done + 1) % self._every == 0 else 0.0
        momentum, every = self._average
        kept = momentum if updates else 0.0
        averaged = every is not None and (updates + 1) % every == 0
        if share == 0:
            return Numbers((), share=0.0, kept=kept, averaged=averaged)
        rate = self._learning_rate(done)
        passed: list[Any] = [rate, updates + 1]
        if self._update.multiplier is not None:
            before = _FLOAT(self._array(self._update.product))
            self._product = float(before * _FLOAT(self._update.multiplier(updates + 1)))
            passed.append(self._product)
        return Numbers(
            self._update.numbers(*passed),
            self._decay * rate,
            share,
            kept,
            averaged,
        )

    def count(self, norm: float) -> None:
        """Counts a step, whose gradients had the norm `norm`."""
        iterations = self._array(self._optimizer._iterations)
        iterations[...] = int(iterations) + 1
        if self._product is not None:
            self._array(self._update.product)[...] = self._product
        if self._norms is not None:
            self._array(self._norms)[...] += np.array([norm, 1.0], _FLOAT)

    def _learning_rate(self, done: int) -> float:
        if self._rate is not None:
            return float(self._array(self._rate))
        return float(keras.ops.convert_to_numpy(self._scheduled(done)))

    def _scheduled(self, done: int) -> Any:
        """The rate of the schedule in a step."""
        if self._schedule_step is None:
            try:
                return self._schedule(np.int32(done))
            except (AttributeError, TypeError):
                # A user's own schedule may need the variable that Keras passes.
                iterations = self._optimizer._iterations
                self._schedule_step = keras.Variable(0, trainable=False, dtype=iterations.dtype)
        self._schedule_step.assign(done)
        return self._schedule(self._schedule_step)


def _sgd(optimizer: Any) -> OptimizerUpdate:
    momentum = float(optimizer.momentum)
    if momentum == 0:
        return OptimizerUpdate("sgd", (), lambda rate, step: (rate,))
    name = "nesterov" if optimizer.nesterov else "momentum"
    return OptimizerUpdate(name, (optimizer.momentums,), lambda rate, step: (rate, momentum))


def _adam(optimizer: Any) -> OptimizerUpdate:
    first, second, epsilon = (float(getattr(optimizer, name)) for name in ("beta_1", "beta_2", "epsilon"))
    beta_1, beta_2 = _FLOAT(first), _FLOAT(second)

    def numbers(rate: float, step: int) -> tuple[float, ...]:
        # Powers in float32, like Keras: in the first steps their small distance from 1 matters.
        power_1, power_2 = float(beta_1 ** _FLOAT(step)), float(beta_2 ** _FLOAT(step))
        return rate * math.sqrt(1 - power_2) / (1 - power_1), 1 - first, 1 - second, epsilon

    slots = (optimizer._momentums, optimizer._velocities)
    if optimizer.amsgrad:
        return OptimizerUpdate("amsgrad", (*slots, optimizer._velocity_hats), numbers)
    return OptimizerUpdate("adam", slots, numbers)


def _nadam(optimizer: Any) -> OptimizerUpdate:
    first, second, epsilon = (float(getattr(optimizer, name)) for name in ("beta_1", "beta_2", "epsilon"))

    def factor(step: int) -> float:
        return float(_FLOAT(first) * (_FLOAT(1) - _FLOAT(0.5) * _FLOAT(0.96) ** _FLOAT(step)))

    def numbers(rate: float, step: int, product: float = 0.0) -> tuple[float, ...]:
        now, next_one = factor(step), factor(step + 1)
        product = product or now
        power = float(_FLOAT(second) ** _FLOAT(step))
        moment_share, gradient_share = next_one / (1 - product * next_one), (1 - now) / (1 - product)
        return rate * moment_share, rate * gradient_share, 1 - first, 1 - second, 1 / (1 - power), epsilon

    slots = (optimizer._momentums, optimizer._velocities)
    product = optimizer._u_product
    # Keras 3.15 does not list the product among the variables, so on JAX each step starts it at 1 again.
    forgotten = keras.backend.backend() == "jax" and all(one is not product for one in optimizer.variables)
    if forgotten:
        return OptimizerUpdate("nadam", slots, numbers)
    return OptimizerUpdate("nadam", slots, numbers, product, factor)


def _lion(optimizer: Any) -> OptimizerUpdate:
    first, second = float(optimizer.beta_1), float(optimizer.beta_2)
    return OptimizerUpdate("lion", (optimizer._momentums,), lambda rate, step: (rate, first, second))


def _rmsprop(optimizer: Any) -> OptimizerUpdate:
    rho, epsilon, momentum = (float(getattr(optimizer, name)) for name in ("rho", "epsilon", "momentum"))
    slots = (
        optimizer._velocities,
        optimizer._momentums if momentum > 0 else None,
        optimizer._average_gradients if optimizer.centered else None,
    )
    return OptimizerUpdate("rmsprop", slots, lambda rate, step: (rate, rho, epsilon, momentum))


def _adagrad(optimizer: Any) -> OptimizerUpdate:
    epsilon = float(optimizer.epsilon)
    return OptimizerUpdate("adagrad", (optimizer._accumulators,), lambda rate, step: (rate, epsilon))


def _adamax(optimizer: Any) -> OptimizerUpdate:
    first, second, epsilon = (float(getattr(optimizer, name)) for name in ("beta_1", "beta_2", "epsilon"))

    def numbers(rate: float, step: int) -> tuple[float, ...]:
        return rate, 1 - first, second, 1 - float(_FLOAT(first) ** _FLOAT(step)), epsilon

    return OptimizerUpdate("adamax", (optimizer._m, optimizer._u), numbers)


def _adadelta(optimizer: Any) -> OptimizerUpdate:
    rho, epsilon = float(optimizer.rho), float(optimizer.epsilon)
    slots = (optimizer._accumulated_grads, optimizer._accumulated_delta_vars)
    return OptimizerUpdate("adadelta", slots, lambda rate, step: (rate, rho, epsilon))


def _ftrl(optimizer: Any) -> OptimizerUpdate:
    power, l1, l2, shrinkage, beta = (
        float(getattr(optimizer, name))
        for name in (
            "learning_rate_power",
            "l1_regularization_strength",
            "l2_regularization_strength",
            "l2_shrinkage_regularization_strength",
            "beta",
        )
    )

    def numbers(rate: float, step: int) -> tuple[float, ...]:
        # Like Keras, where a learning rate of 0 makes weights infinite or NaN.
        added = float(_FLOAT(beta) / _FLOAT(2 * rate)) if beta or not rate else 0.0
        return rate, -power, l1, 2 * (l2 + added), 2 * shrinkage

    return OptimizerUpdate("ftrl", (optimizer._accumulators, optimizer._linears), numbers)


_ROWS: dict[type[keras.optimizers.Optimizer], Callable[[Any], OptimizerUpdate]] = {
    optimizers.SGD: _sgd,
    optimizers.Adam: _adam,
    optimizers.AdamW: _adam,
    optimizers.RMSprop: _rmsprop,
    optimizers.Adagrad: _adagrad,
    optimizers.Nadam: _nadam,
    optimizers.Lion: _lion,
    optimizers.Adamax: _adamax,
    optimizers.Adadelta: _adadelta,
    optimizers.Ftrl: _ftrl,
}
