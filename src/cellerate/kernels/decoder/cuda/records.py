"""The arguments of the generating kernel, as its source defines them, and the requests of rows, byte for byte.

generate_plan.cuh and sampling.cuh define the same requests; change both sides together.
"""

from __future__ import annotations

import numpy as np

from cellerate.kernels.cuda import sources
from cellerate.kernels.cuda.launch import KernelArguments
from cellerate.kernels.decoder.cuda.plan import ROW_BYTES
from cellerate.kernels.decoder.sampling import SamplingRules

SAMPLING = np.dtype(
    [
        ("top_p", np.float64),
        *((name, np.uint64) for name in ("seed", "stream")),
        *((name, np.float32) for name in ("inverse_temperature", "min_p", "penalty")),
        *((name, np.int32) for name in ("top_k", "greedy")),
    ],
    align=True,
)
"""`Sampling` of sampling.cuh."""

ROW = np.dtype(
    [
        ("sampling", SAMPLING),
        ("position", np.uint64),
        *((name, np.int32) for name in ("length", "count", "window", "came", "first_stop", "stops")),
    ],
    align=True,
)
"""`Row` of generate_plan.cuh."""

assert ROW.itemsize == ROW_BYTES  # noqa: S101 (the kernel's source asserts the same)

_FLOAT = np.finfo(np.float32)


class GenerateArguments(KernelArguments):
    """`GenerateArguments` of generate_plan.cuh; the shapes are documented there."""

    _fields_ = sources.fields("generate_plan.cuh", "GenerateArguments")


def sampling_record(rules: SamplingRules, outputs: int) -> tuple[float, ...]:
    """The rules as the kernel reads them, in the order of `SAMPLING`, for `outputs` logits."""
    largest, least = float(_FLOAT.max), float(_FLOAT.tiny)
    greedy = rules.temperature == 0
    inverse = 1.0 if greedy else 1 / max(rules.temperature, 1 / largest)
    penalty = min(largest, max(least, rules.repetition_penalty))
    top_k = min(rules.top_k or outputs, outputs)
    return rules.top_p, rules.seed, rules.stream, inverse, rules.min_p, penalty, top_k, int(greedy)
