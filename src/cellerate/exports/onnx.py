"""Models as ONNX, written from the program and its weights without a converter, and tried in ONNX Runtime.

The graph has true `LSTM` nodes and takes any number of rows and, if the model does, of steps. A mask may have any
pattern.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from cellerate.errors import ModelError
from cellerate.exports.onnx_graph import RUNTIMES_OWN, Given, OnnxGraph, value_info
from cellerate.exports.onnx_lstm import LstmValues, add_lstm, add_pair, are_pair
from cellerate.exports.onnx_operations import add_operation
from cellerate.exports.trials import Arrays
from cellerate.program import Node, Program
from cellerate.runtime.program import result_type

# The versions that every runtime since 2023 reads: ONNX Runtime 1.14, OpenVINO 2023, Triton 23.
_OPSET, _IR_VERSION = 17, 9
_TYPES = {"float32": TensorProto.FLOAT, "int32": TensorProto.INT32, "bool": TensorProto.BOOL}
# The most bytes of a file that holds its own weights, a limit of protocol buffers.
_MOST_BYTES = 2**31 - 1


def onnx_model(
    program: Program,
    sizes: Mapping[str, Sequence[int | None]],
    metadata: Mapping[str, Any],
    precision: str = "float32",
) -> onnx.ModelProto:
    """A program as ONNX.

    Args:
        program: The program to write.
        sizes: The shape of each output, with None for a size that depends on the input.
        metadata: Plain JSON, for the file's own metadata, under "cellerate".
        precision: "float32", or "int8": weights of LSTMs and products in 8 bits, one scale a column, and their inputs
            rounded to 8 bits at run time, by operators of ONNX Runtime.

    Returns:
        The model; its inputs and outputs have the names and types of the program's.

    Raises:
        ModelError: An LSTM has an activation that ONNX's LSTM lacks, an input is also an output, or the model has more
            than 2 GB.
    """
    for name in program.inputs.keys() & program.outputs.keys():
        raise ModelError(
            f"{name!r} names an input and an output, and in ONNX each has a name of its own. Leave the output out, or "
            "give the model its outputs as a dict with other names."
        )
    graph = OnnxGraph(precision)
    values: dict[int, str] = {}
    lstms: dict[int, LstmValues] = {}
    axes: dict[int, int] = {}
    types: dict[int, str] = {}
    inputs = []
    for number, node in enumerate(program.nodes):
        types[number] = result_type(node, {name: types[source] for name, source in node.inputs.items()})
        read = {name: values[source] for name, source in node.inputs.items()}
        axes[number] = _axes(node, {name: axes[source] for name, source in node.inputs.items()})
        if node.op == "input":
            values[number] = node.name
            inputs.append(_input(node, alone=len(program.inputs) == 1))
        elif node.op == "lstm":
            if number not in lstms:
                lstms |= _lstms(graph, program, number, read)
            values[number] = lstms[number].result
        elif node.op == "lstm_state":
            lstm = lstms[node.inputs["lstm"]]
            values[number] = lstm.h if node.options["state"] == "h" else lstm.c
        elif straight := _put_back(node, lstms):
            values[number] = straight
        else:
            given = Given(read, {name: axes[source] for name, source in node.inputs.items()})
            values[number] = add_operation(graph, node, given)
    outputs = []
    for name, number in program.outputs.items():
        graph.output(values[number], name)
        named = (f"{name} {axis}" if size is None else size for axis, size in enumerate(sizes[name]))
        outputs.append(value_info(name, _TYPES[types[number]], ("batch", *tuple(named)[1:])))
    opsets = [helper.make_opsetid("", _OPSET)]
    if graph.narrow:
        opsets.append(helper.make_opsetid(RUNTIMES_OWN, 1))
    model = helper.make_model(
        helper.make_graph(graph.nodes, "cellerate", inputs, outputs, graph.constants),
        opset_imports=opsets,
        ir_version=_IR_VERSION,
        producer_name="cellerate",
    )
    helper.set_model_props(model, {"cellerate": json.dumps(metadata)})
    if model.ByteSize() > _MOST_BYTES:
        raise ModelError("the model has more than 2 GB of weights, which an ONNX file does not hold.")
    return onnx.shape_inference.infer_shapes(model)


class OnnxRuntime:
    """An exported model in ONNX Runtime on the CPU.

    Args:
        path: The file.

    Raises:
        ModuleNotFoundError: ONNX Runtime is not installed.
    """

    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(self, inputs: Arrays) -> Arrays:
        """The outputs by name."""
        names = [output.name for output in self._session.get_outputs()]
        results = self._session.run(names, dict(inputs))
        return {name: np.asarray(result) for name, result in zip(names, results, strict=True)}


def _input(node: Node, *, alone: bool) -> onnx.ValueInfoProto:
    shape = node.options["shape"]
    # Each input has its own name for its steps: sizes of one name must be equal, and inputs may differ in length.
    time = "time" if alone else f"{node.name} time"
    free = ["batch", time, *(f"{node.name} {axis}" for axis in range(2, len(shape)))]
    sizes = tuple(free[axis] if size == -1 else size for axis, size in enumerate(shape))
    return value_info(node.name, _TYPES[node.options["dtype"]], sizes)


def _lstms(graph: OnnxGraph, program: Program, number: int, read: dict[str, str]) -> dict[int, LstmValues]:
    """Add an LSTM, together with the other direction of a `Bidirectional` if there is one."""
    node = program.nodes[number]
    for later, other in enumerate(program.nodes[number + 1 :], number + 1):
        if other.op == "lstm" and are_pair(node, other):
            both = add_pair(graph, (node, other), read["x"])
            return dict(zip((number, later), both, strict=True))
    return {number: add_lstm(graph, node, read)}


def _put_back(node: Node, lstms: Mapping[int, LstmValues]) -> str | None:
    """The outputs of a backward LSTM in the order of its input, for a node that would only reverse them."""
    source = lstms.get(node.inputs["x"]) if node.op == "flip" and node.options["axis"] == 1 else None
    return None if source is None else source.in_order


def _axes(node: Node, read: Mapping[str, int]) -> int:
    """The number of axes of a node's result."""
    options = node.options
    match node.op:
        case "input":
            return len(options["shape"])
        case "embedding":
            return read["ids"] + 1
        case "lstm":
            return 3 if options["return_sequences"] else 2
        case "lstm_state":
            return 2
        case "features_mask" | "mean_over_time" | "max_over_time":
            return read["x"] - 1
        case "sum" | "mean" | "max" | "min":
            return read["x"] - (not options["keepdims"])
        case "dot":
            return max(sum(read.values()) - 3, 2)
        case "flatten_steps" | "attention":
            return 3
        case "repeat_vector":
            return read["x"] + 1
        case "reshape":
            return 1 + len(options["shape"])
    return max(read.values())
