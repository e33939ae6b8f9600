"""Metrics of Keras beside the engine's steps: those that are more than a mean, computed from the outputs."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from cellerate.layers import fused
from cellerate.layers.engine.losses import Observed


class Observer:
    """Updates metrics in one compiled call.

    Args:
        observed: The metrics.
        activations: Of each output that is given as logits, the name of the activation that makes it of them: Keras
            finds the logits behind what it has computed itself.
    """

    def __init__(self, observed: Sequence[Observed], activations: Mapping[int, str]) -> None:
        self._observed = observed
        self._activations = activations
        self._variables = [variable for one in observed for variable in one.metric.variables]
        self._compiled = fused.bridge().compiled(self._updated)

    def update(
        self, targets: Sequence[Any], outputs: Mapping[int, Any], weights: Sequence[Any]
    ) -> dict[str, Any]:
        """Adds a batch, and gives the values so far by their names in the logs.

        Args:
            targets: Of each output of the model.
            outputs: By their places, those that metrics compare, or their logits.
            weights: Of the samples, for each output; None for ones.
        """
        given = [
            (
                targets[one.output],
                outputs[one.output],
                weights[one.output] if one.weighted else None,
            )
            for one in self._observed
        ]
        values, results = self._compiled([variable.value for variable in self._variables], given)
        for variable, value in zip(self._variables, values, strict=True):
            variable.assign(value)
        return dict(zip((one.name for one in self._observed), results, strict=True))

    def _updated(
        self, values: Sequence[Any], given: Sequence[tuple[Any, Any, Any]]
    ) -> tuple[list[Any], list[Any]]:
        """The values of the variables after a batch, and the results."""
        mapping = list(zip(self._variables, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            results = []
            for one, arrays in zip(self._observed, given, strict=True):
                target, output, weight = (
                    None if array is None else keras.ops.convert_to_tensor(array) for array in arrays
                )
                activation = keras.activations.get(self._activations.get(one.output, "linear"))
                one.metric.update_state(target, activation(output), sample_weight=weight)
                results.append(one.metric.result())
        return [scope.get_current_value(variable) for variable in self._variables], results
