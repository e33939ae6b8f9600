"""How fast the GPU kernels are, beside cuDNN in the same run, and which of the goals that reaches.

A module of its own because it is fast or slow, where `gpu_checks` is right or wrong.
"""

import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from cellerate.bridges import torch_cuda
from gpu_checks import VARIANTS, arrays, call_of

STEPS = 100
UNITS, BATCHES = (512, 256, 128, 1024), (112, 224, 16, 64, 256, 1024)
# Of the layer whose variants are compared: units and batch.
COMPARED = (512, 112)
Work = Callable[[], Any]


def timed(works: dict[str, Work], rounds: int = 15) -> dict[str, dict[str, float]]:
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


def as_graph(work: Work) -> Work:
    """A work as a CUDA graph: what the GPU takes, without the Python that starts it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def kernel_us(work: Work) -> dict[str, float]:
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


def layer_works(
    number: torch.dtype, units: int, batch: int, **variant: Any
) -> tuple[torch_cuda.Call, Work, Work]:
    """A call of a layer, its forward pass, and both passes."""
    options = {"options": variant.pop("options")} if "options" in variant else {}
    call = call_of(arrays(batch, STEPS, units, units, **variant), number, **options)
    d_outputs = torch.randn(batch, STEPS, units, device="cuda", dtype=number)

    def forward() -> Any:
        return torch_cuda.forward(call, keep=True)

    def both() -> Any:
        outputs, _, _, reserve = forward()
        return torch_cuda.backward(call, outputs, reserve, d_outputs, None, None)

    return call, forward, both


def beside_cudnn(number: torch.dtype, units: int, batch: int) -> dict[str, Any]:
    """Forward and forward with backward, of Cellerate's kernels and of cuDNN, in turn, all as graphs and as called."""
    call, forward, both = layer_works(number, units, batch)
    x = call.need("x").clone().requires_grad_()
    cudnn = torch.nn.LSTM(units, units, batch_first=True, device="cuda", dtype=number)
    d_outputs = torch.randn(batch, STEPS, units, device="cuda", dtype=number)

    def cudnn_forward() -> Any:
        return cudnn(x)[0]

    def cudnn_both() -> Any:
        return torch.autograd.grad(cudnn_forward(), [x, *cudnn.parameters()], d_outputs)

    works = {
        "forward": forward,
        "forward and backward": both,
        "cuDNN forward": cudnn_forward,
        "cuDNN forward and backward": cudnn_both,
    }
    return {
        "number": str(number).removeprefix("torch."),
        "units": units,
        "batch": batch,
        "steps": STEPS,
        "rows": {d: call.variant(d, 0).rows for d in ("forward", "backward")},
        "times": timed({name: as_graph(work) for name, work in works.items()}),
        "times_as_called": timed(works, rounds=5),
        "kernel_us_a_step": kernel_us(both),
    }


def beside_cudnn_everywhere() -> Iterator[dict[str, Any]]:
    """Every size, bfloat16 first: that is what most of the goals are of."""
    for number in (torch.bfloat16, torch.float16, torch.float32):
        for units in UNITS:
            for batch in BATCHES:
                yield beside_cudnn(number, units, batch)


def variants() -> Iterator[dict[str, Any]]:
    """Each variant of the layer, forward and backward, beside the plain one in the same run."""
    for number in (torch.bfloat16, torch.float32):
        _, _, plain = layer_works(number, *COMPARED)
        plain = as_graph(plain)
        for name, variant in VARIANTS.items():
            _, _, both = layer_works(number, *COMPARED, **variant)
            times = timed({"plain": plain, "variant": as_graph(both)})
            yield {"number": str(number).removeprefix("torch."), "variant": name, "times": times}


def goals(result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each goal with the figure of this run, and whether that reaches it; a figure that is missing does not."""

    def goal(name: str, figure: float | None, limit: float, *, most: bool) -> dict[str, Any]:
        reached = figure is not None and (figure <= limit if most else figure >= limit)
        return {"goal": name, "figure": figure, "limit": limit, "reached": reached}

    found = {(t["number"], t["units"], t["batch"]): t for t in result.get("timings", ())}

    def median_ms(number: str, units: int, batch: int, name: str) -> float | None:
        timing = found.get((number, units, batch))
        return None if timing is None else timing["times"][name]["median_ms"]

    for batch, most in ((112, 1.5), (224, 2.6)):
        kernels = found.get(("bfloat16", 512, batch), {}).get("kernel_us_a_step", {})
        figure = kernels.get("cellerate_lstm_forward")
        yield goal(f"µs a step, forward recurrence, bf16, H=512, B={batch}", figure, most, most=True)
    for batch, most in ((112, 6.5), (224, 12.0)):
        both = median_ms("bfloat16", 512, batch, "forward and backward")
        figure = None if both is None else both * 1e3 / STEPS
        yield goal(f"µs a step, all of training, bf16, H=512, B={batch}", figure, most, most=True)
    for units in sorted(UNITS):
        for batch in (16, 64, 256, 1024):
            for name in ("forward", "forward and backward"):
                ours = median_ms("bfloat16", units, batch, name)
                for theirs in ("bfloat16", "float16"):
                    cudnn = median_ms(theirs, units, batch, f"cuDNN {name}")
                    figure = None if ours is None or cudnn is None else cudnn / ours
                    small = units <= 512 and batch <= 256
                    least = {"bfloat16": 3.0, "float16": 1.5}[theirs] if small else 1.0
                    if units == 1024 and theirs == "bfloat16":
                        least = 1.2
                    what = f"times cuDNN's {theirs}, {name}, bf16, H={units}, B={batch}"
                    yield goal(what, figure, least, most=False)
    for one in result.get("variants", ()):
        ratio = one["times"]["variant"]["median_ms"] / one["times"]["plain"]["median_ms"]
        yield goal(f"times the plain layer, {one['variant']}, {one['number']}", ratio, 1.3, most=True)
    races = (result.get("character_model") or {}).get("races", ())
    ours_first = [r["characters_per_s"] for r in races if r["implementation"] != "keras"]
    yield goal("characters/s of training", max(ours_first, default=None), 8e6, most=False)
    drawn = {(g["units"], g["batch"]): g for g in (result.get("generation") or {}).get("runs", ())}
    for units, batch, least in ((512, 1, 4e5), (512, 8192, 6e7), (256, 1, 7e5)):
        figure = drawn.get((units, batch), {}).get("characters_per_s")
        yield goal(f"characters/s of generation, H={units}, B={batch}", figure, least, most=False)
