"""A LiteRT model under construction: operators, and tensors with their shapes for one batch.

Written with the classes that LiteRT generates from its schema, which is part of its package.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

_TYPES = {
    "float32": schema.TensorType.FLOAT32,
    "int32": schema.TensorType.INT32,
    "float16": schema.TensorType.FLOAT16,
    "int8": schema.TensorType.INT8,
    "bool": schema.TensorType.BOOL,
}
# An operator from this number on is named in a second, wider field; the first field then holds this number.
_WIDE = 127


class Value(NamedTuple):
    """A tensor: its number, its shape for the batch that the graph is built for, and its type."""

    number: int
    shape: tuple[int, ...]
    dtype: str = "float32"


Given = Mapping[str, Value]
"""The tensors of an operation's inputs, by name."""


class LiteRtGraph:
    """Operators and tensors in the order in which they were added.

    Args:
        free_length: Whether axis 1 of an input may have another size later.
        precision: The format of the matrices: "float32"; "float16", widened when the model is loaded; or "int8" with
            one scale a matrix, whose inputs LiteRT rounds to int8, too.
    """

    def __init__(self, free_length: bool, precision: str = "float32") -> None:
        self.free_length = free_length
        self._precision = precision
        self._tensors: list[Any] = []
        self._operators: list[Any] = []
        self._codes: dict[tuple[str, int], int] = {}
        self._buffers: list[Any] = [schema.BufferT()]  # the first one is empty, for tensors that are computed
        self._constants: dict[Any, Value] = {}
        # Held, because the `id` of a freed array may be given to another.
        self._kept: list[np.ndarray] = []

    def input(self, name: str, shape: tuple[int, ...], dtype: str) -> Value:
        """A tensor that the caller fills."""
        return self._tensor(name, shape, dtype)

    def state(self, shape: tuple[int, ...]) -> Value:
        """A variable that starts as zeros, is changed by an operator, and keeps its value between calls."""
        value = self._tensor(f"state_{len(self._tensors)}", shape, "float32")
        self._tensors[value.number].isVariable = True
        return value

    def weight(self, array: np.ndarray, form: Callable[[np.ndarray], np.ndarray] | None = None) -> Value:
        """The tensor of an array, transformed by `form` if given; written once, however often it is requested.

        In int8 a matrix is a tensor of int8, which products and LSTMs accept directly; `rows_of` reads tables.
        """
        key = (id(array), form)
        if key not in self._constants:
            self._kept.append(array)
            made = array if form is None else form(array)
            narrow = self._precision if made.ndim > 1 else "float32"
            self._constants[key] = {
                "float32": self._constant,
                "float16": self._halved,
                "int8": self._rounded,
            }[narrow](made)
        return self._constants[key]

    def constant(self, values: float | bool | Sequence[Any] | np.ndarray, dtype: str = "float32") -> Value:
        """A constant: a scalar, sizes, or axes."""
        array = np.array(values, dtype)
        key = (dtype, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self._constant(array)
        return self._constants[key]

    def add(
        self,
        op: str,
        inputs: Sequence[Value | None],
        shape: Sequence[int],
        options: Any = None,
        *,
        dtype: str = "float32",
        outputs: int = 1,
        version: int = 1,
    ) -> Any:
        """Adds an operator.

        Args:
            op: A name in `schema.BuiltinOperator`.
            inputs: Its inputs; None for a missing optional one.
            shape: The shape of each output.
            options: Its options: an object of its class in the schema.
            dtype: The type of its outputs.
            outputs: The number of outputs.
            version: The first version of the operator with the needed features.

        Returns:
            Its output, or a tuple if there are several.
        """
        results = tuple(
            self._tensor(f"{op.lower()}_{len(self._tensors)}", shape, dtype) for _ in range(outputs)
        )
        operator = schema.OperatorT()
        operator.opcodeIndex = self._codes.setdefault((op, version), len(self._codes))
        operator.inputs = [-1 if value is None else value.number for value in inputs]
        operator.outputs = [value.number for value in results]
        if options is not None:
            operator.builtinOptions = options
            operator.builtinOptionsType = getattr(
                schema.BuiltinOptions, type(options).__name__.removesuffix("T")
            )
        self._operators.append(operator)
        return results if outputs > 1 else results[0]

    def rows_of(self, table: Value, ids: Value) -> Value:
        """The rows of a table, in float32."""
        narrow = table.dtype == "int8"
        rows: Value = self.add(
            "GATHER",
            [table, ids],
            (*ids.shape, table.shape[1]),
            schema.GatherOptionsT(),
            dtype=table.dtype,
            version=2 if narrow else 1,
        )
        if not narrow:
            return rows
        self._tensors[rows.number].quantization = self._tensors[table.number].quantization
        widened: Value = self.add("DEQUANTIZE", [rows], rows.shape, version=2)
        return widened

    def unary(self, op: str, x: Value, options: Any = None) -> Value:
        """An operator of one input, whose output has the input's shape."""
        return self.add(op, [x], x.shape, options, dtype=x.dtype)

    def binary(self, op: str, x: Value, y: Value | float) -> Value:
        """An operator of two tensors of numbers, broadcast over sizes of 1."""
        y = y if isinstance(y, Value) else self.constant(y)
        # Options that are left out do not always mean the defaults.
        options = getattr(schema, f"{op.capitalize()}OptionsT", lambda: None)()
        return self.add(op, [x, y], np.broadcast_shapes(x.shape, y.shape), options, dtype=x.dtype)

    def reduce(self, op: str, x: Value, axis: int, *, keep: bool) -> Value:
        """A reduction over an axis, which is dropped or becomes 1."""
        options = schema.ReducerOptionsT()
        options.keepDims = keep
        place = axis % len(x.shape)
        shape = (*x.shape[:place], *((1,) if keep else ()), *x.shape[place + 1 :])
        return self.add(op, [x, self.constant([place], "int32")], shape, options)

    def reshape(self, x: Value, shape: Sequence[int], shape_written: Sequence[int]) -> Value:
        """Reshape; `shape_written` is `shape` with one -1 where a size depends on the input."""
        return self.add("RESHAPE", [x, self.constant(shape_written, "int32")], shape, dtype=x.dtype)

    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of all tensors."""
        return [tuple(tensor.shape) for tensor in self._tensors]

    def model(
        self,
        inputs: Mapping[str, Value],
        outputs: Mapping[str, Value],
        longer: Sequence[tuple[int, ...]],
        metadata: Mapping[str, Any],
    ) -> bytes:
        """The file.

        Args:
            inputs: The tensors of the signature, by name.
            outputs: The same.
            longer: The shapes of all tensors for longer sequences: a size that differs is free.
            metadata: Plain JSON.
        """
        for tensor, other in zip(self._tensors, longer, strict=True):
            free = [-1 if size != more else size for size, more in zip(tensor.shape, other, strict=True)]
            tensor.shapeSignature = free if -1 in free else None
        graph = schema.SubGraphT()
        graph.name, graph.tensors, graph.operators = "main", self._tensors, self._operators
        graph.inputs = [value.number for value in inputs.values()]
        graph.outputs = [value.number for value in outputs.values()]
        signature = schema.SignatureDefT()
        signature.signatureKey, signature.subgraphIndex = "serving_default", 0
        signature.inputs, signature.outputs = _tensor_map(inputs), _tensor_map(outputs)
        about = schema.MetadataT()
        about.name, about.buffer = "cellerate", len(self._buffers)
        model = schema.ModelT()
        model.version, model.description = 3, "written by Cellerate"
        model.operatorCodes = [_code(op, version) for op, version in self._codes]
        model.buffers = [*self._buffers, _buffer(np.frombuffer(json.dumps(metadata).encode(), np.uint8))]
        model.subgraphs, model.signatureDefs, model.metadata = [graph], [signature], [about]
        builder = flatbuffers.Builder(1 << 16)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def _halved(self, array: np.ndarray) -> Value:
        # A number beyond the range of float16 becomes the largest float16.
        largest = np.finfo(np.float16).max
        value = self._constant(np.clip(array, -largest, largest).astype(np.float16))
        widened: Value = self.add("DEQUANTIZE", [value], value.shape)
        return widened

    def _rounded(self, array: np.ndarray) -> Value:
        # As in LiteRT's own dynamic-range quantization: symmetric, so that 0 stays 0.
        scale = float(np.abs(array).max(initial=0)) / 127 or 1.0
        value = self._constant(np.clip(np.round(array / scale), -127, 127).astype(np.int8))
        quantization = schema.QuantizationParametersT()
        quantization.scale, quantization.zeroPoint = [scale], [0]
        self._tensors[value.number].quantization = quantization
        return value

    def _constant(self, array: np.ndarray) -> Value:
        array = np.ascontiguousarray(array)
        value = self._tensor(f"constant_{len(self._tensors)}", array.shape, array.dtype.name)
        self._tensors[value.number].buffer = len(self._buffers)
        self._buffers.append(_buffer(array.reshape(-1).view(np.uint8)))
        return value

    def _tensor(self, name: str, shape: Sequence[int], dtype: str) -> Value:
        tensor = schema.TensorT()
        tensor.name, tensor.type, tensor.hasRank = name, _TYPES[dtype], True
        tensor.shape = [int(size) for size in shape]
        self._tensors.append(tensor)
        return Value(len(self._tensors) - 1, tuple(tensor.shape), dtype)


def _buffer(data: np.ndarray) -> Any:
    buffer = schema.BufferT()
    buffer.data = data
    return buffer


def _tensor_map(values: Mapping[str, Value]) -> list[Any]:
    maps = []
    for name, value in values.items():
        one = schema.TensorMapT()
        one.name, one.tensorIndex = name, value.number
        maps.append(one)
    return maps


def _code(op: str, version: int) -> Any:
    code = schema.OperatorCodeT()
    code.builtinCode = getattr(schema.BuiltinOperator, op)
    code.deprecatedBuiltinCode = min(code.builtinCode, _WIDE)
    code.version = version
    return code
