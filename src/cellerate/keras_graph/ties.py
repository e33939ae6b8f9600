"""Finds the features that are the units of a model's LSTM layers, and the weights that hold them.

The result allows a unit to be removed from every weight that has it. A feature is an index on the last axis of a
tensor, and has a number. Features that can only be removed together get the same number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import layers

from cellerate.keras_graph.graph import functional_graph
from cellerate.keras_graph.keras_layers import ROWS, operation_row
from cellerate.keras_graph.ties_layers import Array, FeatureMap, FeatureValue, Mixes, TiesCall, WeightAxis
from cellerate.keras_graph.walk import GraphCall, Inner, Visitor, flat_inputs, walk


@dataclasses.dataclass(frozen=True)
class LayerUnits:
    """The units of the LSTM layers of a model.

    Attributes:
        layers: The features that are the units, (H,) int64, of each LSTM with removable units, by its path. Layers that
            share features are tied: a unit is removed from all of them or from none.
        kept_whole: Why the units must stay, for each other LSTM, by its path.
        axes: Every axis of a weight that may hold such features.
        widths: The features of each layer whose config holds their number, by its path: in `units` for an LSTM or a
            Dense, in the last entry of `batch_shape` for an input of a nested model.
    """

    layers: Mapping[str, Array]
    kept_whole: Mapping[str, str]
    axes: tuple[WeightAxis, ...]
    widths: Mapping[str, Array]

    def groups(self) -> dict[tuple[str, ...], Array]:
        """The removable units by the paths of their layers; a path occurs twice if two units of a layer are tied."""
        layers: dict[int, list[str]] = {}
        for path, features in self.layers.items():
            for feature in features.tolist():
                layers.setdefault(feature, []).append(path)
        groups: dict[tuple[str, ...], list[int]] = {}
        for feature, paths in layers.items():
            groups.setdefault(tuple(sorted(paths)), []).append(feature)
        return {group: np.array(features) for group, features in groups.items()}


def units_of(model: keras.Model) -> LayerUnits:
    """Finds the units of the LSTM layers of a model, and every weight that has them.

    Features pass through layers and operations that work on each feature alone, with or without weights for each;
    LayerNormalization counts as one of these, although its mean is over all features. Dense and LSTM layers read
    them. Layers that add features to others, or start from other layers' states, tie them. Features that reach
    anything else must stay.

    Args:
        model: A built Functional or Sequential model.

    Returns:
        The units.
    """
    graph: Any = functional_graph(model)
    trace = _Trace()
    inputs = [trace.new(tensor, "its units are tied to an input of the model") for tensor in graph.inputs]
    for value in walk(graph, inputs, trace):
        trace.found.features.pin(value.features, "its units are an output of the model")
    return trace.units()


class _Trace(Visitor[FeatureValue]):
    """Follows features through a model's calls.

    Attributes:
        found: What was found so far.
    """

    def __init__(self) -> None:
        self.found = FeatureMap()
        self._hidden: dict[str, str] = {}

    def new(self, tensor: Any, why: str | None = None) -> FeatureValue:
        """A tensor of new features, which must stay if `why` gives a reason."""
        made = self.found.features.new(_width(tensor))
        if why is not None:
            self.found.features.pin(made, why)
        return _value(tensor, made)

    def units(self) -> LayerUnits:
        """The result: each feature is replaced by the number of its set."""
        features, lstms = self.found.features, self.found.lstms
        # If one unit of a layer must stay, all of them must, and so must the layers tied to it.
        kept: dict[str, str] = {}
        while True:
            reasons = {path: features.reason(units) for path, units in lstms.items() if path not in kept}
            more = {path: reason for path, reason in reasons.items() if reason is not None}
            if not more:
                break
            for path, reason in more.items():
                features.pin(lstms[path], reason)
            kept |= more
        return LayerUnits(
            {path: features.sets_of(units) for path, units in lstms.items() if path not in kept},
            kept | self._hidden,
            tuple(
                dataclasses.replace(axis, features=features.sets_of(axis.features))
                for axis in self.found.axes.values()
            ),
            {path: features.sets_of(found) for path, found in self.found.widths.items()},
        )

    def output(self, tensor: Any, value: FeatureValue) -> FeatureValue:
        """The features, with the rank and type that the tensor has in the graph."""
        return _value(tensor, value.features)

    def call(self, call: GraphCall[FeatureValue]) -> list[FeatureValue] | Inner[FeatureValue]:
        """The features of the outputs of one call."""
        return self._outputs(TiesCall(call.operation, call.path, call.arguments()), call.outputs)

    def _outputs(self, call: TiesCall, tensors: Sequence[Any]) -> list[FeatureValue] | Inner[FeatureValue]:
        if _makes_mask(call, tensors):
            # Only the shape of a mask comes from the features, and Keras computes that again.
            return [self.new(tensor) for tensor in tensors]
        try:
            made = self._known(call)
        except Mixes:
            what = f"{call.path!r} ({type(call.layer).__name__})"
            reaches = f"its units reach {what}, which is not known to keep features apart"
            for value in call.values:
                self.found.features.pin(value.features, reaches)
            if isinstance(call.layer, keras.Layer):
                self._hide(call, f"the computation of {what} is not known")
            return [self.new(tensor, f"its units are tied to the output of {what}") for tensor in tensors]
        if isinstance(made, Inner):
            return made
        return [_value(tensor, features) for tensor, features in zip(tensors, made, strict=True)]

    def _known(self, call: TiesCall) -> list[Array] | Inner[FeatureValue]:
        """The features of the outputs of a call, or the nested model that computes them.

        Raises:
            Mixes: The call is not known to keep features apart.
        """
        layer, kind = call.layer, type(call.layer)
        if kind is layers.TimeDistributed:
            step = dataclasses.replace(call.x, rank=call.x.rank - 1)
            return self._known(TiesCall(layer.layer, f"{call.path}/{layer.layer.name}", {"inputs": step}))
        # A subclass of Sequential may define its own `call`.
        custom = isinstance(layer, keras.Sequential) and kind is not keras.Sequential
        graph = None if custom else functional_graph(layer)
        if graph is not None:
            return self._inside(call, graph)
        changed = getattr(layer, "quantization_mode", None) or getattr(layer, "lora_enabled", False)
        row = ROWS.get(kind) or operation_row(kind)
        if row.ties is None or changed:
            raise Mixes
        return row.ties(self.found, call)

    def _inside(self, call: TiesCall, graph: Any) -> Inner[FeatureValue]:
        """A nested model, with the features that go in."""
        inputs: list[FeatureValue] = flat_inputs(graph, call.x)
        if [len(value.features) for value in inputs] != [_width(tensor) for tensor in graph.inputs]:
            raise Mixes
        for tensor, value in zip(graph.inputs, inputs, strict=True):
            self.found.width(f"{call.path}/{tensor._keras_history.operation.name}", value.features)
        return Inner(graph, inputs, call.path)

    def _hide(self, call: TiesCall, why: str) -> None:
        """Records the LSTM layers inside a layer that is not followed, and pins their units if they are known."""
        for inner in call.layer._flatten_layers():
            if isinstance(inner, layers.LSTM):
                path = call.path if inner is call.layer else f"{call.path}/{inner.name}"
                self._hidden[path] = why
                if path in self.found.lstms:
                    self.found.features.pin(self.found.lstms[path], why)


def _value(tensor: Any, features: Array) -> FeatureValue:
    return FeatureValue(features, len(tensor.shape), tensor.dtype == "bool")


def _width(tensor: Any) -> int:
    """The number of features of a tensor."""
    return (tensor.shape[-1] or 0) if len(tensor.shape) > 1 else 0


def _makes_mask(call: TiesCall, tensors: Sequence[Any]) -> bool:
    """True if a call computes a mask from masks or from a shape, with operations that Keras puts into the graph."""
    if any(tensor.dtype != "bool" for tensor in tensors):
        return False
    return type(call.layer).__name__ in ("OnesLike", "ZerosLike") or all(
        value.boolean for value in call.values
    )
