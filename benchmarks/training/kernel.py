"""The native core and oneDNN's LSTM, forward and backward, as a share of the peak of this machine.

Both are called directly. Each is this module run with `--contestant`, so that neither disturbs the other's threads, and
all take turns. oneDNN is called through torch, and a record names the primitives that ran. It gets its inputs in its
preferred form: (T, B, D), and weights in the type of the row.
"""

import argparse
import itertools
import json
import sys
import time
from typing import Any

import numpy as np

from benchmarks.processes import SPINNING_S, Process, program, same_allocator
from benchmarks.training.onednn import onednn_calls
from cellerate.kernels import native
from cellerate.kernels.lstm import cpu
from cellerate.measure import Timing, as_timing
from cellerate.observe.bench.contestant import allocator_found

STEPS, VOCABULARY, EMBEDDING = 100, 96, 256
DTYPES = ("float32", "bfloat16")
HALVES = ("forward", "backward", "inference")
CHECKED_ROWS = 2
# The allowed error of the outputs and dx after 100 steps, relative to their root mean square in float64.
BOUNDS = {"float32": 5e-5, "bfloat16": 2.0**-5}


def run(*, quick: bool) -> dict[str, Any]:
    """All sizes in both types, ours and oneDNN's in turn; oneDNN is left out if its results are wrong."""
    import ml_dtypes  # noqa: F401  (a clear error here rather than from the contestant)

    peaks = {"float32": native.measure_peak(), "bfloat16": native.measure_peak("bfloat16")}
    found: dict[str, Any] = {
        "target": native.target(),
        "threads": native.num_threads(),
        "peak_operations_per_s": peaks,
        "steps": STEPS,
        "sizes": [],
        "onednn": {"settings": "torch.nn.LSTM, (T, B, D), weights in the type of the row", "sizes": []},
        "refused": {"onednn int8": "torch hands oneDNN no int8 LSTM"},
    }
    contestants = {"cellerate": Process(program("training.kernel", "--contestant", "cellerate"), "cellerate")}
    try:
        try:
            found["onednn"]["primitive"] = onednn_calls(_SAY_PRIMITIVES)
            contestants["onednn"] = Process(program("training.kernel", "--contestant", "onednn"), "onednn")
        except (RuntimeError, OSError) as error:
            found["refused"]["onednn"] = str(error)
        sizes = [(32, 4)] if quick else list(itertools.product((128, 256, 512, 1024), (128, 32)))
        for (units, batch), kind in itertools.product(sizes, ("dense", "lookup")):
            _race(found, contestants, units, batch, kind, 0.1 if quick else 9, peaks)
    finally:
        for each in contestants.values():
            each.close()
    return found


def _race(
    found: dict[str, Any],
    contestants: dict[str, Process],
    units: int,
    batch: int,
    kind: str,
    budget_s: float,
    peaks: dict[str, float],
) -> None:
    """One size: each contestant and type in turn, for about `budget_s` in all, but 3 times at least and 9 at most."""
    # oneDNN has no lookups, so `dense` times a product with all inputs.
    names = [name for name in contestants if name == "cellerate" or kind == "dense"]
    seconds: dict[tuple[str, str, str], list[float]] = {}
    errors: dict[tuple[str, str], float] = {}
    for name in names:
        about = contestants[name].ask({"units": units, "batch": batch, "kind": kind})
        same_allocator([about["allocator"]])
        for dtype in DTYPES:
            try:
                errors[name, dtype] = check(name, dtype, about["errors"].get(dtype))
            except RuntimeError as error:
                if name == "cellerate":
                    raise
                found["refused"][f"{name} {dtype} H={units} B={batch}"] = str(error)
                print(
                    f"H={units:<5} B={batch:<4} {kind:<7} {dtype:<9} {name:<10} takes no part: {error}",
                    flush=True,
                )

    def turn() -> None:
        for name, dtype in errors:
            if len(names) > 1 and dtype == DTYPES[0]:
                time.sleep(SPINNING_S)
            for half, taken in contestants[name].ask({"dtype": dtype}).items():
                seconds.setdefault((name, dtype, half), []).append(taken)

    turn()
    # First calls are slower, so they only determine the number of turns.
    repeats = min(9, max(3, round(budget_s / sum(map(sum, seconds.values())))))
    seconds.clear()
    for _ in range(repeats):
        turn()
    for name, dtype in errors:
        timings = {half: as_timing(seconds[name, dtype, half]) for half in HALVES}
        record = _record(units, batch, kind, dtype, timings, peaks[dtype]) | {"error": errors[name, dtype]}
        (found["sizes"] if name == "cellerate" else found["onednn"]["sizes"]).append(record)
        print(
            f"H={units:<5} B={batch:<4} {kind:<7} {dtype:<9} {name:<10} "
            f"forward {record['forward']['median_s'] * 1e3:7.2f} ms, "
            f"backward {record['backward']['median_s'] * 1e3:7.2f} ms, {record['share_of_peak']:.0%} of peak; "
            f"inference {record['inference']['median_s'] * 1e3:7.2f} ms",
            flush=True,
        )


def check(name: str, dtype: str, error: float | None) -> float:
    """The error of a contestant. Raises `RuntimeError` if it is too large, or was not measured."""
    if error is None or not error <= BOUNDS[dtype]:
        raise RuntimeError(
            f"{name}, {dtype}: an error of {error} of the root mean square; allowed {BOUNDS[dtype]}"
        )
    return error


def _record(
    units: int, batch: int, kind: str, dtype: str, timings: dict[str, Timing], peak: float
) -> dict[str, Any]:
    """Only unavoidable products count as work: with lookups, none of the inputs."""
    wide = units + (0 if kind == "lookup" else units)
    operations = 3 * 2.0 * batch * STEPS * wide * 4 * units
    rate = operations / (timings["forward"].median_s + timings["backward"].median_s)
    return {
        "units": units,
        "batch": batch,
        "inputs": kind,
        "dtype": dtype,
        **{half: timing.summary() for half, timing in timings.items()},
        "operations_per_s": rate,
        "share_of_peak": rate / peak,
    }


class _Arrays:
    """The numbers of one size, the same for both contestants: D = H, or ids of a vocabulary."""

    def __init__(self, units: int, batch: int, kind: str) -> None:
        self.units, self.batch, self.kind = units, batch, kind
        inputs = EMBEDDING if kind == "lookup" else units
        random = np.random.default_rng(0)

        def draw(*shape: int) -> np.ndarray:
            return (random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

        if kind == "lookup":
            self.ids = random.integers(0, VOCABULARY, (batch, STEPS), np.int32)
            self.embeddings = random.standard_normal((VOCABULARY, inputs), np.float32)
            self.x = self.embeddings[self.ids]
        else:
            self.x = random.standard_normal((batch, STEPS, inputs), np.float32)
        self.kernel, self.recurrent_kernel = draw(inputs, 4 * units), draw(units, 4 * units)
        self.bias = np.zeros(4 * units, np.float32)
        self.d_outputs = random.standard_normal((batch, STEPS, units), np.float32)

    def truth(self) -> tuple[np.ndarray, np.ndarray]:
        """The outputs and dx of the first rows in float64."""
        from cellerate.kernels.lstm import reference
        from cellerate.kernels.lstm.spec import Arguments

        rows = slice(CHECKED_ROWS)
        done = reference.forward(Arguments(self.kernel, self.recurrent_kernel, self.bias, x=self.x[rows]))
        return done.outputs, reference.backward(done, self.d_outputs[rows])["x"]


class _Ours:
    """The native core."""

    def __init__(self, arrays: _Arrays, dtype: str) -> None:
        import ml_dtypes

        self.dtype = np.dtype(np.float32 if dtype == "float32" else ml_dtypes.bfloat16)
        x: dict[str, Any] = {"x": arrays.x.astype(self.dtype)}
        if arrays.kind == "lookup":
            x = {"ids": arrays.ids, "embeddings": arrays.embeddings}
        zeros = np.zeros((arrays.batch, arrays.units), self.dtype)
        self.arguments = cpu.Arguments(
            kernel=arrays.kernel,
            recurrent_kernel=arrays.recurrent_kernel,
            bias=arrays.bias,
            h0=zeros,
            c0=zeros,
            **x,
        )
        self.d_outputs = arrays.d_outputs.astype(self.dtype)

    def forward(self) -> Any:
        """Run forward and keep the values for backward."""
        return cpu.forward(self.arguments, dtype=self.dtype)

    def inference(self) -> Any:
        """Run forward without values for backward."""
        return cpu.forward(self.arguments, dtype=self.dtype, keep=False)

    def backward(self, done: Any) -> Any:
        """All gradients."""
        return cpu.backward(self.arguments, done, d_outputs=self.d_outputs)

    def results(self) -> tuple[Any, Any]:
        """The outputs, and dx where there is one."""
        done = self.forward()
        return done.outputs, self.backward(done).get("x")


class _OneDnn:
    """oneDNN's primitive, through torch."""

    def __init__(self, arrays: _Arrays, dtype: str) -> None:
        import torch

        self.torch, kind = torch, getattr(torch, dtype)
        self.lstm = torch.nn.LSTM(arrays.x.shape[-1], arrays.units)
        given = (arrays.kernel.T, arrays.recurrent_kernel.T, arrays.bias, np.zeros_like(arrays.bias))
        with torch.no_grad():
            for parameter, array in zip(self.lstm.parameters(), given, strict=True):
                parameter.copy_(torch.tensor(np.ascontiguousarray(array)))
        self.lstm.to(kind)

        def by_time(array: np.ndarray) -> Any:
            return torch.tensor(np.ascontiguousarray(array.swapaxes(0, 1))).to(kind)

        self.x, self.d_outputs = by_time(arrays.x).requires_grad_(), by_time(arrays.d_outputs)

    def forward(self) -> Any:
        """Run forward and keep the values for backward."""
        return self.lstm(self.x)[0]

    def inference(self) -> Any:
        """Run forward without values for backward."""
        with self.torch.inference_mode():
            return self.lstm(self.x)[0]

    def backward(self, done: Any) -> Any:
        """All gradients."""
        return self.torch.autograd.grad(done, [self.x, *self.lstm.parameters()], self.d_outputs)

    def results(self) -> tuple[Any, Any]:
        """The outputs and dx."""
        done = self.forward()
        both = (done.detach(), self.backward(done)[0])
        return tuple(one.float().numpy().swapaxes(0, 1) for one in both)  # type: ignore[return-value]


def contestant(name: str) -> None:
    """The contestant's process: make the arrays of a size and report the error, then run and report times."""
    kind = {"cellerate": _Ours, "onednn": _OneDnn}[name]
    works: dict[str, Any] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        if "units" in asked:
            arrays = _Arrays(**asked)
            works = {dtype: kind(arrays, dtype) for dtype in DTYPES}
            truth = arrays.truth()
            errors = {dtype: _error(work.results(), truth) for dtype, work in works.items()}
            print(json.dumps({"errors": errors, "allocator": allocator_found()}), flush=True)
            continue
        work = works[asked["dtype"]]
        moments = [time.perf_counter()]
        done = work.forward()
        moments.append(time.perf_counter())
        work.backward(done)
        moments.append(time.perf_counter())
        work.inference()
        moments.append(time.perf_counter())
        print(json.dumps(dict(zip(HALVES, np.diff(moments).tolist(), strict=True))), flush=True)


def _error(found: tuple[Any, Any], truth: tuple[np.ndarray, np.ndarray]) -> float:
    """The larger error of the outputs and dx, on the rows computed in float64."""
    errors = [
        np.linalg.norm(np.asarray(one[:CHECKED_ROWS], np.float64) - right) / np.linalg.norm(right)
        for one, right in zip(found, truth, strict=True)
        if one is not None
    ]
    return float(np.max(errors))  # unlike Python's max, it keeps a NaN


# Training in both types and inference in both, as above.
_SAY_PRIMITIVES = """
import torch
for dtype in (torch.float32, torch.bfloat16):
    lstm, x = torch.nn.LSTM(64, 128).to(dtype), torch.randn(8, 4, 64).to(dtype)
    lstm(x)[0].sum().backward()
    with torch.inference_mode():
        lstm(x)
"""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contestant", choices=("cellerate", "onednn"), required=True)
    contestant(parser.parse_args().contestant)
