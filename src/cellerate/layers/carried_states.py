"""Carrying the states of recurrent layers from batch to batch while training.

Keras's `stateful=True` does not work for this: in Keras 3.15 the states stay zero through `fit` on JAX, and `fit`
fails on torch. Here a second graph shares all layers with the model, and wraps each recurrent layer in one that keeps
the states as tracked weights. Training this graph trains the model itself, which stays stateless.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from cellerate.errors import ModelError
from cellerate.keras_graph.graph import functional_graph
from cellerate.layers.chunked import returning_states
from cellerate.layers.engine.graph import carries_states


@dataclasses.dataclass(frozen=True)
class CarriedStates:
    """A model whose recurrent states continue from one batch to the next.

    Attributes:
        model: The model to train; it shares the layers of the original and takes batches of one fixed size.
        layers: The wrappers that hold the states.
    """

    model: keras.Model
    layers: tuple[CarriedRNN, ...]

    def reset(self) -> None:
        """Sets all states to zero."""
        for layer in self.layers:
            layer.reset()


def carried_states(model: keras.Model, batch_size: int) -> CarriedStates:
    """Builds the graph of `model` again, with carried initial states in place of zeros.

    Args:
        model: A Functional or Sequential model with recurrent layers directly in it.
        batch_size: Rows of every batch, B; row b of a batch continues where row b of the last batch ended.

    Raises:
        ModelError: The model has no graph, no recurrent layer, or one that cannot carry states.
    """
    if functional_graph(model) is None:
        raise ModelError(
            f"states cannot be carried through {model.name!r}: it is a {type(model).__name__} without a graph. "
            "Build it with the functional API or Sequential."
        )
    wrappers: list[CarriedRNN] = []

    def share(layer: keras.Layer) -> keras.Layer:
        if isinstance(layer, keras.layers.RNN):
            wrappers.append(CarriedRNN(layer, batch_size))
            return wrappers[-1]
        if not isinstance(layer, keras.Layer):
            return layer  # an operation, such as the comparison that makes a mask
        inner = layer._flatten_layers(include_self=True)
        if any(isinstance(found, keras.layers.RNN | keras.layers.Bidirectional) for found in inner):
            raise ModelError(
                f"states cannot be carried through {layer.name!r} ({type(layer).__name__}): only recurrent "
                "layers directly in the model, in one direction, have states that go on."
            )
        return layer

    source = model.inputs[0]
    tensor = keras.Input(batch_shape=(batch_size, *source.shape[1:]), dtype=source.dtype, name=source.name)
    carried = keras.models.clone_model(model, input_tensors=tensor, clone_function=share)
    if not wrappers:
        raise ModelError(f"states cannot be carried through {model.name!r}: it has no recurrent layer.")
    return CarriedStates(carried, tuple(wrappers))


@carries_states
class CarriedRNN(keras.Layer):
    """Runs a recurrent layer from the states that its last call ended with.

    Args:
        layer: An LSTM, GRU, SimpleRNN or RNN; its weights are used, not copied.
        batch_size: Rows of every batch.
    """

    def __init__(self, layer: keras.layers.RNN, batch_size: int) -> None:
        super().__init__(name=f"carried_{layer.name}")
        if layer.go_backwards:
            raise ModelError(
                f"layer {layer.name!r} goes backwards: its states cannot go on to the next batch."
            )
        self.supports_masking = True
        self.layer = layer
        self.runner = returning_states(layer)
        zeros = keras.tree.flatten(layer.get_initial_state(batch_size))
        self.states = [
            self.add_weight(
                shape=tuple(zero.shape),
                dtype="float32",
                initializer="zeros",
                trainable=False,
                name=f"state_{n}",
            )
            for n, zero in enumerate(zeros)
        ]

    def call(self, sequences: Any, mask: Any = None, training: bool | None = None) -> Any:
        """(B, T, D) → what the layer itself returns, continued from its last call."""
        # Adding zero makes a copy: on torch the graph of this batch must not hold a variable that changes below.
        before = [keras.ops.cast(state + 0.0, self.layer.compute_dtype) for state in self.states]
        # Built at each call: as an attribute, its lists would become Keras's tracked lists, which JAX does not know.
        initial = keras.tree.pack_sequence_as(self.layer.get_initial_state(1), before)
        outputs, *after = self.runner(sequences, initial_state=initial, mask=mask, training=training)
        for state, value in zip(self.states, keras.tree.flatten(after), strict=True):
            state.assign(keras.ops.cast(keras.ops.stop_gradient(value), "float32"))
        return outputs

    def compute_output_shape(self, sequences_shape: Any) -> Any:
        """The shape of the layer's own output."""
        return self.layer.compute_output_shape(sequences_shape)

    def reset(self) -> None:
        """Sets the states to zero."""
        for state in self.states:
            state.assign(keras.ops.zeros(state.shape))
