"""What the recurrent layers compute, as nodes of a program.

Recurrent layers have states and masks; a Bidirectional or a stack of cells becomes several nodes.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import layers
from keras.src import tree

from cellerate.keras_graph.program_nodes import (
    ProgramCall,
    ProgramValue,
    Refused,
    known_activation,
    numpy,
    read_layer,
)

_MERGES = {"sum": "add", "mul": "multiply", "ave": "average"}


def recurrent(call: ProgramCall) -> list[ProgramValue]:
    """The output of a layer with one LSTM cell or a stack of them, and its last states if it returns them."""
    layer, x = call.layer, call.x
    cells = layer.cell.cells if type(layer.cell) is layers.StackedRNNCells else [layer.cell]
    for cell in cells:
        if type(cell) is not layers.LSTMCell:
            raise Refused(
                f"has a {type(cell).__name__}, where programs know the LSTMCell", "Use an LSTMCell."
            )
    if len(x.shape) != 3:
        raise Refused(f"reads a tensor of {len(x.shape)} axes, where programs take (B, T, F)")
    if any(np.any(numpy(state)) for state in tree.flatten(layer.states) if state is not None):
        raise Refused(
            "is stateful and holds the state after other sequences, where a program starts each from zeros",
            "Call its reset_state() first.",
        )
    mask = call.used_mask()
    given = (
        [] if call.arguments.get("initial_state") is None else tree.flatten(call.arguments["initial_state"])
    )
    if len(given) not in (0, 2 * len(cells)):
        raise Refused(f"is given {len(given)} initial states, where {len(cells)} cells take two each")
    states: list[ProgramValue] = []
    for number, cell in enumerate(cells):
        first, last = number == 0, number == len(cells) - 1
        inputs = {"x": x}
        if mask is not None:
            inputs["mask"] = mask
        if given:
            inputs |= {"h0": given[2 * number], "c0": given[2 * number + 1]}
        x = dataclasses.replace(call, path=call.path if len(cells) == 1 else f"{call.path}/{cell.name}").add(
            "lstm",
            inputs,
            call.weights(cell, "kernel", "recurrent_kernel", "bias"),
            activation=known_activation(cell.activation),
            recurrent_activation=known_activation(cell.recurrent_activation),
            masked_output=_masked_output(layer, masked=mask is not None),
            go_backwards=layer.go_backwards and first,
            return_sequences=layer.return_sequences or not last,
        )
        if layer.return_state:
            states += [call.add("lstm_state", {"lstm": x}, state=state) for state in "hc"]
        if mask is not None and layer.go_backwards and first and not last:
            # The first cell gives its outputs in the order in which it walked, and the others keep that order.
            mask = call.nodes.mask("flip_mask", call.path, {"mask": mask})
    return [x, *states]


def _masked_output(layer: layers.RNN, *, masked: bool) -> str:
    """What the output holds at a masked step, on the backend that runs."""
    jax = keras.backend.backend() == "jax"
    if layer.unroll and masked:
        # In unrolled layers JAX ignores zero_output_for_mask. Backwards, TensorFlow puts the zeros by the mask in its
        # original order, and torch fails.
        if layer.go_backwards and not jax:
            raise Refused("is unrolled, goes backwards and is given a mask", "Build it with unroll=False.")
        return "zero" if layer.zero_output_for_mask and not jax else "previous_output"
    if layer.zero_output_for_mask:
        return "zero"
    return "previous_state" if jax else "previous_output"


def bidirectional(call: ProgramCall) -> list[ProgramValue]:
    """The outputs of both directions, merged, and the last states of both if the layer returns them."""
    layer, given = call.layer, call.arguments.get("initial_state")
    half = len(given) // 2 if given is not None else 0
    halves: Sequence[Any] = (None, None) if given is None else (given[:half], given[half:])
    directions = []
    for inner, initial_state in zip((layer.forward_layer, layer.backward_layer), halves, strict=True):
        arguments = {"sequences": call.x, "initial_state": initial_state}
        path = f"{call.path}/{inner.name}"
        directions.append(
            read_layer(
                dataclasses.replace(call, layer=inner, path=path, arguments=arguments), call.readers.recurrent
            )
        )
    (forward, *forward_states), (backward, *backward_states) = directions
    if layer.return_sequences:
        backward = call.add("flip", {"x": backward}, axis=1)
    both = {"0": forward, "1": backward}
    if layer.merge_mode is None:
        outputs = [forward, backward]
    elif layer.merge_mode == "concat":
        outputs = [call.add("concatenate", both, axis=2 if layer.return_sequences else 1)]
    else:
        outputs = [call.add(_MERGES[layer.merge_mode], both)]
    return outputs + forward_states + backward_states
