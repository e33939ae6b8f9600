"""The passes of `optimize` in order, one row each. A new pass is a file beside this one, and a row here.

A row gives its class as a string, because the command line offers the passes before Keras is imported.
"""

_HERE = "cellerate.optimization.passes"

PASSES: dict[str, str] = {
    "kernels": f"{_HERE}.kernels:Kernels",
    "batch": f"{_HERE}.sweeps:BatchSize",
    "length": f"{_HERE}.sweeps:SequenceLength",
    "pipeline": f"{_HERE}.pipeline:Pipeline",
    "precision": f"{_HERE}.precision:Precision",
    "quantize": f"{_HERE}.shrinking:Quantize",
    "prune": f"{_HERE}.shrinking:Prune",
    "distill": f"{_HERE}.shrinking:Distill",
}
"""The name to choose a pass by, and its class. The baseline runs before all of these, and the verdict after."""
