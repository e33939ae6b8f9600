"""Layers for the kernels of NVIDIA GPUs, the oracle's results for them, and the emulated GPU that they run on."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from cellerate.kernels.cuda import launch
from cellerate.kernels.lstm import reference
from cellerate.kernels.lstm.cuda import selfcheck
from cellerate.kernels.lstm.spec import MASKED_OUTPUTS, Arguments, LstmOptions
from support.kernels import emulated_gpu

Arrays = dict[str, np.ndarray]
DTYPES = {"bfloat16": bfloat16, "float16": np.float16, "float32": np.float32}
# The allowed root mean square errors of results and of gradients, relative to their root mean squares, by type.
ALLOWED = {name: selfcheck.ALLOWED[name] for name in DTYPES}
D, V = 5, 7


def emulate(patch: pytest.MonkeyPatch) -> None:
    """Replace the driver, and measurements on a GPU, with the emulated GPU."""
    emulated_gpu.replace_driver(patch)
    patch.setattr(launch, "handles", emulated_gpu.handles)
    patch.setattr(selfcheck, "failure", lambda device, way="plain": None)
    patch.setattr(selfcheck, "step_us", lambda variant, device: 1.0)


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer and its arguments."""

    batch: int = 5
    steps: int = 6
    units: int = 40
    precision: str = "float16"
    lookup: bool = False
    with_: tuple[str, ...] = ("bias", "c0")
    options: LstmOptions = LstmOptions()  # noqa: RUF009 (it is frozen)
    sequences: bool = True
    vocabulary: int = V
    # Added to the pre-activations of i, f, c and o, which vary by the scale of the kernels.
    saturated: tuple[float, float, float, float] = (0, 0, 0, 0)
    scale: float = 1

    def arrays(self) -> Arrays:
        """The arguments as the kernel gets them, rounded, so that rounding does not count as the kernel's error."""
        rng = np.random.default_rng(3)
        b, t, h = self.batch, self.steps, self.units
        every = {
            "x": rng.normal(size=(b, t, D)),
            "ids": rng.integers(0, self.vocabulary, (b, t)).astype(np.int32),
            "embeddings": rng.normal(size=(self.vocabulary, D)),
            "kernel": rng.normal(size=(D, 4 * h)) * 0.4 * self.scale,
            "recurrent_kernel": rng.normal(size=(h, 4 * h)) * 0.8 / np.sqrt(h) * self.scale,
            "bias": rng.normal(size=4 * h) * 0.5,
            "h0": rng.uniform(-1, 1, (b, h)),
            "c0": rng.normal(size=(b, h)),
            "mask": rng.random((b, t)) < 0.6,
            "dropout": (rng.random((4, b, D)) < 0.6) / 0.6,
            "recurrent_dropout": (rng.random((4, b, h)) < 0.7) / 0.7,
        }
        for gate, far in enumerate(self.saturated):
            every["bias"][gate * h : (gate + 1) * h] += far
        # A row that is all padding.
        every["mask"][0] = False
        names = ["kernel", "recurrent_kernel", "h0", *self.with_]
        names += ["ids", "embeddings"] if self.lookup else ["x"]
        return {n: every[n] if n in ("ids", "mask") else self.rounded(every[n]) for n in names}

    def rounded(self, array: np.ndarray) -> np.ndarray:
        """The array rounded to the precision, as float32."""
        return array.astype(DTYPES[self.precision]).astype(np.float32)

    def given(self) -> Arrays:
        """The arguments in the types that the layer takes."""
        narrow = ("x", "h0", "c0")
        return {n: a.astype(DTYPES[self.precision]) if n in narrow else a for n, a in self.arrays().items()}

    def expected(self) -> tuple[list[np.ndarray], list[np.ndarray], Arrays]:
        """The results, cotangents for them, and the resulting gradients."""
        arrays = self.arrays()
        plain = {n: a for n, a in arrays.items() if n not in ("ids", "embeddings")}
        if self.lookup:
            plain["x"] = arrays["embeddings"][arrays["ids"]]
        done = reference.forward(Arguments(**plain), self.options)
        results = [done.outputs if self.sequences else done.outputs[:, -1], done.h_T, done.c_T]
        rng = np.random.default_rng(4)
        cotangents = [self.rounded(rng.normal(size=result.shape)) for result in results]
        d_outputs = cotangents[0]
        if not self.sequences:
            d_outputs = np.zeros_like(done.outputs)
            d_outputs[:, -1] = cotangents[0]
        gradients = reference.backward(done, d_outputs, *cotangents[1:])
        if self.lookup:
            d_table = np.zeros(arrays["embeddings"].shape)
            np.add.at(d_table, arrays["ids"], gradients.pop("x"))
            gradients["embeddings"] = d_table
        return results, cotangents, {n: gradients[n] for n in gradients if n in arrays}


def error(found: Any, expected: np.ndarray) -> float:
    """The root mean square error, relative to the root mean square of the expected values."""
    found = np.asarray(found, np.float64)
    assert found.shape == expected.shape
    return float(np.sqrt(((found - expected) ** 2).mean() / ((expected**2).mean() + 1e-30)))


OPTIONS: dict[str, Any] = {
    "relu": {"activation": "relu"},
    "kept-as-pre-activations": {"activation": "silu", "recurrent_activation": "softsign"},
    "go-backwards": {"go_backwards": True},
}
CASES = {
    "float16": Case(),
    "bfloat16": Case(precision="bfloat16", units=64, batch=19, steps=11),
    "float32": Case(precision="float32", units=70, batch=17, steps=9, with_=("bias", "c0", "mask")),
    "float32-recurrent-dropout": Case(
        precision="float32", with_=("bias", "recurrent_dropout"), sequences=False
    ),
    "one-row-one-step": Case(batch=1, steps=1, units=1),
    "two-steps": Case(batch=9, steps=2, units=33, with_=()),
    "last-output": Case(sequences=False),
    "lookup": Case(lookup=True),
    "lookup-of-many-rows": Case(lookup=True, vocabulary=1100),
    "dropout": Case(with_=("bias", "c0", "dropout")),
    "recurrent-dropout": Case(with_=("bias", "recurrent_dropout"), sequences=False),
    "lookup-masked-recurrent-dropout-backwards": Case(
        lookup=True, with_=("mask", "recurrent_dropout"), options=LstmOptions(go_backwards=True)
    ),
    "masked-last-output": Case(with_=("bias", "mask"), sequences=False),
    **{
        f"masked-{name}": Case(with_=("c0", "mask"), steps=9, options=LstmOptions(masked_output=name))
        for name in MASKED_OUTPUTS
    },
    **{name: Case(steps=3, options=LstmOptions(**options)) for name, options in OPTIONS.items()},
    # Errors of 1 - f, where f is 0.993 or 0.9975, and of truncated sums, grow a hundredfold.
    "saturated-forget-gates": Case(precision="bfloat16", batch=4, steps=100, saturated=(0, 5, 0, 0)),
    "saturated-gates": Case(precision="bfloat16", batch=4, steps=100, saturated=(5, 6, 0, 5), scale=0.1),
    "saturated-input-gates": Case(
        precision="bfloat16", batch=4, steps=100, saturated=(-4, 6, 0, 4), scale=0.1
    ),
    "saturated-cell-gates": Case(
        precision="bfloat16", batch=4, steps=100, saturated=(-6, 6, -3, 0), scale=0.1
    ),
    "saturated-float16": Case(batch=4, steps=100, saturated=(-4, 6, 0, 4), scale=0.1),
    "saturated-float32": Case(precision="float32", batch=4, steps=100, saturated=(0, 6, 0, 0)),
    # Two clusters run at once, so their kernels take 24 and 40 rows.
    "clusters-of-24-rows": Case(batch=41, steps=3, precision="bfloat16"),
    "clusters-of-40-rows": Case(batch=70, steps=3, with_=("bias", "mask", "recurrent_dropout")),
    # Any kernel but the tiled one needs two waves.
    "tiles": Case(batch=90, steps=3, units=250, lookup=True, with_=("mask",)),
    "blocks-of-64-units": Case(batch=2, steps=3, units=520, with_=("c0", "mask", "recurrent_dropout")),
}
# Cases that take seconds on the emulated GPU, for one framework: weights in registers, shared memory and beyond.
LARGE_CASES = {
    "bfloat16-1024-units": Case(batch=2, steps=2, units=1024, precision="bfloat16"),
    "float32-500-units": Case(batch=2, steps=2, units=500, precision="float32", with_=("recurrent_dropout",)),
    "float32-520-units": Case(batch=2, steps=2, units=520, precision="float32", with_=("recurrent_dropout",)),
}
