"""Characters a second that a GPU generates, from Python: `generation`, a part of the GPU suite.

It needs no framework: the models are built by hand from an embedding of 64, one LSTM, and a dense layer to 96
characters.
"""

import functools
import statistics
import time
from functools import partial
from typing import Any

import numpy as np

from benchmarks.gpu.journal import Item, LeftOutError
from benchmarks.gpu.sizes import EMBEDDING, GENERATED_BATCHES, GENERATED_UNITS, V
from cellerate.kernels import native
from cellerate.kernels.decoder.cpu import StepModel
from cellerate.kernels.decoder.cuda.model import CudaStepModel
from cellerate.kernels.decoder.sampling import Request, SamplingRules

PRECISION, SECONDS = "bfloat16", 2.0
# The most characters of all rows together, and of one row.
CHARACTERS, MOST_STEPS, LEAST_STEPS = 1 << 24, 16384, 512
CHECKED_STEPS = 200


def generation() -> list[Item]:
    """Speeds of each model and batch; and whether the characters are right."""
    found = [Item(f"check H{units}", partial(check, units)) for units in GENERATED_UNITS]
    return found + [
        Item(f"H{units} B{batch}", partial(measure, units, batch))
        for units in GENERATED_UNITS
        for batch in GENERATED_BATCHES
    ]


def chain(units: int) -> list[dict[str, Any]]:
    """A model with random weights whose next character is neither certain nor uniform."""
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


@functools.lru_cache(maxsize=1)
def model_of(units: int) -> CudaStepModel:
    """The model on the GPU; items of one model come one after the other."""
    return CudaStepModel(chain(units), precision=PRECISION)


def check(units: int) -> dict[str, Any]:
    """The number of rows whose greedy characters equal those of the CPU, in float32."""
    if reason := native.why_unavailable():
        raise LeftOutError(f"there is nothing to compare with: {reason}")
    requests = [Request(CHECKED_STEPS, SamplingRules(temperature=0))] * 3
    found: dict[str, list[np.ndarray]] = {}
    for name, model in (("cpu", StepModel(chain(units))), ("gpu", CudaStepModel(chain(units)))):
        state, logits = model.read(model.initial_state(3), np.array([[1], [2], [3]]))
        found[name] = [one.ids for one in model.generate_rows(state, logits, requests)[0]]
    same = [bool((one == other).all()) for one, other in zip(found["gpu"], found["cpu"], strict=True)]
    return {"units": units, "rows": 3, "steps": CHECKED_STEPS, "equal_rows": sum(same), "right": all(same)}


def measure(units: int, batch: int) -> dict[str, Any]:
    """Characters a second of `batch` rows, drawn at temperature 1, from the call to its results."""
    model = model_of(units)
    steps = min(MOST_STEPS, max(LEAST_STEPS, CHARACTERS // batch))
    state, logits = model.read(model.initial_state(batch), np.full((batch, 1), 7))
    requests = [Request(steps, SamplingRules(seed=1, stream=row)) for row in range(batch)]
    rates: list[float] = []
    began = time.perf_counter()
    for run in range(8):
        start = time.perf_counter()
        model.generate_rows(state, logits, requests)
        taken = time.perf_counter() - start
        # The first call compiles the kernel and allocates the memory.
        if run > 0:
            rates.append(batch * steps / taken)
        if run > 1 and time.perf_counter() - began > SECONDS:
            break
    return {
        "precision": PRECISION,
        "vocabulary": V,
        "temperature": 1.0,
        "units": units,
        "batch": batch,
        "steps": steps,
        "characters_per_s": statistics.median(rates),
        "characters_per_s_of_a_stream": statistics.median(rates) / batch,
        "least": min(rates),
        "most": max(rates),
        # Time from before the start until the results are readable.
        "kernel_us_per_step": 1e6 * model.seconds_per_step,
    }
