"""Each activation and its derivative in NumPy: slow and obvious."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np

from cellerate import activations

Function = Callable[[np.ndarray], np.ndarray]
# Klambauer et al., 2017: with these a mean of 0 and a variance of 1 pass through unchanged.
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


@dataclasses.dataclass(frozen=True)
class Activation:
    """One activation.

    Attributes:
        value: The activation of a pre-activation, element by element.
        derivative: The derivative of `value` at the same pre-activation. At a kink, where there is none, it is
            the value that most of Keras's backends agree on.
    """

    value: Function
    derivative: Function


@functools.lru_cache(maxsize=1024)
def activation_of(activation: str) -> Activation:
    """The functions of an activation of `cellerate.activations`, parameters included.

    Raises:
        ConfigError: It is none.
    """
    name, parameters = activations.read(activation)
    return _MADE[name](**parameters) if name in _MADE else _FIXED[name]


def _sigmoid(x: np.ndarray) -> np.ndarray:
    # The argument of exp is never positive, so it cannot overflow.
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, x)


def _inside(low: float, x: np.ndarray, high: float) -> np.ndarray:
    """1 strictly between two kinks, 0 elsewhere."""
    return ((low < x) & (x < high)).astype(np.float64)


def _normal_cdf(x: np.ndarray) -> np.ndarray:
    # NumPy has no erf. This takes erfc because 1 + erf(x) loses all its digits where x is far below 0.
    erfc = np.vectorize(math.erfc, otypes=[np.float64])
    return 0.5 * erfc(-x / math.sqrt(2))


def _d_gelu(x: np.ndarray) -> np.ndarray:
    return _normal_cdf(x) + x * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def _d_mish(x: np.ndarray) -> np.ndarray:
    inner = np.tanh(_softplus(x))
    return inner + x * (1 - inner**2) * _sigmoid(x)


def _sparse_plus(x: np.ndarray) -> np.ndarray:
    return np.where(x < 1, (np.clip(x, -1, 1) + 1) ** 2 / 4, x)


def _relu(
    negative_slope: float, max_value: float, threshold: float, slope_at_ends: float = 1.0
) -> Activation:
    if not negative_slope and not threshold and max_value == math.inf:
        return Activation(lambda x: np.maximum(x, 0), lambda x: np.where(x > 0, 1.0, 0.0))
    # A negative threshold lets negative numbers pass, but a maximum cuts them off at 0 as well.
    low = 0.0 if max_value < math.inf else -math.inf

    def value(x: np.ndarray) -> np.ndarray:
        return np.where(x > threshold, np.clip(x, low, max_value), negative_slope * (x - threshold))

    def derivative(x: np.ndarray) -> np.ndarray:
        ends = np.where((x == low) | (x == max_value), slope_at_ends, 0.0)
        above = np.where((x > low) & (x < max_value), 1.0, ends)
        return np.where(x > threshold, above, np.where(x < threshold, negative_slope, 0.0))

    return Activation(value, derivative)


def _leaky_relu(negative_slope: float) -> Activation:
    return Activation(
        lambda x: np.where(x > 0, x, negative_slope * x), lambda x: np.where(x > 0, 1, negative_slope)
    )


def _leaky_relu_from_above(negative_slope: float) -> Activation:
    return Activation(_leaky_relu(negative_slope).value, lambda x: np.where(x >= 0, 1, negative_slope))


def _elu(alpha: float) -> Activation:
    return Activation(
        lambda x: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
        lambda x: np.where(x > 0, 1, alpha * np.exp(np.minimum(x, 0))),
    )


def _celu(alpha: float) -> Activation:
    return Activation(
        lambda x: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / alpha)),
        lambda x: np.exp(np.minimum(x, 0) / alpha),
    )


def _celu_of_both_sides(alpha: float) -> Activation:
    one = _celu(alpha)
    return Activation(one.value, lambda x: np.where(x == 0, 2, one.derivative(x)))


def _gelu(approximate: float) -> Activation:
    if not approximate:
        return Activation(lambda x: x * _normal_cdf(x), _d_gelu)
    # Hendrycks and Gimpel, 2016, equation 2; (1 + tanh u) / 2 is the sigmoid of 2u, which loses no digits.
    scale = 2 * math.sqrt(2 / math.pi)
    cubic = 0.044715 * scale

    def factor(x: np.ndarray) -> np.ndarray:
        return _sigmoid(x * (scale + cubic * x**2))

    def derivative(x: np.ndarray) -> np.ndarray:
        s = factor(x)
        return s + x * s * (1 - s) * (scale + 3 * cubic * x**2)

    return Activation(lambda x: x * factor(x), derivative)


def _outside(threshold: float, x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) > threshold, 1.0, 0.0)


def _hard_shrink(threshold: float) -> Activation:
    return Activation(lambda x: x * _outside(threshold, x), functools.partial(_outside, threshold))


def _hard_shrink_of_numbers(threshold: float) -> Activation:
    return Activation(lambda x: np.where(np.abs(x) > threshold, x, 0), functools.partial(_outside, threshold))


def _soft_shrink(threshold: float) -> Activation:
    return Activation(
        lambda x: np.sign(x) * np.maximum(np.abs(x) - threshold, 0), functools.partial(_outside, threshold)
    )


def _soft_shrink_of_numbers(threshold: float) -> Activation:
    shrunk = _soft_shrink(threshold)
    return Activation(
        lambda x: np.where(np.abs(x) > threshold, shrunk.value(x), 0), functools.partial(_outside, threshold)
    )


def _squareplus(b: float) -> Activation:
    return Activation(lambda x: (x + np.sqrt(x**2 + b)) / 2, lambda x: (1 + x / np.sqrt(x**2 + b)) / 2)


def _threshold(threshold: float, default_value: float) -> Activation:
    return Activation(
        lambda x: np.where(x > threshold, x, default_value), lambda x: np.where(x > threshold, 1.0, 0.0)
    )


# By their names; those in `_MADE` from their parameters.
_MADE: dict[str, Callable[..., Activation]] = {
    "relu": _relu,
    "relu_between": functools.partial(_relu, slope_at_ends=0.5),
    "leaky_relu": _leaky_relu,
    "leaky_relu_from_above": _leaky_relu_from_above,
    "elu": _elu,
    "celu": _celu,
    "celu_of_both_sides": _celu_of_both_sides,
    "gelu": _gelu,
    "hard_shrink": _hard_shrink,
    "hard_shrink_of_numbers": _hard_shrink_of_numbers,
    "soft_shrink": _soft_shrink,
    "soft_shrink_of_numbers": _soft_shrink_of_numbers,
    "squareplus": _squareplus,
    "threshold": _threshold,
}
_FIXED: dict[str, Activation] = {
    "linear": Activation(lambda x: x, np.ones_like),
    "tanh": Activation(np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    "sigmoid": Activation(_sigmoid, lambda x: _sigmoid(x) * _sigmoid(-x)),
    "hard_sigmoid": Activation(lambda x: np.clip(x + 3, 0, 6) / 6, lambda x: _inside(-3, x, 3) / 6),
    "softplus": Activation(_softplus, _sigmoid),
    "softsign": Activation(lambda x: x / (1 + np.abs(x)), lambda x: 1 / (1 + np.abs(x)) ** 2),
    "selu": Activation(
        lambda x: _SELU_SCALE * np.where(x > 0, x, _SELU_ALPHA * np.expm1(np.minimum(x, 0))),
        lambda x: _SELU_SCALE * np.where(x > 0, 1, _SELU_ALPHA * np.exp(np.minimum(x, 0))),
    ),
    "exponential": Activation(np.exp, np.exp),
    "relu6": Activation(lambda x: np.clip(x, 0, 6), lambda x: _inside(0, x, 6)),
    "silu": Activation(lambda x: x * _sigmoid(x), lambda x: _sigmoid(x) * (1 + x * _sigmoid(-x))),
    "hard_silu": Activation(
        lambda x: x * np.clip(x + 3, 0, 6) / 6,
        lambda x: np.where(x < 3, _inside(-3, x, 3) * (2 * x + 3) / 6, 1),
    ),
    "hard_tanh": Activation(lambda x: np.clip(x, -1, 1), lambda x: np.where(np.abs(x) <= 1, 1.0, 0.0)),
    "hard_tanh_open": Activation(lambda x: np.clip(x, -1, 1), lambda x: _inside(-1, x, 1)),
    "mish": Activation(lambda x: x * np.tanh(_softplus(x)), _d_mish),
    "log_sigmoid": Activation(lambda x: -_softplus(-x), lambda x: _sigmoid(-x)),
    "tanh_shrink": Activation(lambda x: x - np.tanh(x), lambda x: np.tanh(x) ** 2),
    "sparse_plus": Activation(_sparse_plus, lambda x: (np.clip(x, -1, 1) + 1) / 2),
    "sparse_sigmoid": Activation(lambda x: (np.clip(x, -1, 1) + 1) / 2, lambda x: _inside(-1, x, 1) / 2),
    "sparse_sigmoid_between": Activation(
        lambda x: (np.clip(x, -1, 1) + 1) / 2,
        lambda x: np.where(np.abs(x) == 1, 0.25, _inside(-1, x, 1) / 2),
    ),
}
_FIXED["selu_from_above"] = Activation(
    _FIXED["selu"].value, lambda x: np.where(x == 0, _SELU_SCALE, _FIXED["selu"].derivative(x))
)
