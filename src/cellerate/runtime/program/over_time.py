"""The loop of a recurrent layer in NumPy, with masked steps, reversed order and the last states.

A layer passes its step, so the loop knows nothing about gates. The order of the steps and the outputs at masked steps
match `kernels.lstm.reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

States = tuple[np.ndarray, ...]
"""The states of a layer, each (B, H); the first is also its output."""


def over_time(
    step: Callable[[int, States], States],
    states: States,
    steps: int,
    mask: np.ndarray | None,
    options: Mapping[str, Any],
    *,
    sequences: bool,
) -> tuple[np.ndarray, States]:
    """Runs a layer over its steps.

    Args:
        step: Returns the states after a step, from the step's index and the states before it.
        states: The initial states, each (B, H).
        steps: The number of steps.
        mask: (B, T), False where a step does not count; None if all do.
        options: "go_backwards" and "masked_output", as `program.OPERATIONS` has them.
        sequences: Whether to give all outputs or only the last.

    Returns:
        The outputs (B, T, H) in the order in which they were computed, or the last (B, H); and the last states.
    """
    zeros = output = np.zeros_like(states[0])
    outputs = np.empty((len(output), steps if sequences else 0, output.shape[1]), np.float32)
    for k in range(steps):
        t = steps - 1 - k if options["go_backwards"] else k
        after = step(t, states)
        live = np.True_ if mask is None else mask[:, t, np.newaxis]
        otherwise = {"previous_output": output, "previous_state": states[0], "zero": zeros}
        output = np.where(live, after[0], otherwise[options["masked_output"]])
        states = tuple(np.where(live, new, old) for new, old in zip(after, states, strict=True))
        if sequences:
            outputs[:, k] = output
    return outputs if sequences else output, states
