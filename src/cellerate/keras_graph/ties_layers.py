"""The effect of each layer and operation on features: it passes them on, ties them together, or has weights for them.

The table in `keras_layers` assigns these functions to layers; `ties` handles nested models and TimeDistributed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, tree

from cellerate.keras_graph.activations import activation_name

Array = np.ndarray


@dataclasses.dataclass(frozen=True)
class WeightAxis:
    """One axis of a weight, with the feature of each index on it.

    Attributes:
        variable: The weight.
        axis: The number of the axis.
        features: The number of the feature at each index, (size of the axis,) int64.
        reads: Whether the weight reads the features along this axis, as a kernel does along its rows.
    """

    variable: keras.Variable
    axis: int
    features: Array
    reads: bool


class Mixes(Exception):  # noqa: N818  (always caught: the features then stay)
    """Raised for a layer that, as configured or called, is not known to keep features apart."""


@dataclasses.dataclass(frozen=True)
class FeatureValue:
    """The stand-in for a tensor.

    Attributes:
        features: The features on its last axis; none if the size of that axis is free, or it is the only axis.
        rank: The number of axes.
        boolean: Whether the tensor is boolean.
    """

    features: Array
    rank: int
    boolean: bool


@dataclasses.dataclass(frozen=True)
class TiesCall:
    """One call of a layer or operation.

    Attributes:
        layer: The layer or operation.
        path: Its path in the model.
        arguments: The arguments by name, with a `FeatureValue` for each tensor.
    """

    layer: Any
    path: str
    arguments: Mapping[str, Any]

    @property
    def x(self) -> Any:
        """The first argument."""
        return next(iter(self.arguments.values()))

    @property
    def values(self) -> list[FeatureValue]:
        """All tensors among the arguments."""
        return [value for value in tree.flatten(dict(self.arguments)) if isinstance(value, FeatureValue)]


class Features:
    """Numbered features, the sets of tied features, and the reasons why some sets must stay."""

    def __init__(self) -> None:
        self._parents: list[int] = []
        self._reasons: dict[int, str] = {}

    def new(self, count: int) -> Array:
        """Makes `count` features, tied to nothing."""
        first = len(self._parents)
        self._parents.extend(range(first, first + count))
        return np.arange(first, first + count)

    def sets_of(self, features: Array) -> Array:
        """The number of each feature's set, which is the number of one feature in it."""
        return np.array([self._set_of(feature) for feature in features.tolist()], "int64")

    def tie(self, first: Array, second: Array) -> None:
        """Ties each feature of `first` to the feature at the same index in `second`."""
        for one, other in zip(first.tolist(), second.tolist(), strict=True):
            kept, joined = self._set_of(one), self._set_of(other)
            if kept != joined:
                self._parents[joined] = kept
                if joined in self._reasons:
                    self._reasons.setdefault(kept, self._reasons.pop(joined))

    def pin(self, features: Array, reason: str) -> None:
        """Records that features, and all features tied to them, must stay."""
        for feature in features.tolist():
            self._reasons.setdefault(self._set_of(feature), reason)

    def reason(self, features: Array) -> str | None:
        """The reason why the first pinned one of these features must stay; None if none is pinned."""
        found = (self._reasons.get(self._set_of(feature)) for feature in features.tolist())
        return next((reason for reason in found if reason is not None), None)

    def _set_of(self, feature: int) -> int:
        parents = self._parents
        while parents[feature] != feature:
            parents[feature] = parents[parents[feature]]
            feature = parents[feature]
        return feature


class FeatureMap:
    """The features found so far, and the layers and weights that hold them.

    Attributes:
        features: All features.
        lstms: The units of each LSTM, by its path.
        widths: The features whose count is in a layer's config, by the layer's path.
        axes: The features on the axes of weights, by the `id` of the weight and the axis.
    """

    def __init__(self) -> None:
        self.features = Features()
        self.lstms: dict[str, Array] = {}
        self.widths: dict[str, Array] = {}
        self.axes: dict[tuple[int, int], WeightAxis] = {}

    def width(self, path: str, features: Array) -> None:
        """Records that a layer's config holds the count of these features; each call of the layer has the same ones."""
        self.features.tie(self.widths.setdefault(path, features), features)

    def label(self, variable: Any, axis: int, features: Array, *, reads: bool = False) -> None:
        """Records the features on an axis of a weight, the same in each call. Does nothing without a weight."""
        if variable is not None:
            made = WeightAxis(variable, axis, features, reads=reads)
            self.features.tie(self.axes.setdefault((id(variable), axis), made).features, features)

    def tied(self, values: Sequence[FeatureValue]) -> list[Array]:
        """The features of a tensor that combines several tensors feature by feature.

        Raises:
            Mixes: The tensors have different numbers of features, so a feature would be combined with several.
        """
        first, *others = [value.features for value in values]
        if any(len(other) != len(first) for other in others):
            raise Mixes
        for other in others:
            self.features.tie(first, other)
        return [first]


Tie = Callable[[FeatureMap, TiesCall], list[Array]]
"""Returns the features of each output of a call. If they are unknown, raises Mixes before it records anything."""


def passes(found: FeatureMap, call: TiesCall) -> list[Array]:
    """The features of the input, unchanged."""
    return [value.features for value in tree.flatten(call.x)]


def dropout(found: FeatureMap, call: TiesCall) -> list[Array]:
    """The features of the input, unless the noise shape fixes their number."""
    shape = getattr(call.layer, "noise_shape", None)
    if shape is not None and shape[-1] not in (None, 1):
        raise Mixes
    return passes(found, call)


def activation(found: FeatureMap, call: TiesCall) -> list[Array]:
    """The features of the input, if the function is elementwise."""
    if not _is_elementwise(call.layer.activation):
        raise Mixes
    return passes(found, call)


def over_time(found: FeatureMap, call: TiesCall) -> list[Array]:
    """The features of the input, from a layer that works along the axis before the last."""
    if getattr(call.layer, "data_format", "channels_last") != "channels_last":
        raise Mixes
    return passes(found, call)


def normalized(found: FeatureMap, call: TiesCall) -> list[Array]:
    """The features of the input, each with its own weights."""
    axes = tree.flatten(call.layer.axis)
    if [axis % call.x.rank for axis in axes] != [call.x.rank - 1]:
        raise Mixes
    for name in ("gamma", "beta", "moving_mean", "moving_variance"):
        found.label(getattr(call.layer, name, None), 0, call.x.features)
    return passes(found, call)


def dense(found: FeatureMap, call: TiesCall) -> list[Array]:
    """New features, from a kernel that reads the incoming ones."""
    layer = call.layer
    made = found.widths.get(call.path)
    if made is None:
        made = found.features.new(layer.units)
        if not _is_elementwise(layer.activation):
            found.features.pin(made, f"its units are tied to the output of {call.path!r} (Dense)")
    found.width(call.path, made)
    found.label(layer.kernel, 0, call.x.features, reads=True)
    found.label(layer.kernel, 1, made)
    found.label(layer.bias, 0, made)
    return [made]


def lstm(found: FeatureMap, call: TiesCall) -> list[Array]:
    """The LSTM's units, from kernels that read the features and the units; initial states are tied to the units."""
    layer, cell = call.layer, call.layer.cell
    states = [value for value in tree.flatten(call.arguments.get("initial_state")) if value is not None]
    if not all(isinstance(value, FeatureValue) for value in states):
        raise Mixes
    units = found.lstms.get(call.path)
    if units is None:
        units = found.lstms[call.path] = found.features.new(layer.units)
        for function in (cell.activation, cell.recurrent_activation):
            if not _is_elementwise(function):
                name = getattr(function, "__name__", None) or type(function).__name__
                why = f"it has the activation {name!r}, by which a unit may depend on the others"
                found.features.pin(units, why)
    for value in states:
        found.features.tie(units, value.features)
    found.width(call.path, units)
    found.label(cell.kernel, 0, call.x.features, reads=True)
    found.label(cell.recurrent_kernel, 0, units, reads=True)
    gates = np.tile(units, 4)
    for weight, axis in ((cell.kernel, 1), (cell.recurrent_kernel, 1), (cell.bias, 0)):
        found.label(weight, axis, gates)
    return [units] * (3 if layer.return_state else 1)


def bidirectional(found: FeatureMap, call: TiesCall) -> list[Array]:
    """The units of both directions, joined as the layer merges them."""
    layer = call.layer
    directions = (layer.forward_layer, layer.backward_layer)
    initial = [value for value in tree.flatten(call.arguments.get("initial_state")) if value is not None]
    if any(type(inner) is not layers.LSTM for inner in directions) or not all(
        isinstance(value, FeatureValue) for value in initial
    ):
        raise Mixes
    half = len(initial) // 2
    (forward, *states), (backward, *backward_states) = (
        lstm(
            found, TiesCall(inner, f"{call.path}/{inner.name}", {"sequences": call.x, "initial_state": state})
        )
        for inner, state in zip(directions, (initial[:half], initial[half:]), strict=True)
    )
    if layer.merge_mode is None:
        merged = [forward, backward]
    elif layer.merge_mode == "concat":
        merged = [np.concatenate([forward, backward])]
    else:
        found.features.tie(forward, backward)
        merged = [forward]
    return merged + states + backward_states


def joined(found: FeatureMap, call: TiesCall) -> list[Array]:
    """The features of all inputs side by side; tied if the inputs are joined along another axis."""
    values = tree.flatten(call.x)
    if call.layer.axis % values[0].rank == values[0].rank - 1:
        return [np.concatenate([value.features for value in values])]
    return found.tied(values)


def merged(found: FeatureMap, call: TiesCall) -> list[Array]:
    """Each feature, tied to the features it is merged with."""
    return found.tied(tree.flatten(call.x))


def arithmetic(found: FeatureMap, call: TiesCall) -> list[Array]:
    """Like `merged`, but scalars are allowed; a constant for each feature is not, because it could not be cut."""
    if any(not isinstance(part, FeatureValue) and np.size(part) != 1 for part in call.arguments.values()):
        raise Mixes
    return found.tied(call.values)


def along_axis(found: FeatureMap, call: TiesCall) -> list[Array]:
    """The features of the input, if the operation works along axes other than the last."""
    axis, rank = call.layer.axis, call.x.rank
    # A new axis is counted among the axes of the output.
    rank += type(call.layer).__name__ == "ExpandDims"
    if axis is None or any(number % rank == rank - 1 for number in tree.flatten(axis)):
        raise Mixes
    return passes(found, call)


def item(found: FeatureMap, call: TiesCall) -> list[Array]:
    """The features of the input, if x[key] keeps the whole last axis."""
    key = call.arguments["key"]
    parts = list(key) if isinstance(key, tuple | list) else [key]
    if not all(part is Ellipsis or isinstance(part, int | slice) for part in parts):
        raise Mixes
    if Ellipsis not in parts:
        parts.append(Ellipsis)
    place = parts.index(Ellipsis)
    parts[place : place + 1] = [slice(None)] * (call.x.rank - len(parts) + 1)
    if parts[-1] != slice(None):
        raise Mixes
    return passes(found, call)


def _is_elementwise(function: Any) -> bool:
    """Return True for an activation that works on each number alone."""
    return activation_name(function) is not None
