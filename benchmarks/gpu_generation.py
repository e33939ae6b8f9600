"""Characters a second that a GPU generates, from Python: `generation(seconds)`, for `gpu_suite.py`.

A module of its own because it needs no framework: the model is made by hand, an embedding 64, one LSTM, and a dense
layer to 96 characters.
"""

import statistics
import time
from typing import Any

import numpy as np

from cellerate.kernels import cpu
from cellerate.kernels.cuda.stepping import CudaStepModel
from cellerate.kernels.drawing import Request, SamplingRules
from cellerate.kernels.stepping import StepModel

UNITS = (512, 256)
BATCHES = (1, 8, 56, 112, 224, 1024, 8192)
V, EMBEDDING = 96, 64
# Of all rows together, and of one.
CHARACTERS, MOST_STEPS, LEAST_STEPS = 1 << 24, 16384, 512
CHECKED_STEPS = 200


def chain(units: int) -> list[dict[str, Any]]:
    """A model with random weights whose next character is neither certain nor any."""
    rng = np.random.default_rng(0)

    def draw(inputs: int, outputs: int, scale: float = 1.0) -> np.ndarray:
        return (rng.normal(size=(inputs, outputs)) * scale * inputs**-0.5).astype(np.float32)

    return [
        {"op": "embedding", "embeddings": draw(V, EMBEDDING, 10.0)},
        {
            "op": "lstm",
            "kernel": draw(EMBEDDING, 4 * units),
            "recurrent_kernel": draw(units, 4 * units),
            "bias": None,
            "activation": "tanh",
            "recurrent_activation": "sigmoid",
        },
        {"op": "dense", "kernel": draw(units, V, 6.0), "bias": None, "activation": "linear"},
    ]


def check(units: int) -> dict[str, Any]:
    """In how many rows the likeliest characters are those of the CPU, in float32."""
    requests = [Request(CHECKED_STEPS, SamplingRules(temperature=0))] * 3
    found: dict[str, list[np.ndarray]] = {}
    for name, model in (("cpu", StepModel(chain(units))), ("gpu", CudaStepModel(chain(units)))):
        state, logits = model.read(model.initial_state(3), np.array([[1], [2], [3]]))
        found[name] = [one.ids for one in model.generate_rows(state, logits, requests)[0]]
    same = [bool((one == other).all()) for one, other in zip(found["gpu"], found["cpu"], strict=True)]
    return {"units": units, "rows": 3, "steps": CHECKED_STEPS, "equal_rows": sum(same)}


def measure(model: CudaStepModel, units: int, batch: int, seconds: float) -> dict[str, Any]:
    """Characters a second of so many rows, drawn at temperature 1, from the call to its results."""
    steps = min(MOST_STEPS, max(LEAST_STEPS, CHARACTERS // batch))
    state, logits = model.read(model.initial_state(batch), np.full((batch, 1), 7))
    requests = [Request(steps, SamplingRules(seed=1, stream=row)) for row in range(batch)]
    rates: list[float] = []
    began = time.perf_counter()
    for run in range(8):
        start = time.perf_counter()
        model.generate_rows(state, logits, requests)
        taken = time.perf_counter() - start
        # The first compiles the kernel and takes the memory.
        if run > 0:
            rates.append(batch * steps / taken)
        if run > 1 and time.perf_counter() - began > seconds:
            break
    return {
        "units": units,
        "batch": batch,
        "steps": steps,
        "characters_per_s": statistics.median(rates),
        "characters_per_s_of_a_stream": statistics.median(rates) / batch,
        "least": min(rates),
        "most": max(rates),
        # From before it is started until its results can be read.
        "kernel_us_per_step": 1e6 * model.seconds_a_step,
    }


def generation(seconds: float) -> dict[str, Any]:
    """Checks, then times, within about so many seconds."""
    # Where the package was not built there is nothing to compare with; tests/kernels hold the kernel against it.
    checks, runs = [check(units) for units in UNITS] if cpu.missing() is None else [], []
    each = seconds / (len(UNITS) * len(BATCHES))
    for units in UNITS:
        model = CudaStepModel(chain(units), precision="bfloat16")
        runs += [measure(model, units, batch, each) for batch in BATCHES]
    return {"precision": "bfloat16", "vocabulary": V, "temperature": 1.0, "checks": checks, "runs": runs}
