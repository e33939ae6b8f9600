"""Reading a Keras model into a `Program`: what it computes, in terms that need no Keras.

A module of its own apart from the table of layers (`reading_layers`) because it walks the graph as Keras runs it:
through nested models, with the masks that Keras carries beside its tensors, and into the recurrent layers, which
are where masks end.
"""

import dataclasses
import inspect
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import layers
from keras.src import tree
from keras.src.layers.merging.base_merge import Merge

from cellerate.errors import ModelError
from cellerate.kernels.program import Node, Program
from cellerate.layers.graph import functional_graph, ordered_nodes
from cellerate.layers.reading_layers import LAYERS
from cellerate.layers.reading_nodes import (
    ALL_COUNT,
    Call,
    Nodes,
    Refused,
    Value,
    Weight,
    carried,
    either,
    read_layer,
)
from cellerate.layers.reading_operations import read_operation
from cellerate.layers.reading_recurrent import RECURRENT

_KNOWN = {**LAYERS, **RECURRENT}
_TWO_INPUTS = "Give the model two inputs."


def read_program(model: keras.Model) -> Program:
    """Reads what a Keras model computes at inference, with its weights.

    Weights are read in float32 whatever the dtype policy; low-rank updates (LoRA) are merged into them, and
    normalisations that no longer learn become a scale and an offset. Nested models are part of the one graph.
    Where Keras's backends differ (masked steps before the first that counts, of an LSTM with an initial state),
    the program does as the backend that runs. A stateful layer is read as one that starts from zeros.

    Args:
        model: A built Functional or Sequential model. It is not changed.

    Returns:
        The program. Its inputs have the names of the model's, and any batch size: ids and masks are int32,
        numbers float32. Its outputs have the names of the keys or layers that give them, its nodes the paths
        of the layers in the model, "nested/layer".

    Raises:
        ModelError: `model` is no such model; layers of it have no counterpart among the operations (all of them
            are named); a weight is not finite.

    Example:
        >>> model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2, name="head")])
        >>> [node.op for node in read_program(model).nodes]
        ['input', 'dense']
    """
    return read_weights(model)[0]


def read_weights(model: keras.Model) -> tuple[Program, dict[tuple[int, str], Weight]]:
    """Reads what a Keras model computes, and which of its variables the weights are.

    Args:
        model: As `read_program` takes it.

    Returns:
        The program, and where its arrays come from: (the number of the node, the name of the array) → the weight.
        Nodes that share an array share the weight. The arrays of normalisations that became a scale and an offset
        are computed of several variables, and are left out.

    Raises:
        ModelError: As `read_program`.
    """
    graph = _graph(model)
    if graph is None:
        raise ModelError(_no_graph(model))
    reading = _Reading()
    values = reading.walk(graph, [reading.input(tensor) for tensor in graph.inputs], "")
    outputs = {name: reading.output(name, value) for name, value in zip(_names(graph), values, strict=True)}
    if not reading.refused:
        nodes, outputs = reading.used(outputs)
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


class _Reading:
    """The walk over a model's graph.

    Attributes:
        nodes: What was read.
        refused: A line for each layer that cannot be.
    """

    def __init__(self) -> None:
        self.nodes = Nodes()
        self.refused: dict[str, None] = {}

    def input(self, tensor: Any) -> Value:
        """Adds an input of the model."""
        name = tensor._keras_history.operation.name
        shape = (-1, *(-1 if size is None else size for size in tensor.shape[1:]))
        found = self.nodes.add("input", name, {}, shape=shape, dtype="float32")
        if tensor.dtype == "bool" and len(shape) == 2:
            found = dataclasses.replace(
                found, masks=carried(self.nodes.mask("ids_mask", name, {"ids": found})).masks
            )
        return dataclasses.replace(found, shape=tuple(tensor.shape))

    def output(self, name: str, value: Value) -> int:
        """The node of an output."""
        if value.number is None:
            self._refuse(
                f"output {name!r}", Refused("is a tensor of booleans, which programs have as masks only")
            )
        return value.number or 0

    def walk(self, graph: Any, inputs: Sequence[Value], path: str) -> list[Value]:
        """Reads the calls of a graph in their order; the values of its outputs."""
        values = {id(tensor): value for tensor, value in zip(graph.inputs, inputs, strict=True)}
        for node in ordered_nodes(graph):
            if all(id(tensor) in values for tensor in node.input_tensors):
                for tensor, value in zip(node.outputs, self._call(node, values, path), strict=True):
                    values[id(tensor)] = dataclasses.replace(value, shape=tuple(tensor.shape))
        return [values[id(tensor)] for tensor in graph.outputs]

    def _call(self, node: Any, values: Mapping[int, Value], path: str) -> list[Value]:
        """The outputs of one call; stand-ins if it is refused, so that what follows is looked at too."""
        operation = node.operation
        path = f"{path}{operation.name}"
        try:
            args, kwargs = node.arguments.fill_in(values)
            arguments = _bound(operation, args, kwargs)
            graph = _graph(operation)
            if graph is not None:
                return self.walk(graph, _inner_inputs(graph, arguments), f"{path}/")
            mask = _mask_argument(arguments)
            shapes = tuple(tuple(tensor.shape) for tensor in node.outputs)
            boolean = node.outputs[0].dtype == "bool"
            call = Call(operation, path, arguments, mask, shapes, boolean, self.nodes)
            if not isinstance(operation, keras.Layer):
                return [read_operation(call)]
            outputs = read_layer(call, _KNOWN)
            masks = _masks_after(operation, _attached(call.x) if mask is None else mask)
            return [
                value if value.mask is not None else dataclasses.replace(value, mask=mask)
                for value, mask in zip(outputs, [*masks, *[None] * len(outputs)], strict=False)
            ]
        except Refused as refused:
            self._refuse(refused.where or f"{path} ({type(operation).__name__})", refused)
            return [Value(0) for _ in node.outputs]

    def used(self, outputs: Mapping[str, int]) -> tuple[tuple[Node, ...], dict[str, int]]:
        """The nodes that outputs depend on, and all inputs, with the type of each input from what reads it."""
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
                options["dtype"], *others = sorted(types.get(number, {"float32"}))
                if others:
                    self._refuse(
                        f"input {node.name!r}", Refused("is read both as ids and as numbers", _TWO_INPUTS)
                    )
            nodes.append(dataclasses.replace(node, inputs=inputs, options=options))
        return tuple(nodes), {name: places[number] for name, number in outputs.items()}

    def _refuse(self, what: str, refused: Refused) -> None:
        self.refused[f"{what} {refused.why}. {refused.instead}"] = None


def _graph(layer: Any) -> Any | None:
    """The graph that a model runs; None of what is no model, is not built, or does not run its graph."""
    if isinstance(layer, keras.Sequential) and type(layer).call is not keras.Sequential.call:
        return None
    return functional_graph(layer)


def _no_graph(model: Any) -> str:
    if not isinstance(model, keras.Model):
        return (
            f"expected a Keras model, got {type(model).__name__}. Load a saved one first, with "
            "keras.saving.load_model; put a single layer into a keras.Sequential."
        )
    if isinstance(model, keras.Sequential) and type(model).call is keras.Sequential.call:
        return (
            f"model {model.name!r} is not built, so its layers have no weights yet. Give it a keras.Input first, "
            "or call it once on data."
        )
    return (
        f"model {model.name!r} is of a class with a `call` of its own ({type(model).__name__}), whose graph cannot "
        "be read. Rebuild it with the functional API or keras.Sequential."
    )


def _names(graph: Any) -> list[str]:
    """The names of a model's outputs: their keys, or those of the layers, numbered where one has several."""
    names: list[str] = []
    for (path, _), tensor in zip(tree.flatten_with_path(graph._outputs_struct), graph.outputs, strict=True):
        name = "/".join(key for key in path if isinstance(key, str)) or tensor._keras_history.operation.name
        candidates = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(1)))
        names.append(next(candidate for candidate in candidates if candidate not in names))
    return names


def _bound(operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by their names."""
    if kwargs.get("training"):
        raise Refused("is called with training=True", "Leave the argument out.")
    signature = inspect.signature(type(operation).call)
    # Keras takes `training` whether a layer has it or not.
    kwargs = {name: value for name, value in kwargs.items() if name in signature.parameters}
    bound = signature.bind(operation, *args, **kwargs).arguments
    del bound["self"]
    return dict(bound)


def _inner_inputs(graph: Any, arguments: Mapping[str, Any]) -> list[Value]:
    """What goes into a nested model, in the order of its inputs, with the masks of its `mask` argument."""
    given = next(iter(arguments.values()))
    if isinstance(given, dict) and not isinstance(graph._inputs_struct, dict):
        given = [given[tensor.name] for tensor in graph.inputs]
    inputs = tree.flatten(given)
    masks = tree.flatten(arguments.get("mask"))
    if len(masks) == len(inputs):
        inputs = [
            v if m is None else dataclasses.replace(v, mask=m) for v, m in zip(inputs, masks, strict=True)
        ]
    for value, tensor in zip(inputs, graph.inputs, strict=True):
        if len(value.shape) != len(tensor.shape):
            raise Refused(
                f"takes {tensor.shape} and is given {value.shape}", "Reshape it to what the model takes."
            )
    return inputs


def _mask_argument(arguments: Mapping[str, Any]) -> Any:
    """What Keras passes as `mask`: what is given, else the mask on the tensors if they are one argument."""
    given = arguments.get("mask")
    if given is not None:
        return given
    tensors = [
        value for value in arguments.values() if any(isinstance(part, Value) for part in tree.flatten(value))
    ]
    return _attached(tensors[0]) if len(tensors) == 1 else None


def _attached(value: Any) -> Any:
    """The mask on a tensor, or those on several."""
    if isinstance(value, Value):
        return value.mask
    masks = [part.mask if isinstance(part, Value) else None for part in tree.flatten(value)]
    return masks if any(mask is not None for mask in masks) else None


def _masks_after(layer: Any, mask: Any) -> list[Any]:
    """The masks on a layer's outputs that it does not make itself: Keras's `compute_mask`, layer by layer."""
    if mask is None or not layer.supports_masking:
        return []
    if isinstance(layer, layers.Embedding | layers.Masking | layers.GlobalAveragePooling1D):
        return []
    if isinstance(layer, layers.RNN):
        return tree.flatten(mask)[:1] if layer.return_sequences else []
    if isinstance(layer, layers.Bidirectional):
        return tree.flatten(mask)[:1] * (1 if layer.merge_mode else 2) if layer.return_sequences else []
    if isinstance(layer, layers.Concatenate):
        if layer.axis not in (-1, 2):
            return [Value(None)]
        # One without a mask is taken for one that counts everywhere.
        return [either([Value(None, masks=frozenset([ALL_COUNT])) if m is None else m for m in mask])]
    if isinstance(layer, Merge):
        return [None if any(m is None for m in mask) else either(mask)]
    return tree.flatten(mask)
