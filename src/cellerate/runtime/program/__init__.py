"""The program of a packed model on NumPy and the native core: whole calls, single steps and streams.

`Engine` computes whole batches; `Stepping` and `Streams` carry states from push to push.
"""

from cellerate.runtime.program.engine import Anatomy, Engine
from cellerate.runtime.program.inputs import by_name
from cellerate.runtime.program.operations import result_type
from cellerate.runtime.program.prepared import Inputs, Out, input_sizes
from cellerate.runtime.program.prepared_call import PreparedCall
from cellerate.runtime.program.stepping import Stepping, stepping_of
from cellerate.runtime.program.streams import Streams

__all__ = [
    "Anatomy",
    "Engine",
    "Inputs",
    "Out",
    "PreparedCall",
    "Stepping",
    "Streams",
    "by_name",
    "input_sizes",
    "result_type",
    "stepping_of",
]
