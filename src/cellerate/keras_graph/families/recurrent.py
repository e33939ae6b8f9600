"""The nodes of a program for the recurrent layers.

Recurrent layers have states and masks; a Bidirectional or a stack of cells becomes several nodes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import layers
from keras.src import tree

from cellerate.keras_graph.activations import activation_name
from cellerate.keras_graph.program_nodes import (
    NAMED,
    ProgramCall,
    ProgramValue,
    Refused,
    each,
    numpy,
    read_layer,
)
from cellerate.program import Option

_MERGES = {"sum": "add", "mul": "multiply", "ave": "average"}


def recurrent(call: ProgramCall) -> list[ProgramValue]:
    """The output of a layer with one cell or a stack of them, and its last states if it returns them."""
    layer, x = call.layer, call.x
    cells = layer.cell.cells if type(layer.cell) is layers.StackedRNNCells else [layer.cell]
    # All obstacles are found before anything is refused.
    *_, mask, masked_output, given = each(
        *(functools.partial(_check_cell, cell) for cell in cells),
        lambda: _check_input(layer, x),
        call.used_mask,
        lambda: _masked_output(layer, masked=call.mask is not None and call.used_mask() is not None),
        lambda: _initial_states(call, cells),
    )
    states: list[ProgramValue] = []
    for number, cell in enumerate(cells):
        first, last = number == 0, number == len(cells) - 1
        kind = _CELLS[type(cell)]
        inputs = {"x": x}
        if mask is not None:
            inputs["mask"] = mask
        if given:
            inputs |= {f"{state}0": given.pop(0) for state in kind.states}
        arrays, options = kind.read(call, cell)
        x = dataclasses.replace(call, path=call.path if len(cells) == 1 else f"{call.path}/{cell.name}").add(
            kind.op,
            inputs,
            arrays,
            activation=_activation(cell, "activation"),
            masked_output=masked_output,
            go_backwards=layer.go_backwards and first,
            return_sequences=layer.return_sequences or not last,
            **options,
        )
        if layer.return_state:
            states += _last_states(call, kind, x)
        if mask is not None and layer.go_backwards and first and not last:
            # The first cell gives its outputs in the order in which it walked, and the others keep that order.
            mask = call.nodes.mask("flip_mask", call.path, {"mask": mask})
    return [x, *states]


def _lstm(call: ProgramCall, cell: Any) -> _Read:
    arrays = call.weights(cell, "kernel", "recurrent_kernel", "bias")
    return arrays, {"recurrent_activation": _activation(cell, "recurrent_activation")}


def _simple_rnn(call: ProgramCall, cell: Any) -> _Read:
    return call.weights(cell, "kernel", "recurrent_kernel", "bias"), {}


def _gru(call: ProgramCall, cell: Any) -> _Read:
    arrays = call.weights(cell, "kernel", "recurrent_kernel")
    if cell.bias is not None and cell.reset_after:
        # One variable with two rows.
        for row, name in enumerate(("bias", "recurrent_bias")):
            arrays[name] = call.nodes.array(cell, name, functools.partial(_row, cell.bias, row))
    else:
        arrays |= call.weights(cell, "bias")
    gate = _activation(cell, "recurrent_activation")
    return arrays, {"recurrent_activation": gate, "reset_after": bool(cell.reset_after)}


def _row(variable: Any, row: int) -> np.ndarray:
    return numpy(variable)[row]


_Read = tuple[dict[str, np.ndarray], dict[str, Option]]
"""The weights of a cell, and the options that only its kind has."""


@dataclasses.dataclass(frozen=True)
class _Cell:
    """A cell as programs compute it.

    Attributes:
        op: The operation.
        states: The names of its states, a letter each, in Keras's order.
        read: Its weights and options.
    """

    op: str
    states: str
    read: Callable[[ProgramCall, Any], _Read]


_CELLS: dict[type, _Cell] = {
    layers.LSTMCell: _Cell("lstm", "hc", _lstm),
    layers.GRUCell: _Cell("gru", "h", _gru),
    layers.SimpleRNNCell: _Cell("simple_rnn", "h", _simple_rnn),
}


def _check_cell(cell: Any) -> None:
    if type(cell) not in _CELLS:
        known = ", ".join(kind.__name__ for kind in _CELLS)
        raise Refused(
            f"has a {type(cell).__name__}, where programs know {known}", "Use one of these, itself."
        )
    names = [name for name in ("activation", "recurrent_activation") if hasattr(cell, name)]
    each(*(functools.partial(_activation, cell, name) for name in names))


def _activation(cell: Any, which: str) -> str:
    """The name of an activation of a cell; programs do not compute a softmax over the units."""
    function = getattr(cell, which)
    known = activation_name(function, fixed_weights=True)
    if known is None:
        found = getattr(function, "__name__", None) or type(function).__name__
        raise Refused(f"has the {which} {found!r}, which cannot be packed", NAMED)
    return known


def _check_input(layer: Any, x: ProgramValue) -> None:
    if len(x.shape) != 3:
        raise Refused(f"reads a tensor of {len(x.shape)} axes, where programs take (B, T, F)")
    if any(np.any(numpy(state)) for state in tree.flatten(layer.states) if state is not None):
        raise Refused(
            "is stateful and holds the state after other sequences, where a program starts each from zeros",
            "Call its reset_state() first.",
        )


def _initial_states(call: ProgramCall, cells: Sequence[Any]) -> list[Any]:
    """The states that the call is given, flat; none if it starts from zeros."""
    found = call.arguments.get("initial_state")
    given = [] if found is None else tree.flatten(found)
    expected = sum(len(_CELLS[type(cell)].states) for cell in cells if type(cell) in _CELLS)
    if given and len(given) != expected:
        raise Refused(f"is given {len(given)} initial states, where its cells take {expected}")
    return given


def _last_states(call: ProgramCall, kind: _Cell, outputs: ProgramValue) -> list[ProgramValue]:
    if kind.op == "lstm":
        return [call.add("lstm_state", {"lstm": outputs}, state=state) for state in kind.states]
    return [call.add("rnn_state", {"rnn": outputs})]


def _masked_output(layer: layers.RNN, *, masked: bool) -> str:
    """The output at a masked step on the active backend."""
    jax = keras.backend.backend() == "jax"
    if layer.unroll and masked:
        # In unrolled layers JAX ignores zero_output_for_mask. If they go backwards, TensorFlow places the zeros by the
        # mask in its original order, and torch fails.
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

    def direction(inner: Any, initial_state: Any) -> list[ProgramValue]:
        arguments = {"sequences": call.x, "initial_state": initial_state}
        path = f"{call.path}/{inner.name}"
        made = dataclasses.replace(call, layer=inner, path=path, arguments=arguments)
        return read_layer(made, call.readers.recurrent)

    (forward, *forward_states), (backward, *backward_states) = each(
        lambda: direction(layer.forward_layer, halves[0]),
        lambda: direction(layer.backward_layer, halves[1]),
    )
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
