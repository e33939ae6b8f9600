"""Keras metrics that are more than a mean, computed from the outputs of the engine's steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from cellerate.layers import fused
from cellerate.layers.engine.losses import Observed


class Observer:
    """Updates metrics in one compiled call.

    Args:
        observed: The metrics.
        activations: The name of the activation for each output that arrives as logits. Keras applies it here, because
            it finds logits only behind activations that it computed itself.
    """

    def __init__(self, observed: Sequence[Observed], activations: Mapping[int, str]) -> None:
        self._observed = observed
        self._activations = activations
        self._variables = [variable for one in observed for variable in one.metric.variables]
        self._compiled = fused.bridge().compiled(self._updated)

    def update(
        self, targets: Sequence[Any], outputs: Mapping[int, Any], weights: Sequence[Any]
    ) -> dict[str, Any]:
        """Adds a batch, and returns the values so far by their names in the logs.

        Args:
            targets: The targets of each output of the model.
            outputs: The outputs, or their logits, that metrics read, by the index of the output.
            weights: The sample weights of each output; None for ones.
        """
        arguments = [
            (
                targets[one.output],
                outputs[one.output],
                weights[one.output] if one.weighted else None,
            )
            for one in self._observed
        ]
        values, results = self._compiled([variable.value for variable in self._variables], arguments)
        for variable, value in zip(self._variables, values, strict=True):
            variable.assign(value)
        return dict(zip((one.name for one in self._observed), results, strict=True))

    def _updated(
        self, values: Sequence[Any], arguments: Sequence[tuple[Any, Any, Any]]
    ) -> tuple[list[Any], list[Any]]:
        """The values of the metrics' variables after a batch, and the results."""
        mapping = list(zip(self._variables, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            results = []
            for one, arrays in zip(self._observed, arguments, strict=True):
                target, output, weight = (
                    None if array is None else keras.ops.convert_to_tensor(array) for array in arrays
                )
                activation = keras.activations.get(self._activations.get(one.output, "linear"))
                one.metric.update_state(target, activation(output), sample_weight=weight)
                results.append(one.metric.result())
        return [scope.get_current_value(variable) for variable in self._variables], results
