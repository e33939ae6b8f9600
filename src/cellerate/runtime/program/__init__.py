"""The program of a packed model on NumPy and the native core: whole batches, and steps as they come.

`Engine` computes whole batches; `Stepping` is the program of a push, which takes and returns the states.
"""

from cellerate.runtime.program.engine import Anatomy, Engine
from cellerate.runtime.program.inputs import by_name, smallest_tables
from cellerate.runtime.program.operations import result_type
from cellerate.runtime.program.prepared import Inputs, Out, checked_out, fits, input_sizes
from cellerate.runtime.program.stepping import Stepping, stepping_of

__all__ = [
    "Anatomy",
    "Engine",
    "Inputs",
    "Out",
    "Stepping",
    "by_name",
    "checked_out",
    "fits",
    "input_sizes",
    "result_type",
    "smallest_tables",
    "stepping_of",
]
