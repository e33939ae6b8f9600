"""The nodes of a program for each Keras layer except the recurrent ones.

The table in `keras_layers` assigns these functions to layers.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops
from keras.src import tree

from cellerate.keras_graph.program_nodes import (
    ProgramCall,
    ProgramValue,
    Read,
    Refused,
    Weight,
    carried,
    either,
    known_activation,
    numpy,
    read_layer,
)


def dropped(call: ProgramCall) -> list[ProgramValue]:
    """The inputs, without a node: the layer acts only in training."""
    return list(tree.flatten(call.x))


def embedding(call: ProgramCall) -> ProgramValue:
    """The rows of a table at the ids, and the mask of ids that are not 0."""
    ids = call.x
    if not call.nodes.is_input(ids) or len(ids.shape) != 2:
        found = "an input" if call.nodes.is_input(ids) else "a computed tensor"
        shape = ", ".join(["B", *("any" if size is None else str(size) for size in ids.shape[1:])])
        help_ = (
            "Give keras.Input the shape (1,), and put a keras.layers.Flatten behind the Embedding."
            if call.nodes.is_input(ids) and len(ids.shape) == 1
            else "Make an input of the ids themselves, with a shape of one size."
        )
        raise Refused(f"looks up {found} ({shape}), where programs take an input (B, T) of ids", help_)
    outputs = call.add("embedding", {"ids": ids}, {"embeddings": _merged(call, "embeddings")})
    if not call.layer.mask_zero:
        return outputs
    return dataclasses.replace(outputs, mask=carried(call.nodes.mask("ids_mask", call.path, {"ids": ids})))


def reversible_embedding(call: ProgramCall) -> ProgramValue:
    """As `embedding`; if called with reverse=True, the product with the table."""
    layer = call.layer
    if not call.arguments.get("reverse"):
        return embedding(call)
    if layer.tie_weights:
        table = _merged(call, "embeddings")
    else:
        weight = Weight(layer.reverse_embeddings, transposed=True)
        table = call.nodes.array(layer, "reverse", lambda: numpy(layer.reverse_embeddings).T, weight)
    cap = None if layer.logit_soft_cap is None else float(layer.logit_soft_cap)
    return call.add("unembedding", arrays={"embeddings": table}, soft_cap=cap)


def masking(call: ProgramCall) -> ProgramValue:
    """Zeros where all features are the mask value, and the mask."""
    if len(call.x.shape) != 3:
        raise Refused(f"masks a tensor of {len(call.x.shape)} axes, where programs mask (B, T, F)")
    value = float(ops.convert_to_numpy(call.layer.mask_value))
    mask = call.nodes.mask("features_mask", call.path, {"x": call.x}, mask_value=value)
    return dataclasses.replace(call.add("masked", {"x": call.x, "mask": mask}), mask=carried(mask))


def dense(call: ProgramCall) -> ProgramValue:
    """The product with a kernel, a bias, an activation."""
    activation = known_activation(call.layer.activation)
    arrays = {"kernel": _merged(call, "kernel"), **call.weights(call.layer, "bias")}
    return call.add("dense", arrays=arrays, activation=activation)


def einsum_dense(call: ProgramCall) -> ProgramValue:
    """An EinsumDense that computes one Dense, or a separate Dense at each index of an axis."""
    equation, bias_axes = call.layer.equation, call.layer.bias_axes
    found = re.fullmatch(r"(\.\.\.|[A-Za-z]+)([A-Za-z]),\2([A-Za-z])->\1\3", equation)
    if found is not None and found[3] not in found[1] + found[2] and bias_axes in (None, found[3]):
        return dense(call)
    found = re.fullmatch(r"([A-Za-z])([A-Za-z])([A-Za-z]),\2\3([A-Za-z])->\1\2\4", equation)
    if found is not None and len(set(found.groups())) == 4 and bias_axes in (None, found[2] + found[4]):
        return _dense_each(call)
    raise Refused(
        f"computes {equation!r} with bias_axes={bias_axes!r}, which is not a dense layer", "Use Dense."
    )


def _dense_each(call: ProgramCall) -> ProgramValue:
    """(B, N, K) → (B, N, M), with a separate kernel at each of the N indices."""
    layer = call.layer
    if layer.lora_enabled:
        raise Refused("has a low-rank update", "Merge it into the kernel first.")
    places, inner, outer = layer.kernel.shape
    activation = known_activation(layer.activation)
    made = []
    for place in range(places):
        row = call.add("take", indices=(place,), axis=1)
        flat = call.add("reshape", {"x": row}, shape=(inner,))
        arrays = {}
        for name in ("kernel", "bias"):
            variable = getattr(layer, name)
            if variable is not None:
                make = functools.partial(_place_of, variable, place)
                arrays[name] = call.nodes.array(layer, f"{name} {place}", make, Weight(variable, part=place))
        made.append(call.add("dense", {"x": flat}, arrays, activation=activation))
    joined = call.add("concatenate", numbered(made), axis=1)
    return call.add("reshape", {"x": joined}, shape=(places, outer))


def _place_of(variable: Any, place: int) -> np.ndarray:
    return numpy(variable)[place]


def _merged(call: ProgramCall, name: str) -> np.ndarray:
    """The kernel or table of a layer, with its low-rank update if it has one."""
    layer = call.layer
    if not layer.lora_enabled:
        return call.weights(layer, name)[name]
    kept = getattr(layer, f"_{name}")
    halves = [getattr(layer, f"lora_{name}_{half}") for half in "ab"]

    def make() -> Any:
        a, b = (numpy(half).astype("float64") for half in halves)
        return numpy(kept) + layer.lora_alpha / layer.lora_rank * (a @ b)

    return call.nodes.array(layer, name, make, Weight(kept, update=halves[1]))


def activation(call: ProgramCall) -> ProgramValue:
    """One of the activations that programs know."""
    name = known_activation(call.layer.activation)
    # A linear activation is a cast to float32, and programs have no other float type.
    return call.x if name == "linear" else call.add("activation", activation=name)


def activation_layer(call: ProgramCall) -> ProgramValue:
    """A layer that is an activation with parameters, such as ReLU."""
    return call.add("activation", activation=known_activation(call.layer))


def softmax(call: ProgramCall) -> ProgramValue:
    """A softmax along an axis."""
    if call.mask is not None:
        raise Refused(
            "is given a mask, by which it leaves features out", "Normalise before the mask is made."
        )
    return softmax_along(call, call.layer.axis)


def softmax_along(call: ProgramCall, axis: Any) -> ProgramValue:
    """A softmax of the call's first argument along an axis."""
    rank = len(call.x.shape)
    if isinstance(axis, list | tuple):
        if len(axis) > 1:
            raise Refused(f"works along the axes {tuple(axis)} at once, where programs take one")
        (axis,) = axis
    axis = inner_axis(axis, rank)
    return call.add("softmax", axis=axis) if axis < rank - 1 else call.add("activation", activation="softmax")


def layer_normalization(call: ProgramCall) -> ProgramValue:
    """A LayerNormalization over the features."""
    check_last_axis(call, call.layer.axis)
    if call.layer.rms_scaling:
        raise Refused("has rms_scaling=True", "Use the plain normalisation.")
    arrays = call.weights(call.layer, "gamma", "beta")
    return call.add("layer_norm", arrays=arrays, epsilon=float(call.layer.epsilon))


def batch_normalization(call: ProgramCall) -> ProgramValue:
    """A scale and an offset, from the moments that the layer has learnt."""
    layer = call.layer
    check_last_axis(call, layer.axis)
    mean, variance = (numpy(part).astype("float64") for part in (layer.moving_mean, layer.moving_variance))
    scale = (numpy(layer.gamma) if layer.scale else 1.0) / np.sqrt(variance + layer.epsilon)
    return affine(call, scale, (numpy(layer.beta) if layer.center else 0.0) - mean * scale)


def normalization(call: ProgramCall) -> ProgramValue:
    """A scale and an offset, from the moments to which the layer was adapted."""
    layer = call.layer
    if layer.axis:
        check_last_axis(call, layer.axis)
    mean, variance = (numpy(part).astype("float64") for part in (layer.mean, layer.variance))
    deviation = np.maximum(np.sqrt(variance), keras.config.epsilon())
    if layer.invert:
        return affine(call, deviation, mean)
    return affine(call, 1.0 / deviation, -mean / deviation)


def rescaling(call: ProgramCall) -> ProgramValue:
    """A scale and an offset."""
    return affine(call, call.layer.scale, call.layer.offset)


def affine(call: ProgramCall, scale: Any, offset: Any, x: ProgramValue | None = None) -> ProgramValue:
    """The product of x and `scale`, plus `offset`.

    Args:
        call: The call.
        scale: One number, or one for each feature.
        offset: The same.
        x: The value to scale; None for the call's first argument.
    """
    x = call.x if x is None else x
    width = x.shape[-1] if len(x.shape) > 1 else None
    if width is None:
        raise Refused("scales a last axis of unknown size", "Give the model's Input its size.")
    if any(np.size(part) not in (1, width) for part in (scale, offset)):
        raise Refused("scales by an array that is not one number for each feature")
    arrays = {}
    for name, part in (("scale", scale), ("offset", offset)):
        make = functools.partial(_spread, part, width)
        # A layer always has the same constants; an operation could be called again with others.
        layer = isinstance(call.layer, keras.Layer)
        arrays[name] = call.nodes.array(call.layer, f"{name} of {width}", make) if layer else make()
    return call.add("affine", {"x": x}, arrays)


def _spread(part: Any, width: int) -> np.ndarray:
    """A single number, or one for each feature, as a float32 array with an entry for each feature."""
    return np.broadcast_to(np.asarray(part, "float64").ravel(), (width,)).astype("float32")


def check_last_axis(call: ProgramCall, axis: Any) -> None:
    """Refuse a layer that works along another axis than the last one."""
    rank = len(call.x.shape)
    axes = list(axis) if isinstance(axis, list | tuple) else [axis]
    if [a % rank for a in axes] != [rank - 1]:
        raise Refused(f"works along axis {axis} of {rank}", "Let it work along the last axis: axis=-1.")


def time_distributed(call: ProgramCall) -> list[ProgramValue]:
    """The inner layer, on all steps at once."""
    layer, x = call.layer.layer, call.x
    step = dataclasses.replace(x, shape=(x.shape[0], *x.shape[2:]), mask=None)
    inner = dataclasses.replace(
        call, layer=layer, path=f"{call.path}/{layer.name}", arguments={"inputs": step}, time_axis=2
    )
    return read_layer(inner, call.readers.per_step)


def reshaped(call: ProgramCall, x: ProgramValue | None = None) -> ProgramValue:
    """The value x, or the call's first argument, in the shape of the call's output."""
    shape = tuple(-1 if size is None else size for size in call.shapes[0][1:])
    if shape.count(-1) > 1:
        raise Refused(f"makes the shape {shape}, without the batch: more than one of its sizes is not known")
    return call.add("reshape", {"x": call.x if x is None else x}, shape=shape)


def reshape(call: ProgramCall) -> ProgramValue:
    """The input in another shape."""
    check_changes(call)
    return reshaped(call)


def check_changes(call: ProgramCall) -> None:
    """Refuses a call that returns its masked input unchanged: on JAX it is the same object and keeps its mask."""
    if call.x.mask is not None and tuple(call.x.shape) == call.shapes[0]:
        raise Refused(
            "leaves a masked tensor as it is, and backends differ in what becomes of its mask",
            "Leave it out.",
        )


def flatten(call: ProgramCall) -> ProgramValue:
    """The input in the flattened shape."""
    if len(call.x.shape) > 2:
        check_data_format(call)
    return call.add("flatten_steps") if call.time_axis == 2 else reshaped(call)


def permute(call: ProgramCall) -> ProgramValue:
    """The input with its axes in another order."""
    axes = tuple(call.layer.dims)
    if axes == tuple(sorted(axes)):
        check_changes(call)
    return call.add("permute", axes=axes)


def repeat_vector(call: ProgramCall) -> ProgramValue:
    """The input repeated at each of n steps."""
    return call.add("repeat_vector", n=call.layer.n)


def cropping(call: ProgramCall) -> ProgramValue:
    """The input without some of its first and last steps."""
    begin, end = call.layer.cropping
    if not begin and not end:
        check_changes(call)
    return call.add("crop", begin=begin, end=-end if end else None)


def padding(call: ProgramCall) -> ProgramValue:
    """The input between steps of zeros."""
    check_data_format(call)
    before, after = call.layer.padding
    return call.add("pad", before=before, after=after)


def up_sampling(call: ProgramCall) -> ProgramValue:
    """Each step several times: its features side by side, one step after the other."""
    width, size = call.x.shape[-1], call.layer.size
    if width is None:
        raise Refused("repeats steps of an unknown number of features", "Give the model's Input its size.")
    copies = call.add("concatenate", numbered([call.x] * size), axis=2)
    return call.add("reshape", {"x": copies}, shape=(-1, width))


def average_pooling(call: ProgramCall) -> ProgramValue:
    """The mean over the unmasked steps."""
    check_data_format(call)
    if call.time_axis == 2:
        return call.add("mean", axis=2, keepdims=call.layer.keepdims)
    mask = call.used_mask()
    inputs = {"x": call.x} if mask is None else {"x": call.x, "mask": mask}
    pooled = call.add("mean_over_time", inputs)
    return reshaped(call, pooled) if call.layer.keepdims else pooled


def max_pooling(call: ProgramCall) -> ProgramValue:
    """The maximum over all steps."""
    check_data_format(call)
    if call.time_axis == 2:
        return call.add("max", axis=2, keepdims=call.layer.keepdims)
    pooled = call.add("max_over_time")
    return reshaped(call, pooled) if call.layer.keepdims else pooled


def check_data_format(call: ProgramCall) -> None:
    """Refuses a layer that reads features before steps."""
    if call.layer.data_format != "channels_last":
        raise Refused(f"has data_format={call.layer.data_format!r}", 'Use data_format="channels_last".')


def merge(op: str) -> Read:
    """A reader of layers that join their inputs by an operation of programs."""
    return lambda call: call.add(op, numbered(call.x))


def product(call: ProgramCall) -> ProgramValue:
    """The product of the unmasked inputs at each step; zeros where all are masked."""

    def joined(left: ProgramValue, right: ProgramValue, left_counts: Any, right_counts: Any) -> ProgramValue:
        both = call.add("multiply", numbered([left, right]))
        either = _where(call, right_counts, both, left)
        return _where(call, left_counts, either, right)

    outputs, counts = _joined_by_masks(call, joined)
    return outputs if counts is None else call.add("masked", {"x": outputs, "mask": counts})


def extreme(op: str) -> Read:
    """A reader of Maximum and Minimum; at a masked step of one input, the other's value replaces it."""

    def read(call: ProgramCall) -> ProgramValue:
        def joined(
            left: ProgramValue, right: ProgramValue, left_counts: Any, right_counts: Any
        ) -> ProgramValue:
            right = _where(call, right_counts, right, left)
            return call.add(op, numbered([_where(call, left_counts, left, right), right]))

        return _joined_by_masks(call, joined)[0]

    return read


def _joined_by_masks(
    call: ProgramCall, joined: Callable[[ProgramValue, ProgramValue, Any, Any], ProgramValue]
) -> tuple[ProgramValue, ProgramValue | None]:
    """The inputs joined pairwise, and the OR of their masks; None if an input has no mask.

    Args:
        call: The call of a layer that joins its inputs.
        joined: Joins two values, each with its mask or None.

    Source: `keras.src.layers.merging`, because these rules are not documented.
    """
    most = max(len(value.shape) for value in call.x)
    # A value that gets more axes loses its mask.
    masks = [value.mask if len(value.shape) == most else None for value in call.x]
    if most != 3 and any(mask is not None for mask in masks):
        raise Refused(f"joins masked tensors of {most} axes, where programs take (B, T, F)")
    outputs, counts = call.x[0], masks[0]
    for value, mask in zip(call.x[1:], masks[1:], strict=True):
        outputs = joined(outputs, value, counts, mask)
        counts = None if counts is None or mask is None else either([counts, mask])
    return outputs, call.mask_node(counts)


def _where(call: ProgramCall, mask: Any, x: ProgramValue, other: ProgramValue) -> ProgramValue:
    """The value x where a mask is True, and `other` elsewhere."""
    node = call.mask_node(mask)
    return x if node is None else call.add("where", {"x": x, "other": other, "mask": node})


def numbered(values: Sequence[ProgramValue]) -> dict[str, ProgramValue]:
    """Several inputs under the names that nodes give them: "0", "1", and so on."""
    return {str(number): value for number, value in enumerate(values)}


def summed_products(call: ProgramCall, both: Sequence[ProgramValue], axes: Sequence[int]) -> ProgramValue:
    """The products of two tensors, summed over an axis of each.

    Args:
        call: The call.
        both: The tensors.
        axes: The axis of each tensor, as Keras counts it.
    """
    ranks = [len(value.shape) for value in both]
    if max(ranks) > 3:
        raise Refused(f"multiplies tensors of {max(ranks)} axes, where programs take 3 at most")
    counted = tuple(inner_axis(axis, rank) for axis, rank in zip(axes, ranks, strict=True))
    return call.add("dot", numbered(both), axes=counted)


def concatenate(call: ProgramCall) -> ProgramValue:
    """The inputs side by side."""
    return call.add("concatenate", numbered(call.x), axis=inner_axis(call.layer.axis, len(call.x[0].shape)))


def inner_axis(axis: Any, rank: int) -> int:
    """An axis counted from the front.

    Raises:
        Refused: It is the batch axis, or not a single axis.
    """
    if not isinstance(axis, int) or axis % rank == 0:
        raise Refused(f"works along axis {axis}, where programs take one that is not the batch")
    return axis % rank
