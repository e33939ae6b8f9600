"""Reading the graph of a Keras model: its nodes in order, and which masks reach its recurrent layers.

A module of its own because `explain` and the stepper both walk the graph, and because it is where the
undocumented Keras surface of doing so (`_nodes_by_depth`, `Sequential._functional`) is kept.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import keras
from keras.src.layers.merging.base_merge import Merge
from keras.src.models.functional import Functional

UNKNOWN = "unknown until called"
"""Stands for the source of a mask where the graph does not say whether one arrives."""


@dataclasses.dataclass(frozen=True)
class Found:
    """A layer that runs over time, where it is, and what reaches it.

    Attributes:
        layer: The recurrent layer, or a `Bidirectional` or `TimeDistributed` wrapper.
        path: The names of the submodels down to it and its own, joined by "/".
        mask: None if no mask reaches it; `UNKNOWN`; or what makes the mask, in words.
        steps: The number of time steps where it is fixed, else None.
    """

    layer: keras.Layer
    path: str
    mask: str | None
    steps: int | None


def functional_graph(layer: Any) -> Any | None:
    """The graph of a Functional or Sequential model; None for any other layer and for an unbuilt model."""
    if isinstance(layer, keras.Sequential):
        return getattr(layer, "_functional", None)
    # A subclass of Functional with a `call` of its own does not run its graph.
    return layer if isinstance(layer, Functional) and type(layer).call is Functional.call else None


def ordered_nodes(graph: Any) -> Iterator[Any]:
    """The calls of a graph in the order they run, inputs left out."""
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        for node in graph._nodes_by_depth[depth]:
            if node.operation is not None and not node.is_input:
                yield node


def inner_layers(layer: keras.Layer) -> list[keras.Layer]:
    """The layers directly inside a layer or subclassed model."""
    return list(layer._flatten_layers(recursive=False, include_self=False))


def over_time(layer: Any) -> bool:
    """Whether a layer is one this package reports on: recurrent, or a wrapper that runs over time."""
    return isinstance(layer, keras.layers.RNN | keras.layers.Bidirectional | keras.layers.TimeDistributed)


def find_over_time(model: keras.Layer) -> list[Found]:
    """Every recurrent layer and time wrapper of a model, in the order they run, each once.

    A layer called several times is masked if any of its calls is. What is inside `Bidirectional` and
    `TimeDistributed` is left to the caller.
    """
    found: dict[int, Found] = {}

    def add(layer: keras.Layer, path: str, mask: str | None, steps: int | None) -> None:
        known = found.get(id(layer))
        if known is not None:
            mask = mask if known.mask is None else known.mask
            steps = steps if known.steps == steps else None
        found[id(layer)] = Found(layer, path if known is None else known.path, mask, steps)

    def walk(layer: keras.Layer, path: str, masks: Sequence[str | None] | None) -> list[str | None]:
        """Visits what is inside `layer`; returns the masks of its outputs, nothing where it has no graph."""
        graph = functional_graph(layer)
        if graph is None:
            for inner in inner_layers(layer):
                inner_path = f"{path}{inner.name}"
                if over_time(inner):
                    add(inner, inner_path, UNKNOWN, None)
                else:
                    walk(inner, f"{inner_path}/", None)
            return []
        sources: dict[int, str | None] = {
            id(tensor): (masks[index] if masks is not None and index < len(masks) else None)
            for index, tensor in enumerate(graph.inputs)
        }
        for node in ordered_nodes(graph):
            operation = node.operation
            inputs = [sources.get(id(tensor)) for tensor in node.input_tensors]
            outputs: list[str | None]
            if over_time(operation):
                # Keras writes the mask of an input into the call as an argument too: name its source first.
                mask = (inputs[0] if inputs else None) or _explicit_mask(node)
                add(operation, f"{path}{operation.name}", mask, node.input_tensors[0].shape[1])
                outputs = [mask if _passes_on(operation) else None]
            elif isinstance(operation, keras.Layer) and inner_layers(operation):
                outputs = walk(operation, f"{path}{operation.name}/", inputs) or [
                    _mask_after(operation, node, inputs)
                ]
            else:
                outputs = [_mask_after(operation, node, inputs)]
            for index, tensor in enumerate(node.outputs):
                sources[id(tensor)] = outputs[index] if index < len(outputs) else None
        return [sources.get(id(tensor)) for tensor in graph.outputs]

    if over_time(model):
        add(model, model.name, UNKNOWN, None)
    else:
        walk(model, "", None)
    return list(found.values())


def forget_states(model: keras.Model) -> None:
    """Sets the states of stateful layers to zeros, wherever in a model they are."""
    for found in find_over_time(model):
        if getattr(found.layer, "stateful", False):
            found.layer.reset_state()


def _explicit_mask(node: Any) -> str | None:
    mask = node.arguments.kwargs.get("mask")
    return None if mask is None else "the `mask` argument of its call"


def _passes_on(layer: Any) -> bool:
    """Whether the output of a time layer carries the mask of its input."""
    if isinstance(layer, keras.layers.TimeDistributed):
        return True
    return bool(layer.return_sequences)


def _mask_after(operation: Any, node: Any, inputs: Sequence[str | None]) -> str | None:
    """What makes the mask on the output of one call; Keras's own rules, read from `compute_mask`."""
    if isinstance(operation, keras.layers.Masking):
        return f"Masking {operation.name!r}"
    if isinstance(operation, keras.layers.Embedding):
        reverse = node.arguments.kwargs.get("reverse", False)
        return (
            f"{type(operation).__name__} {operation.name!r} (mask_zero=True)"
            if (operation.mask_zero and not reverse)
            else None
        )
    if not isinstance(operation, keras.Layer) or not operation.supports_masking:
        return None
    if isinstance(operation, keras.layers.Concatenate):
        return next((mask for mask in inputs if mask is not None), None)
    if isinstance(operation, keras.layers.Dot | keras.layers.GlobalAveragePooling1D):
        return None
    if isinstance(operation, Merge):
        return None if any(mask is None for mask in inputs) else inputs[0]
    return inputs[0] if inputs else None
