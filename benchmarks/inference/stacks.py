"""The models of the case `latency`: stacks of LSTMs and a dense layer, of which a call computes one step of one row.

The sizes are those that the makers of low-latency accelerators publish: as many inputs as units, 32 outputs.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

OUTPUTS = 32
# After so many steps from zeros, each contestant's output is compared with float64.
CHECKED_STEPS = 20


class Stack(NamedTuple):
    """A stack.

    Attributes:
        layers: How many LSTMs.
        units: Of each, and the features of the input.
    """

    layers: int
    units: int

    @property
    def name(self) -> str:
        """As "2x128"."""
        return f"{self.layers}x{self.units}"

    @property
    def weights(self) -> int:
        """The number of weights in the matrices, all of which a step reads."""
        return self.units * (self.layers * 8 * self.units + OUTPUTS)


STACKS = {stack.name: stack for stack in (Stack(2, 128), Stack(3, 256), Stack(3, 480))}
PUBLISHED = {
    "source": "https://vollo.myrtle.ai/25.1.2/benchmark-lstm.html, read 2026-11-28",
    "what": "FPGA accelerators, batch 1, one step, from the host's request to its answer: mean, 99th percentile",
    "V80": {"2x128": (2.8e-6, 2.8e-6), "3x256": (3.3e-6, 3.4e-6), "3x480": (4.3e-6, 4.5e-6)},
    "IA-840F": {"2x128": (1.9e-6, 2.0e-6), "3x256": (3.0e-6, 3.1e-6), "3x480": (4.2e-6, 4.4e-6)},
}
"""What others have published of the same sizes; not measured here."""


def weights_of(stack: Stack) -> list[np.ndarray]:
    """Kernel, recurrent kernel and bias of each LSTM, then kernel and bias of the dense layer, as Keras has them."""
    random = np.random.default_rng(0)
    units = stack.units

    def draw(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    found = []
    for _ in range(stack.layers):
        bias = np.zeros(4 * units, np.float32)
        bias[units : 2 * units] = 1  # Keras's forget gates begin so
        found += [draw(units, 4 * units), draw(units, 4 * units), bias]
    return [*found, draw(units, OUTPUTS), np.zeros(OUTPUTS, np.float32)]


def lstms_of(stack: Stack) -> list[list[np.ndarray]]:
    """The three arrays of each LSTM."""
    arrays = weights_of(stack)
    return [arrays[3 * n : 3 * n + 3] for n in range(stack.layers)]


def inputs_of(stack: Stack) -> np.ndarray:
    """(CHECKED_STEPS, units) float32: the steps that are checked; the first of them is pushed when timed."""
    return np.random.default_rng(1).standard_normal((CHECKED_STEPS, stack.units), np.float32)


def truth_of(stack: Stack) -> np.ndarray:
    """(OUTPUTS,) the output after all inputs, in float64."""
    from cellerate.kernels.lstm import reference
    from cellerate.kernels.lstm.spec import Arguments

    x: np.ndarray = inputs_of(stack)[None]
    for arrays in lstms_of(stack):
        x = reference.forward(Arguments(*arrays, x=x)).outputs
    *_, kernel, bias = weights_of(stack)
    return np.asarray(x[0, -1] @ kernel.astype(np.float64) + bias)


def build(folder: Path, precisions: tuple[str, ...]) -> None:
    """Pack all stacks in each precision."""
    import keras

    import cellerate

    for name, stack in STACKS.items():
        layers: list[Any] = [keras.Input((None, stack.units))]
        layers += [keras.layers.LSTM(stack.units, return_sequences=True) for _ in range(stack.layers)]
        model = keras.Sequential([*layers, keras.layers.Dense(OUTPUTS)])
        model.set_weights(weights_of(stack))
        for precision in precisions:
            cellerate.pack(model, folder / f"{name}-{precision}.cell", precision=precision)
