"""Running a Keras model's own graph one time step at a time, with the recurrent state held outside.

A module of its own apart from `stepper` because it is about graphs only: which layers can be run a step at a
time, and how each recurrent call is replaced by its cell. It knows no backend, no compilation and no ids.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import layers
from keras.src import backend, tree

from cellerate.errors import ModelError
from cellerate.layers.graph import find_over_time, functional_graph, inner_layers, ordered_nodes
from cellerate.layers.per_step import LAST_AXIS, MIXING, PER_STEP, treats_steps_alike

# Cells whose output is also their first state, so that a masked step's output is that state.
_STANDARD_CELLS = (layers.LSTMCell, layers.GRUCell, layers.SimpleRNNCell)


class StepGraph:
    """A model's graph, checked to be runnable a step at a time.

    Attributes:
        untested: The names of layers and operations that are in neither list: whether they treat each time
            step alike has to be tried out.
        embedding_sizes: (name, input_dim) of the embeddings that the ids go into.
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
        self.untested: list[str] = []
        self.embedding_sizes: list[tuple[str, int]] = []
        self._calls: list[layers.RNN] = []
        self.output_over_time = self._check(graph, [True])[0]
        for found in find_over_time(model):
            if found.mask is not None:
                _check_maskable(found.layer)
        self.probabilities = _is_softmax(graph.outputs[0])
        self._structures = [layer.get_initial_state(1) for layer in self._calls]

    @property
    def recurrent_calls(self) -> int:
        """How often a recurrent layer is called in the graph; each call has its own state."""
        return len(self._calls)

    @property
    def stateful_layers(self) -> list[layers.RNN]:
        """The recurrent layers that keep a state of their own between calls of the model, each once."""
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
            inputs: (B, T, ...) what the model's input takes.
            state: The state before them, as `initial_state` gives it.
            state_only: Stop after the last recurrent layer, whose output is not needed then.

        Returns:
            The state after the last step, and the model's output: None with `state_only`.
        """
        run = _Run(self._calls, self._structures, state, state_only)
        outputs = run.graph(self.graph, [inputs])
        return tuple(run.new_state), None if state_only else tree.flatten(outputs)[0]

    def _check(self, graph: Any, over_time: Sequence[bool]) -> list[bool]:
        """Looks at every call of a graph; says of each output whether it still has a time axis."""
        timed = {id(tensor): flag for tensor, flag in zip(graph.inputs, over_time, strict=True)}
        for node in ordered_nodes(graph):
            operation = node.operation
            flags = [timed[id(tensor)] for tensor in node.input_tensors]
            inner = functional_graph(operation)
            if inner is not None:
                outputs = self._check(inner, flags)
            elif isinstance(operation, layers.RNN):
                self._check_recurrent(operation, node)
                outputs = [operation.return_sequences] + [False] * (len(node.outputs) - 1)
                if operation.return_state:
                    self.untested.append(operation.name)
            else:
                self._check_other(operation, node, flags)
                outputs = [_keeps_time(node, flags, tensor) for tensor in node.outputs]
            timed |= {id(tensor): flag for tensor, flag in zip(node.outputs, outputs, strict=True)}
        return [timed[id(tensor)] for tensor in graph.outputs]

    def _check_recurrent(self, layer: layers.RNN, node: Any) -> None:
        if isinstance(layer, MIXING):
            raise ModelError(_mixes(layer))
        if layer.go_backwards:
            raise ModelError(
                f"layer {layer.name!r} reads the sequence backwards (go_backwards=True), so it needs the "
                "future: the model cannot be run step by step."
            )
        if len(node.input_tensors) > 1 and node.arguments.kwargs.get("mask") is None:
            raise ModelError(
                f"layer {layer.name!r} gets its initial_state from the graph. A next-token model starts from "
                "a zero state; an encoder and decoder pair cannot be run step by step."
            )
        if type(layer).call not in {c.call for c in (layers.RNN, layers.LSTM, layers.GRU, layers.SimpleRNN)}:
            raise ModelError(
                f"layer {layer.name!r} ({type(layer).__name__}) has a `call` of its own, so its cell alone "
                "does not say what a step is."
            )
        self._calls.append(layer)

    def _check_other(self, operation: Any, node: Any, flags: Sequence[bool]) -> None:
        if isinstance(operation, layers.Bidirectional):
            raise ModelError(
                f"layer {operation.name!r} is Bidirectional: its backward half reads the sequence from the "
                "end, so a next token cannot be predicted without the future. Train the model with the "
                "forward layer alone."
            )
        if isinstance(operation, MIXING):
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
        if any(flat) and isinstance(operation, PER_STEP + LAST_AXIS):
            raise ModelError(
                f"layer {operation.name!r} takes the whole sequence of ids as one vector of features. A "
                "next-token model first turns each id into a vector, with an Embedding or one-hot."
            )
        known = treats_steps_alike(operation, node)
        # A last step joined with a whole sequence is spread over all of its steps, future and past.
        if not known or (any(flags) and not all(flags)):
            self.untested.append(operation.name)


def step_model(model: keras.Model, batch_size: int) -> keras.Model:
    """A model of one time step, its state going in and out: what Keras alone can run a next-token model with.

    Args:
        model: A next-token model; its layers are shared, and it is not changed.
        batch_size: Rows, B.

    Returns:
        [ids (B, 1), *states] → [output, *states]; all that computes are Keras's own layers.

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
    """A step as one layer: Keras names all cells alike, and of a name a model may have one operation only."""

    def __init__(self, model: keras.Model, graph: StepGraph) -> None:
        super().__init__(name="step", dtype="float32", autocast=False)
        self.model = model  # its variables are those of this layer
        self._graph = graph

    def build(self, input_shape: Any) -> None:
        """All layers are built."""

    def call(self, inputs: Sequence[Any]) -> list[Any]:
        new_state, output = self._graph.run(inputs[0], inputs[1:])
        return [output, *new_state]


class _Run:
    """One pass over the graph."""

    def __init__(
        self, calls: Sequence[layers.RNN], structures: Sequence[Any], state: Sequence[Any], state_only: bool
    ) -> None:
        self._structures = structures
        self._last = len(calls) - 1 if state_only else None
        self._state = list(state)
        self._call = 0
        self.new_state: list[Any] = []

    @property
    def _done(self) -> bool:
        return self._last is not None and self._call > self._last

    def graph(self, graph: Any, inputs: Sequence[Any]) -> Any:
        """Runs one graph on flat inputs; None once the state is complete and nothing more is needed."""
        tensors = {id(place): value for place, value in zip(graph.inputs, inputs, strict=True)}
        for node in ordered_nodes(graph):
            if self._done:
                return None
            args, kwargs = node.arguments.fill_in(tensors)
            outputs = self._operation(node.operation, args, kwargs)
            for place, value in zip(node.outputs, tree.flatten(outputs), strict=False):
                tensors[id(place)] = value
        if self._done:
            return None
        outputs = tree.pack_sequence_as(graph._outputs_struct, [tensors[id(t)] for t in graph.outputs])
        return outputs[0] if isinstance(outputs, list | tuple) and len(outputs) == 1 else outputs

    def _operation(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inner = functional_graph(operation)
        if inner is not None:
            return self.graph(inner, tree.flatten(args))
        if isinstance(operation, layers.RNN):
            return self._recurrent(operation, args[0], kwargs.get("mask"))
        if isinstance(operation, layers.TimeDistributed):
            return _all_steps_at_once(operation.layer, args[0])
        if isinstance(operation, keras.Layer) and operation._call_has_training_arg:
            kwargs = kwargs | {"training": False}
        return operation(*args, **kwargs)

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
    """The cell on a single time step: no loop, and nothing for a compiler to unroll."""
    output, new_state = _call_cell(layer, x[:, 0], state)
    if mask is None:
        return output, new_state
    keep = keras.ops.reshape(mask, (-1, 1))
    before = keras.ops.zeros_like(output) if layer.zero_output_for_mask else _output_before(state)
    packed = tree.pack_sequence_as(state, tree.flatten(new_state))
    new_state = tree.map_structure(lambda new, old: keras.ops.where(keep, new, old), packed, state)
    return keras.ops.where(keep, output, before), new_state


def _many_steps(layer: layers.RNN, x: Any, state: Any, mask: Any) -> tuple[Any, Any, Any]:
    """The layer's own loop over time, on its fast path where it has one."""
    dtype = layer.compute_dtype
    mixed = backend.AutocastScope(dtype if dtype != layer.variable_dtype else None)
    with mixed:
        if layer.unroll:
            # An unrolled block would compile one copy of the cell a time step; the loop computes the same.
            last, outputs, new_state = backend.rnn(
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
        # Steps masked before the first unmasked one repeat the output before this block, which the loop,
        # taking the block for the whole sequence, does not know on every backend.
        seen = keras.ops.cumsum(keras.ops.cast(mask, "int32"), axis=1) > 0
        before = keras.ops.expand_dims(_output_before(state), 1)
        outputs = keras.ops.where(keras.ops.expand_dims(seen, -1), outputs, before)
    return last, outputs, new_state


def _call_cell(layer: layers.RNN, x: Any, state: Any) -> tuple[Any, Any]:
    kwargs = {"training": False} if getattr(layer.cell, "_call_has_training_arg", False) else {}
    output, new_state = layer.cell(x, state, **kwargs)
    return output, new_state if tree.is_nested(new_state) else [new_state]


def _output_before(state: Any) -> Any:
    """The output of the step that led to a state; see `_check_maskable`."""
    first = state[0]
    return state[-1][0] if tree.is_nested(first) else first


def _check_maskable(layer: keras.Layer) -> None:
    """Refuses a mask on a cell of the user's own; Keras's repeat the output from the state."""
    if not isinstance(layer, layers.RNN):
        return
    cells = layer.cell.cells if isinstance(layer.cell, layers.StackedRNNCells) else [layer.cell]
    if not all(type(cell) in _STANDARD_CELLS for cell in cells):
        raise ModelError(
            f"layer {layer.name!r} gets a mask and has an own cell ({type(layer.cell).__name__}), whose "
            "output at a masked step is not part of its state. Build the Embedding with mask_zero=False."
        )


def _all_steps_at_once(layer: keras.Layer, x: Any) -> Any:
    """`TimeDistributed` without its loop: the inner layer sees one step only, so steps go in as a batch."""
    shape = keras.ops.shape(x)
    merged = keras.ops.reshape(x, (-1, *shape[2:]))
    kwargs = {"training": False} if layer._call_has_training_arg else {}
    result = layer(merged, **kwargs)
    return keras.ops.reshape(result, (-1, shape[1], *keras.ops.shape(result)[1:]))


def _keeps_time(node: Any, flags: Sequence[bool], output: Any) -> bool:
    """Whether an output still has the time axis: an operation that takes a single step drops an axis."""
    ranks = [len(t.shape) for t, flag in zip(node.input_tensors, flags, strict=True) if flag]
    return bool(ranks) and len(output.shape) >= max(ranks)


def _has_recurrent(layer: keras.Layer) -> bool:
    return any(isinstance(inner, layers.RNN) or _has_recurrent(inner) for inner in inner_layers(layer))


def _mixes(layer: keras.Layer) -> str:
    return (
        f"layer {layer.name!r} ({type(layer).__name__}) mixes time steps, so the model cannot be run step by "
        "step. Only recurrent layers may look back; all others must treat each time step alike."
    )


def _is_softmax(tensor: Any) -> bool:
    """Whether a tensor of a graph comes out of a softmax."""
    operation, node_index, place = tensor._keras_history
    inner = functional_graph(operation)
    if inner is not None:
        return _is_softmax(inner.outputs[place])
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
    """Whether a model's (single) output is a softmax; False where its graph cannot be read."""
    graph = functional_graph(model)
    return graph is not None and len(graph.outputs) == 1 and _is_softmax(graph.outputs[0])
