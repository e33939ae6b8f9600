"""Streams of any model behind its sessions, and the size of what a push gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cellerate.runtime.packed import PackedModel


class StepSize(NamedTuple):
    """The size of what a push gives.

    Attributes:
        of_each_step: The outputs that have an entry a step; of the others there is that of the last step.
        step: The numbers of each step.
        last: The numbers that do not depend on how many steps there are.
    """

    of_each_step: frozenset[str]
    step: int
    last: int


def zeros(model: PackedModel, shapes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """Inputs of a model by their names, in these shapes: to find out the size of what it makes of them."""
    nodes, inputs = model.cell.program.nodes, model.cell.program.inputs
    return {name: np.zeros(shapes[name], str(nodes[at].options["dtype"])) for name, at in inputs.items()}


class SessionStreams:
    """Streams of any model: its inputs go in, its outputs come out.

    Args:
        model: The model.

    Attributes:
        outputs: The names of what a push gives.
    """

    def __init__(self, model: PackedModel) -> None:
        self._model = model
        self.outputs: tuple[str, ...] = tuple(model.outputs)
        self._streams = model.streams(0)
        self._size = self._streams.state.shape[1]

    def measured(self) -> StepSize:
        """Finds out what a push gives, with two pushes to a stream of its own."""
        self.grow(1)
        found: list[dict[str, np.ndarray]] = []
        for steps in (1, 2):
            self.set_states([0], self.initial_state[np.newaxis])
            shapes = {name: [1, steps, *shape[2:]] for name, shape in self._model.inputs.items()}
            found.append(self.push(zeros(self._model, shapes), np.array([0])))
        one, two = found
        each = frozenset(name for name in one if one[name].size != two[name].size)
        step = sum(one[name].size for name in each)
        return StepSize(each, step, sum(array.size for array in one.values()) - step)

    @property
    def count(self) -> int:
        """The number of streams there are."""
        return self._streams.count

    @property
    def initial_state(self) -> np.ndarray:
        """(S,) float32, what a stream remembers before its first step."""
        return np.zeros(self._size, np.float32)

    def grow(self, count: int) -> None:
        """Adds streams."""
        self._streams.join(self._model.streams(count))

    def states_of(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """(N, S) float32, what some streams remember."""
        return self._streams.states_of(rows)

    def set_states(self, rows: Sequence[int] | np.ndarray, states: np.ndarray) -> None:
        """Puts streams back to (N, S) states."""
        self._streams.set_states(rows, states)

    def push(self, inputs: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
        """Reads the next steps of some streams.

        Args:
            inputs: By name, (N, k, F) numbers or (N, k) ids.
            rows: (N,) which streams, each once.

        Returns:
            The outputs by name, the N streams first.

        Raises:
            ConfigError, DataError: As `Streams.push`.
        """
        outputs = self._streams.push(inputs, rows)
        return outputs if isinstance(outputs, dict) else {self._model.outputs[0]: outputs}
