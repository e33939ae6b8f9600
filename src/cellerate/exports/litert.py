"""Models for LiteRT, which was TensorFlow Lite: written without a converter, and tried in LiteRT.

An LSTM is LiteRT's fused operator for sequences, which XNNPACK and the interpreter compute at once, where a converter
leaves a loop. It knows tanh and sigmoid and no mask, its number of rows is fixed when the file is written, and it
remembers its states: the caller resets them before each new sequence, or continues the last sequence.

A model with its states as inputs and outputs (`runtime.program.stepping`) takes one step; its LSTMs are written in
plain operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ai_edge_litert import interpreter, schema_py_generated as schema

from cellerate.errors import ModelError
from cellerate.exports.litert_graph import LiteRtGraph, Value
from cellerate.exports.litert_operations import activate, add_operation, crop, flip, masks_refused, product
from cellerate.exports.trials import Arrays
from cellerate.program import Node, Program

# Each graph is built for two lengths: a size that differs between them is free. With strides, one step more may not
# change a size, so those lengths lie far apart.
_LENGTH, _LONGER = 8, 9
_FOR_STRIDES = 1 << 10, 1 << 11


def litert_model(
    program: Program, batch: int, metadata: Mapping[str, Any], precision: str = "float32"
) -> bytes:
    """A program as a LiteRT model.

    Args:
        program: The program to write.
        batch: The number of rows.
        metadata: Plain JSON, for the file's own metadata, under "cellerate".
        precision: The format of the matrices: "float32", "float16" or "int8".

    Raises:
        ModelError: LiteRT cannot hold it; the message names the layer.
    """
    looks_around = any("strides" in node.options for node in program.nodes)
    lengths = _FOR_STRIDES if looks_around else (_LENGTH, _LONGER)
    built, longer = (_build(program, batch, length, precision) for length in lengths)
    return built.graph.model(built.inputs, built.outputs, longer.graph.shapes(), metadata)


class LiteRt:
    """An exported model in LiteRT's interpreter, each call on a new sequence.

    Args:
        path: The file.
        outputs: The names of its outputs, in order.
    """

    def __init__(self, path: Path, outputs: Iterable[str]) -> None:
        # Not through its signature: while a signature is held, the interpreter refuses to resize tensors.
        self._interpreter = interpreter.Interpreter(model_content=path.read_bytes())
        self._inputs = {each["name"]: each["index"] for each in self._interpreter.get_input_details()}
        found = (each["index"] for each in self._interpreter.get_output_details())
        self._outputs = dict(zip(outputs, found, strict=True))

    def run(self, inputs: Arrays) -> Arrays:
        """The outputs by name."""
        for name, array in inputs.items():
            self._interpreter.resize_tensor_input(self._inputs[name], array.shape, strict=True)
        self._interpreter.allocate_tensors()
        self._interpreter.reset_all_variables()
        for name, array in inputs.items():
            self._interpreter.set_tensor(self._inputs[name], array)
        self._interpreter.invoke()
        return {name: self._interpreter.get_tensor(place) for name, place in self._outputs.items()}


class _Built(NamedTuple):
    graph: LiteRtGraph
    inputs: dict[str, Value]
    outputs: dict[str, Value]


class _Lstm(NamedTuple):
    """The outputs of an LSTM; c is None if LiteRT does not return it."""

    result: Value
    h: Value
    c: Value | None


def _build(program: Program, batch: int, length: int, precision: str) -> _Built:
    shapes: dict[str, Any] = {name: program.nodes[n].options["shape"] for name, n in program.inputs.items()}
    graph = LiteRtGraph(any(-1 in shape[1:] for shape in shapes.values()), precision)
    values: dict[int, Value] = {}
    lstms: dict[int, _Lstm] = {}
    inputs: dict[str, Value] = {}
    for number, node in enumerate(program.nodes):
        given = {name: values[source] for name, source in node.inputs.items()}
        if node.op == "input":
            shape = (batch, *(length if size == -1 else size for size in shapes[node.name][1:]))
            values[number] = inputs[node.name] = graph.input(node.name, shape, node.options["dtype"])
        elif node.op == "lstm":
            lstms[number] = _lstm(graph, node, given)
            values[number] = lstms[number].result
        elif node.op == "lstm_state":
            values[number] = _state(node, lstms[node.inputs["lstm"]])
        else:
            values[number] = add_operation(graph, node, given)
    outputs: dict[str, Value] = {}
    for name, number in program.outputs.items():
        value = values[number]
        # An input, or a tensor that is an output already, is copied: each output needs its own tensor.
        if value in (*inputs.values(), *outputs.values()):
            sizes = (batch, -1, *value.shape[2:]) if len(value.shape) > 1 else (batch,)
            value = graph.reshape(value, value.shape, sizes)
        outputs[name] = value
    return _Built(graph, inputs, outputs)


def _state(node: Node, lstm: _Lstm) -> Value:
    if node.options["state"] == "h":
        return lstm.h
    if lstm.c is None:
        raise ModelError(
            f"{node.name}: LiteRT's LSTM does not give its state c, which this model uses; export it to onnx or "
            "savedmodel."
        )
    return lstm.c


def _lstm(graph: LiteRtGraph, node: Node, given: Mapping[str, Value]) -> _Lstm:
    if "mask" in given:
        raise masks_refused(node)
    if given["x"].shape[1] == 1 and not graph.free_length:
        return _one_step(graph, node, given)
    used = (node.options["recurrent_activation"], node.options["activation"])
    if used != ("sigmoid", "tanh"):
        raise ModelError(
            f"{node.name}: LiteRT's LSTM has the activations tanh and sigmoid; got {' and '.join(map(str, used))}. "
            "Train the model with these, or export it to onnx or savedmodel."
        )
    if "h0" in given:
        raise ModelError(
            f"{node.name}: LiteRT's LSTM takes no first state, and this one comes from another layer; export the "
            "model to onnx or savedmodel."
        )
    x, H = given["x"], node.arrays["recurrent_kernel"].shape[0]
    x = flip(graph, x, 1) if node.options["go_backwards"] else x
    biases = (
        [graph.weight(node.arrays["bias"], part) for part in _GATES] if "bias" in node.arrays else [None] * 4
    )
    biases = [graph.constant(np.zeros(H)) if bias is None else bias for bias in biases]
    state = [graph.state((x.shape[0], H)) for _ in range(2)]
    operands = [
        *(x, *(graph.weight(node.arrays["kernel"], part) for part in _GATES)),
        *(graph.weight(node.arrays["recurrent_kernel"], part) for part in _GATES),
        *(None, None, None),  # from c to the gates
        *biases,
        *(None, None),  # a projection of h
        *state,
        *(None, None, None, None),  # layer normalisation
    ]
    options = schema.UnidirectionalSequenceLSTMOptionsT()
    options.fusedActivationFunction = schema.ActivationFunctionType.TANH
    narrow = operands[1] is not None and operands[1].dtype == "int8"
    outputs = graph.add(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", operands, (*x.shape[:2], H), options, version=2 if narrow else 1
    )
    last = graph.reshape(crop(graph, outputs, -1, None), (x.shape[0], H), (x.shape[0], H))
    return _Lstm(outputs if node.options["return_sequences"] else last, last, None)


def _one_step(graph: LiteRtGraph, node: Node, given: Mapping[str, Value]) -> _Lstm:
    """An LSTM over a single step, in plain operators."""
    x, (H, columns) = given["x"], node.arrays["recurrent_kernel"].shape
    B, zeros = x.shape[0], graph.constant(np.zeros((x.shape[0], H)))
    h, c = given.get("h0", zeros), given.get("c0", zeros)
    none = graph.constant(np.zeros(columns))
    bias = graph.weight(node.arrays["bias"]) if "bias" in node.arrays else none
    row = graph.reshape(x, (B, x.shape[2]), (B, x.shape[2]))
    z = graph.binary(
        "ADD",
        product(graph, row, graph.weight(node.arrays["kernel"], np.transpose), bias),
        product(graph, h, graph.weight(node.arrays["recurrent_kernel"], np.transpose), none),
    )
    options = schema.SplitOptionsT()
    options.numSplits = 4
    z_i, z_f, z_c, z_o = graph.add("SPLIT", [graph.constant(1, "int32"), z], (B, H), options, outputs=4)
    i, f, o = (activate(graph, node.options["recurrent_activation"], each) for each in (z_i, z_f, z_o))
    added = graph.binary("MUL", i, activate(graph, node.options["activation"], z_c))
    c = graph.binary("ADD", graph.binary("MUL", f, c), added)
    h = graph.binary("MUL", o, activate(graph, node.options["activation"], c))
    sequence = graph.reshape(h, (B, 1, H), (B, 1, H))
    return _Lstm(sequence if node.options["return_sequences"] else h, h, c)


def _gate(place: int) -> Any:
    def of(array: np.ndarray) -> np.ndarray:
        """One gate's quarter of a weight, with its units first."""
        return np.split(array, 4, axis=-1)[place].T

    return of


_GATES = tuple(_gate(place) for place in range(4))
