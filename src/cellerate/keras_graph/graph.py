"""The graph of a Keras model, its layers that run over time, and the masks that reach them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops
from keras.src import tree
from keras.src.layers.merging.base_merge import Merge
from keras.src.models.functional import Functional

from cellerate.keras_graph.walk import GraphCall, Inner, Visitor, walk

UNKNOWN = "unknown until called"
"""Stands for the source of a mask if the graph does not say whether one arrives."""


@dataclasses.dataclass(frozen=True)
class TimeLayer:
    """A layer that runs over time, where it is, and what reaches it.

    Attributes:
        layer: The recurrent layer, or a `Bidirectional` or `TimeDistributed` wrapper.
        path: The names of the submodels down to it and its own name, joined by "/".
        mask: None if no mask reaches it; `UNKNOWN`; or what makes the mask, in words.
        steps: The number of time steps if it is fixed, else None.
        embedding: The Embedding whose output reaches it unchanged, ids of (B, T); None if there is none.
    """

    layer: keras.Layer
    path: str
    mask: str | None
    steps: int | None
    embedding: keras.layers.Embedding | None = None


def functional_graph(layer: Any) -> Any | None:
    """The graph of a Functional or Sequential model; None for any other layer and for an unbuilt model."""
    if isinstance(layer, keras.Sequential):
        return getattr(layer, "_functional", None)
    # A subclass of Functional that defines its own `call` does not run its graph.
    return layer if isinstance(layer, Functional) and type(layer).call is Functional.call else None


def tensor_names(structure: Any, tensors: Sequence[Any]) -> list[str]:
    """The names of a graph's inputs or outputs: their keys or their layers' names, numbered if a name comes again."""
    names: list[str] = []
    for (path, _), tensor in zip(tree.flatten_with_path(structure), tensors, strict=True):
        name = "/".join(key for key in path if isinstance(key, str)) or tensor._keras_history.operation.name
        candidates = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(1)))
        names.append(next(candidate for candidate in candidates if candidate not in names))
    return names


def inputs_and_outputs(model: Any) -> tuple[dict[str, list[int | None]], dict[str, list[int | None]]]:
    """The shapes of a model's inputs and outputs by name, None for any size; both empty if it has no graph."""
    graph = functional_graph(model)
    if graph is None:
        return {}, {}
    ends = ((graph._inputs_struct, graph.inputs), (graph._outputs_struct, graph.outputs))
    inputs, outputs = (
        {name: list(tensor.shape) for name, tensor in zip(tensor_names(*end), end[1], strict=True)}
        for end in ends
    )
    return inputs, outputs


def outputs_of(model: Any, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of a model with a graph at inference, in float32.

    Args:
        model: The model.
        inputs: The arrays of its inputs, flat, in the order of its graph.
    """
    graph = functional_graph(model)
    if graph is None:
        raise ValueError(f"{model.name} has no graph")
    given = [
        ops.convert_to_tensor(array.astype("bool") if tensor.dtype == "bool" else array, tensor.dtype)
        for array, tensor in zip(inputs, graph.inputs, strict=True)
    ]
    outputs = model(tree.pack_sequence_as(graph._inputs_struct, given), training=False)
    # NumPy does not have bfloat16.
    return [np.asarray(ops.convert_to_numpy(ops.cast(output, "float32"))) for output in tree.flatten(outputs)]


def inner_layers(layer: keras.Layer) -> list[keras.Layer]:
    """The layers directly inside a layer or subclassed model."""
    return list(layer._flatten_layers(recursive=False, include_self=False))


def over_time(layer: Any) -> bool:
    """True if a layer is one this package reports on: recurrent, or a wrapper that runs over time."""
    return isinstance(layer, keras.layers.RNN | keras.layers.Bidirectional | keras.layers.TimeDistributed)


def find_over_time(model: keras.Layer) -> list[TimeLayer]:
    """Every recurrent layer and time wrapper of a model, in the order they run, each once.

    A layer called several times is masked if any of its calls is. The layers inside `Bidirectional` and
    `TimeDistributed` are left to the caller.
    """
    visitor = _TimeLayers()
    if over_time(model):
        visitor.add(model, model.name, _Tensor(UNKNOWN), None)
    else:
        visitor.look_into(model, "")
    return list(visitor.found.values())


@dataclasses.dataclass(frozen=True)
class _Tensor:
    """The facts about a tensor.

    Attributes:
        mask: What makes the mask on it; None without one.
        embedding: The Embedding whose output it is; None for other tensors.
    """

    mask: str | None = None
    embedding: keras.layers.Embedding | None = None


class _TimeLayers(Visitor[_Tensor]):
    """Finds the layers that run over time.

    Attributes:
        found: The layers by their `id`.
    """

    def __init__(self) -> None:
        self.found: dict[int, TimeLayer] = {}

    def add(self, layer: keras.Layer, path: str, arriving: _Tensor, steps: int | None) -> None:
        """Records a layer, or a further call of it."""
        known = self.found.get(id(layer))
        mask, embedding = arriving.mask, arriving.embedding
        if known is not None:
            path = known.path
            mask = mask if known.mask is None else known.mask
            steps = steps if known.steps == steps else None
            embedding = embedding if known.embedding is embedding else None
        self.found[id(layer)] = TimeLayer(layer, path, mask, steps, embedding)

    def look_into(self, layer: keras.Layer, path: str) -> None:
        """Finds the layers inside a layer, without knowing which masks reach them."""
        graph = functional_graph(layer)
        if graph is not None:
            walk(graph, [_Tensor()] * len(graph.inputs), self, path)
            return
        for inner in inner_layers(layer):
            if over_time(inner):
                self.add(inner, f"{path}{inner.name}", _Tensor(UNKNOWN), None)
            else:
                self.look_into(inner, f"{path}{inner.name}/")

    def call(self, call: GraphCall[_Tensor]) -> list[_Tensor] | Inner[_Tensor]:
        """The mask on the first output; others carry none."""
        operation, node, inputs = call.operation, call.node, call.inputs
        embedding = None
        if over_time(operation):
            # Keras also writes the mask of an input into the call as an argument, so the input's source comes first.
            first = inputs[0] if inputs else _Tensor()
            mask = first.mask or _explicit_mask(node)
            self.add(operation, call.path, _Tensor(mask, first.embedding), node.input_tensors[0].shape[1])
            mask = mask if _passes_on(operation) else None
        else:
            graph = functional_graph(operation)
            if graph is not None:
                return Inner(graph, _of_length(inputs, len(graph.inputs)), call.path)
            if isinstance(operation, keras.Layer):
                self.look_into(operation, f"{call.path}/")
            mask = _mask_after(operation, node, [tensor.mask for tensor in inputs])
            # A subclass may use its table differently.
            if type(operation) is keras.layers.Embedding and len(node.input_tensors[0].shape) == 2:
                embedding = operation
        return _of_length([_Tensor(mask, embedding)], len(call.outputs))


def _of_length(tensors: Sequence[_Tensor], length: int) -> list[_Tensor]:
    """The tensors, cut or padded to a length; nothing is known about a padding tensor."""
    return [*tensors, *[_Tensor()] * length][:length]


def forget_states(model: keras.Model) -> None:
    """Sets the states of all stateful layers in a model to zeros, nested ones included."""
    for found in find_over_time(model):
        if getattr(found.layer, "stateful", False):
            found.layer.reset_state()


def _explicit_mask(node: Any) -> str | None:
    mask = node.arguments.kwargs.get("mask")
    return None if mask is None else "the `mask` argument of its call"


def _passes_on(layer: Any) -> bool:
    """True if the output of a time layer carries the mask of its input."""
    if isinstance(layer, keras.layers.TimeDistributed):
        return True
    return bool(layer.return_sequences)


def _mask_after(operation: Any, node: Any, inputs: Sequence[str | None]) -> str | None:
    """The origin of the mask on the output of one call, by Keras's own rules in `compute_mask`."""
    if isinstance(operation, keras.layers.Masking):
        return f"Masking {operation.name!r}"
    if isinstance(operation, keras.layers.Embedding):
        reverse = node.arguments.kwargs.get("reverse", False)
        if operation.mask_zero and not reverse:
            return f"{type(operation).__name__} {operation.name!r} (mask_zero=True)"
        return None
    if not isinstance(operation, keras.Layer) or not operation.supports_masking:
        return None
    if isinstance(operation, keras.layers.Concatenate):
        return next((mask for mask in inputs if mask is not None), None)
    if isinstance(operation, keras.layers.Dot | keras.layers.GlobalAveragePooling1D):
        return None
    if isinstance(operation, Merge):
        return None if any(mask is None for mask in inputs) else inputs[0]
    return inputs[0] if inputs else None
