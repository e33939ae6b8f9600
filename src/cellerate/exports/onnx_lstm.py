"""An LSTM of a program as ONNX's `LSTM` node, whatever its mask.

ONNX orders the gates i, o, f, c; it has two biases, puts time first, and takes a length for each row where Keras takes
a mask. So a masked LSTM runs on its live steps alone, moved to the front: their number is the length, and each output
comes from the last live step.

The two directions of a `Bidirectional` without a mask are one node: OpenVINO computes two nodes that read the same
sequence wrongly.

The attribute `layout=1`, which would put the batch first, is not used: ONNX Runtime refuses it, and OpenVINO reads it
wrongly.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto

from cellerate import activations
from cellerate.errors import ModelError
from cellerate.exports.onnx_graph import RUNTIMES_OWN, OnnxGraph
from cellerate.program import Node

# ONNX's names, with the alpha and beta that make them Keras's; a string names a parameter of Keras's activation.
_ACTIVATIONS: dict[str, tuple[str, tuple[float | str, ...]]] = {
    "linear": ("Affine", (1.0, 0.0)),
    "tanh": ("Tanh", ()),
    "sigmoid": ("Sigmoid", ()),
    "relu": ("Relu", ()),
    "hard_sigmoid": ("HardSigmoid", (1 / 6, 0.5)),
    "sparse_sigmoid": ("HardSigmoid", (0.5, 0.5)),
    "elu": ("Elu", ("alpha",)),
    "leaky_relu": ("LeakyRelu", ("negative_slope",)),
    "softplus": ("Softplus", ()),
    "softsign": ("Softsign", ()),
}


class LstmValues(NamedTuple):
    """The results of an LSTM.

    Attributes:
        result: Its outputs (B, T, H), or the last one (B, H).
        h: The last state (B, H).
        c: The last cell state (B, H).
        in_order: The outputs in the order of the input, if the LSTM runs backwards without a mask; else None.
    """

    result: str
    h: str
    c: str
    in_order: str | None = None


def add_lstm(graph: OnnxGraph, node: Node, given: dict[str, str]) -> LstmValues:
    """Add an LSTM.

    Args:
        graph: The graph.
        node: The LSTM.
        given: The value of each of its inputs.

    Raises:
        ModelError: ONNX's LSTM lacks an activation.
    """
    x, mask = given["x"], given.get("mask")
    backwards = bool(node.options["go_backwards"])
    if mask is None:
        (made,) = _node(graph, [node], x, given, direction="reverse" if backwards else "forward")
        return _unmasked(graph, node, *made)
    if backwards:
        x, mask = graph.flip(x, 1), graph.flip(mask, 1)
    live = _Live(graph, mask)
    ((outputs, _, c),) = _node(graph, [node], live.first(x), given, lengths=live.lengths)
    # Taken from the outputs, because OpenVINO returns the state after all steps, whatever the lengths.
    h = live.last(outputs)
    zero = graph.number(0)
    # ONNX Runtime does not keep the initial state of a row without a live step.
    any_live = graph.add("Unsqueeze", live.any, graph.sizes(1))
    h = graph.add("Where", any_live, h, given.get("h0", zero))
    c = graph.add("Where", any_live, c, given.get("c0", zero))
    kept = node.options["masked_output"]
    otherwise = given.get("h0", zero) if kept == "previous_state" else zero
    if node.options["return_sequences"]:
        if "h0" in given and kept == "previous_state":
            otherwise = graph.add("Unsqueeze", otherwise, graph.sizes(1))
        shown = mask if kept == "zero" else live.begun
        result = graph.add(
            "Where", graph.add("Unsqueeze", shown, graph.sizes(2)), live.restored(outputs), otherwise
        )
    elif kept == "zero":
        last = graph.add("Gather", mask, graph.sizes(-1), axis=1)
        result = graph.add("Where", last, h, zero)
    else:
        result = graph.add("Where", any_live, h, otherwise)
    return LstmValues(result, h, c)


def are_pair(first: Node, second: Node) -> bool:
    """True if two LSTMs may be the two directions of one node: they read the same sequence, and nothing else."""
    return (
        first.inputs == second.inputs
        and set(first.inputs) == {"x"}
        and bool(first.options["go_backwards"]) != bool(second.options["go_backwards"])
        # OpenVINO takes the activations of the first direction for both.
        and all(
            first.options[name] == second.options[name] for name in ("activation", "recurrent_activation")
        )
        and first.arrays["recurrent_kernel"].shape == second.arrays["recurrent_kernel"].shape
        and ("bias" in first.arrays) == ("bias" in second.arrays)
    )


def add_pair(graph: OnnxGraph, nodes: tuple[Node, Node], x: str) -> tuple[LstmValues, LstmValues]:
    """Add two LSTMs of which `are_pair` is true, as one node; `x` is the value of their sequence.

    Raises:
        ModelError: ONNX's LSTM lacks an activation.
    """
    ahead = sorted(nodes, key=lambda node: bool(node.options["go_backwards"]))
    found = {
        id(node): _unmasked(graph, node, *made)
        for node, made in zip(ahead, _node(graph, ahead, x, {}, direction="bidirectional"), strict=True)
    }
    return found[id(nodes[0])], found[id(nodes[1])]


def _unmasked(graph: OnnxGraph, node: Node, outputs: str, h: str, c: str) -> LstmValues:
    """The values of an LSTM without a mask, from its outputs in the order of the input."""
    if not node.options["return_sequences"]:
        return LstmValues(h, h, c)
    if not node.options["go_backwards"]:
        return LstmValues(outputs, h, c)
    return LstmValues(graph.flip(outputs, 1), h, c, outputs)


class _Live:
    """Moves the live steps of each row to the front, in order, and back.

    Attributes:
        lengths: The number of live steps, int32 (B,); at least 1, because ONNX Runtime needs one.
        any: (B,), True if the row has a live step.
        begun: (B, T), True from the row's first live step on.
    """

    def __init__(self, graph: OnnxGraph, mask: str) -> None:
        self._graph = graph
        add, one = graph.add, graph.number(1, np.int64)
        zero = graph.number(0, np.int64)
        counts = add("CumSum", graph.cast(mask, TensorProto.INT64), graph.number(1, np.int64))
        total = add("Gather", counts, graph.number(-1, np.int64), axis=1)
        self.any = add("Greater", total, zero)
        self.begun = add("Greater", counts, zero)
        length = add("Max", total, one)
        self.lengths = graph.cast(length, TensorProto.INT32)
        self._last = add("Unsqueeze", add("Sub", length, one), graph.sizes(1))
        places = add("Sub", counts, one)
        self._last_live = self._as_indices(add("Max", places, zero))
        # A live step goes to its place among the live ones; the others share a place behind the end, which is cut off.
        zeros = add("Mul", counts, zero)
        steps = add("Sub", add("CumSum", add("Add", zeros, one), one), one)
        behind = add("Gather", add("Shape", mask), one, axis=0)
        longer = add("Pad", zeros, graph.sizes(0, 0, 0, 1))
        moved = add("ScatterElements", longer, add("Where", mask, places, behind), steps, axis=1)
        self._sources = self._as_indices(graph.slice(moved, 0, -1, 1))

    def first(self, x: str) -> str:
        """(B, T, F) with the live steps at the front."""
        return str(self._graph.add("GatherND", x, self._sources, batch_dims=1))

    def last(self, outputs: str) -> str:
        """(B, H), the output of the last live step; for a row without one, the output of its first step."""
        return str(self._graph.add("GatherND", outputs, self._last, batch_dims=1))

    def restored(self, outputs: str) -> str:
        """For each step, the output of the last live step up to it."""
        return str(self._graph.add("GatherND", outputs, self._last_live, batch_dims=1))

    def _as_indices(self, steps: str) -> str:
        return str(self._graph.add("Unsqueeze", steps, self._graph.sizes(2)))


def _node(
    graph: OnnxGraph,
    nodes: list[Node],
    x: str,
    given: dict[str, str],
    *,
    lengths: str = "",
    direction: str = "forward",
) -> list[tuple[str, str, str]]:
    """Each direction's outputs (B, T, H) in the order of the input, h and c (B, H)."""

    def arrays(name: str) -> list[np.ndarray]:
        return [node.arrays[name] for node in nodes]

    bias = graph.weight(*arrays("bias"), form=_bias) if "bias" in nodes[0].arrays else ""
    ahead = graph.sizes(0)
    states = [graph.add("Unsqueeze", given[name], ahead) if name in given else "" for name in ("h0", "c0")]
    attributes = _activations(nodes)
    op, scales = "LSTM", []
    if graph.narrow:
        op, attributes["domain"] = "DynamicQuantizeLSTM", RUNTIMES_OWN
        (kernel, of_kernel), (recurrent, of_recurrent) = (
            graph.columns(*arrays(name), form=_columns) for name in ("kernel", "recurrent_kernel")
        )
        no_peepholes, zeros = "", graph.zero_points(len(nodes), nodes[0].arrays["kernel"].shape[-1])
        scales = [no_peepholes, of_kernel, zeros, of_recurrent, zeros]
    else:
        kernel, recurrent = (
            graph.weight(*arrays(name), form=_gates) for name in ("kernel", "recurrent_kernel")
        )
    y, h, c = graph.add_three(
        op,
        graph.add("Transpose", x, perm=[1, 0, 2]),
        *(kernel, recurrent, bias, lengths, *states, *scales),
        hidden_size=nodes[0].arrays["recurrent_kernel"].shape[0],
        direction=direction,
        **attributes,
    )

    def of(place: int, value: str, axis: int) -> str:
        if len(nodes) == 1:
            return str(graph.add("Squeeze", value, graph.sizes(axis)))
        return str(graph.add("Gather", value, graph.number(place, np.int64), axis=axis))

    return [
        (graph.add("Transpose", of(place, y, 1), perm=[1, 0, 2]), of(place, h, 0), of(place, c, 0))
        for place in range(len(nodes))
    ]


def _activations(nodes: list[Node]) -> dict[str, Any]:
    """The attributes of the activations of each direction; none if all are ONNX's defaults."""
    used = [
        _activation(node, node.options[name])
        for node in nodes
        for name in ("recurrent_activation", "activation", "activation")
    ]
    attributes: dict[str, Any] = {}
    if [name for name, _ in used] != ["Sigmoid", "Tanh", "Tanh"] * len(nodes):
        attributes["activations"] = [name for name, _ in used]
    # Each list has entries only for the activations that have this parameter.
    for place, attribute in enumerate(("activation_alpha", "activation_beta")):
        if numbers := [own[place] for _, own in used if len(own) > place]:
            attributes[attribute] = numbers
    return attributes


def _activation(node: Node, activation: str) -> tuple[str, tuple[float, ...]]:
    name, parameters = activations.read(activation)
    if name == "relu" and activation == activations.written(name, {"threshold": parameters["threshold"]}):
        return ("ThresholdedRelu", (parameters["threshold"],)) if parameters["threshold"] else ("Relu", ())
    if name == "relu" or name not in _ACTIVATIONS:
        raise ModelError(
            f"{node.name}: ONNX's LSTM has no activation {activation!r}; it has {', '.join(_ACTIVATIONS)}, and relu "
            "with a threshold. Train the model with one of these."
        )
    op, numbers = _ACTIVATIONS[name]
    return op, tuple(parameters[number] if isinstance(number, str) else number for number in numbers)


def _columns(array: np.ndarray) -> np.ndarray:
    """(K, 4H) in Keras's order of gates → (1, K, 4H) in ONNX's."""
    i, f, c, o = np.split(array, 4, axis=-1)
    return np.concatenate([i, o, f, c], axis=-1)[np.newaxis]


def _gates(array: np.ndarray) -> np.ndarray:
    """(K, 4H) in Keras's order of gates → (1, 4H, K) in ONNX's; a bias (4H,) → (1, 4H)."""
    return np.swapaxes(_columns(array), 1, -1)


def _bias(array: np.ndarray) -> np.ndarray:
    """(4H,) → (1, 8H): ONNX adds two biases, and the second is zero."""
    gates = _gates(array)
    return np.concatenate([gates, np.zeros_like(gates)], axis=1)
