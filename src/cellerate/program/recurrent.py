"""The operations that have a state and run one step after the other, and those that give their last states.

A runtime computes them, because it carries the states.
"""

from __future__ import annotations

from cellerate.errors import ModelError
from cellerate.program.node import Node
from cellerate.program.operation import Operation, Shape, Shapes, check_mask

_OPTIONS = {"activation": str, "masked_output": str, "go_backwards": bool, "return_sequences": bool}
_GATED = {**_OPTIONS, "recurrent_activation": str}


def _check_states(node: Node) -> None:
    if ("h0" in node.inputs) != ("c0" in node.inputs):
        raise ModelError(f"{node.name}: h0 and c0 must be given together.")


def _shape(node: Node, read: Shapes) -> Shape:
    x = read["x"]
    inputs, units = len(node.arrays["kernel"]), len(node.arrays["recurrent_kernel"])
    if len(x) != 2 or x[1] != inputs:
        raise ValueError(f"x must be (B, T, {inputs})")
    check_mask(x, read.get("mask"))
    for name in ("h0", "c0"):
        if read.get(name, (units,)) != (units,):
            raise ValueError(f"{name} must be (B, {units})")
    return (x[0], units) if node.options["return_sequences"] else (units,)


def _products(node: Node, read: Shapes, result: Shape) -> int:
    inputs, columns = node.arrays["kernel"].shape
    return read["x"][0] * columns * (inputs + len(node.arrays["recurrent_kernel"]))


ROWS = {
    # -> outputs (B, T, H), or with return_sequences=False the last one (B, H). See kernels.lstm.spec.
    "lstm": Operation(
        inputs=("x", "mask?", "h0?", "c0?"),
        arrays={"kernel": "DG", "recurrent_kernel": "HG", "bias?": "G"},
        options=_GATED,
        check=_check_states,
        shape=_shape,
        products=_products,
        gates=4,
        states="hc",
    ),
    # As the lstm; gates in the order z, r, h. The bias is added to the product of x, the recurrent bias to that of
    # the state, which only reset_after tells apart.
    "gru": Operation(
        inputs=("x", "mask?", "h0?"),
        arrays={"kernel": "DG", "recurrent_kernel": "HG", "bias?": "G", "recurrent_bias?": "G"},
        options={**_GATED, "reset_after": bool},
        shape=_shape,
        products=_products,
        gates=3,
        states="h",
    ),
    "simple_rnn": Operation(
        inputs=("x", "mask?", "h0?"),
        arrays={"kernel": "DH", "recurrent_kernel": "HH", "bias?": "H"},
        options=_OPTIONS,
        shape=_shape,
        products=_products,
        gates=1,
        states="h",
    ),
    # The last state (B, H) of the lstm it reads: state is "h" or "c".
    "lstm_state": Operation(
        inputs=("lstm",),
        options={"state": str},
        shape=lambda node, read: read["lstm"][-1:],
        state_of=("lstm",),
    ),
    # The last state (B, H) of the gru or simple_rnn it reads.
    "rnn_state": Operation(
        inputs=("rnn",), shape=lambda node, read: read["rnn"][-1:], state_of=("gru", "simple_rnn")
    ),
}
