"""The work of a layer, and the time this machine would need at its peak."""

from __future__ import annotations

import math
import time
from typing import Any

import keras
import numpy as np

from cellerate.kernels import native
from cellerate.layers.conditions import Platform

_SIZE, _MEASURED_S = 4096, 0.2


def multiplications(layer: Any, inputs: Any, outputs: Any) -> int | None:
    """The multiplications of a layer's forward pass.

    Args:
        layer: A built layer.
        inputs: The shape of its first input, or several; None if unknown.
        outputs: The shape of its first output.

    Returns:
        The number, for all rows; None for a layer of an unknown kind.
    """
    if isinstance(layer, keras.layers.RNN):
        cell = layer.cell
        matrices = [getattr(cell, name, None) for name in ("kernel", "recurrent_kernel")]
        if inputs is None or len(inputs) != 3 or any(matrix is None for matrix in matrices):
            return None
        return inputs[0] * inputs[1] * sum(_count(matrix) for matrix in matrices)
    if isinstance(
        layer, keras.layers.Dense | keras.layers.EinsumDense | keras.layers.Conv1D | keras.layers.Conv2D
    ):
        if outputs is None or not outputs[-1]:
            return None
        return math.prod(outputs[:-1]) * _count(layer.kernel)
    if isinstance(layer, keras.layers.Embedding):
        # An embedding that looks ids up multiplies nothing; as the head of a model it does.
        looks_up = inputs is None or outputs is None or len(outputs) > len(inputs)
        return 0 if looks_up else math.prod(outputs[:-1]) * _count(layer.embeddings)
    return 0 if isinstance(layer, keras.layers.Wrapper | keras.layers.Bidirectional) else None


def peak_flops(model: keras.Model) -> tuple[float | None, str]:
    """The peak rate of multiply-adds on this machine in a model's precision, in operations per second.

    Returns:
        The measured rate, and how it was measured; or None, and why it is unknown.
    """
    precision = model.dtype_policy.compute_dtype
    if Platform.of(keras.config.backend(), model).gpu:
        return _matmul_rate(precision), f"a product of {precision} matrices of {_SIZE} x {_SIZE}"
    if (reason := native.why_unavailable()) is not None:
        return None, reason
    known = precision if precision in ("float32", "bfloat16") else "float32"
    return native.measure_peak(known), f"multiply-adds in {known} on {native.num_threads()} threads"


def _matmul_rate(precision: str) -> float:
    left = keras.ops.cast(np.random.default_rng(0).standard_normal((_SIZE, _SIZE), np.float32), precision)

    def once() -> None:
        keras.ops.convert_to_numpy(keras.ops.matmul(left, left)[0, 0])

    once()
    best, began = math.inf, time.perf_counter()
    while time.perf_counter() - began < _MEASURED_S:
        start = time.perf_counter()
        once()
        best = min(best, time.perf_counter() - start)
    return 2 * _SIZE**3 / best


def _count(matrix: Any) -> int:
    return math.prod(matrix.shape)
