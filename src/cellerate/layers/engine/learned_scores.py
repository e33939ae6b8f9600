"""Reads attention layers with trainable score weights."""

from __future__ import annotations

from cellerate.keras_graph.families.attention import attended, query_value_key
from cellerate.keras_graph.program_nodes import ProgramCall, ProgramValue, Refused, Weight, numpy


def learned_scores(call: ProgramCall) -> list[ProgramValue]:
    """The nodes of attention that learns a factor for its scores, or for its sums of tanh."""
    layer = call.layer
    query, value, key = query_value_key(call)
    if layer.score_mode == "dot":
        return attended(call, (_learned_product(call, query), key, value))
    if layer.scale is not None:
        query, key = _learned_product(call, query), _learned_product(call, key)
    factor = call.nodes.array(
        layer,
        "concat_score_weight",
        lambda: numpy(layer.concat_score_weight).reshape(1),
        Weight(layer.concat_score_weight),
    )
    return attended(call, (query, key, value), additive=factor)


def _learned_product(call: ProgramCall, x: ProgramValue) -> ProgramValue:
    """The product of x and the attention's scalar scale: a dense layer with one input and one unit."""
    layer, width = call.layer, x.shape[-1]
    if width is None:
        raise Refused("scales a last axis of unknown size", "Give that size in the model's Input.")
    kernel = call.nodes.array(
        layer, "scale as a kernel", lambda: numpy(layer.scale).reshape(1, 1), Weight(layer.scale)
    )
    single = call.add("reshape", {"x": x}, shape=(-1, 1))
    return call.add("reshape", {"x": call.add("dense", {"x": single}, {"kernel": kernel})}, shape=(-1, width))
