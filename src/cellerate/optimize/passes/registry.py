"""The passes of `optimize`, one row each, in their order. A new pass is a file beside this one, and a row here.

A row names its class in words: the command line offers the passes before Keras is imported.
"""

_HERE = "cellerate.optimize.passes"

PASSES: dict[str, str] = {
    "kernels": f"{_HERE}.kernels:Kernels",
    "batch": f"{_HERE}.sweeps:BatchSize",
    "length": f"{_HERE}.sweeps:SequenceLength",
    "pipeline": f"{_HERE}.sweeps:Pipeline",
    "precision": f"{_HERE}.precision:Precision",
    "quantize": f"{_HERE}.shrinking:Quantize",
    "prune": f"{_HERE}.shrinking:Prune",
    "distill": f"{_HERE}.shrinking:Distill",
}
"""The name of a pass, as it is chosen, and its class. A baseline stands before them all and a verdict after."""
