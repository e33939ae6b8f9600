"""Reads a Keras model into a `Program`: the same computation in terms that need no Keras.

Keras attaches masks to tensors; here they become separate nodes, which the recurrent layers read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import layers
from keras.src import tree
from keras.src.layers.merging.base_merge import Merge

from cellerate.errors import ModelError
from cellerate.keras_graph import keras2
from cellerate.keras_graph.graph import functional_graph, tensor_names
from cellerate.keras_graph.keras_layers import OperationRow, operation_row, readers
from cellerate.keras_graph.program_nodes import (
    ALL_COUNT,
    Nodes,
    ProgramCall,
    ProgramValue,
    Readers,
    Refused,
    Weight,
    carried,
    either,
    read_layer,
)
from cellerate.keras_graph.walk import GraphCall, Inner, Visitor, flat_inputs, walk
from cellerate.program import Node, Program

_DIVERGED = "Its training has diverged: go back to an earlier checkpoint."
_TWO_INPUTS = "Give the model two inputs."


def read_program(model: keras.Model) -> Program:
    """Reads the inference computation of a Keras model, with its weights.

    Weights are read in float32 whatever the dtype policy. Low-rank updates (LoRA) are merged into them, and
    normalisations with fixed moments become a scale and an offset. Nested models become part of the one graph.
    Keras's backends differ in one case: an LSTM with an initial state, at masked steps before the first unmasked
    one. There the program follows the active backend. A stateful layer is read as starting from zeros.

    Args:
        model: A built Functional or Sequential model. It is not changed.

    Returns:
        The program. Its inputs have the names of the model's inputs, or their keys in a dict of inputs, and any batch
        size: ids and masks are int32, numbers float32. Its outputs have the names of their keys or layers; its nodes
        have the paths of the layers in the model, "nested/layer".

    Raises:
        ModelError: `model` is not built, or not Functional or Sequential; some of its layers have no counterpart
            among the operations (the message names them all); or a weight is not finite.

    Example:
        >>> model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2, name="head")])
        >>> [node.op for node in read_program(model).nodes]
        ['input', 'dense']
    """
    return read_weights(model)[0]


def read_weights(model: keras.Model) -> tuple[Program, dict[tuple[int, str], Weight]]:
    """Reads the computation of a Keras model, and which of its variables hold the weights.

    Args:
        model: As in `read_program`.

    Returns:
        The program, and the origin of its arrays: (the number of the node, the name of the array) → the weight.
        Nodes that share an array share the weight. The arrays of normalisations that became a scale and an offset
        are computed from several variables, and are left out.

    Raises:
        ModelError: As `read_program`.
    """
    graph = own_graph(model)
    if graph is None:
        raise ModelError(no_graph(model))
    nodes, outputs, reading = _read(graph)
    if reading.refused:
        lines = "\n".join(f"- {line}" for line in reading.refused)
        raise ModelError(
            f"model {model.name!r} cannot be packed, as no program can compute all of it:\n{lines}"
        )
    weights = {
        (number, name): reading.nodes.weights[id(array)]
        for number, node in enumerate(nodes)
        for name, array in node.arrays.items()
        if id(array) in reading.nodes.weights
    }
    return Program(nodes, outputs), weights


def why_not_packed(model: Any) -> tuple[str, ...]:
    """The reasons why a model cannot be packed, one sentence each; empty if it can.

    Args:
        model: As in `read_program`.
    """
    graph = own_graph(model)
    if graph is None:
        return (no_graph(model),)
    nodes, outputs, reading = _read(graph)
    if reading.refused:
        return tuple(reading.refused)
    try:
        Program(nodes, outputs)
    except ModelError as error:
        return (str(error),)
    return ()


def _read(graph: Any) -> tuple[tuple[Node, ...], dict[str, int], ProgramReading]:
    """The nodes and the outputs of a graph, both empty if anything is refused; and the reading."""
    reading = ProgramReading()
    inputs = zip(tensor_names(graph._inputs_struct, graph.inputs), graph.inputs, strict=True)
    values = walk(graph, [reading.model_input(name, tensor) for name, tensor in inputs], reading)
    names = tensor_names(graph._outputs_struct, graph.outputs)
    outputs = {name: reading.model_output(name, value) for name, value in zip(names, values, strict=True)}
    if reading.refused:
        return (), {}, reading
    nodes, outputs, _ = reading.used(outputs)
    reading.check_finite(nodes)
    return nodes, outputs, reading


class ProgramReading(Visitor[ProgramValue]):
    """Turns a model's calls into the nodes of a program.

    Attributes:
        nodes: The nodes so far.
        refused: A line for each layer that cannot be read.
    """

    def __init__(
        self, nodes: Nodes | None = None, known: Readers | None = None, each_of: int | None = 0
    ) -> None:
        self.nodes = Nodes() if nodes is None else nodes
        self.refused: dict[str, None] = {}
        self._readers = readers() if known is None else known
        # For a model inside a TimeDistributed the number of steps, None for any number; else 0.
        self._each_of = each_of
        # The nodes whose Keras tensors have lost their masks.
        self._without_mask: set[int | None] = set()

    def model_input(self, name: str, tensor: Any) -> ProgramValue:
        """Adds an input of the model."""
        shape = (-1, *(-1 if size is None else size for size in tensor.shape[1:]))
        dtype = "float32" if "float" in tensor.dtype else "int32"
        found = self.nodes.add("input", name, {}, shape=shape, dtype=dtype)
        if tensor.dtype == "bool" and len(shape) == 2:
            found = dataclasses.replace(
                found, masks=carried(self.nodes.mask("ids_mask", name, {"ids": found})).masks
            )
        return dataclasses.replace(
            found, shape=tuple(tensor.shape), whole="int" in tensor.dtype, boolean=tensor.dtype == "bool"
        )

    def model_output(self, name: str, value: ProgramValue) -> int:
        """The node of an output."""
        if value.refused is not None:
            self.refuse(str(value.refused.where), value.refused)
        elif value.number is None or value.boolean:
            self.refuse(
                f"output {name!r}",
                Refused("is a tensor of booleans", 'Cast it: keras.ops.cast(..., "float32").'),
            )
        return value.number or 0

    def output(self, tensor: Any, value: ProgramValue) -> ProgramValue:
        """The value with the shape that the tensor has in the graph."""
        return dataclasses.replace(value, shape=tuple(tensor.shape))

    def call(self, call: GraphCall[ProgramValue]) -> list[ProgramValue] | Inner[ProgramValue]:
        """The outputs of one call; stand-ins if it is refused, so that the calls after it are checked too."""
        try:
            return self._read(call)
        except Refused as refused:
            for reason in (refused, *refused.others):
                self.refuse(reason.where or f"{call.path} ({type(call.operation).__name__})", reason)
            return [ProgramValue(0) for _ in call.outputs]

    def _read(self, call: GraphCall[ProgramValue]) -> list[ProgramValue] | Inner[ProgramValue]:
        operation, tensors = call.operation, call.outputs
        if call.filled_in()[1].get("training"):
            raise Refused("is called with training=True", "Leave the argument out.")
        arguments = {
            name: tree.map_structure(self._with_mask_left, value) for name, value in call.arguments().items()
        }
        graph = own_graph(operation)
        if graph is not None:
            inputs = _inner_inputs(graph, arguments)
            # Keras puts the masks that it passes to a model on the tensors themselves.
            self._without_mask -= {value.number for value in inputs if value.mask is not None}
            return Inner(graph, inputs, call.path)
        mask = _mask_argument(arguments)
        shapes = tuple(tuple(tensor.shape) for tensor in tensors)
        boolean = tensors[0].dtype == "bool"
        program_call = ProgramCall(
            operation,
            call.path,
            arguments,
            mask,
            shapes,
            boolean,
            self.nodes,
            self._readers,
            whole="int" in tensors[0].dtype,
        )
        if isinstance(operation, layers.MultiHeadAttention):
            # Keras removes the masks from the tensors that this layer reads, so later layers find none. A tensor of
            # another dtype is converted first, and keeps its mask.
            read = [tensor for tensor in call.node.input_tensors if tensor.dtype == operation.compute_dtype]
            self._without_mask |= {call.values[id(tensor)].number for tensor in read}
        if self._each_of != 0:
            return self._read_each_step(program_call)
        if not isinstance(operation, keras.Layer):
            # Keras puts masks on the outputs of layers only.
            return [dataclasses.replace(value, mask=None) for value in _read_operation(program_call)]
        outputs = self._distributed(program_call) or read_layer(program_call, self._readers.anywhere)
        masks = _masks_after(operation, _attached(program_call.x) if mask is None else mask)
        return [
            value if value.mask is not None else dataclasses.replace(value, mask=mask)
            for value, mask in zip(outputs, [*masks, *[None] * len(outputs)], strict=False)
        ]

    def _with_mask_left(self, argument: Any) -> Any:
        """An argument of a call, without its mask if Keras has removed the mask."""
        if isinstance(argument, ProgramValue) and argument.number in self._without_mask:
            return dataclasses.replace(argument, mask=None)
        return argument

    def _distributed(self, call: ProgramCall) -> list[ProgramValue]:
        """The outputs of a model inside a TimeDistributed, on all steps at once; empty for anything else."""
        graph = own_graph(call.layer.layer) if type(call.layer) is layers.TimeDistributed else None
        if graph is None:
            return []
        x = call.x
        step = dataclasses.replace(x, shape=(x.shape[0], *x.shape[2:]), mask=None)
        inner = ProgramReading(self.nodes, self._readers, x.shape[1])
        found = walk(graph, [step], inner, f"{call.path}/{call.layer.layer.name}/")
        self.refused |= inner.refused
        return found

    def _read_each_step(self, call: ProgramCall) -> list[ProgramValue]:
        """The outputs of a call of a model inside a TimeDistributed."""
        if not isinstance(call.layer, keras.Layer):
            raise Refused("is not an operation that can be packed inside a TimeDistributed")
        shapes = tuple((shape[0], self._each_of, *shape[1:]) for shape in call.shapes)
        return read_layer(dataclasses.replace(call, shapes=shapes, time_axis=2), self._readers.per_step)

    def used(self, outputs: Mapping[str, int]) -> tuple[tuple[Node, ...], dict[str, int], dict[int, int]]:
        """The nodes that outputs depend on, and all inputs; the readers of an input, if any, decide its dtype.

        Returns:
            The nodes; the outputs by name; and the new number of each node by its old number.
        """
        found = self.nodes.found
        used = {number for number, node in enumerate(found) if node.op == "input"} | set(outputs.values())
        types: dict[int, set[str]] = {}
        for number in reversed(range(len(found))):
            if number in used:
                used.update(found[number].inputs.values())
                for name, source in found[number].inputs.items():
                    types.setdefault(source, set()).add("int32" if name == "ids" else "float32")
        places = {number: place for place, number in enumerate(sorted(used))}
        nodes = []
        for number in places:
            node = found[number]
            inputs = {name: places[source] for name, source in node.inputs.items()}
            options = dict(node.options)
            if node.op == "input":
                options["dtype"], *others = sorted(types.get(number, {options["dtype"]}))
                if others:
                    self.refuse(
                        f"input {node.name!r}", Refused("is read both as ids and as numbers", _TWO_INPUTS)
                    )
            nodes.append(dataclasses.replace(node, inputs=inputs, options=options))
        return tuple(nodes), {name: places[number] for name, number in outputs.items()}, places

    def check_finite(self, nodes: Sequence[Node]) -> None:
        """Refuses every node with a weight that is not a number."""
        for node in nodes:
            for name, array in node.arrays.items():
                if not np.isfinite(array).all():
                    self.refuse(node.name, Refused(f"holds a NaN or an infinity in its {name}", _DIVERGED))

    def refuse(self, what: str, refused: Refused) -> None:
        """Records a reason why the model cannot be read."""
        self.refused[f"{what} {refused.why}. {refused.instead}"] = None


def own_graph(layer: Any) -> Any | None:
    """The graph that a model runs; None for a layer that is not a built model, or a model with its own `call`."""
    if isinstance(layer, keras.Sequential) and type(layer).call is not keras.Sequential.call:
        return None
    return functional_graph(layer)


def no_graph(model: Any) -> str:
    """A sentence on why a model has no graph that can be read."""
    if not isinstance(model, keras.Model):
        keras2.refuse(model)
        return (
            f"expected a Keras model, got {type(model).__name__}. Load a saved one first, with "
            "keras.saving.load_model; put a single layer into a keras.Sequential."
        )
    if isinstance(model, keras.Sequential) and type(model).call is keras.Sequential.call:
        if model._layers and isinstance(model._layers[0], keras.layers.InputLayer):
            # Keras passes over layers that are not implemented for a dtype, and leaves the model unbuilt.
            return (
                f"model {model.name!r} has a keras.Input, but Keras cannot build it: a layer does not run in its dtype "
                f"on {keras.backend.backend()}. Call the model once on data: the error names the layer."
            )
        return (
            f"model {model.name!r} is not built, so its layers have no weights yet. Give it a keras.Input first, "
            "or call it once on data."
        )
    return (
        f"model {model.name!r} has a class that defines its own `call` ({type(model).__name__}), so its graph cannot "
        "be read. Rebuild it with the functional API or keras.Sequential."
    )


def _read_operation(call: ProgramCall) -> list[ProgramValue]:
    """The outputs of one of Keras's operations.

    Raises:
        Refused: Programs do not support the operation, or this way to call it.
    """
    tensors = [value for value in call.arguments.values() if isinstance(value, ProgramValue)]
    most = max((len(value.shape) for value in tensors), default=0)
    if tensors and any(getattr(value, "ndim", 0) > most for value in call.arguments.values()):
        raise Refused(
            "computes with a constant of more axes than the tensor",
            "Reshape the constant to the axes of the tensor.",
        )
    row = operation_row(type(call.layer))
    if call.boolean:
        return _booleans(row, call)
    if row.program is None:
        raise Refused("is not an operation that can be packed")
    outputs = row.program(call)
    return outputs if isinstance(outputs, list) else [outputs]


def _booleans(row: OperationRow, call: ProgramCall) -> list[ProgramValue]:
    """The outputs of a boolean operation: as masks, and as numbers, 1 and 0.

    An unknown operation is refused only if a later call uses its output; often none does.
    """
    masks = [ProgramValue(None) for _ in call.shapes] if row.mask is None else [row.mask(call)]
    if row.numbers is None:
        return masks
    try:
        found = row.numbers(call)
    except Refused as refused:
        refused.where = f"{call.path} ({type(call.layer).__name__})"
        return [dataclasses.replace(mask, refused=refused) for mask in masks]
    numbers = found if isinstance(found, list) else [found]
    return [
        dataclasses.replace(mask, number=value.number, boolean=True)
        for mask, value in zip(masks, numbers, strict=True)
    ]


def _inner_inputs(graph: Any, arguments: Mapping[str, Any]) -> list[ProgramValue]:
    """The inputs of a nested model in its order, with the masks of the `mask` argument."""
    inputs: list[ProgramValue] = flat_inputs(graph, next(iter(arguments.values())))
    masks = tree.flatten(arguments.get("mask"))
    if len(masks) == len(inputs):
        inputs = [
            v if m is None else dataclasses.replace(v, mask=m) for v, m in zip(inputs, masks, strict=True)
        ]
    for value, tensor in zip(inputs, graph.inputs, strict=True):
        if len(value.shape) != len(tensor.shape):
            raise Refused(
                f"expects an input of shape {tensor.shape} and gets {value.shape}", "Reshape the input."
            )
    return inputs


def _mask_argument(arguments: Mapping[str, Any]) -> Any:
    """The mask that Keras passes: the `mask` argument, else the mask of the tensors if one argument holds them all."""
    mask = arguments.get("mask")
    if mask is not None:
        return mask
    tensors = [
        value
        for value in arguments.values()
        if any(isinstance(part, ProgramValue) for part in tree.flatten(value))
    ]
    return _attached(tensors[0]) if len(tensors) == 1 else None


def _attached(value: Any) -> Any:
    """The mask on a tensor, or the masks on several."""
    if isinstance(value, ProgramValue):
        return value.mask
    masks = [part.mask if isinstance(part, ProgramValue) else None for part in tree.flatten(value)]
    return masks if any(mask is not None for mask in masks) else None


def _masks_after(layer: Any, mask: Any) -> list[Any]:
    """The masks that a layer passes from its inputs to its outputs, like Keras's `compute_mask`."""
    if mask is None or not layer.supports_masking:
        return []
    if isinstance(layer, layers.Embedding | layers.Masking | layers.GlobalAveragePooling1D | layers.Dot):
        return []
    if isinstance(layer, layers.Attention):
        return tree.flatten(mask)[:1]
    if isinstance(layer, layers.RNN):
        return tree.flatten(mask)[:1] if layer.return_sequences else []
    if isinstance(layer, layers.Bidirectional):
        return tree.flatten(mask)[:1] * (1 if layer.merge_mode else 2) if layer.return_sequences else []
    if isinstance(layer, layers.Concatenate):
        if layer.axis not in (-1, 2):
            return [ProgramValue(None)]
        # Keras treats an input without a mask as one with a mask of True.
        return [either([ProgramValue(None, masks=frozenset([ALL_COUNT])) if m is None else m for m in mask])]
    if isinstance(layer, Merge):
        return [None if any(m is None for m in mask) else either(mask)]
    return tree.flatten(mask)
