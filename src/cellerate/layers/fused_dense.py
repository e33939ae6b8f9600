"""A Dense layer of Keras on Cellerate's kernels, as the head of an accelerated LSTM.

Once the LSTM is fast, the head takes more than half of the remaining time of a training step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import layers, ops

from cellerate.keras_graph.keras_backend import weight
from cellerate.kernels import native
from cellerate.kernels.dense import DENSE
from cellerate.layers import fused

# Multiplications of a call below which Keras's own code is as fast.
_WORTH_IT = 1 << 20
# The same limit for a single row, for when the number of rows is not known in advance.
_WORTH_IT_PER_ROW = 1 << 12


def fits(layer: layers.Dense) -> bool:
    """True if a Dense layer can run on the native core at all."""
    return (
        type(layer).call is layers.Dense.call
        and layer.compute_dtype in native.storage_types()
        and fused.core_runs_here()
    )


def run(layer: layers.Dense, original: Callable[..., Any], inputs: Any, training: bool | None = None) -> Any:
    """Stands in for `Dense.call`: `activation(inputs·kernel + bias)` on the native core, or the original.

    Args:
        layer: The layer; with LoRA or quantized weights it runs the original.
        original: Keras's own `call` of this layer.
        inputs: (..., K); sparse tensors, and dtypes other than the layer's, run the original.
        training: Passed on to Keras's call; the core ignores it.

    Returns:
        (..., N).
    """
    inputs = ops.convert_to_tensor(inputs)
    changed = getattr(layer, "lora_enabled", False) or getattr(layer, "quantization_mode", None) is not None
    other = not _is_dense(inputs) or keras.backend.standardize_dtype(inputs.dtype) != layer.compute_dtype
    if changed or other or not _worth_it(inputs.shape, layer.units) or fused.traced_for() is not None:
        return original(inputs, training=training)
    width = inputs.shape[-1]
    x = ops.reshape(inputs, (-1, width))
    arrays = {"x": x, "kernel": weight(layer.kernel)}
    if layer.bias is not None:
        arrays["bias"] = weight(layer.bias)
    (y,) = fused.bridge().run(DENSE, arrays)
    y = ops.reshape(y, (*ops.shape(inputs)[:-1], layer.units))
    return y if layer.activation is None else layer.activation(y)


def _is_dense(tensor: Any) -> bool:
    """False for the sparse tensors of JAX, TensorFlow and torch, each of which says so in its own way."""
    marks = (hasattr(tensor, "todense"), hasattr(tensor, "dense_shape"), getattr(tensor, "is_sparse", False))
    return not any(marks)


def _worth_it(shape: tuple[int | None, ...], units: int) -> bool:
    *rows, width = shape
    # Keras computes tensors without elements or of unknown width, which may stand for a shape only, and lone vectors.
    if not rows or width is None or 0 in shape:
        return False
    if None in rows:
        return width * units >= _WORTH_IT_PER_ROW
    return math.prod(size for size in rows if size is not None) * width * units >= _WORTH_IT
