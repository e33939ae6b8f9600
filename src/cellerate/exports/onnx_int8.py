"""Weights of 8 bits that every processor multiplies exactly, and the proof that a file has no others.

ONNX Runtime multiplies inputs of 0 to 255 by weights of -127 to 127. Processors with VNNI add four such products in
32 bits. Other processors (`vpmaddubsw`) first add two products, of neighbouring rows of the weights, in 16 bits, and
a sum beyond 32767 becomes 32767. So the weights of a pair must not exceed 128 together.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

from cellerate.errors import ModelError

MOST_IN_16_BITS = 2**15 - 1
_LARGEST_INPUT = 255
_LARGEST_WEIGHT = 127
# Rounding adds up to a half to each of the two weights, so that their sum is at most 128.
_LARGEST_SUM = 127.9
# The inputs of each operator that are weights.
_WEIGHTS = {"DynamicQuantizeLSTM": (1, 2), "MatMulInteger": (1,)}


class Rounded(NamedTuple):
    """A matrix of 8 bits.

    Attributes:
        values: (..., K, N), int8.
        scales: (..., N), float32: a column's values times its scale approximate the original numbers.
    """

    values: np.ndarray
    scales: np.ndarray


def rounded(matrix: np.ndarray) -> Rounded:
    """Round a matrix (..., K, N) to 8 bits, each column with the finest scale at which no pair overflows."""
    largest = np.abs(matrix).max(axis=-2)
    scales = np.maximum(largest / _LARGEST_WEIGHT, _pairs(matrix) / _LARGEST_SUM).astype(np.float32)
    scales[scales == 0] = 1
    return Rounded(np.rint(matrix / scales[..., np.newaxis, :]).astype(np.int8), scales)


def proved_pair(path: Path) -> int:
    """The largest sum of two products that the weights of a file allow.

    Raises:
        ModelError: The sum does not fit 16 bits.
    """
    found = largest_pair(onnx.load(path))
    if found > MOST_IN_16_BITS:
        raise ModelError(
            f"the weights of the exported model allow two products to add up to {found}, and processors without VNNI "
            f"hold {MOST_IN_16_BITS} at most. Nothing was written; please report it, with the model."
        )
    return found


def largest_pair(model: onnx.ModelProto) -> int:
    """The largest sum of two products that the weights of a model allow, whatever its inputs."""
    constants = {constant.name: constant for constant in model.graph.initializer}
    names = {node.input[place] for node in model.graph.node for place in _WEIGHTS.get(node.op_type, ())}
    found = (_pairs(numpy_helper.to_array(constants[name]).astype(np.int32)).max() for name in names)
    return _LARGEST_INPUT * int(max(found, default=0))


def _pairs(matrix: np.ndarray) -> np.ndarray:
    """The largest absolute sum of two neighbours of one sign in each column."""
    rows = np.concatenate([matrix, np.zeros_like(matrix[..., :1, :])], axis=-2)
    rows = rows[..., : rows.shape[-2] // 2 * 2, :]
    first, second = rows[..., ::2, :], rows[..., 1::2, :]
    above = np.maximum(first, 0) + np.maximum(second, 0)
    below = np.minimum(first, 0) + np.minimum(second, 0)
    return np.maximum(above, -below).max(axis=-2)
