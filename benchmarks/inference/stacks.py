"""The models of the case `latency`: stacks of LSTMs and a dense layer; a call computes one step of one row.

The sizes are those published by makers of low-latency accelerators: as many inputs as units, 32 outputs.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.inference.models import Layer, Model, batch_of, cell_file, keras_model, weights_of

OUTPUTS = 32
# The number of steps from zeros after which each contestant's output is compared with float64.
CHECKED_STEPS = 20


class Stack(NamedTuple):
    """A stack.

    Attributes:
        layers: The number of LSTMs.
        units: The units of each, and the features of the input.
    """

    layers: int
    units: int

    @property
    def name(self) -> str:
        """The name, such as "2x128"."""
        return f"{self.layers}x{self.units}"

    @property
    def model(self) -> Model:
        """The stack as a model of the case `inference`, which computes the output after the checked steps."""
        last = Layer("lstm", self.units, sequences=False)
        lstms = (*[Layer("lstm", self.units)] * (self.layers - 1), last)
        return Model(CHECKED_STEPS, self.units, False, (*lstms, Layer("dense", OUTPUTS)))

    @property
    def weights(self) -> int:
        """The number of weights in all matrices; a step reads them all."""
        return self.units * (self.layers * 8 * self.units + OUTPUTS)


STACKS = {stack.name: stack for stack in (Stack(2, 128), Stack(3, 256), Stack(3, 480))}
PUBLISHED = {
    "source": "https://vollo.myrtle.ai/25.1.2/benchmark-lstm.html, read 2026-11-28",
    "what": "FPGA accelerators, batch 1, one step, from the host's request to its answer: mean, 99th percentile",
    "V80": {"2x128": (2.8e-6, 2.8e-6), "3x256": (3.3e-6, 3.4e-6), "3x480": (4.3e-6, 4.5e-6)},
    "IA-840F": {"2x128": (1.9e-6, 2.0e-6), "3x256": (3.0e-6, 3.1e-6), "3x480": (4.2e-6, 4.4e-6)},
}
"""Published figures of others for the same sizes; not measured here."""


def lstms_of(stack: Stack) -> list[list[np.ndarray]]:
    """Kernel, recurrent kernel and bias of each LSTM."""
    return weights_of(stack.model)[:-1]


def head_of(stack: Stack) -> list[np.ndarray]:
    """Kernel and bias of the dense layer."""
    return weights_of(stack.model)[-1]


def inputs_of(stack: Stack) -> np.ndarray:
    """(CHECKED_STEPS, units) float32: the checked steps; the timed calls push the first of them."""
    return np.ascontiguousarray(batch_of(stack.model, 1)[0])


def build(folder: Path, precisions: tuple[str, ...]) -> None:
    """Pack all stacks in each precision."""
    import cellerate

    for name, stack in STACKS.items():
        made = keras_model(stack.model)
        for precision in precisions:
            cellerate.pack(made, cell_file(folder, name, precision), precision=precision)
