"""The native core alone, forward and backward, as a share of what this machine's multiply-add units allow."""

import itertools
from typing import Any

import numpy as np

from cellerate.kernels import native
from cellerate.kernels.lstm import cpu
from cellerate.machine.environment import keep_freed_memory
from cellerate.measure import Timing, time_alternating

STEPS, VOCABULARY, EMBEDDING = 100, 96, 256


def run(*, quick: bool) -> dict[str, Any]:
    """All sizes in both types; checked against float64 by the tests."""
    import ml_dtypes

    # The arrays of the results are the caller's; where they come from the operating system each time, clearing their
    # pages is a third of the time.
    keep_freed_memory()
    peaks = {"float32": native.measure_peak(), "bfloat16": native.measure_peak(bfloat16=True)}
    found: dict[str, Any] = {
        "target": native.target(),
        "threads": native.num_threads(),
        "peak_operations_per_s": peaks,
        "steps": STEPS,
        "sizes": [],
    }
    sizes = [(128, 128)] if quick else list(itertools.product((128, 256, 512, 1024), (128, 32)))
    for (units, batch), kind in itertools.product(sizes, ("dense", "lookup")):
        types = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
        work = {name: _Work(units, batch, kind, dtype) for name, dtype in types.items()}
        halves = {
            f"{name} {half}": getattr(one, half)
            for name, one in work.items()
            for half in ("forward", "backward")
        }
        timings = time_alternating(halves, repeats=3 if quick else 9, warmup=2)
        for name, one in work.items():
            record = one.record(name, timings[f"{name} forward"], timings[f"{name} backward"], peaks[name])
            found["sizes"].append(record)
            print(
                f"H={units:<5} B={batch:<4} {kind:<7} {name:<9} forward {record['forward']['median_s'] * 1e3:7.2f} ms, "
                f"backward {record['backward']['median_s'] * 1e3:7.2f} ms, {record['share_of_peak']:.0%} of peak",
                flush=True,
            )
    return found


class _Work:
    """One layer of one size and type; D = H, or ids of a vocabulary."""

    def __init__(self, units: int, batch: int, kind: str, dtype: np.dtype) -> None:
        self.units, self.batch, self.kind = units, batch, kind
        inputs = EMBEDDING if kind == "lookup" else units
        random = np.random.default_rng(0)

        def draw(*shape: int) -> np.ndarray:
            return (random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

        x: dict[str, Any] = {"x": random.standard_normal((batch, STEPS, inputs), np.float32).astype(dtype)}
        if kind == "lookup":
            ids = random.integers(0, VOCABULARY, (batch, STEPS), np.int32)
            x = {"ids": ids, "embeddings": random.standard_normal((VOCABULARY, inputs), np.float32)}
        zeros = np.zeros((batch, units), dtype)
        self.arguments = cpu.Arguments(
            kernel=draw(inputs, 4 * units),
            recurrent_kernel=draw(units, 4 * units),
            bias=np.zeros(4 * units, np.float32),
            h0=zeros,
            c0=zeros,
            **x,
        )
        self.dtype = dtype
        self.d_outputs = random.standard_normal((batch, STEPS, units), np.float32).astype(dtype)
        self.forward()

    def forward(self) -> None:
        """With what backward needs."""
        self.done = cpu.forward(self.arguments, dtype=self.dtype)

    def backward(self) -> None:
        """All gradients."""
        cpu.backward(self.arguments, self.done, d_outputs=self.d_outputs)

    def record(self, dtype: str, forward: Timing, backward: Timing, peak: float) -> dict[str, Any]:
        """Only the products that cannot be avoided count as work: with lookups none of the inputs."""
        wide = self.units + (0 if self.kind == "lookup" else self.units)
        operations = 3 * 2.0 * self.batch * STEPS * wide * 4 * self.units
        rate = operations / (forward.median_s + backward.median_s)
        return {
            "units": self.units,
            "batch": self.batch,
            "inputs": self.kind,
            "dtype": dtype,
            "forward": forward.summary(),
            "backward": backward.summary(),
            "operations_per_s": rate,
            "share_of_peak": rate / peak,
        }
