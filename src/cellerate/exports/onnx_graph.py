"""An ONNX graph under construction: nodes, constants, and a unique name for each value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from cellerate.exports.onnx_int8 import rounded

RUNTIMES_OWN = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""
TO_THE_END, BEFORE_THE_START = 2**63 - 1, -(2**63)
"""The end of a Slice that goes to the end of an axis, forwards and backwards."""
Form = Callable[[np.ndarray], np.ndarray]
"""A transformation of an array before it is written."""


class Given(NamedTuple):
    """The inputs of an operation.

    Attributes:
        values: The value of each input, by name.
        axes: The number of axes of each input, by name.
    """

    values: Mapping[str, str]
    axes: Mapping[str, int]


class OnnxGraph:
    """Nodes and constants in the order in which they were added; values are named by strings.

    Args:
        precision: The precision of the weights of products and LSTMs: "float32" or "int8".

    Attributes:
        narrow: True if those weights have 8 bits.
        nodes: The nodes.
        constants: The constants.
    """

    def __init__(self, precision: str = "float32") -> None:
        self.narrow = precision == "int8"
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self._names: dict[Any, str] = {}
        # Held, because the `id` of a freed array may be given to another.
        self._kept: list[np.ndarray] = []

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output, and return the output's name.

        Args:
            op: An operator of ONNX.
            inputs: The names of its inputs; "" for a missing optional one.
            attributes: Its attributes.
        """
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def add_three(self, op: str, *inputs: str, **attributes: Any) -> list[str]:
        """As `add`, for a node with three outputs."""
        name = f"{op}_{len(self.nodes)}"
        names = [f"{name}_{n}" for n in range(3)]
        self.nodes.append(helper.make_node(op, inputs, names, name=name, **attributes))
        return names

    def weight(self, *arrays: np.ndarray, form: Form | None = None) -> str:
        """The name of arrays joined along their first axis; written once, however often it is requested.

        Args:
            arrays: The arrays.
            form: Transforms each array first, if given.
        """
        key = (*map(id, arrays), form)
        if key not in self._names:
            self._names[key] = self._constant(self._joined(arrays, form))
        return self._names[key]

    def columns(self, *arrays: np.ndarray, form: Form | None = None) -> tuple[str, str]:
        """Add matrices (..., K, N) in 8 bits, joined along their first axis.

        Args:
            arrays: The matrices.
            form: Transforms each matrix first, if given.

        Returns:
            The names of the values, and of the scales (..., N) of the columns.
        """
        ids = tuple(map(id, arrays))
        keys = (*ids, form, "values"), (*ids, form, "scales")
        if keys[0] not in self._names:
            for key, each in zip(keys, rounded(self._joined(arrays, form)), strict=True):
                self._names[key] = self._constant(each)
        return self._names[keys[0]], self._names[keys[1]]

    def zero_points(self, matrices: int, columns: int) -> str:
        """The zero points of the columns of matrices (matrices, K, columns) in 8 bits: all 0."""
        return self._small(np.zeros((matrices, columns), np.int8))

    def product(self, x: str, array: np.ndarray, form: Form | None = None) -> str:
        """A value times a matrix, which `form` transforms first, if given."""
        if not self.narrow:
            return self.add("MatMul", x, self.weight(array, form=form))
        columns, scales = self.columns(array, form=form)
        # ONNX Runtime fuses these four nodes.
        values, scale, zero = self.add_three("DynamicQuantizeLinear", x)
        sums = self.cast(self.add("MatMulInteger", values, columns, zero), TensorProto.FLOAT)
        return self.add("Mul", sums, self.add("Mul", scale, scales))

    def number(self, value: float | bool, dtype: type = np.float32) -> str:
        """The name of a scalar constant."""
        return self._small(np.array(value, dtype))

    def sizes(self, *values: int) -> str:
        """The name of a constant list of whole numbers: axes, or a shape."""
        return self._small(np.array(values, np.int64))

    def slice(self, x: str, begin: int, end: int, axis: int, step: int = 1) -> str:
        """Slice an axis, as in NumPy."""
        each = (self.sizes(value) for value in (begin, end, axis, step))
        return self.add("Slice", x, *each)

    def flip(self, x: str, axis: int) -> str:
        """Reverse an axis."""
        return self.slice(x, -1, BEFORE_THE_START, axis, -1)

    def cast(self, x: str, dtype: int) -> str:
        """Cast to a type of `onnx.TensorProto`."""
        return self.add("Cast", x, to=dtype)

    def output(self, x: str, name: str) -> None:
        """Give a value the name of an output."""
        self.nodes.append(helper.make_node("Identity", [x], [name], name=f"output {name}"))

    def _joined(self, arrays: tuple[np.ndarray, ...], form: Form | None) -> np.ndarray:
        self._kept.extend(arrays)
        formed = [array if form is None else form(array) for array in arrays]
        return np.ascontiguousarray(formed[0] if len(formed) == 1 else np.concatenate(formed))

    def _small(self, array: np.ndarray) -> str:
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._names:
            self._names[key] = self._constant(array)
        return self._names[key]

    def _constant(self, array: np.ndarray) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name


def value_info(name: str, dtype: int, shape: tuple[int | str, ...]) -> ValueInfoProto:
    """The description of an input or an output; a string names a free size."""
    return helper.make_tensor_value_info(name, dtype, shape)
