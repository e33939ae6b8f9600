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
"""The activations kernels know, by Keras's names and with its defaults; a code is an index here, never moved.

Keras's `threshold` is not among them: it has no defaults, so a layer that names it cannot be called.
"""
