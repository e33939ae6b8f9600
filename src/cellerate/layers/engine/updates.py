"""The optimizers of Keras that the engine has: a row each, and the numbers of a step."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import optimizers

from cellerate.kernels.training.cpu import UpdateRule

_FLOAT = np.float32


class OptimizerUpdate(NamedTuple):
    """The way an optimizer changes weights.

    Attributes:
        name: As the core names it.
        slots: The optimizer's lists of variables, in the order of the update's slots; None for one that it lacks.
        numbers: From the learning rate and the number of the step, counted from 1, the numbers of the update.
    """

    name: str
    slots: tuple[Sequence[Any] | None, ...]
    numbers: Callable[[float, int], tuple[float, ...]]


def update_of(optimizer: Any) -> OptimizerUpdate | str:
    """The update of a built optimizer; or why the engine has it not."""
    kind = type(optimizer)
    # On torch Keras makes a subclass that does the same to many variables at once.
    kinds = kind.__mro__ if kind.__module__.startswith("keras.src.backend.torch.") else (kind,)
    row = next((_ROWS[each] for each in kinds if each in _ROWS), None)
    if row is None:
        return f"the engine has no optimizer {type(optimizer).__name__}"
    for name in ("gradient_accumulation_steps", "use_ema", "loss_scale_factor"):
        if getattr(optimizer, name, None):
            return f"the engine does not have {name} of an optimizer"
    return row(optimizer)


def rule_of(optimizer: Any, update: OptimizerUpdate) -> UpdateRule:
    """An optimizer as the core takes it."""
    if optimizer.clipnorm:
        return UpdateRule(update.name, "norm", float(optimizer.clipnorm))
    if optimizer.global_clipnorm:
        return UpdateRule(update.name, "global_norm", float(optimizer.global_clipnorm))
    if optimizer.clipvalue:
        return UpdateRule(update.name, "value", float(optimizer.clipvalue))
    return UpdateRule(update.name)


def _sgd(optimizer: Any) -> OptimizerUpdate:
    momentum = float(optimizer.momentum)
    if momentum == 0:
        return OptimizerUpdate("sgd", (), lambda rate, step: (rate,))
    name = "nesterov" if optimizer.nesterov else "momentum"
    return OptimizerUpdate(name, (optimizer.momentums,), lambda rate, step: (rate, momentum))


def _adam(optimizer: Any) -> OptimizerUpdate:
    first, second, epsilon = (float(getattr(optimizer, name)) for name in ("beta_1", "beta_2", "epsilon"))

    def numbers(rate: float, step: int) -> tuple[float, ...]:
        # Powers in float32, as Keras takes them: their distance from 1 is what counts in the first steps.
        power_1, power_2 = (float(_FLOAT(beta) ** _FLOAT(step)) for beta in (first, second))
        return rate * math.sqrt(1 - power_2) / (1 - power_1), 1 - first, 1 - second, epsilon

    slots = (optimizer._momentums, optimizer._velocities)
    if optimizer.amsgrad:
        return OptimizerUpdate("amsgrad", (*slots, optimizer._velocity_hats), numbers)
    return OptimizerUpdate("adam", slots, numbers)


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


_ROWS: dict[type[keras.optimizers.Optimizer], Callable[[Any], OptimizerUpdate]] = {
    optimizers.SGD: _sgd,
    optimizers.Adam: _adam,
    optimizers.AdamW: _adam,
    optimizers.RMSprop: _rmsprop,
    optimizers.Adagrad: _adagrad,
}
