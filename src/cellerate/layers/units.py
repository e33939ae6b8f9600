"""Which features of which tensors are the units of a model's LSTM layers, and which weights hold them.

A module of its own because it walks the graph of a Keras model as `reading` does, but asks another question: not what
is computed, but what belongs together, so that a unit can be taken out of every weight that has it. Each feature, a
place on the last axis of a tensor, has a number; features that can only go together get the same.
"""

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, tree

from cellerate.layers.graph import functional_graph, ordered_nodes
from cellerate.layers.units_layers import LAYERS, OPERATIONS, Array, Call, Found, Mixes, Value, WeightAxis


@dataclasses.dataclass(frozen=True)
class Units:
    """The units of the LSTM layers of a model.

    Attributes:
        layers: For each LSTM whose units can go, by its path: the features that are its units, (H,) int64. Layers
            that share features are tied: a unit goes out of all of them, or of none.
        kept_whole: For each other LSTM, by its path: why its units cannot go.
        axes: Every axis of a weight on which there may be such features.
        widths: For each layer whose config says how many features there are, by its path: these features. Of an
            LSTM or a Dense that is `units`, of an input of a nested model the last entry of `batch_shape`.
    """

    layers: Mapping[str, Array]
    kept_whole: Mapping[str, str]
    axes: tuple[WeightAxis, ...]
    widths: Mapping[str, Array]

    def groups(self) -> dict[tuple[str, ...], Array]:
        """The units that can go, by the layers that they are in: a path twice where two units of a layer are tied."""
        layers: dict[int, list[str]] = {}
        for path, features in self.layers.items():
            for feature in features.tolist():
                layers.setdefault(feature, []).append(path)
        groups: dict[tuple[str, ...], list[int]] = {}
        for feature, paths in layers.items():
            groups.setdefault(tuple(sorted(paths)), []).append(feature)
        return {group: np.array(features) for group, features in groups.items()}


def units_of(model: keras.Model) -> Units:
    """Finds the units of the LSTM layers of a model, and every weight that has them.

    Features go unchanged, or with weights of their own, through layers and operations that work on each feature
    alone; LayerNormalization counts as one, though its mean is of all features. Dense and LSTM layers read them.
    Layers that add features to others, or start from the states of others, tie them. What else features reach
    keeps them.

    Args:
        model: A built Functional or Sequential model.

    Returns:
        The units.
    """
    graph: Any = functional_graph(model)
    trace = _Trace()
    inputs = [trace.new(tensor, "its units are tied to an input of the model") for tensor in graph.inputs]
    for value in trace.walk(graph, inputs, ""):
        trace.found.features.pin(value.features, "its units are an output of the model")
    return trace.units()


class _Trace:
    """The walk over a model's graph.

    Attributes:
        found: What was found so far.
    """

    def __init__(self) -> None:
        self.found = Found()
        self._hidden: dict[str, str] = {}

    def new(self, tensor: Any, why: str | None = None) -> Value:
        """A tensor of new features; they must stay if there is a reason."""
        made = self.found.features.new(_width(tensor))
        if why is not None:
            self.found.features.pin(made, why)
        return _value(tensor, made)

    def units(self) -> Units:
        """What was found, with the number of its set for each feature."""
        features, lstms = self.found.features, self.found.lstms
        # A layer keeps all of its units or none, and by that so do those tied to it.
        kept: dict[str, str] = {}
        while True:
            reasons = {path: features.reason(units) for path, units in lstms.items() if path not in kept}
            more = {path: reason for path, reason in reasons.items() if reason is not None}
            if not more:
                break
            for path, reason in more.items():
                features.pin(lstms[path], reason)
            kept |= more
        return Units(
            {path: features.sets_of(units) for path, units in lstms.items() if path not in kept},
            kept | self._hidden,
            tuple(
                dataclasses.replace(axis, features=features.sets_of(axis.features))
                for axis in self.found.axes.values()
            ),
            {path: features.sets_of(found) for path, found in self.found.widths.items()},
        )

    def walk(self, graph: Any, inputs: Sequence[Value], path: str) -> list[Value]:
        """Follows the features through the calls of a graph, in their order; those of its outputs."""
        values = {id(tensor): value for tensor, value in zip(graph.inputs, inputs, strict=True)}
        for node in ordered_nodes(graph):
            args, kwargs = node.arguments.fill_in(values)
            arguments = _bound(node.operation, args, kwargs)
            call = Call(node.operation, f"{path}{node.operation.name}", arguments)
            for tensor, value in zip(node.outputs, self._outputs(call, node.outputs), strict=True):
                values[id(tensor)] = value
        return [values[id(tensor)] for tensor in graph.outputs]

    def _outputs(self, call: Call, tensors: Sequence[Any]) -> list[Value]:
        if _makes_mask(call, tensors):
            # Only its shape comes from the features, and Keras makes that anew.
            return [self.new(tensor) for tensor in tensors]
        try:
            made = self._known(call)
            return [_value(tensor, features) for tensor, features in zip(tensors, made, strict=True)]
        except Mixes:
            what = f"{call.path!r} ({type(call.layer).__name__})"
            reaches = f"its units reach {what}, which is not known to keep features apart"
            for value in call.values:
                self.found.features.pin(value.features, reaches)
            if isinstance(call.layer, keras.Layer):
                self._hide(call, f"what {what} computes with it is not known")
            return [self.new(tensor, f"its units are tied to what {what} gives") for tensor in tensors]

    def _known(self, call: Call) -> list[Array]:
        """The features of the outputs of a call.

        Raises:
            Mixes: It is none that is known to keep features apart.
        """
        layer, kind = call.layer, type(call.layer)
        if kind is layers.TimeDistributed:
            step = dataclasses.replace(call.x, rank=call.x.rank - 1)
            return self._known(Call(layer.layer, f"{call.path}/{layer.layer.name}", {"inputs": step}))
        # A subclass of Sequential may have a `call` of its own.
        custom = isinstance(layer, keras.Sequential) and kind is not keras.Sequential
        graph = None if custom else functional_graph(layer)
        if graph is not None:
            return self._inside(call, graph)
        changed = getattr(layer, "quantization_mode", None) or getattr(layer, "lora_enabled", False)
        handler = LAYERS.get(kind)
        if handler is None and kind.__module__.startswith("keras.src.ops."):
            handler = OPERATIONS.get(kind.__name__)
        if handler is None or changed:
            raise Mixes
        return handler(self.found, call)

    def _inside(self, call: Call, graph: Any) -> list[Array]:
        """The same, of a nested model."""
        given = call.x
        if isinstance(given, dict) and not isinstance(graph._inputs_struct, dict):
            given = [given[tensor.name] for tensor in graph.inputs]
        inputs = tree.flatten(given)
        if [len(value.features) for value in inputs] != [_width(tensor) for tensor in graph.inputs]:
            raise Mixes
        for tensor, value in zip(graph.inputs, inputs, strict=True):
            self.found.width(f"{call.path}/{tensor._keras_history.operation.name}", value.features)
        return [value.features for value in self.walk(graph, inputs, f"{call.path}/")]

    def _hide(self, call: Call, why: str) -> None:
        """Notes that the LSTM layers in a layer are not followed; elsewhere one may be called and known."""
        for inner in call.layer._flatten_layers():
            if isinstance(inner, layers.LSTM):
                path = call.path if inner is call.layer else f"{call.path}/{inner.name}"
                self._hidden[path] = why
                if path in self.found.lstms:
                    self.found.features.pin(self.found.lstms[path], why)


def _value(tensor: Any, features: Array) -> Value:
    return Value(features, len(tensor.shape), tensor.dtype == "bool")


def _width(tensor: Any) -> int:
    """How many features a tensor has."""
    return (tensor.shape[-1] or 0) if len(tensor.shape) > 1 else 0


def _makes_mask(call: Call, tensors: Sequence[Any]) -> bool:
    """Whether a call computes a mask from masks, or from a shape: operations that Keras puts into the graph."""
    if any(tensor.dtype != "bool" for tensor in tensors):
        return False
    return type(call.layer).__name__ in ("OnesLike", "ZerosLike") or all(
        value.boolean for value in call.values
    )


def _bound(operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by their names; Keras takes some, such as `training`, whether a layer has them or not."""
    signature = inspect.signature(type(operation).call)
    kwargs = {name: value for name, value in kwargs.items() if name in signature.parameters}
    bound = signature.bind(operation, *args, **kwargs).arguments
    del bound["self"]
    return dict(bound)
