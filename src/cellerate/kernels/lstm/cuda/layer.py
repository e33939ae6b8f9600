"""One call of an LSTM layer on a GPU, the same for every framework: its kernels, and what they read and write."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from cellerate.kernels.lstm.cuda import select
from cellerate.kernels.lstm.cuda.arguments import masked_output_code
from cellerate.kernels.lstm.cuda.plan import Direction, Packing, Variant, packing
from cellerate.kernels.lstm.spec import LstmOptions, sizes_of


class Result(NamedTuple):
    """An array that a kernel writes.

    Attributes:
        shape: The shape of the array.
        float32: Whether it is float32 whatever the layer's type is; if not, it has the layer's type.
    """

    shape: tuple[int, ...]
    float32: bool = False


Results = dict[str, Result]
"""The results by the names of the kernels' arguments, in the order in which they are kept."""


@dataclasses.dataclass(frozen=True)
class LayerPlan:
    """One call.

    Attributes:
        shape: (B, T, H).
        precision: The precision of the products, one of `sources.TYPES`: the dtype of h, or "tf32" if that is float32.
        options: Activations, direction and masked outputs.
        return_sequences: Whether all outputs are wanted or only the last.
        masked: Whether there is a mask.
        dropped: Whether there are masks of recurrent dropout.
        device: The GPU's number.
    """

    shape: tuple[int, int, int]
    precision: str
    options: LstmOptions
    return_sequences: bool
    masked: bool
    dropped: bool
    device: int

    def kernel(self, direction: Direction) -> Variant:
        """The fastest kernel on the GPU. Raises `ConfigError` and `BackendError` as `select.variant_of` does."""
        return select.variant_of(
            direction,
            self.precision,
            self.shape,
            self.options,
            masked=self.masked,
            dropped=self.dropped,
            device=self.device,
        )

    def packing(self, kernel: Variant) -> tuple[int, Packing]:
        """The units of zeros that pad both H axes of the recurrent kernel (H, 4, H), and its order for the kernel."""
        return kernel.units - self.shape[2], packing(kernel)

    @property
    def outputs(self) -> str:
        """The name of the outputs among the forward kernel's arguments; the backward kernel's has the prefix "d_"."""
        return "outputs" if self.return_sequences else "last_output"

    @property
    def h_of_steps(self) -> str:
        """The result that holds h after each step: "outputs", or "states" where the outputs are not that."""
        return "states" if self.masked or not self.return_sequences else "outputs"

    def kept(self) -> Results:
        """The results that the forward kernel writes for the backward kernel, besides the outputs."""
        batch, steps, units = self.shape
        found = {"gates": Result((batch, steps, units, 4)), "cells": Result(self.shape, float32=True)}
        return found | ({"states": Result(self.shape)} if self.h_of_steps == "states" else {})

    def forward_results(self) -> Results:
        """The other results of the forward kernel."""
        batch, _, units = self.shape
        state = (batch, units)
        outputs = Result(self.shape if self.return_sequences else state)
        return {self.outputs: outputs, "h_T": Result(state), "c_T": Result(state, float32=True)}

    def backward_results(self) -> Results:
        """The results of the backward kernel."""
        batch, steps, units = self.shape
        state = (batch, units)
        d_projected = Result((batch, steps, units, 4))
        return {"d_projected": d_projected, "d_h0": Result(state), "d_c0": Result(state, float32=True)}

    def exchanged(self, kernel: Variant) -> Results:
        """The memory that a kernel writes only for itself."""
        count = kernel.exchanged(self.shape[0])
        return {"exchanged": Result((count,))} if count else {}

    def integers(self) -> dict[str, int]:
        """The integer arguments of both kernels, by name."""
        batch, steps, units = self.shape
        masked_output = masked_output_code(self.options.masked_output)
        return {"batch": batch, "steps": steps, "units": units, "masked_output": masked_output}


@dataclasses.dataclass(frozen=True)
class LayerCall(abc.ABC):
    """One call in a framework's tensors.

    Attributes:
        given: The arguments of `kernels.lstm.spec` that are there, by name. h0 is required: bfloat16, float16 or
            float32, and the results have its type.
        options: Activations, direction and masked outputs.
        return_sequences: Whether all outputs are wanted or only the last.
    """

    given: Mapping[str, Any]
    options: LstmOptions
    return_sequences: bool

    @property
    def dtype(self) -> Any:
        """The type of h."""
        return self.given["h0"].dtype

    @property
    def shape(self) -> tuple[int, int, int]:
        """(B, T, H)."""
        return sizes_of(self.given)

    @property
    @abc.abstractmethod
    def precision(self) -> str:
        """The precision in which the kernels compute."""

    @property
    @abc.abstractmethod
    def device(self) -> int:
        """The GPU's number."""

    @functools.cached_property
    def plan(self) -> LayerPlan:
        """Its kernels, and what they read and write."""
        return LayerPlan(
            self.shape,
            self.precision,
            self.options,
            self.return_sequences,
            masked="mask" in self.given,
            dropped="recurrent_dropout" in self.given,
            device=self.device,
        )
