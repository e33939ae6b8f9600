"""The element-wise activations that Cellerate computes, in `.cell` files, on the CPU and on GPUs.

An activation is written by its Keras name, such as `tanh`, with the parameters that differ from Keras's defaults, such
as `leaky_relu(negative_slope=0.05)`.
"""

import functools
import math
import re
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from cellerate.errors import ConfigError

ACTIVATIONS: tuple[str, ...] = (
    "linear",
    "tanh",
    "sigmoid",
    "relu",
    "hard_sigmoid",
    "softplus",
    "softsign",
    "elu",
    "selu",
    "exponential",
    "relu6",
    "leaky_relu",
    "silu",
    "gelu",
    "hard_silu",
    "hard_tanh",
    "mish",
    "celu",
    "log_sigmoid",
    "hard_shrink",
    "soft_shrink",
    "tanh_shrink",
    "squareplus",
    "sparse_plus",
    "sparse_sigmoid",
    "threshold",
)
"""The activations the kernels know, by Keras's names."""

PARAMETERS: Mapping[str, Mapping[str, float | None]] = MappingProxyType(
    {
        "relu": {"negative_slope": 0.0, "max_value": math.inf, "threshold": 0.0},
        "elu": {"alpha": 1.0},
        "leaky_relu": {"negative_slope": 0.2},
        # 1 for the approximation by tanh.
        "gelu": {"approximate": 0.0},
        "celu": {"alpha": 1.0},
        "hard_shrink": {"threshold": 0.5},
        "soft_shrink": {"threshold": 0.5},
        "squareplus": {"b": 4.0},
        "threshold": {"threshold": None, "default_value": None},
    }
)
"""The parameters of activations, by Keras's names, with Keras's defaults; None for a parameter without a default.
Keras's `max_value=None` is infinity here."""

VARIANTS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        # The slope at 0 is the slope above 0.
        "selu_from_above": ("selu", ("tensorflow",)),
        "leaky_relu_from_above": ("leaky_relu", ("jax",)),
        # The slope at 0 is 2, the sum of both sides.
        "celu_of_both_sides": ("celu", ("tensorflow",)),
        # The slope at -1 and 1 is 0.
        "hard_tanh_open": ("hard_tanh", ("torch",)),
        # The slope at -1 and 1 is the mean of both sides.
        "sparse_sigmoid_between": ("sparse_sigmoid", ("jax",)),
        # A NaN becomes 0.
        "hard_shrink_of_numbers": ("hard_shrink", ("tensorflow", "jax")),
        "soft_shrink_of_numbers": ("soft_shrink", ("tensorflow", "jax")),
        # The slope where a maximum cuts off, and at 0 below a negative threshold, is that of the middle.
        "relu_between": ("relu", ("jax",)),
    }
)
"""Activations that differ from one above at single points only: name → (that one, the backends of Keras that compute
it so). Kernels that train know them; `.cell` files hold none."""

KERNEL_ACTIVATIONS = (*ACTIVATIONS, *VARIANTS)
"""All activations that the kernels of layers know."""

MOST_PARAMETERS = max(map(len, PARAMETERS.values()))
# A name, and a list of parameters in brackets or none.
_WRITTEN = re.compile(r"(?P<name>[a-z_0-9]+)(?:\((?P<parameters>[a-z_]+=[^,()=]+(?:, [a-z_]+=[^,()=]+)*)\))?")


def written(name: str, parameters: Mapping[str, float] = MappingProxyType({})) -> str:
    """An activation as text, with the float32 parameters that are not the defaults.

    Example:
        >>> written("leaky_relu", {"negative_slope": 0.05})
        'leaky_relu(negative_slope=0.05)'
    """
    defaults = _defaults(name)
    given = {n: _shortest(parameters[n]) for n in defaults if n in parameters}
    other = {n: value for n, value in given.items() if value != defaults[n]}
    return f"{name}({', '.join(f'{n}={value!r}' for n, value in other.items())})" if other else name


@functools.lru_cache(maxsize=1024)
def read(activation: str) -> tuple[str, Mapping[str, float]]:
    """Return the name of an activation, one of `KERNEL_ACTIVATIONS`, and all its parameters.

    Raises:
        ConfigError: The text is not an activation, or not written as `written` writes it.

    Example:
        >>> name, parameters = read("leaky_relu(negative_slope=0.05)")
        >>> name, dict(parameters)
        ('leaky_relu', {'negative_slope': 0.05})
    """
    found = _WRITTEN.fullmatch(activation)
    if found is None or found["name"] not in KERNEL_ACTIVATIONS:
        raise ConfigError(expected(activation))
    name, listed = found["name"], found["parameters"] or ""
    try:
        given = {key: float(value) for key, value in (one.split("=") for one in listed.split(", ") if one)}
        every = {key: given.get(key, default) for key, default in _defaults(name).items()}
        values = {key: value for key, value in every.items() if value is not None}
        right = activation == written(name, given) and len(values) == len(every)
        right = right and all(map(math.isfinite, given.values()))
        right = right and not (name in ("celu", "celu_of_both_sides") and values["alpha"] <= 0)
    except ValueError:
        right = False
    if not right:
        parameters = ", ".join(_defaults(name)) or "none"
        raise ConfigError(f"{activation!r}: expected {name} with numbers for its parameters: {parameters}.")
    return name, MappingProxyType(values)


def expected(activation: object) -> str:
    """The sentence that refuses something that is not an activation."""
    return (
        f"expected one of {', '.join(ACTIVATIONS)}, with its parameters where they are not Keras's defaults, such as "
        f"leaky_relu(negative_slope=0.05); got {activation!r}."
    )


def is_activation(activation: object) -> bool:
    """Return True for an activation that a `.cell` file may hold."""
    if not isinstance(activation, str):
        return False
    try:
        return read(activation)[0] in ACTIVATIONS
    except ConfigError:
        return False


@functools.lru_cache(maxsize=1024)
def parameter_bits(activation: str) -> tuple[str, tuple[int, ...]]:
    """An activation's name, and its parameters as the bits of float32 numbers, with zeros up to `MOST_PARAMETERS`.

    Raises:
        ConfigError: See `read`.
    """
    name, parameters = read(activation)
    bits = np.zeros(MOST_PARAMETERS, np.float32)
    bits[: len(parameters)] = list(parameters.values())
    return name, tuple(map(int, bits.view(np.int32)))


def of_bits(name: str, bits: tuple[int, ...]) -> str:
    """The inverse of `parameter_bits`."""
    values = np.array(bits, np.int32).view(np.float32)
    return written(name, dict(zip(_defaults(name), values, strict=False)))


def on_backend(activation: str, backend: str) -> str:
    """An activation as a backend of Keras computes it, to the last single point.

    Args:
        activation: One of `ACTIVATIONS`, with its parameters.
        backend: "tensorflow", "jax" or "torch".

    Returns:
        The same, or one of `VARIANTS` with the same parameters.
    """
    name, parameters = read(activation)
    if name == "relu" and parameters["max_value"] == math.inf:
        return activation
    same = (variant for variant, (of, backends) in VARIANTS.items() if of == name and backend in backends)
    return written(next(same, name), parameters)


def _shortest(value: float) -> float:
    """The number with the fewest digits that is the same in float32."""
    return float(str(np.float32(value)))


def _defaults(name: str) -> Mapping[str, float | None]:
    return PARAMETERS.get(VARIANTS[name][0] if name in VARIANTS else name, {})
