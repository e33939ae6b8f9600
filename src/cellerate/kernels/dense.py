"""A dense layer on the native core, forward and backward, on NumPy arrays."""

import numpy as np

from cellerate.kernels.native import call, empty


def dense(x: np.ndarray, kernel: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """A dense layer, x·kernel + bias.

    Args:
        x: (M, K) float32 or bfloat16.
        kernel: (K, N) float32.
        bias: (N,) float32, or None.

    Returns:
        (M, N), of the dtype of x.

    Raises:
        ConfigError: A shape or dtype is wrong.
        BackendError: The core is not installed.
    """
    given = [None if a is None else np.ascontiguousarray(a) for a in (x, kernel, bias)]
    y = empty((*x.shape[:1], *kernel.shape[1:]), x.dtype)
    call("dense_forward", tuple(given), (y,))
    return y


def dense_backward(
    x: np.ndarray, kernel: np.ndarray, bias: np.ndarray | None, d_y: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The gradients of `dense` for x, kernel and bias (None without one), given the cotangent d_y (M, N)."""
    given = [None if a is None else np.ascontiguousarray(a) for a in (x, kernel, bias, d_y)]
    results = tuple(None if a is None else empty(a.shape, a.dtype) for a in given[:3])
    call("dense_backward", tuple(given), results)
    d_x, d_kernel, d_bias = results
    assert d_x is not None and d_kernel is not None  # noqa: S101 (as x and kernel are)
    return d_x, d_kernel, d_bias
