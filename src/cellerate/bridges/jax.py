"""What Cellerate asks of JAX itself: whether a GPU is there, and compiling a generation step.

One file a framework, imported only when that backend runs; nothing else in Cellerate imports JAX.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

Step = Callable[[tuple[Any, ...], np.ndarray], tuple[tuple[Any, ...], np.ndarray | None]]


def gpu_available() -> bool:
    """Whether JAX computes on a GPU here: the test Keras's cuDNN path makes."""
    return jax.default_backend() == "gpu"


def compile_step(function: Callable[..., Any], variables: Sequence[Any], *, loops: bool = False) -> Step:
    """Compiles a generation step; XLA compiles once for each shape of `ids`.

    Args:
        function: `(values, state, ids) -> (state, logits or None)`, where `values` stand for `variables` in
            order, `state` is a tuple of arrays and `ids` an int32 array. It must be pure.
        variables: The Keras variables it reads. Their values are arguments of the compiled program, so that
            training the model further needs no new compilation and is seen at once.
        loops: Whether the function loops over many time steps; makes no difference to JAX.

    Returns:
        `(state, ids) -> (state, logits)` with the logits as a NumPy array; the state stays on the device.
    """
    del loops
    compiled = jax.jit(function)

    def run(state: tuple[Any, ...], ids: np.ndarray) -> tuple[tuple[Any, ...], np.ndarray | None]:
        state, logits = compiled([variable.value for variable in variables], state, ids)
        return state, None if logits is None else np.asarray(logits)

    return run
