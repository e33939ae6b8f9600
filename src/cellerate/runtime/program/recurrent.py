"""GRU and SimpleRNN layers of a packed model, in NumPy: correct, not fast.

LSTMs have their own kernels (`operations.lstm`). These layers have none, so a packed model with one runs one operation
at a time.
"""

from __future__ import annotations

import functools

import numpy as np

from cellerate.program import Given, Node
from cellerate.runtime.program.operations import activate, lstm, product
from cellerate.runtime.program.over_time import States, over_time


def run(
    node: Node, given: Given, table: np.ndarray | None = None, *, sequences: bool
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Runs a recurrent layer.

    Args:
        node: Its node, one of `program.RECURRENT`.
        given: Its inputs.
        table: As `operations.lstm` takes it; for an LSTM only.
        sequences: Whether to give all outputs or only the last.

    Returns:
        The outputs (B, T, H), or the last (B, H); and its last states by name, "h" and for an LSTM "c", each (B, H).

    Raises:
        ValueError, IndexError: As `operations.run`.
    """
    if node.op == "lstm":
        outputs, h, c = lstm(node, given, table, sequences=sequences)
        return outputs, {"h": h, "c": c}
    x, arrays = given["x"], node.arrays
    projected = product(x, arrays["kernel"], arrays.get("bias"))
    units = len(arrays["recurrent_kernel"])
    h0 = given.get("h0", np.zeros((len(x), units), np.float32))
    step = functools.partial(_gru if node.op == "gru" else _simple_rnn, node, projected)
    outputs, (h,) = over_time(step, (h0,), x.shape[1], given.get("mask"), node.options, sequences=sequences)
    return outputs, {"h": h}


def _simple_rnn(node: Node, projected: np.ndarray, t: int, states: States) -> States:
    """One step, from the inputs' products (B, T, H) with the kernel, the bias added.

    Source: `keras.layers.SimpleRNNCell.call`.
    """
    z = projected[:, t] + product(states[0], node.arrays["recurrent_kernel"])
    return (activate(node.options["activation"], z),)


def _gru(node: Node, projected: np.ndarray, t: int, states: States) -> States:
    """One step, from the inputs' products (B, T, 3H) with the kernel, the bias added; gates in Keras's order z, r, h.

    Source: Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014; with `reset_after`, where
    the reset gate acts after the product, as in cuDNN. As `keras.layers.GRUCell.call` computes it.
    """
    (h,), arrays = states, node.arrays
    activation, gate = node.options["activation"], node.options["recurrent_activation"]
    kernel, units = arrays["recurrent_kernel"], len(arrays["recurrent_kernel"])
    x_z, x_r, x_h = np.split(projected[:, t], 3, axis=1)
    if node.options["reset_after"]:
        h_z, h_r, h_h = np.split(product(h, kernel, arrays.get("recurrent_bias")), 3, axis=1)
        z, r = activate(gate, x_z + h_z), activate(gate, x_r + h_r)
        candidate = activate(activation, x_h + r * h_h)
    else:
        h_z, h_r = np.split(product(h, kernel[:, : 2 * units]), 2, axis=1)
        z, r = activate(gate, x_z + h_z), activate(gate, x_r + h_r)
        candidate = activate(activation, x_h + product(r * h, kernel[:, 2 * units :]))
    return (z * h + (1 - z) * candidate,)
