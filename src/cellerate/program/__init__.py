"""The language of a packed model: a small graph of operations from a fixed list, with its weights.

It is the common language of the code that builds a program from a Keras model, the code that writes and reads
the `.cell` file, and the code that runs it. It imports none of them.

A program is a tuple of nodes; each node comes after the nodes it reads. Nodes take and return float32 arrays of
shape (B, ...), ids (B, T) int32 and masks (B, T) bool. B and T can be any size unless a node says otherwise.
Axes are counted as in NumPy, the batch included.

An operation has one row in `OPERATIONS`, in the module of its family: its inputs, weights, options and rules, and its
computation. Only its kernels and its rows in the exports are elsewhere.
"""

from cellerate.program.elementwise import RELATIONS
from cellerate.program.node import MASKED_OUTPUTS, NORMALIZERS, PRECISIONS, Node, Option, named_activation
from cellerate.program.operation import AS_READ, MOST_AXES, Arithmetic, Given, Shape
from cellerate.program.program import Program
from cellerate.program.table import LAST_STATES, MASKS, OPERATIONS, RECURRENT
from cellerate.program.windows import window_steps

__all__ = [
    "AS_READ",
    "LAST_STATES",
    "MASKED_OUTPUTS",
    "MASKS",
    "MOST_AXES",
    "NORMALIZERS",
    "OPERATIONS",
    "PRECISIONS",
    "RECURRENT",
    "RELATIONS",
    "Arithmetic",
    "Given",
    "Node",
    "Option",
    "Program",
    "Shape",
    "named_activation",
    "window_steps",
]
