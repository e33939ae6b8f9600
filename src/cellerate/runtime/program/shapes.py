"""The size of each operation's result and its cost, known before anything is computed.

A packed model may come from anyone, and a few hundred bytes can ask for more numbers than any machine holds: forty
nodes are enough if each joins the one before with itself. So the `engine` first asks here, where sizes are Python
integers, which do not overflow, and only then lets `operations` take memory. The row of an operation says which shapes
it takes.

A shape here is the shape of one row, without the batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from cellerate.program import MOST_AXES, OPERATIONS, Node, Shape

MOST_ELEMENTS = 1 << 30
"""Elements in all arrays that one row of the batch needs at once, and in its results. With what operations hold
meanwhile that is 8 GiB: the logits of 16,000 tokens with a vocabulary of 65,000, far more than LSTMs are used with."""

MOST_GROWTH = 1 << 24
"""Elements of one array of a row, for each number of the row's inputs. An id may become 65,000 logits, a vector of
16 numbers 100,000 steps of 2,000 units; no real model asks for more."""

MOST_WORK_PER_NUMBER, MOST_WORK = 1 << 36, 1 << 46
"""Multiply-adds for each number of a row's inputs, and for a whole row. Four LSTMs of 4,096 units need 2**29 a step.
The first limit takes one core about a second; the second is a row of 100,000 steps of that model."""

# Other costs, as the number of multiply-adds that take the same time: an element read or written, with what NumPy
# computes from it; a step of an LSTM; a node.
_ELEMENT, _STEP, _NODE = 1 << 7, 1 << 12, 1 << 17


def row_shape(node: Node, read: Mapping[str, Shape]) -> Shape:
    """The shape of a row of a node's result.

    Args:
        node: As `operations.prepared` gives it; not an "input".
        read: The shape of a row of each of its inputs; no size is 0.

    Returns:
        The shape; no size is 0.

    Raises:
        ValueError: The operation does not take these shapes.
    """
    shape = OPERATIONS[node.op].shape(node, read)
    if len(shape) >= MOST_AXES:
        raise ValueError(f"the result has {len(shape) + 1} axes, but at most {MOST_AXES} are allowed")
    return shape


def work(node: Node, read: Mapping[str, Shape], result: Shape) -> int:
    """Return the cost of a node for a row, about, as the number of native multiply-adds that take the same time."""
    elements = sum(math.prod(shape) for shape in read.values()) + math.prod(result)
    row = OPERATIONS[node.op]
    steps = read["x"][0] * (node.arrays["kernel"].shape[1] * _ELEMENT + _STEP) if row.states else 0
    return row.products(node, read, result) + steps + _ELEMENT * elements + _NODE
