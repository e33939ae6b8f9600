"""Runs a few layers of a model's trunk on one chunk of time after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from cellerate.layers.accelerate import accelerate, implementation_of, is_strict


class ChunkedLayers:
    """Runs layers on a chunk of time, from the final states of the previous chunk.

    Chunks in order give the same results as the whole sequence. So does the backward pass, if each chunk passes the
    gradients of its initial states to the chunk before.

    Args:
        layers: Layers of a trunk, in their order; their weights are used, not copied.
    """

    def __init__(self, layers: Sequence[keras.Layer]) -> None:
        self.layers = tuple(layers)
        self._runners = {
            layer.name: returning_states(layer) for layer in layers if isinstance(layer, keras.layers.RNN)
        }

    def initial_states(self, rows: int) -> list[Any]:
        """The states before the first chunk, a flat list of tensors (B, H), for so many rows."""
        found: list[Any] = []
        for layer in self.layers:
            if layer.name in self._runners:
                found += keras.tree.flatten(layer.get_initial_state(rows))
        return found

    def __call__(self, x: Any, states: Sequence[Any], training: bool) -> tuple[Any, list[Any]]:
        """Runs a chunk.

        Args:
            x: (B, T', D), or ids (B, T').
            states: The final states of the previous chunk.
            training: Whether dropout is applied.

        Returns:
            (B, T', H), or (B, H) if the last layer returns no sequences; and the states at the chunk's end.
        """
        states, after = list(states), []
        for layer in self.layers:
            runner = self._runners.get(layer.name)
            if runner is None:
                x = layer(x, training=training)
                continue
            count = len(keras.tree.flatten(layer.get_initial_state(1)))
            initial, states = states[:count], states[count:]
            x, *ended = runner(x, initial_state=initial, training=training)
            after += keras.tree.flatten(ended)
        return x, after


def returning_states(layer: Any) -> Any:
    """A layer with the weights and results of another one that also returns its states."""
    # The same class takes the same fast path. It runs the original's cell, so it has the original's weights and needs
    # no building.
    runner = type(layer).from_config({**layer.get_config(), "return_state": True, "stateful": False})
    runner.cell = layer.cell
    runner.built = True
    implementation = implementation_of(layer)
    if implementation is not None:
        accelerate(runner, implementation if is_strict(layer) else "auto")
    return runner
