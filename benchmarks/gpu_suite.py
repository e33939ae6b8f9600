"""Checks and times the GPU kernels: `python benchmarks/gpu_suite.py [--seconds 480]`; one JSON in `results/`.

For a machine with an NVIDIA GPU from Hopper on, torch, and this package; one call checks first and gives all figures.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cellerate.bridges import torch_cuda
from cellerate.kernels import reference
from cellerate.kernels.spec import MASKED_OUTPUTS, LstmOptions
from records import RESULTS, new_record, write_record

# Root mean squares of the error as shares of the results', and of the gradients'.
ALLOWED = {torch.bfloat16: (5e-3, 2e-2), torch.float16: (1e-3, 5e-3), torch.float32: (1e-6, 5e-6)}
STEPS = 100
GRID = [(units, batch) for units in (512, 256, 128, 1024) for batch in (112, 224, 16, 64, 256, 1024)]
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
        name: torch.from_numpy(array).to("cuda", kinds.get(name, torch.float32))
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
    done = reference.forward(**given, options=options)  # type: ignore[arg-type]
    outputs, h_T, c_T, reserve = torch_cuda.forward(call, keep=True)
    rng = np.random.default_rng(1)
    cotangents = [rng.normal(size=a.shape).astype(np.float32) for a in (done.outputs, done.h_T, done.c_T)]
    narrow = [torch.from_numpy(a).to("cuda", number) for a in cotangents]
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


def checks() -> Iterator[dict[str, Any]]:
    """Every variant at a small size, and the plain layer at every number of units and more rows than fit."""
    for number in ALLOWED:
        for name, variant in VARIANTS.items():
            yield {"number": str(number), "variant": name, "errors": check(number, 19, 72, **variant)}
        for units in (1, 32, 64, 128, 200, 256, 512):
            yield {"number": str(number), "units": units, "errors": check(number, 130, units)}


def timed(works: dict[str, Callable[[], Any]], rounds: int = 15) -> dict[str, dict[str, float]]:
    """Milliseconds of each work, in turn, by CUDA events: the median, and the 20th and 80th percentiles."""
    for work in works.values():
        work()
        work()
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            work()
            end.record()
            end.synchronize()
            found[name].append(begin.elapsed_time(end))
    return {
        name: {
            "median_ms": statistics.median(times),
            "p20_ms": float(np.percentile(times, 20)),
            "p80_ms": float(np.percentile(times, 80)),
        }
        for name, times in found.items()
    }


def kernel_us(work: Callable[[], Any]) -> dict[str, float]:
    """Microseconds of a step of each recurrence in a work, by the profiler: without the products around it."""
    work()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(5):
            work()
        torch.cuda.synchronize()
    return {
        event.key: event.device_time_total / event.count / STEPS
        for event in profile.key_averages()
        if event.key.startswith("cellerate_lstm")
    }


def timing(number: torch.dtype, units: int, batch: int) -> dict[str, Any]:
    """Forward and forward with backward, of Cellerate's kernels and of cuDNN, in turn."""
    call = call_of(arrays(batch, STEPS, units, units), number)
    x = call.need("x").clone().requires_grad_()
    cudnn = torch.nn.LSTM(units, units, batch_first=True, device="cuda", dtype=number)
    d_outputs = torch.randn(batch, STEPS, units, device="cuda", dtype=number)

    def ours_forward() -> Any:
        return torch_cuda.forward(call, keep=True)

    def ours() -> Any:
        outputs, _, _, reserve = ours_forward()
        return torch_cuda.backward(call, outputs, reserve, d_outputs, None, None)

    def cudnn_forward() -> Any:
        return cudnn(x)[0]

    def cudnn_both() -> Any:
        return torch.autograd.grad(cudnn_forward(), [x, *cudnn.parameters()], d_outputs)

    times = timed(
        {
            "forward": ours_forward,
            "forward and backward": ours,
            "cuDNN forward": cudnn_forward,
            "cuDNN forward and backward": cudnn_both,
        }
    )
    return {
        "number": str(number),
        "units": units,
        "batch": batch,
        "steps": STEPS,
        "rows": {d: call.variant(d, 0).rows for d in ("forward", "backward")},  # type: ignore[arg-type]
        "times": times,
        "kernel_us_a_step": kernel_us(ours),
    }


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


def main() -> None:
    """Runs all of it, and writes what there is when the time is up or something fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=480, help="when to begin no further timing")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, help="the folder of the result")
    arguments = parser.parse_args()
    began = time.monotonic()
    result: dict[str, Any] = {"checks": [], "timings": []}
    record = new_record("gpu")
    record["gpu"] = torch.cuda.get_device_name()
    record["versions"] |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    record["result"] = result
    try:
        for found in checks():
            worst = max(found["errors"].values())
            print(
                f"{'ok    ' if worst < 1 else 'WRONG '} {worst:.2f} of what is allowed: {found}", flush=True
            )
            result["checks"].append(found)
        result["poisoned"] = poisoned()
        result["soak"] = soak()
        print(result["poisoned"], result["soak"], flush=True)
        for number in ALLOWED:
            for units, batch in GRID:
                if time.monotonic() - began > arguments.seconds:
                    break
                result["timings"].append(timing(number, units, batch))
                print(result["timings"][-1], flush=True)
    finally:
        record["seconds"] = time.monotonic() - began
        print(f"written: {write_record(record, arguments.output)}")


if __name__ == "__main__":
    main()
