"""Check that the GPU kernels equal the oracle, lose nothing in half a million steps, and terminate on NaNs.

Parts of the GPU suite: `checks`, `robustness`, and `small`, for compute-sanitizer.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu import sizes
from benchmarks.gpu.journal import Item
from benchmarks.gpu.sizes import PRECISIONS, VARIANTS
from cellerate.bridges import torch_cuda
from cellerate.kernels.lstm import reference
from cellerate.kernels.lstm.cuda import selfcheck
from cellerate.kernels.lstm.spec import Arguments, LstmOptions

DEVICE = "cuda"
# A sanitizer turns seconds into minutes.
_SANITIZED_S = 600


def checks() -> list[Item]:
    """Every variant at a small size, and the plain layer at every number of units, with more rows than fit at once."""
    varied = (sizes.CHECKED_VARIANT_BATCH, sizes.CHECKED_VARIANT_UNITS)
    found = [
        Item(f"{precision} {name}", partial(checked, precision, *varied, **variant))
        for precision in PRECISIONS
        for name, variant in VARIANTS.items()
    ]
    return found + [
        Item(f"{precision} H{units}", partial(checked, precision, sizes.CHECKED_BATCH, units))
        for units in sizes.CHECKED_UNITS
        for precision in PRECISIONS
    ]


def small() -> list[Item]:
    """The layer with every argument and option, on a short sequence."""
    variant = VARIANTS["masked, backwards, recurrent dropout"]
    return [
        Item(
            f"{precision} H{units}",
            partial(checked, precision, sizes.SMALL_BATCH, units, **variant),
            _SANITIZED_S,
        )
        for precision in PRECISIONS
        for units in sizes.SMALL_UNITS
    ]


def robustness() -> list[Item]:
    """NaNs, and a very long sequence."""
    return [Item("NaN in a row", poisoned), Item("soak", soak, 120)]


def checked(precision: str, batch: int, units: int, **variant: Any) -> dict[str, Any]:
    """The errors of a layer, and whether they are allowed."""
    return verdict(check(precision, batch, units, **variant))


def verdict(errors: dict[str, float]) -> dict[str, Any]:
    """The verdict of a check: the worst error as a share of the allowed one, and whether all are right."""
    worst = float(np.max(list(errors.values())))  # a NaN, if there is one
    return {"errors": errors, "worst": worst, "right": worst < 1}


def arrays(
    batch: int,
    steps: int,
    inputs: int,
    units: int,
    with_: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
) -> dict[str, np.ndarray]:
    """The arguments of a layer, drawn in float32."""
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
    names = [name for name in ("x", "kernel", "recurrent_kernel", "bias", "h0", "c0") if name not in without]
    return {name: every[name]().astype(bool if name == "mask" else np.float32) for name in (*names, *with_)}


def call_of(
    given: dict[str, np.ndarray],
    precision: str,
    options: LstmOptions = LstmOptions(),  # noqa: B008 (frozen)
) -> torch_cuda.Call:
    """A call on the GPU."""
    kinds = {"mask": torch.bool, **dict.fromkeys(("x", "h0", "c0"), getattr(torch, precision))}
    tensors = {
        name: torch.from_numpy(array).to(DEVICE, kinds.get(name, torch.float32))
        for name, array in given.items()
    }
    return torch_cuda.Call(tensors, options, True)


def check(
    precision: str,
    batch: int,
    units: int,
    *,
    options: LstmOptions = LstmOptions(),  # noqa: B008 (frozen)
    **variant: tuple[str, ...],
) -> dict[str, float]:
    """The errors of a layer and its gradients against the oracle, as shares of the allowed errors."""
    dtype = getattr(torch, precision)
    given = arrays(batch, 7, 24, units, **variant)
    for name, array in given.items():
        if name != "mask":
            given[name] = torch.from_numpy(array).to(dtype).float().numpy()
    call = call_of(given, precision, options)
    done = reference.forward(Arguments(**given), options)
    outputs, h_T, c_T, reserve = torch_cuda.forward(call, keep=True)
    rng = np.random.default_rng(1)
    cotangents = [rng.normal(size=a.shape).astype(np.float32) for a in (done.outputs, done.h_T, done.c_T)]
    narrow = [torch.from_numpy(a).to(DEVICE, dtype) for a in cotangents]
    wanted = reference.backward(done, *(a.double().cpu().numpy() for a in narrow))
    found = torch_cuda.backward(call, outputs, reserve, *narrow)
    allowed, of_gradients = selfcheck.ALLOWED[precision]
    results = {
        "outputs": (outputs, done.outputs), "h_T": (h_T, done.h_T), "c_T": (c_T, done.c_T)
    }  # fmt: skip
    errors = {name: error(*both) / allowed for name, both in results.items()}
    return errors | {f"d_{name}": error(one, wanted[name]) / of_gradients for name, one in found.items()}


def error(found: torch.Tensor, expected: np.ndarray) -> float:
    """The root mean square of the difference, as a share of the expected values' root mean square."""
    difference = found.double().cpu().numpy() - expected
    return float(np.sqrt((difference**2).mean() / (expected**2).mean()))


def soak(steps: int = 500_000) -> dict[str, Any]:
    """Run a long sequence twice: no exchange may be lost, and both runs must be bit-identical."""
    call = call_of(arrays(8, steps, 1, 64), "bfloat16")
    began = time.perf_counter()
    first, again = (torch_cuda.forward(call, keep=False) for _ in range(2))
    same = all(torch.equal(a, b) for a, b in zip(first[:3], again[:3], strict=True))
    finite = all(bool(a.isfinite().all()) for a in first[:3])
    seconds = time.perf_counter() - began
    return {"steps": steps, "same": same, "finite": finite, "seconds": seconds, "right": same and finite}


def poisoned() -> dict[str, Any]:
    """Check that a NaN stays in its row, and that the kernel terminates."""
    given = arrays(12, 9, 8, 64)
    clean = torch_cuda.forward(call_of(given, "bfloat16"), keep=False)[0]
    given["x"][3, 2] = np.nan
    dirty = torch_cuda.forward(call_of(given, "bfloat16"), keep=False)[0]
    others = [row for row in range(12) if row != 3]
    same = torch.equal(clean[others], dirty[others])
    own = bool(dirty[3, 2:].isnan().all() and dirty[3, :2].isfinite().all())
    return {"others_same": same, "its_own": own, "right": same and own}
