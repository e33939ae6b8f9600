"""An LSTM layer of Keras on Cellerate's kernels: whether it can run there, and the inner loop that runs it.

`run` takes the place of Keras's `LSTM.inner_loop`, so it gets the sequences after checks and casts, the initial
states, and the mask.
"""

from __future__ import annotations

from typing import Any

from keras import layers

from cellerate.kernels.lstm import cpu
from cellerate.kernels.lstm.cuda import plan
from cellerate.kernels.lstm.spec import LstmOptions
from cellerate.layers import fused
from cellerate.layers.conditions import Condition


def fit_conditions(layer: layers.LSTM, implementation: str) -> list[Condition]:
    """An implementation's requirements of a layer, each with what was found and how to change it."""
    found = fused.fit_conditions(layer, implementation, layers.LSTM, layers.LSTMCell)
    if implementation == "cellerate-cuda":
        most, units = plan.MOST_UNITS, layer.cell.units
        fits = units <= most
        found.append(Condition("units", fits, str(units), "" if fits else f"at most {most}"))
    return found


def run(
    layer: layers.LSTM,
    implementation: str,
    sequences: Any,
    initial_state: Any,
    mask: Any,
    training: bool | None,
) -> tuple[Any, Any, list[Any]]:
    """The results of `LSTM.inner_loop`, from Cellerate's kernels.

    Args:
        layer: Fit by `fit_conditions`, in a call fit by `fused.unfit_call`.
        implementation: "cellerate-cpu" or "cellerate-cuda".
        sequences: (B, T, D).
        initial_state: [h0, c0], each (B, H).
        mask: (B, T), or None.
        training: Whether dropout is applied.

    Returns:
        The last output (B, H); all outputs (B, T, H), or the last again without `return_sequences`; and
        [h_T, c_T].
    """
    states = dict(zip(("h0", "c0"), initial_state, strict=True))
    dtype = fused.computed_in(layer, implementation)
    arrays = fused.arrays_of(layer, dtype, sequences, states, mask, training)
    options, sequences_wanted = _options(layer), bool(layer.return_sequences)
    if implementation == "cellerate-cuda":
        outputs, h_T, c_T = fused.bridge().cuda_lstm(arrays, options, sequences_wanted)
    else:
        codes = cpu.codes(options, sequences_wanted)
        outputs, h_T, c_T = fused.bridge().run(cpu.LSTM, arrays, codes, training=bool(training))
    return outputs[:, -1] if sequences_wanted else outputs, outputs, [h_T, c_T]


def _options(layer: layers.LSTM) -> LstmOptions:
    activation, recurrent_activation = fused.activations_of(layer)
    return LstmOptions(
        activation=activation,
        recurrent_activation=recurrent_activation,
        go_backwards=bool(layer.go_backwards),
        masked_output=fused.masked_output_of(layer),
    )
