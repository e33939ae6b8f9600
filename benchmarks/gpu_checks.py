"""That the GPU kernels compute what the oracle does, lose nothing in half a million steps, and end with NaNs.

A module of its own because it is right or wrong, where `gpu_timings` is fast or slow.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from cellerate.bridges import torch_cuda
from cellerate.kernels import reference
from cellerate.kernels.cuda import trials
from cellerate.kernels.spec import MASKED_OUTPUTS, LstmOptions

DEVICE = "cuda"
# By torch's types: root mean squares of the error as shares of the results', and of the gradients'.
ALLOWED = {getattr(torch, name): trials.ALLOWED[name] for name in ("bfloat16", "float16", "float32")}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "masked": {"with_": ("mask",)},
    "recurrent dropout": {"with_": ("recurrent_dropout",)},
    "relu": {"options": LstmOptions(activation="relu")},
    "silu, kept as pre-activations": {"options": LstmOptions(activation="silu")},
    "backwards": {"options": LstmOptions(go_backwards=True)},
    "masked, backwards, recurrent dropout": {
        "with_": ("mask", "recurrent_dropout"),
        "options": LstmOptions(go_backwards=True),
    },
    **{
        f"masked, {name}": {"with_": ("mask",), "options": LstmOptions(masked_output=name)}
        for name in MASKED_OUTPUTS
    },
}


def arrays(
    batch: int, steps: int, inputs: int, units: int, with_: tuple[str, ...] = ()
) -> dict[str, np.ndarray]:
    """The arguments of a layer, drawn; as float32."""
    rng = np.random.default_rng(0)
    every: dict[str, Callable[[], np.ndarray]] = {
        "x": lambda: rng.normal(size=(batch, steps, inputs)),
        "kernel": lambda: rng.normal(size=(inputs, 4 * units)) / np.sqrt(inputs),
        "recurrent_kernel": lambda: rng.normal(size=(units, 4 * units)) * 0.8 / np.sqrt(units),
        "bias": lambda: rng.normal(size=4 * units) * 0.5,
        "h0": lambda: rng.uniform(-1, 1, (batch, units)),
        "c0": lambda: rng.normal(size=(batch, units)),
        "mask": lambda: rng.random((batch, steps)) < 0.8,
        "recurrent_dropout": lambda: (rng.random((4, batch, units)) < 0.7) / 0.7,
    }
    names = ("x", "kernel", "recurrent_kernel", "bias", "h0", "c0", *with_)
    return {name: every[name]().astype(bool if name == "mask" else np.float32) for name in names}


def call_of(
    given: dict[str, np.ndarray],
    number: torch.dtype,
    options: LstmOptions = LstmOptions(),  # noqa: B008 (frozen)
) -> torch_cuda.Call:
    """A call on the GPU."""
    kinds = {"mask": torch.bool, **dict.fromkeys(("x", "h0", "c0"), number)}
    tensors = {
        name: torch.from_numpy(array).to(DEVICE, kinds.get(name, torch.float32))
        for name, array in given.items()
    }
    return torch_cuda.Call(tensors, options, True)


def error(found: torch.Tensor, expected: np.ndarray) -> float:
    """The root mean square of the difference, as a share of that of what is expected."""
    difference = found.double().cpu().numpy() - expected
    return float(np.sqrt((difference**2).mean() / (expected**2).mean()))


def check(number: torch.dtype, batch: int, units: int, **variant: Any) -> dict[str, float]:
    """The errors of a layer and its gradients against the oracle, as shares of what is allowed."""
    options = variant.pop("options", LstmOptions())
    given = arrays(batch, 7, 24, units, **variant)
    for name, array in given.items():
        if name != "mask":
            given[name] = torch.from_numpy(array).to(number).float().numpy()
    call = call_of(given, number, options)
    done = reference.forward(**given, options=options)
    outputs, h_T, c_T, reserve = torch_cuda.forward(call, keep=True)
    rng = np.random.default_rng(1)
    cotangents = [rng.normal(size=a.shape).astype(np.float32) for a in (done.outputs, done.h_T, done.c_T)]
    narrow = [torch.from_numpy(a).to(DEVICE, number) for a in cotangents]
    wanted = reference.backward(done, *(a.double().cpu().numpy() for a in narrow))
    found = torch_cuda.backward(call, outputs, reserve, *narrow)
    allowed, of_gradients = ALLOWED[number]
    errors = {
        name: error(one, expected) / allowed
        for name, one, expected in (
            ("outputs", outputs, done.outputs),
            ("h_T", h_T, done.h_T),
            ("c_T", c_T, done.c_T),
        )
    }
    return errors | {f"d_{name}": error(one, wanted[name]) / of_gradients for name, one in found.items()}


def small() -> Iterator[dict[str, Any]]:
    """The layer with all that it can have, short."""
    for number in ALLOWED:
        for units in (64, 520):
            variant = VARIANTS["masked, backwards, recurrent dropout"]
            yield {"number": str(number), "units": units, "errors": check(number, 9, units, **variant)}


def checks() -> Iterator[dict[str, Any]]:
    """Every variant at a small size, and the plain layer at every number of units and more rows than fit."""
    for number in ALLOWED:
        for name, variant in VARIANTS.items():
            yield {"number": str(number), "variant": name, "errors": check(number, 19, 72, **variant)}
        for units in (1, 32, 64, 128, 200, 256, 512, 640, 1024):
            yield {"number": str(number), "units": units, "errors": check(number, 130, units)}


def soak(steps: int = 500_000) -> dict[str, Any]:
    """A long sequence, twice: that no exchange is lost, and that both are the same to the bit."""
    call = call_of(arrays(8, steps, 1, 64), torch.bfloat16)
    began = time.perf_counter()
    first, again = (torch_cuda.forward(call, keep=False) for _ in range(2))
    same = all(torch.equal(a, b) for a, b in zip(first[:3], again[:3], strict=True))
    finite = all(bool(a.isfinite().all()) for a in first[:3])
    return {"steps": steps, "same": same, "finite": finite, "seconds": time.perf_counter() - began}


def poisoned() -> dict[str, Any]:
    """That a NaN in one row stays in that row, and ends nothing."""
    given = arrays(12, 9, 8, 64)
    clean = torch_cuda.forward(call_of(given, torch.bfloat16), keep=False)[0]
    given["x"][3, 2] = np.nan
    dirty = torch_cuda.forward(call_of(given, torch.bfloat16), keep=False)[0]
    others = [row for row in range(12) if row != 3]
    return {
        "others_same": torch.equal(clean[others], dirty[others]),
        "its_own": bool(dirty[3, 2:].isnan().all() and dirty[3, :2].isfinite().all()),
    }
