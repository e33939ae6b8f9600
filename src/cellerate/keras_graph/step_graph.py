"""Runs a Keras model's own graph one time step at a time, with the recurrent state outside the model.

Each recurrent call is replaced by its cell. `keras_stepper` handles compiling and the meaning of ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import layers
from keras.src import backend, tree

from cellerate.errors import ModelError
from cellerate.keras_graph.graph import find_over_time, functional_graph
from cellerate.keras_graph.keras_backend import recurrent_functions
from cellerate.keras_graph.step_rules import StepCheck, check_maskable
from cellerate.keras_graph.walk import GraphCall, Inner, Visitor, walk


class StepGraph:
    """A model's graph, after a check that it can run one step at a time.

    Attributes:
        untested: The names of layers and operations that are not known to treat each time step alike, so that the
            model has to be tried out.
        embedding_sizes: (name, input_dim) of the embeddings that the ids go into.
        output_over_time: Whether the output has a time axis.
        probabilities: Whether the output is a softmax, not logits.

    Raises:
        ModelError: The model is not a Functional or Sequential model, or has a layer that mixes time steps.
    """

    def __init__(self, model: keras.Model) -> None:
        graph = functional_graph(model)
        if graph is None:
            unbuilt = isinstance(model, keras.Sequential)
            raise ModelError(
                f"model {model.name!r} cannot be run step by step: "
                + (
                    "it is not built, so its layers are not connected yet. Give it a keras.Input first, or "
                    "call it once on data."
                    if unbuilt
                    else f"{type(model).__name__} is a subclassed model, whose graph cannot be read. Rebuild "
                    "it with the functional API or keras.Sequential."
                )
            )
        if len(graph.inputs) != 1 or len(graph.outputs) != 1:
            raise ModelError(
                f"a next-token model has one input and one output, model {model.name!r} has "
                f"{len(graph.inputs)} and {len(graph.outputs)}."
            )
        self.graph = graph
        check = StepCheck()
        (self.output_over_time,) = walk(graph, [True], check)
        self.untested, self.embedding_sizes = check.untested, check.embedding_sizes
        self._calls = check.recurrent
        for found in find_over_time(model):
            if found.mask is not None:
                check_maskable(found.layer)
        self.probabilities = _is_softmax(graph.outputs[0])
        self._structures = [layer.get_initial_state(1) for layer in self._calls]

    @property
    def stateful_layers(self) -> list[layers.RNN]:
        """The recurrent layers that keep their own state between calls of the model, each once."""
        return [layer for layer in dict.fromkeys(self._calls) if layer.states is not None]

    def initial_state(self, batch_size: int) -> tuple[Any, ...]:
        """The state before the first token: a flat tuple of (B, units) tensors, in the order of the calls."""
        flat: list[Any] = []
        for layer in self._calls:
            for value in tree.flatten(layer.get_initial_state(batch_size)):
                flat.append(keras.ops.cast(value, layer.cell.compute_dtype))
        return tuple(flat)

    def run(
        self, inputs: Any, state: Sequence[Any], *, state_only: bool = False
    ) -> tuple[tuple[Any, ...], Any]:
        """Runs the graph over a few time steps from a state.

        Args:
            inputs: (B, T, ...), in the form of the model's input.
            state: The state before the first step, in the form of `initial_state`.
            state_only: Whether to stop after the last recurrent layer, and compute no output.

        Returns:
            The state after the last step, and the model's output: None with `state_only`.
        """
        run = _Run(self._calls, self._structures, state, state_only)
        outputs = walk(self.graph, [inputs], run)
        return tuple(run.new_state), None if state_only else outputs[0]


def step_model(model: keras.Model, batch_size: int) -> keras.Model:
    """A model of one time step whose state goes in and out, with which Keras alone can run a next-token model.

    Args:
        model: A next-token model; its layers are shared, and it is not changed.
        batch_size: Rows, B.

    Returns:
        [ids (B, 1), *states] → [output, *states]; Keras's own layers compute everything.

    Raises:
        ModelError: The model cannot be run step by step.
    """
    graph = StepGraph(model)
    (whole,) = graph.graph.inputs
    inputs = keras.Input(batch_shape=(batch_size, 1, *whole.shape[2:]), dtype=whole.dtype)
    state = [
        keras.Input(batch_shape=tuple(part.shape), dtype=keras.backend.standardize_dtype(part.dtype))
        for part in graph.initial_state(batch_size)
    ]
    tensors = [inputs, *state]
    return keras.Model(tensors, _Step(model, graph)(tensors), name=f"{model.name}_step")


class _Step(keras.Layer):
    """A step as one layer: Keras gives all cells the same name, and a model may have each name only once."""

    def __init__(self, model: keras.Model, graph: StepGraph) -> None:
        super().__init__(name="step", dtype="float32", autocast=False)
        self.model = model  # so that this layer tracks the model's variables
        self._graph = graph

    def build(self, input_shape: Any) -> None:
        """Does nothing: all layers are built."""

    def call(self, inputs: Sequence[Any]) -> list[Any]:
        new_state, output = self._graph.run(inputs[0], inputs[1:])
        return [output, *new_state]


class _Run(Visitor[Any]):
    """One pass over the graph whose values are the tensors themselves."""

    def __init__(
        self, calls: Sequence[layers.RNN], structures: Sequence[Any], state: Sequence[Any], state_only: bool
    ) -> None:
        self._structures = structures
        self._last = len(calls) - 1 if state_only else None
        self._state = list(state)
        self._call = 0
        self.new_state: list[Any] = []

    def done(self) -> bool:
        """True if the state is complete and nothing more is needed."""
        return self._last is not None and self._call > self._last

    def call(self, call: GraphCall[Any]) -> list[Any] | Inner[Any]:
        """The outputs of a layer or operation; a recurrent layer continues from its state."""
        operation = call.operation
        args, kwargs = call.filled_in()
        inner = functional_graph(operation)
        if inner is not None:
            return Inner(inner, tree.flatten(args), call.path)
        if isinstance(operation, layers.RNN):
            outputs = self._recurrent(operation, args[0], kwargs.get("mask"))
        elif isinstance(operation, layers.TimeDistributed):
            outputs = _all_steps_at_once(operation.layer, args[0])
        else:
            if isinstance(operation, keras.Layer) and operation._call_has_training_arg:
                kwargs = kwargs | {"training": False}
            outputs = operation(*args, **kwargs)
        return list(tree.flatten(outputs))

    def _recurrent(self, layer: layers.RNN, x: Any, mask: Any) -> Any:
        structure = self._structures[self._call]
        self._call += 1
        count = len(tree.flatten(structure))
        state = tree.pack_sequence_as(structure, self._state[:count])
        self._state = self._state[count:]
        mask = backend.get_keras_mask(x) if mask is None else mask
        x = keras.ops.cast(x, layer.compute_dtype)
        if x.shape[1] == 1:
            last, new_state = _one_step(layer, x, state, mask)
            outputs = keras.ops.expand_dims(last, 1)
        else:
            last, outputs, new_state = _many_steps(layer, x, state, mask)
        flat = [keras.ops.cast(value, layer.compute_dtype) for value in tree.flatten(new_state)]
        self.new_state.extend(flat)
        result = keras.ops.cast(outputs if layer.return_sequences else last, layer.compute_dtype)
        if layer.return_sequences and mask is not None:
            backend.set_keras_mask(result, mask)
        return [result, *flat] if layer.return_state else result


def _one_step(layer: layers.RNN, x: Any, state: Any, mask: Any) -> tuple[Any, Any]:
    """Runs the cell on a single time step: no loop, and nothing for a compiler to unroll."""
    output, new_state = _call_cell(layer, x[:, 0], state)
    if mask is None:
        return output, new_state
    keep = keras.ops.reshape(mask, (-1, 1))
    before = keras.ops.zeros_like(output) if layer.zero_output_for_mask else _output_before(state)
    packed = tree.pack_sequence_as(state, tree.flatten(new_state))
    new_state = tree.map_structure(lambda new, old: keras.ops.where(keep, new, old), packed, state)
    return keras.ops.where(keep, output, before), new_state


def _many_steps(layer: layers.RNN, x: Any, state: Any, mask: Any) -> tuple[Any, Any, Any]:
    """Runs the layer's own loop over time, on its fast path if it has one."""
    dtype = layer.compute_dtype
    mixed = backend.AutocastScope(dtype if dtype != layer.variable_dtype else None)
    with mixed:
        if layer.unroll:
            # An unrolled block would compile a copy of the cell for each time step; the loop computes the same.
            last, outputs, new_state = recurrent_functions(backend.backend()).rnn(
                lambda inputs, states: _call_cell(layer, inputs, states),
                x,
                state,
                mask=mask,
                input_length=x.shape[1],
                zero_output_for_mask=layer.zero_output_for_mask,
                return_all_outputs=True,
            )
        else:
            last, outputs, new_state = layer.inner_loop(x, state, mask, training=False)
    if mask is not None and not layer.zero_output_for_mask and layer.return_sequences:
        # Steps masked before the first unmasked one repeat the output before this block. Not every backend's loop
        # knows that output, as it takes the block for the whole sequence.
        seen = keras.ops.cumsum(keras.ops.cast(mask, "int32"), axis=1) > 0
        before = keras.ops.expand_dims(_output_before(state), 1)
        outputs = keras.ops.where(keras.ops.expand_dims(seen, -1), outputs, before)
    return last, outputs, new_state


def _call_cell(layer: layers.RNN, x: Any, state: Any) -> tuple[Any, Any]:
    kwargs = {"training": False} if getattr(layer.cell, "_call_has_training_arg", False) else {}
    output, new_state = layer.cell(x, state, **kwargs)
    return output, new_state if tree.is_nested(new_state) else [new_state]


def _output_before(state: Any) -> Any:
    """The output of the step that led to a state; see `step_rules.check_maskable`."""
    first = state[0]
    return state[-1][0] if tree.is_nested(first) else first


def _all_steps_at_once(layer: keras.Layer, x: Any) -> Any:
    """`TimeDistributed` without its loop: the inner layer sees only one step, so the steps go in as a batch."""
    shape = keras.ops.shape(x)
    merged = keras.ops.reshape(x, (-1, *shape[2:]))
    kwargs = {"training": False} if layer._call_has_training_arg else {}
    result = layer(merged, **kwargs)
    return keras.ops.reshape(result, (-1, shape[1], *keras.ops.shape(result)[1:]))


def _is_softmax(tensor: Any) -> bool:
    """True if a tensor of a graph comes out of a softmax."""
    operation, node_index, index = tensor._keras_history
    inner = functional_graph(operation)
    if inner is not None:
        return _is_softmax(inner.outputs[index])
    node = operation._inbound_nodes[node_index]
    while isinstance(operation, layers.TimeDistributed):
        operation = operation.layer
    activation = getattr(operation, "activation", None)
    if type(operation).__name__ == "Softmax" or activation is keras.activations.softmax:
        return True
    # A cast of the probabilities to float32 is written as a linear Activation.
    linear = isinstance(operation, layers.Activation) and activation is keras.activations.linear
    passes_on = linear or isinstance(operation, layers.Identity)
    return passes_on and _is_softmax(node.input_tensors[0])


def gives_probabilities(model: keras.Model) -> bool:
    """True if a model's (single) output is a softmax; False where its graph cannot be read."""
    graph = functional_graph(model)
    return graph is not None and len(graph.outputs) == 1 and _is_softmax(graph.outputs[0])
