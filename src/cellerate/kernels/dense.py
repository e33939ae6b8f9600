"""A dense layer on the native core, forward and backward, on NumPy arrays."""

from __future__ import annotations

import numpy as np

from cellerate.kernels.operation import Codes, CoreOperation, Given, backward, forward


def _shapes(given: Given, codes: Codes) -> dict[str, tuple[int, ...]]:
    return {"y": (*given["x"].shape[:1], *given["kernel"].shape[1:])}


DENSE = CoreOperation(
    name="dense",
    arguments=("x", "kernel", "bias"),
    differentiable=("x", "kernel", "bias"),
    results=("y",),
    typed_by=("x",),
    shapes=_shapes,
    batch_axes={"x": 0, "y": 0},
)


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
    return forward(DENSE, _given(x, kernel, bias))["y"]


def dense_backward(
    x: np.ndarray, kernel: np.ndarray, bias: np.ndarray | None, d_y: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The gradients of `dense` for x, kernel and bias (None without one), given the cotangent d_y (M, N)."""
    found = backward(DENSE, _given(x, kernel, bias), {}, {"y": d_y})
    return found["x"], found["kernel"], found.get("bias")


def _given(x: np.ndarray, kernel: np.ndarray, bias: np.ndarray | None) -> dict[str, np.ndarray]:
    return {"x": x, "kernel": kernel} | ({} if bias is None else {"bias": bias})
