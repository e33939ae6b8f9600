"""The element-wise activations that Cellerate computes, in `.cell` files, on the CPU and on GPUs."""

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
