"""The stages of `optimize`, one row each. A new stage is a file beside this one, and a row here.

The rows give the order of listing; the worth of each stage gives the order of running (`optimization.budget`).

A row gives its class as a string, because the command line offers the stages before Keras is imported.
"""

from __future__ import annotations

_HERE = "cellerate.optimization.stages"

STAGES: dict[str, str] = {
    "pack": f"{_HERE}.pack:Pack",
    "quantize": f"{_HERE}.shrinking:Quantize",
    "kernels": f"{_HERE}.kernels:Kernels",
    "batch": f"{_HERE}.sweeps:BatchSize",
    "length": f"{_HERE}.sweeps:SequenceLength",
    "pipeline": f"{_HERE}.pipeline:Pipeline",
    "precision": f"{_HERE}.precision:Precision",
    "prune": f"{_HERE}.shrinking:Prune",
    "distill": f"{_HERE}.shrinking:Distill",
}
"""The name to choose a stage by, and its class. The baseline runs before all of these, and the verdict after."""
