"""Checks that the calls of a model's graph can run one time step at a time, or must be tried out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import layers
from keras.src import tree

from cellerate.errors import ModelError
from cellerate.keras_graph.graph import functional_graph, inner_layers
from cellerate.keras_graph.keras_layers import ALIKE, LAST_AXIS, MIXED, OPERATIONS, treats_steps
from cellerate.keras_graph.walk import GraphCall, Inner, Visitor

# Cells whose output is also their first state, so that a masked step's output is that state.
_STANDARD_CELLS = (layers.LSTMCell, layers.GRUCell, layers.SimpleRNNCell)
# The layers whose `call` a recurrent layer may have: their loops run the cell and nothing else.
_LOOPS = (layers.RNN, layers.LSTM, layers.GRU, layers.SimpleRNN)


class StepCheck(Visitor[bool]):
    """Checks every call; a tensor's value is True while it has a time axis.

    Attributes:
        recurrent: The layer of each recurrent call, in the order of the calls.
        untested: The names of layers and operations that are not known to treat each time step alike.
        embedding_sizes: (name, input_dim) of the embeddings that the ids go into.
    """

    def __init__(self) -> None:
        self.recurrent: list[layers.RNN] = []
        self.untested: list[str] = []
        self.embedding_sizes: list[tuple[str, int]] = []

    def call(self, call: GraphCall[bool]) -> list[bool] | Inner[bool]:
        """True for each output of a call that has a time axis.

        Raises:
            ModelError: The call cannot be run a step at a time.
        """
        operation, node = call.operation, call.node
        inner = functional_graph(operation)
        if inner is not None:
            # Masks come after the tensors.
            return Inner(inner, call.inputs[: len(inner.inputs)], call.path)
        if isinstance(operation, layers.RNN):
            self._check_recurrent(operation, node)
            if operation.return_state:
                self.untested.append(operation.name)
            return [operation.return_sequences] + [False] * (len(call.outputs) - 1)
        self._check_other(operation, node, call.inputs)
        return [_keeps_time(node, call.inputs, tensor) for tensor in call.outputs]

    def _check_recurrent(self, layer: layers.RNN, node: Any) -> None:
        if treats_steps(layer, MIXED):
            raise ModelError(_mixes(layer))
        if layer.go_backwards:
            raise ModelError(
                f"layer {layer.name!r} reads the sequence backwards (go_backwards=True), so it needs the "
                "future and cannot be run step by step. Build the model with go_backwards=False."
            )
        if len(node.input_tensors) > 1 and node.arguments.kwargs.get("mask") is None:
            raise ModelError(
                f"layer {layer.name!r} gets its initial_state from another layer, so the model cannot be run step by "
                "step. A next-token model starts from zeros: leave initial_state out."
            )
        if type(layer).call not in {kind.call for kind in _LOOPS}:
            raise ModelError(
                f"layer {layer.name!r} ({type(layer).__name__}) overrides `call`, so running its cell is not the "
                "same as running the layer. Put the change into the cell, in a keras.layers.RNN."
            )
        self.recurrent.append(layer)

    def _check_other(self, operation: Any, node: Any, flags: Sequence[bool]) -> None:
        if isinstance(operation, layers.Bidirectional):
            raise ModelError(
                f"layer {operation.name!r} is Bidirectional: its backward half needs the future, which a model "
                "that predicts the next token does not have. Train the model with the forward layer alone."
            )
        if treats_steps(operation, MIXED):
            raise ModelError(_mixes(operation))
        hidden = isinstance(operation, keras.Layer) and not isinstance(operation, layers.TimeDistributed)
        if hidden and _has_recurrent(operation):
            raise ModelError(
                f"layer {operation.name!r} ({type(operation).__name__}) has a recurrent layer inside, whose "
                "state cannot be reached. Use the recurrent layer in the model's own graph."
            )
        if isinstance(operation, layers.Embedding) and not node.arguments.kwargs.get("reverse", False):
            if len(node.input_tensors[0].shape) == 2:
                self.embedding_sizes.append((operation.name, operation.input_dim))
            return
        flat = [len(t.shape) < 3 and flag for t, flag in zip(node.input_tensors, flags, strict=True)]
        if any(flat) and treats_steps(operation, ALIKE, LAST_AXIS):
            raise ModelError(
                f"layer {operation.name!r} takes the whole sequence of ids as one vector of features. A "
                "next-token model first turns each id into a vector, with an Embedding or one-hot."
            )
        known = treats_steps_alike(operation, node)
        # A last step that is joined with a whole sequence reaches all steps of the sequence, past and future.
        if not known or (any(flags) and not all(flags)):
            self.untested.append(operation.name)


def check_maskable(layer: keras.Layer) -> None:
    """Refuses a masked layer with a custom cell: at a masked step the output must be in the state, as in Keras's cells.

    Raises:
        ModelError: The layer has a custom cell.
    """
    if not isinstance(layer, layers.RNN):
        return
    cells = layer.cell.cells if isinstance(layer.cell, layers.StackedRNNCells) else [layer.cell]
    if not all(type(cell) in _STANDARD_CELLS for cell in cells):
        raise ModelError(
            f"layer {layer.name!r} gets a mask and has a custom cell ({type(layer.cell).__name__}), whose state "
            "does not hold the output of a masked step. Build the Embedding with mask_zero=False."
        )


def treats_steps_alike(operation: Any, node: Any) -> bool:
    """True if a layer or operation, as called in a node, is known to treat every time step alike."""
    if isinstance(operation, keras.Layer):
        return treats_steps(operation, ALIKE) or (
            treats_steps(operation, LAST_AXIS) and _works_on_last_axis(operation)
        )
    row = OPERATIONS.get(type(operation).__name__)
    if row is None:
        return False
    if row.steps is LAST_AXIS:
        return _works_on_last_axis(operation)
    return row.steps is ALIKE and _takes_tensors_only(node)


def _works_on_last_axis(layer: Any) -> bool:
    axis = layer.axis
    axes = list(axis) if isinstance(axis, list | tuple) else [axis]
    # In a layer built on (B, T, F), Keras turns the axis -1 into 2.
    return axes in ([-1], [2])


def _takes_tensors_only(node: Any) -> bool:
    """True if an operation gets no constant array, which could differ from step to step."""
    arguments = tree.flatten((node.arguments.args, node.arguments.kwargs))
    return all(
        isinstance(value, keras.KerasTensor | int | float | str | None) or np.ndim(value) == 0
        for value in arguments
    )


def _keeps_time(node: Any, flags: Sequence[bool], output: Any) -> bool:
    """True if an output still has the time axis: an operation that takes a single step drops an axis."""
    ranks = [len(t.shape) for t, flag in zip(node.input_tensors, flags, strict=True) if flag]
    return bool(ranks) and len(output.shape) >= max(ranks)


def _has_recurrent(layer: keras.Layer) -> bool:
    return any(isinstance(inner, layers.RNN) or _has_recurrent(inner) for inner in inner_layers(layer))


def _mixes(layer: keras.Layer) -> str:
    return (
        f"layer {layer.name!r} ({type(layer).__name__}) mixes time steps, so Keras cannot run the model step "
        "by step: only recurrent layers may look back, and all others must treat each time step alike. The native "
        "engine also steps a Conv1D with padding='causal' and strides=1."
    )
