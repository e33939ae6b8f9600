"""Describes in one line what computes a training: the backend, and the kernels of the recurrent layers."""

from __future__ import annotations

import keras

from cellerate.format import counted
from cellerate.kernels import native
from cellerate.layers.engine.seam import WHOLE_STEPS
from cellerate.layers.explain import explain

_OWN = {"keras": "Keras's own kernels", "cudnn": "cuDNN"}


def kernels_used(model: keras.Model, precision: str = "float32") -> str:
    """Names what computes, such as "torch, cellerate-cpu kernels (avx512) on 2 threads"; `explain` says why.

    Args:
        model: A model, accelerated or not.
        precision: The dtype policy of the training, which the line names if it is not float32.
    """
    found = explain(model)
    layers = [report for report in found.layers if not report.wrapper]
    named: dict[str, int] = {}
    for report in layers:
        kernels = _OWN.get(report.implementation, f"{report.implementation} kernels")
        if report.target is not None:
            threads = native.num_threads()
            kernels += f" ({report.target}) on {counted(threads, 'thread')}"
        named[kernels] = named.get(kernels, 0) + 1
    if len(named) == 1:
        kernels = next(iter(named))
    else:
        kernels = "; ".join(
            f"{count} of {len(layers)} recurrent layers: {name}" for name, count in named.items()
        )
    parts = [
        found.backend + (" on a GPU" if found.gpu else ""),
        kernels or "no recurrent layers",
        *([precision] if precision != "float32" else []),
        *([found.training_step] if found.training_step == WHOLE_STEPS else []),
    ]
    return ", ".join(parts)
