"""Trials of the kernels on the GPU itself: whether they are right there, and how long a step of each takes.

It runs the kernels without a framework, on made-up numbers. `timing_cache` remembers the findings.

`python -m cellerate.kernels.lstm.cuda.selfcheck [GPU [WAY]]` checks the kernels in one of `plan.WAYS` and prints the
worst error, as a share of the allowed error.
"""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cellerate.errors import BackendError
from cellerate.kernels.cuda import launch, timing_cache
from cellerate.kernels.lstm import reference
from cellerate.kernels.lstm.cuda import plan
from cellerate.kernels.lstm.cuda.arguments import BackwardArguments, ForwardArguments, masked_output_code
from cellerate.kernels.lstm.cuda.arrays import by_unit, in_precision
from cellerate.kernels.lstm.cuda.plan import Direction, Variant
from cellerate.kernels.lstm.spec import Arguments

# The allowed root mean square of the error, as a share of that of the results, and the same for the gradients.
ALLOWED = {"bfloat16": (5e-3, 2e-2), "float16": (1e-3, 5e-3), "float32": (1e-6, 5e-6), "tf32": (1e-3, 5e-3)}
# The check compiles two kernels per case, each in at most a second, and runs them in less.
_CHECK_SECONDS = 180
_TIMED_STEPS, _TIMED_LAUNCHES = 32, 10


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer to check.

    In the plain way, `CASES` cover every precision, both block sizes, the largest cluster, masks and dropout; in the
    others what differs there. Forget gates near 1 over many steps show how good the GPU's approximations are.
    """

    precision: str
    units: int
    masked: bool = False
    dropped: bool = False
    batch: int = 9
    steps: int = 5
    inputs: int = 3
    forget_bias: float = 0.0
    rows: int = 8

    def variant(self, direction: Direction, way: str = "plain") -> Variant:
        """The layer's kernel in a way; in the plain one if there is none."""
        padded = plan.padded_units(self.units)
        rows = self.rows if self.rows in plan.ROWS else plan.ROWS[0]
        plain = Variant(direction, self.precision, padded, rows, masked=self.masked, dropped=self.dropped)
        return next((one for one in plan.fitting(plain, (way,)) if one.rows == self.rows), plain)


CASES = {
    "plain": (
        Case("bfloat16", 512),
        Case("bfloat16", 64, steps=100, forget_bias=5.0),
        Case("bfloat16", 72, masked=True, dropped=True),
        Case("float16", 1000),
        Case("float32", 136, masked=True),
        Case("float32", 64, dropped=True),
        Case("tf32", 96, masked=True),
    ),
    # Halves of one and of two tiles, and clusters of which one is not full.
    "turns": (
        Case("bfloat16", 512, rows=16, batch=23, steps=40),
        Case("float16", 72, rows=40, batch=41, masked=True, dropped=True),
        Case("float32", 64, rows=24, batch=29, masked=True),
    ),
    "wide": (
        Case("bfloat16", 512, rows=24, batch=31, steps=40),
        Case("float16", 72, rows=8, masked=True),
        Case("tf32", 96, rows=40, batch=41),
    ),
    # Weights that all stay in shared memory, some, and none.
    "tiled": (
        Case("bfloat16", 1024, rows=152, batch=170, steps=12),
        Case("bfloat16", 288, rows=112, batch=115, masked=True),
        Case("float16", 250, rows=48, batch=45),
    ),
}


@functools.cache
def failure(device: int, way: str = "plain") -> str | None:
    """Why the kernels cannot be trusted on a GPU; None if their results are right.

    A separate process checks them, and is ended if it hangs. A check that passed is remembered and not repeated.

    Args:
        device: The GPU's number.
        way: The one of `plan.WAYS` to check. Whether another can be trusted says nothing about it.
    """

    def checked() -> dict[str, float]:
        return {"worst": _checked_apart(device, way)}

    try:
        timing_cache.measured(launch.gpu_name(device), f"check of {way}", checked)
    except BackendError as error:
        return str(error)
    return None


def _checked_apart(device: int, way: str) -> float:
    """The worst error, as a share of the allowed one. Raises `BackendError` if it is too large or the check fails."""
    command = [sys.executable, "-m", "cellerate.kernels.lstm.cuda.selfcheck", str(device), way]
    try:
        done = subprocess.run(  # noqa: S603 (our own program)
            command, capture_output=True, text=True, timeout=_CHECK_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise BackendError(
            f"the self-check of the GPU kernels did not finish within {_CHECK_SECONDS} s"
        ) from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        raise BackendError(f"the self-check of the GPU kernels failed: {last}")
    worst = float(done.stdout)
    if not 0 < worst < 1:
        raise BackendError(f"the GPU kernels' largest error is {worst:.3g} times the allowed error")
    return worst


def check(case: Case, device: int, way: str = "plain") -> float:
    """Runs both passes of a layer; returns the largest error, as a share of the allowed error."""
    given = _given(case)
    done = reference.forward(Arguments(**given))
    rng = np.random.default_rng(1)
    shapes = {"d_outputs": done.outputs.shape, "d_h_T": done.h_T.shape, "d_c_T": done.c_T.shape}
    cotangents = {name: _rounded(rng.normal(size=shape), case.precision) for name, shape in shapes.items()}
    wanted = reference.backward(done, **cotangents)
    sizes = (case.batch, case.steps, case.units)
    state = sizes[::2]
    masks = {
        "mask": given["mask"].astype(np.uint8) if case.masked else None,
        "recurrent_dropout": given.get("recurrent_dropout"),
    }
    forward = case.variant("forward", way)
    projected = given["x"] @ given["kernel"] + given["bias"]
    found = _run(
        forward,
        {
            "projected": in_precision(by_unit(projected, case.units), case.precision),
            "weights": _packed(given["recurrent_kernel"], forward),
            "h0": in_precision(given["h0"], case.precision),
            "c0": given["c0"],
            **masks,
        },
        {"outputs": sizes, "states": sizes, "gates": (*sizes, 4), "h_T": state, "cells": sizes, "c_T": state},
        sizes,
        device,
    )
    backward = case.variant("backward", way)
    gradients = _run(
        backward,
        {
            "gates": found["gates"],
            "cells": found["cells"],
            "weights": _packed(given["recurrent_kernel"], backward),
            "c0": given["c0"],
            "d_outputs": in_precision(cotangents["d_outputs"], case.precision),
            "d_h_T": in_precision(cotangents["d_h_T"], case.precision),
            "d_c_T": cotangents["d_c_T"].astype(np.float32),
            **masks,
        },
        {"d_projected": (*sizes, 4), "d_h0": state, "d_c0": state},
        sizes,
        device,
    )
    d_projected = _widened(gradients["d_projected"], case.precision).swapaxes(-1, -2)
    d_projected = d_projected.reshape(case.batch * case.steps, -1)
    d_kernel = given["x"].reshape(len(d_projected), -1).T.astype(np.float64) @ d_projected
    allowed, of_gradients = ALLOWED[case.precision]
    errors = [
        _error(_widened(found["outputs"], case.precision), done.outputs) / allowed,
        _error(_widened(found["h_T"], case.precision), done.h_T) / allowed,
        _error(found["c_T"], done.c_T) / allowed,
        _error(_widened(gradients["d_h0"], case.precision), wanted["h0"]) / of_gradients,
        _error(gradients["d_c0"], wanted["c0"]) / of_gradients,
        _error(d_projected.sum(0), wanted["bias"]) / of_gradients,
        _error(d_kernel, wanted["kernel"]) / of_gradients,
    ]
    return float(np.max(errors))  # a NaN, if there is one


def step_us(variant: Variant, device: int) -> float:
    """Microseconds per step while the GPU runs as many clusters as it can at once; measured once and remembered."""

    def measure() -> dict[str, float]:
        batch = launch.resident(variant, device) * variant.rows
        arguments = _arguments(variant, (batch, _TIMED_STEPS, variant.units))
        # The contents of the memory do not matter.
        held = {name: launch.DeviceMemory(count, device) for name, count in _bytes(variant, batch).items()}
        for name, memory in held.items():
            setattr(arguments, name, memory.address)

        def work() -> None:
            for _ in range(_TIMED_LAUNCHES):
                launch.launch(variant, arguments, device, 0)

        work()
        return {"us": launch.elapsed_ms(work, device) * 1e3 / (_TIMED_LAUNCHES * _TIMED_STEPS)}

    return timing_cache.measured(launch.gpu_name(device), f"step of {variant}", measure)["us"]


def _bytes(variant: Variant, batch: int) -> dict[str, int]:
    """The number of bytes that are enough for each argument that training gives to a kernel."""
    state = 4 * batch * variant.units
    sequence = _TIMED_STEPS * state
    found = {"gates": 4 * sequence, "cells": sequence, "weights": 16 * variant.units**2}
    found |= {"exchanged": 4 * count} if (count := variant.exchanged(batch)) else {}
    found |= {"mask": _TIMED_STEPS * batch} if variant.masked else {}
    found |= {"recurrent_dropout": 4 * state} if variant.dropped else {}
    if variant.direction == "forward":
        return found | {"projected": 4 * sequence, "outputs": sequence, "h_T": state, "c_T": state}
    return found | {"d_outputs": sequence, "d_projected": 4 * sequence, "d_h0": state, "d_c0": state}


def _arguments(variant: Variant, sizes: tuple[int, ...]) -> launch.KernelArguments:
    arguments = ForwardArguments() if variant.direction == "forward" else BackwardArguments()
    arguments.batch, arguments.steps, arguments.units = sizes
    arguments.masked_output = masked_output_code("previous_output")
    return arguments


def _given(case: Case) -> dict[str, Any]:
    """A layer's arguments. All but x and kernel, which no GPU kernel sees, are representable in the case's type."""
    rng = np.random.default_rng(0)
    b, t, d, h = case.batch, case.steps, case.inputs, case.units
    given: dict[str, Any] = {
        "x": rng.normal(size=(b, t, d)).astype(np.float32),
        "kernel": (rng.normal(size=(d, 4 * h)) * 0.5).astype(np.float32),
        "recurrent_kernel": _rounded(rng.normal(size=(h, 4 * h)) * 0.8 / np.sqrt(h), case.precision),
        "bias": (rng.normal(size=4 * h) * 0.5).astype(np.float32),
        "h0": _rounded(rng.uniform(-1, 1, (b, h)), case.precision),
        "c0": rng.normal(size=(b, h)).astype(np.float32),
    }
    given["bias"][h : 2 * h] += case.forget_bias
    if case.masked:
        given["mask"] = rng.random((b, t)) < 0.7
    if case.dropped:
        given["recurrent_dropout"] = ((rng.random((4, b, h)) < 0.75) / 0.75).astype(np.float32)
    return given


def _run(
    variant: Variant,
    arrays: Mapping[str, np.ndarray | None],
    results: Mapping[str, tuple[int, ...]],
    sizes: tuple[int, ...],
    device: int,
) -> dict[str, np.ndarray]:
    """Runs a kernel on arrays and returns its results by name; bfloat16 as bits."""
    arguments = _arguments(variant, sizes)
    held = {}
    for name, array in arrays.items():
        if array is not None:
            held[name] = launch.DeviceMemory(array.nbytes, device)
            held[name].write(np.ascontiguousarray(array))
    dtype = in_precision(np.zeros(1), variant.precision).dtype
    wide = ("cells", "c_T", "d_c0")
    empty = {name: np.empty(shape, np.float32 if name in wide else dtype) for name, shape in results.items()}
    held |= {name: launch.DeviceMemory(array.nbytes, device) for name, array in empty.items()}
    if count := variant.exchanged(sizes[0]):
        held["exchanged"] = launch.DeviceMemory(count * dtype.itemsize, device)
    for name, memory in held.items():
        setattr(arguments, name, memory.address)
    launch.launch(variant, arguments, device, 0)
    for name, array in empty.items():
        held[name].read(array, 0)
    return empty


def _packed(weights: np.ndarray, variant: Variant) -> np.ndarray:
    """The recurrent kernel (H, 4H) in the order in which a GPU kernel reads it."""
    units, packing = len(weights), plan.packing(variant)
    values = in_precision(weights, variant.precision)
    padded = np.zeros((variant.units, 4, variant.units), values.dtype)
    padded[:units, :, :units] = values.reshape(units, 4, units)
    return np.ascontiguousarray(padded.reshape(packing.shape).transpose(packing.axes))


def _widened(array: np.ndarray, precision: str) -> np.ndarray:
    if precision == "bfloat16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


def _rounded(array: np.ndarray, precision: str) -> np.ndarray:
    """An array rounded to a precision, as float32."""
    return _widened(in_precision(array.astype(np.float32), precision), precision).astype(np.float32)


def _error(found: np.ndarray, wanted: np.ndarray) -> float:
    """The root mean square of the difference, as a share of the root mean square of `wanted`."""
    return float(np.sqrt(((found - wanted) ** 2).mean() / (wanted**2).mean()))


def main(arguments: Sequence[str]) -> int:
    """Checks the cases of a way on the GPU with the given number, and prints the worst error."""
    device, way = int(arguments[0]) if arguments else 0, arguments[1] if len(arguments) > 1 else "plain"
    try:
        print(float(np.max([check(case, device, way) for case in CASES[way]])))
    except BackendError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
