"""What each Keras layer computes, as nodes of a program.

A module of its own because it is a table, to be gone through when Keras gains layers. The recurrent layers are in
`reading_recurrent`, the operations in `reading_operations`.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, ops
from keras.src import tree

from cellerate.layers.reading_nodes import (
    NAMED,
    Call,
    Read,
    Refused,
    Value,
    Weight,
    carried,
    known_activation,
    numpy,
    read_layer,
)


def _dropped(call: Call) -> list[Value]:
    return list(tree.flatten(call.x))


def _embedding(call: Call) -> Value:
    ids = call.x
    if not call.nodes.is_input(ids) or len(ids.shape) != 2:
        found = "an input" if call.nodes.is_input(ids) else "a computed tensor"
        raise Refused(
            f"looks up {found} of {len(ids.shape)} axes, where programs take an input (B, T) of ids"
        )
    outputs = call.add("embedding", {"ids": ids}, {"embeddings": _merged(call, "embeddings")})
    if not call.layer.mask_zero:
        return outputs
    return dataclasses.replace(outputs, mask=carried(call.nodes.mask("ids_mask", call.path, {"ids": ids})))


def _reversible_embedding(call: Call) -> Value:
    layer = call.layer
    if not call.arguments.get("reverse"):
        return _embedding(call)
    if layer.tie_weights:
        table = _merged(call, "embeddings")
    else:
        weight = Weight(layer.reverse_embeddings, transposed=True)
        table = call.nodes.array(layer, "reverse", lambda: numpy(layer.reverse_embeddings).T, weight)
    cap = None if layer.logit_soft_cap is None else float(layer.logit_soft_cap)
    return call.add("unembedding", arrays={"embeddings": table}, soft_cap=cap)


def _masking(call: Call) -> Value:
    if len(call.x.shape) != 3:
        raise Refused(f"masks a tensor of {len(call.x.shape)} axes, where programs mask (B, T, F)")
    value = float(ops.convert_to_numpy(call.layer.mask_value))
    mask = call.nodes.mask("features_mask", call.path, {"x": call.x}, mask_value=value)
    return dataclasses.replace(call.add("masked", {"x": call.x, "mask": mask}), mask=carried(mask))


def _dense(call: Call) -> Value:
    activation = known_activation(call.layer.activation)
    arrays = {"kernel": _merged(call, "kernel"), **call.weights(call.layer, "bias")}
    return call.add("dense", arrays=arrays, activation=activation)


def _einsum_dense(call: Call) -> Value:
    equation, bias_axes = call.layer.equation, call.layer.bias_axes
    found = re.fullmatch(r"(\.\.\.|[A-Za-z]+)([A-Za-z]),\2([A-Za-z])->\1\3", equation)
    if found is None or found[3] in found[1] + found[2] or bias_axes not in (None, found[3]):
        raise Refused(f"computes {equation!r} with bias_axes={bias_axes!r}, which is no dense", "Use Dense.")
    return _dense(call)


def _merged(call: Call, name: str) -> np.ndarray:
    """The kernel or table of a layer, with its low-rank update where it has one."""
    layer = call.layer
    if not layer.lora_enabled:
        return call.weights(layer, name)[name]
    kept = getattr(layer, f"_{name}")
    halves = [getattr(layer, f"lora_{name}_{half}") for half in "ab"]

    def make() -> Any:
        a, b = (numpy(half).astype("float64") for half in halves)
        return numpy(kept) + layer.lora_alpha / layer.lora_rank * (a @ b)

    return call.nodes.array(layer, name, make, Weight(kept, update=halves[1]))


def _activation(call: Call) -> Value:
    name = known_activation(call.layer.activation)
    # How a cast to float32 is written: programs have no other type.
    return call.x if name == "linear" else call.add("activation", activation=name)


def _leaky(call: Call, slope: float) -> Value:
    if slope in (0.0, 0.2):
        return call.add("activation", activation="leaky_relu" if slope else "relu")
    if not 0.0 < slope <= 1.0:
        raise Refused(f"has negative_slope={slope:g}, where programs take 0 to 1", NAMED)
    return call.add("maximum", {"0": call.x, "1": affine(call, slope, 0.0)})


def _leaky_relu(call: Call) -> Value:
    return _leaky(call, call.layer.negative_slope)


def _relu(call: Call) -> Value:
    top, slope, threshold = call.layer.max_value, call.layer.negative_slope, call.layer.threshold
    if threshold or top not in (None, 6) or (top and slope):
        raise Refused(
            f"has max_value={top}, negative_slope={slope:g} and threshold={threshold:g}, together none of the "
            "activations that programs know",
            NAMED,
        )
    return call.add("activation", activation="relu6") if top else _leaky(call, slope)


def _elu(call: Call) -> Value:
    if call.layer.alpha != 1.0:
        raise Refused(f"has alpha={call.layer.alpha:g}, where programs know 1", NAMED)
    return call.add("activation", activation="elu")


def _softmax(call: Call) -> Value:
    _check_last_axis(call, call.layer.axis)
    if call.mask is not None:
        raise Refused(
            "is given a mask, by which it leaves features out", "Normalise before the mask is made."
        )
    return call.add("activation", activation="softmax")


def _layer_normalization(call: Call) -> Value:
    _check_last_axis(call, call.layer.axis)
    if call.layer.rms_scaling:
        raise Refused("has rms_scaling=True", "Use the plain normalisation.")
    arrays = call.weights(call.layer, "gamma", "beta")
    return call.add("layer_norm", arrays=arrays, epsilon=float(call.layer.epsilon))


def _batch_normalization(call: Call) -> Value:
    layer = call.layer
    _check_last_axis(call, layer.axis)
    mean, variance = (numpy(part).astype("float64") for part in (layer.moving_mean, layer.moving_variance))
    scale = (numpy(layer.gamma) if layer.scale else 1.0) / np.sqrt(variance + layer.epsilon)
    return affine(call, scale, (numpy(layer.beta) if layer.center else 0.0) - mean * scale)


def _normalization(call: Call) -> Value:
    layer = call.layer
    if layer.axis:
        _check_last_axis(call, layer.axis)
    mean, variance = (numpy(part).astype("float64") for part in (layer.mean, layer.variance))
    deviation = np.maximum(np.sqrt(variance), keras.config.epsilon())
    if layer.invert:
        return affine(call, deviation, mean)
    return affine(call, 1.0 / deviation, -mean / deviation)


def _rescaling(call: Call) -> Value:
    return affine(call, call.layer.scale, call.layer.offset)


def affine(call: Call, scale: Any, offset: Any, x: Value | None = None) -> Value:
    """x, the first argument unless given, times `scale` plus `offset`: numbers, or one for each feature."""
    x = call.x if x is None else x
    width = x.shape[-1] if len(x.shape) > 1 else None
    if width is None:
        raise Refused("scales a last axis of unknown size", "Give the model's Input its size.")
    if any(np.size(part) not in (1, width) for part in (scale, offset)):
        raise Refused("scales by an array that is not one number for each feature")
    arrays = {}
    for name, part in (("scale", scale), ("offset", offset)):
        make = functools.partial(_spread, part, width)
        # A layer always has the same; an operation could be called again with another constant.
        layer = isinstance(call.layer, keras.Layer)
        arrays[name] = call.nodes.array(call.layer, f"{name} of {width}", make) if layer else make()
    return call.add("affine", {"x": x}, arrays)


def _spread(part: Any, width: int) -> np.ndarray:
    """A number, or one for each feature, as float32 for each."""
    return np.broadcast_to(np.asarray(part, "float64").ravel(), (width,)).astype("float32")


def _check_last_axis(call: Call, axis: Any) -> None:
    rank = len(call.x.shape)
    axes = list(axis) if isinstance(axis, list | tuple) else [axis]
    if [a % rank for a in axes] != [rank - 1]:
        raise Refused(f"works along axis {axis} of {rank}", "Let it work along the last axis: axis=-1.")


def _time_distributed(call: Call) -> list[Value]:
    layer, x = call.layer.layer, call.x
    step = dataclasses.replace(x, shape=(x.shape[0], *x.shape[2:]), mask=None)
    inner = dataclasses.replace(
        call, layer=layer, path=f"{call.path}/{layer.name}", arguments={"inputs": step}
    )
    return read_layer(inner, PER_STEP)


def reshaped(call: Call, x: Value | None = None) -> Value:
    """x, the first argument unless given, in the shape of the call's output."""
    shape = tuple(-1 if size is None else size for size in call.shapes[0][1:])
    if shape.count(-1) > 1:
        raise Refused(f"makes the shape {shape}, without the batch: more than one of its sizes is not known")
    return call.add("reshape", {"x": call.x if x is None else x}, shape=shape)


def _flatten(call: Call) -> Value:
    if len(call.x.shape) > 2:
        _check_data_format(call)
    return reshaped(call)


def _permute(call: Call) -> Value:
    return call.add("permute", axes=tuple(call.layer.dims))


def _repeat_vector(call: Call) -> Value:
    return call.add("repeat_vector", n=call.layer.n)


def _cropping(call: Call) -> Value:
    begin, end = call.layer.cropping
    return call.add("crop", begin=begin, end=-end if end else None)


def _average_pooling(call: Call) -> Value:
    _check_data_format(call)
    mask = call.used_mask()
    inputs = {"x": call.x} if mask is None else {"x": call.x, "mask": mask}
    pooled = call.add("mean_over_time", inputs)
    return reshaped(call, pooled) if call.layer.keepdims else pooled


def _max_pooling(call: Call) -> Value:
    _check_data_format(call)
    pooled = call.add("max_over_time")
    return reshaped(call, pooled) if call.layer.keepdims else pooled


def _check_data_format(call: Call) -> None:
    if call.layer.data_format != "channels_last":
        raise Refused(f"has data_format={call.layer.data_format!r}", 'Use data_format="channels_last".')


def _merge(op: str) -> Read:
    return lambda call: call.add(op, numbered(call.x))


def numbered(values: Sequence[Value]) -> dict[str, Value]:
    """Several inputs as nodes name them."""
    return {str(number): value for number, value in enumerate(values)}


def _concatenate(call: Call) -> Value:
    return call.add("concatenate", numbered(call.x), axis=inner_axis(call.layer.axis, len(call.x[0].shape)))


def inner_axis(axis: Any, rank: int) -> int:
    """An axis counted from the front.

    Raises:
        Refused: It is the batch, or not a single one.
    """
    if not isinstance(axis, int) or axis % rank == 0:
        raise Refused(f"works along axis {axis}, where programs take one that is not the batch")
    return axis % rank


PER_STEP: Mapping[type, Read] = {
    layers.Dense: _dense,
    layers.EinsumDense: _einsum_dense,
    layers.Activation: _activation,
    layers.ReLU: _relu,
    layers.LeakyReLU: _leaky_relu,
    layers.ELU: _elu,
    layers.LayerNormalization: _layer_normalization,
    layers.BatchNormalization: _batch_normalization,
    layers.Normalization: _normalization,
    layers.Rescaling: _rescaling,
    **dict.fromkeys(
        [
            layers.Dropout,
            layers.GaussianDropout,
            layers.GaussianNoise,
            layers.AlphaDropout,
            layers.ActivityRegularization,
            layers.Identity,
        ],
        _dropped,
    ),
}
"""What may be in a TimeDistributed: these compute along the last axis only, so they need no loop over time."""

LAYERS: Mapping[type, Read] = {
    **PER_STEP,
    layers.Embedding: _embedding,
    layers.ReversibleEmbedding: _reversible_embedding,
    layers.Masking: _masking,
    layers.Softmax: _softmax,
    layers.SpatialDropout1D: _dropped,
    layers.TimeDistributed: _time_distributed,
    layers.Reshape: reshaped,
    layers.Flatten: _flatten,
    layers.Permute: _permute,
    layers.RepeatVector: _repeat_vector,
    layers.Cropping1D: _cropping,
    layers.GlobalAveragePooling1D: _average_pooling,
    layers.GlobalMaxPooling1D: _max_pooling,
    layers.Concatenate: _concatenate,
    layers.Add: _merge("add"),
    layers.Subtract: _merge("subtract"),
    layers.Multiply: _merge("multiply"),
    layers.Average: _merge("average"),
    layers.Maximum: _merge("maximum"),
    layers.Minimum: _merge("minimum"),
}
"""The layers that programs know, but for the recurrent ones."""
