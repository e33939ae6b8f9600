"""The nodes of a program for the layers of attention over time."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from cellerate.keras_graph.program_layers import affine, numbered
from cellerate.keras_graph.program_nodes import (
    ProgramCall,
    ProgramValue,
    Refused,
    Weight,
    known_activation,
    numpy,
)

_EARLIER = "Give the layers masked tensors, or use_causal_mask=True."


def attention(call: ProgramCall) -> list[ProgramValue]:
    """Attention whose scores are products, or sums of a tanh over the features."""
    layer = call.layer
    query, value, key = query_value_key(call)
    scale = 1.0 if layer.scale is None else float(numpy(layer.scale))
    if layer.score_mode == "dot":
        return attended(call, (query, key, value), scale=scale)
    weights = np.full(_width(query), float(numpy(layer.concat_score_weight)), "float32")
    if scale != 1.0:
        query, key = (affine(call, scale, 0.0, each) for each in (query, key))
    return attended(call, (query, key, value), additive=weights)


def additive_attention(call: ProgramCall) -> list[ProgramValue]:
    """Attention whose scores are sums of a tanh over the features, each with its weight."""
    query, value, key = query_value_key(call)
    weights = call.weights(call.layer, "scale").get("scale")
    if weights is None:
        weights = np.ones(_width(query), "float32")
    return attended(call, (query, key, value), additive=weights)


def _width(x: ProgramValue) -> int:
    width = x.shape[-1]
    if width is None:
        raise Refused("reads features of unknown number", "Give the model's Input its size.")
    return width


def query_value_key(call: ProgramCall) -> tuple[ProgramValue, ProgramValue, ProgramValue]:
    """The query, value and key of a call; without a key the value is the key."""
    query, value, *key = call.x
    return query, value, key[0] if key else value


def attended(
    call: ProgramCall,
    parts: tuple[ProgramValue, ProgramValue, ProgramValue],
    scale: float = 1.0,
    additive: np.ndarray | None = None,
) -> list[ProgramValue]:
    """The output of an attention layer, and its attention scores if the call returns them.

    Args:
        call: The call.
        parts: The query, the key and the value.
        scale: The factor of the scores.
        additive: The weights of additive scores; None for products.
    """
    masks = list(call.mask or (None, None))
    causal = bool(call.arguments.get("use_causal_mask"))
    counts = call.mask_node(masks[1])
    query, key, value = parts
    if call.arguments.get("return_attention_scores"):
        if additive is not None or causal or counts is not None:
            raise Refused(
                "gives its scores and has a mask, or scores that are not products",
                "Leave return_attention_scores out.",
            )
        query = query if scale == 1.0 else affine(call, scale, 0.0, query)
        scores = call.add("dot", numbered([query, key]), axes=(2, 2))
        weights = call.add("activation", {"x": scores}, activation="softmax")
        outputs = [call.add("dot", numbered([weights, value]), axes=(2, 1)), weights]
    else:
        inputs = {"query": query, "key": key, "value": value}
        if counts is not None:
            inputs["mask"] = counts
        arrays = {} if additive is None else {"additive": additive}
        outputs = [call.add("attention", inputs, arrays, heads=1, scale=scale, causal=causal, zeros=False)]
    own = call.mask_node(masks[0])
    if own is not None:
        outputs[0] = call.add("masked", {"x": outputs[0], "mask": own})
    return outputs


def multi_head_attention(call: ProgramCall) -> ProgramValue:
    """Attention in heads, between dense layers that hold the features of all heads side by side."""
    layer, given = call.layer, call.arguments
    query, value = given["query"], given["value"]
    key = value if given.get("key") is None else given["key"]
    _check_heads(call, (query, value, key))
    masks = [
        call.mask_node(own if own is not None else of.mask)
        for own, of in (
            (given.get("query_mask"), query),
            (given.get("value_mask"), value),
            (given.get("key_mask"), key if key is not value else ProgramValue(None)),
        )
    ]
    if masks[1] is not None and masks[2] is not None:
        raise Refused("is given a mask of the key beside one of the value", "Mask only the value.")
    inputs = {
        name: _dense(call, getattr(layer, f"_{name}_dense"), x, 1)
        for name, x in (("query", query), ("key", key), ("value", value))
    }
    for name, mask in (("mask", masks[1] or masks[2]), ("mask_of_queries", masks[0])):
        if mask is not None:
            inputs[name] = mask
    made = call.add(
        "attention",
        inputs,
        heads=layer.num_heads,
        scale=float(layer._inverse_sqrt_key_dim),
        causal=bool(given.get("use_causal_mask")),
        # With dropout Keras computes the scores itself, and returns zeros where all are masked.
        zeros=layer.dropout > 0,
    )
    if getattr(layer, "_use_gate", False):
        made = call.add("multiply", numbered([made, _dense(call, layer._gate_dense, query, 1)]))
    return _dense(call, layer._output_dense, made, 2)


def _check_heads(call: ProgramCall, tensors: tuple[ProgramValue, ...]) -> None:
    layer, given = call.layer, call.arguments
    if any(len(tensor.shape) != 3 for tensor in tensors):
        raise Refused("reads a tensor of other than 3 axes, where programs take (B, T, F)")
    if layer._output_shape is not None and len(layer._output_shape) != 1:
        raise Refused(f"has output_shape={layer._output_shape}", "Let it be one number.")
    for name, found, instead in (
        ("attention_mask", given.get("attention_mask"), _EARLIER),
        ("return_attention_scores", given.get("return_attention_scores") or None, "Leave it out."),
        ("sliding_window", getattr(layer, "_sliding_window", None), _EARLIER),
    ):
        if found is not None:
            raise Refused(f"is called or built with {name}", instead)


def _dense(call: ProgramCall, layer: Any, x: ProgramValue, inputs: int) -> ProgramValue:
    """An EinsumDense whose kernel has `inputs` input axes, as one product."""
    if layer.lora_enabled:
        raise Refused("has a low-rank update", "Merge it into the kernel first.")
    width = int(np.prod(layer.kernel.shape[:inputs]))
    shapes = {"kernel": (width, -1), "bias": (-1,)}
    arrays = {
        name: call.nodes.array(
            layer,
            name,
            functools.partial(_reshaped, getattr(layer, name), shape),
            Weight(getattr(layer, name)),
        )
        for name, shape in shapes.items()
        if getattr(layer, name) is not None
    }
    return call.add("dense", {"x": x}, arrays, activation=known_activation(layer.activation))


def _reshaped(variable: Any, shape: tuple[int, ...]) -> np.ndarray:
    return numpy(variable).reshape(shape)
