"""The speed of the GPU kernels and of cuDNN in the same run.

Parts of the GPU suite: `recurrence`, `sizes`, `variants`. Works are timed in turn, as CUDA graphs: the time on the GPU,
without the Python that starts it.
"""

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu import sizes as gpu_sizes
from benchmarks.gpu.goals import BOTH
from benchmarks.gpu.journal import Item
from benchmarks.gpu.sizes import STEPS
from cellerate.bridges import torch_cuda
from cellerate.kernels.lstm.cuda import plan, selfcheck
from cellerate.kernels.lstm.spec import LstmOptions

Work = Callable[[], Any]
DIRECTIONS: tuple[plan.Direction, ...] = ("forward", "backward")


def recurrence() -> list[Item]:
    """The most important size, beside cuDNN in both narrow types."""
    return _items([("bfloat16", gpu_sizes.FIRST_UNITS, batch) for batch in gpu_sizes.FIRST_BATCHES])


def sizes() -> list[Item]:
    """The other sizes, bfloat16 first, because most goals use it."""
    return _items(
        [
            (precision, units, batch)
            for precision in ("bfloat16", "float32", "float16")
            for units in gpu_sizes.TIMED_UNITS
            for batch in gpu_sizes.TIMED_BATCHES
            if precision != "bfloat16"
            or units != gpu_sizes.FIRST_UNITS
            or batch not in gpu_sizes.FIRST_BATCHES
        ]
    )


def variants() -> list[Item]:
    """Variants of the layer, forward and backward, beside the plain one in the same run."""
    return [
        Item(f"{precision} {name}", partial(beside_plain, precision, name))
        for precision in gpu_sizes.VARIED_PRECISIONS
        for name in gpu_sizes.TIMED_VARIANTS
    ]


def _items(every: list[tuple[str, int, int]]) -> list[Item]:
    """Each size beside cuDNN, then each kernel alone, last because a profiler slows down later measurements."""
    names = [f"{precision} H{units} B{batch}" for precision, units, batch in every]
    both = [Item(name, partial(beside_cudnn, *size)) for name, size in zip(names, every, strict=True)]
    alone = [
        Item(f"{name}, kernels alone", partial(kernels_alone, *size))
        for name, size in zip(names, every, strict=True)
    ]
    return both + alone


def beside_cudnn(precision: str, units: int, batch: int) -> dict[str, Any]:
    """Forward and forward with backward, of Cellerate's kernels and of cuDNN, as graphs and as called."""
    call, works = layer_works(precision, units, batch)
    for theirs in dict.fromkeys((precision, "float16") if precision == "bfloat16" else (precision,)):
        works |= cudnn_works(theirs, units, batch)
    graphs, refused = {}, {}
    for name, work in works.items():
        try:
            graphs[name] = as_graph(work)
        # Only cuDNN may be impossible to capture; for our kernels that is a failure.
        except RuntimeError as error:
            if not name.startswith("cuDNN"):
                raise
            refused[name] = str(error)
    return {
        "number": precision,
        "units": units,
        "batch": batch,
        "steps": STEPS,
        "kernels": {name: _named(call.plan.kernel(name)) for name in DIRECTIONS},
        "times": timed(graphs),
        "times_as_called": timed(works, rounds=5),
        "not_captured": refused,
        "cudnn_takes_tf32": torch.backends.cudnn.allow_tf32,
    }


def kernels_alone(precision: str, units: int, batch: int) -> dict[str, Any]:
    """Microseconds of a step of the recurrences: in a whole pass, and for the rows that the GPU runs at once.

    The latter are measured for every available kernel.
    """
    call, works = layer_works(precision, units, batch)
    full = {
        name: {
            _named(one): selfcheck.step_us(one, 0)
            for one in plan.fitting(call.plan.kernel(name), plan.WAYS)
            if one.way == "plain" or selfcheck.failure(0, one.way) is None
        }
        for name in DIRECTIONS
    }
    return {
        "number": precision,
        "units": units,
        "batch": batch,
        "full_wave_us_a_step": full,
        "kernel_us_a_step": kernel_us(works[BOTH]),
    }


def _named(kernel: plan.Variant) -> str:
    return f"{kernel.rows} rows, {kernel.way}"


def beside_plain(precision: str, name: str) -> dict[str, Any]:
    """A variant and the plain layer, in turn."""
    size = (precision, gpu_sizes.VARIED_UNITS, gpu_sizes.VARIED_BATCH)
    _, plain = layer_works(*size)
    _, varied = layer_works(*size, **gpu_sizes.VARIANTS[name])
    times = timed({"plain": as_graph(plain[BOTH]), "variant": as_graph(varied[BOTH])})
    return {"number": precision, "variant": name, "times": times}


def layer_works(
    precision: str,
    units: int,
    batch: int,
    *,
    with_: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
    options: LstmOptions = LstmOptions(),  # noqa: B008 (frozen)
) -> tuple[torch_cuda.Call, dict[str, Work]]:
    """A call of a layer with as many inputs as units, its forward pass, and both passes."""
    dtype = getattr(torch, precision)
    normal = partial(torch.randn, device="cuda")
    given = {
        "x": normal(batch, STEPS, units, dtype=dtype),
        "kernel": normal(units, 4 * units) * units**-0.5,
        "recurrent_kernel": normal(units, 4 * units) * 0.8 * units**-0.5,
        "bias": normal(4 * units) * 0.5,
        "h0": torch.zeros(batch, units, device="cuda", dtype=dtype),
        "c0": torch.zeros(batch, units, device="cuda", dtype=dtype),
        "mask": torch.rand(batch, STEPS, device="cuda") < 0.8,
        "recurrent_dropout": (torch.rand(4, batch, units, device="cuda") < 0.7) / 0.7,
    }
    left = {"mask", "recurrent_dropout", *without} - set(with_)
    call = torch_cuda.Call({n: tensor for n, tensor in given.items() if n not in left}, options, True)
    d_outputs = normal(batch, STEPS, units, dtype=dtype)

    def forward() -> Any:
        return torch_cuda.forward(call, keep=True)

    def both() -> Any:
        outputs, _, _, reserve = forward()
        return torch_cuda.backward(call, outputs, reserve, d_outputs, None, None)

    return call, {"forward": forward, BOTH: both}


def cudnn_works(precision: str, units: int, batch: int) -> dict[str, Work]:
    """The same works by cuDNN, through torch."""
    dtype = getattr(torch, precision)
    cudnn = torch.nn.LSTM(units, units, batch_first=True, device="cuda", dtype=dtype)
    x = torch.randn(batch, STEPS, units, device="cuda", dtype=dtype, requires_grad=True)
    d_outputs = torch.randn(batch, STEPS, units, device="cuda", dtype=dtype)

    def forward() -> Any:
        return cudnn(x)[0]

    def both() -> Any:
        return torch.autograd.grad(forward(), [x, *cudnn.parameters()], d_outputs)

    return {f"cuDNN {precision} forward": forward, f"cuDNN {precision} {BOTH}": both}


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
    """A work as a CUDA graph."""
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
