"""The speed of the model's largest LSTM layer on this machine, measured in three seconds on our kernels.

It shows which stages cannot help here, so that the run spends no time on them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import keras
import numpy as np

from cellerate.keras_graph.graph import find_over_time, inner_layers
from cellerate.kernels import native
from cellerate.kernels.lstm import cpu
from cellerate.kernels.lstm.spec import Arguments
from cellerate.layers.accelerate import is_accelerated
from cellerate.measure import Order

_MEASURED_S = 2.5
_TURNS = 6
_FEWEST_STEPS, _MOST_STEPS = 4, 64  # time steps of a row; more would not change the ratios
_CALL_S = 0.08


@dataclasses.dataclass(frozen=True)
class Hardware:
    """The measurements of the largest LSTM layer.

    Attributes:
        bfloat16: How many times as fast the largest LSTM layer trains in bfloat16 as in float32, turn by turn.
        threads: How many times as fast it trains on all threads as on one, turn by turn.
        units: The units of that layer.
    """

    bfloat16: Order
    threads: Order
    units: int


def measure_hardware(model: keras.Model, batch_size: int, length: int | None) -> Hardware | None:
    """Time the largest LSTM layer of an accelerated model, forward and backward, in turns.

    Args:
        model: The model, accelerated.
        batch_size: Rows per training batch.
        length: Time steps per row; None for the length that the model is built for.

    Returns:
        The measurements; None if no LSTM layer runs on our CPU kernels.
    """
    layers = [layer for layer in fused_layers(model) if isinstance(layer, keras.layers.LSTM)]
    if not layers or native.why_unavailable() is not None:
        return None
    largest = max(layers, key=lambda layer: layer.units)
    most = min(_MOST_STEPS, length or model.inputs[0].shape[1] or _MOST_STEPS)
    sizes = (int(largest.cell.kernel.shape[0]), int(largest.units))
    steps = _steps_of(_CALL_S, batch_size, most, sizes)
    threads = native.num_threads()
    contestants = {
        "float32": (threads, _step(batch_size, steps, sizes, "float32")),
        "bfloat16": (threads, _step(batch_size, steps, sizes, "bfloat16")),
        "one thread": (1, _step(batch_size, steps, sizes, "float32")),
    }
    try:
        turns = _in_turns(contestants)
    finally:
        native.set_num_threads(threads)

    def order(first: str, second: str) -> Order:
        return Order(tuple(one / other for one, other in zip(turns[first], turns[second], strict=True)))

    return Hardware(order("float32", "bfloat16"), order("one thread", "float32"), sizes[1])


def fused_layers(model: keras.Model) -> list[keras.Layer]:
    """Return the recurrent layers of an accelerated model that run on our kernels, those inside wrappers too."""
    recurrent = (
        layer for found in find_over_time(model) for layer in (found.layer, *inner_layers(found.layer))
    )
    return [layer for layer in recurrent if is_accelerated(layer)]


def _steps_of(seconds: float, batch: int, most: int, sizes: tuple[int, int]) -> int:
    """Return the number of time steps for a call of about `seconds`."""
    few = min(_FEWEST_STEPS, most)
    call = _step(batch, few, sizes, "float32")
    call()
    return max(few, min(most, int(few * seconds / _seconds(call))))


def _step(batch: int, steps: int, sizes: tuple[int, int], dtype: str) -> Callable[[], None]:
    """Return a call that runs a layer of (inputs, units) forward and backward."""
    from ml_dtypes import bfloat16

    inputs, units = sizes
    storage = np.dtype(bfloat16 if dtype == "bfloat16" else np.float32)
    random = np.random.default_rng(0)

    def some(*sizes: int) -> np.ndarray:
        return random.uniform(-0.1, 0.1, sizes).astype(np.float32)

    arguments = Arguments(
        kernel=some(inputs, 4 * units),
        recurrent_kernel=some(units, 4 * units),
        bias=some(4 * units),
        x=some(batch, steps, inputs).astype(storage),
    )
    cotangent = some(batch, steps, units).astype(storage)

    def step() -> None:
        cpu.backward(arguments, cpu.forward(arguments), d_outputs=cotangent)

    return step


def _in_turns(contestants: dict[str, tuple[int, Callable[[], None]]]) -> dict[str, list[float]]:
    """Return the seconds of the fastest call of each turn; turns end when the time is up, but not before two."""
    turns: dict[str, list[float]] = {name: [] for name in contestants}
    began = time.perf_counter()
    calls = 1
    for turn in range(_TURNS + 1):
        for name, (threads, call) in contestants.items():
            native.set_num_threads(threads)
            taken = [_seconds(call) for _ in range(calls)]
            if turn:  # the first warms up
                turns[name].append(min(taken))
        spent = time.perf_counter() - began
        if not turn:
            calls = max(1, min(50, int(_MEASURED_S / _TURNS / max(spent, 1e-9))))
        elif turn >= 2 and spent * (turn + 2) / (turn + 1) > _MEASURED_S:
            break
    return turns


def _seconds(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
