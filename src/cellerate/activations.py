"""The element-wise activations that Cellerate computes, in `.cell` files, on the CPU and on GPUs."""

from collections.abc import Mapping
from types import MappingProxyType

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
)
"""The activations the kernels know, by Keras's names and with its defaults.

An activation's code is its index here, so entries never move. Keras's `threshold` is missing because it has no
defaults: a layer that names it cannot be called.
"""

VARIANTS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        # The slope at 0 is that above 0.
        "selu_from_above": ("selu", ("tensorflow",)),
        "leaky_relu_from_above": ("leaky_relu", ("jax",)),
        # The slope at 0 is 2, the sum of both sides.
        "celu_of_both_sides": ("celu", ("tensorflow",)),
        # The slope at -1 and 1 is 0.
        "hard_tanh_open": ("hard_tanh", ("torch",)),
        # The slope at -1 and 1 is that of the middle between both sides.
        "sparse_sigmoid_between": ("sparse_sigmoid", ("jax",)),
        # A NaN becomes 0.
        "hard_shrink_of_numbers": ("hard_shrink", ("tensorflow", "jax")),
        "soft_shrink_of_numbers": ("soft_shrink", ("tensorflow", "jax")),
    }
)
"""Activations that differ from one above at single points only: name → (that one, the backends of Keras that compute
it so). Kernels that train know them, by the codes that follow; `.cell` files hold none."""

KERNEL_ACTIVATIONS = (*ACTIVATIONS, *VARIANTS)
"""All that the kernels of layers know, by their codes."""


def on_backend(activation: str, backend: str) -> str:
    """The name of an activation as a backend of Keras computes it, to the last single point.

    Args:
        activation: One of `ACTIVATIONS`.
        backend: "tensorflow", "jax" or "torch".

    Returns:
        One of `KERNEL_ACTIVATIONS`.
    """
    same = (name for name, (of, backends) in VARIANTS.items() if of == activation and backend in backends)
    return next(same, activation)
