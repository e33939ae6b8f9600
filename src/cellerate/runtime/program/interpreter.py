"""Runs a program one operation at a time; decides the order, the rows per piece, and how long each result lives.

It is the reference, and it serves machines without the native core and programs that the core does not take. The
arithmetic is in `operations`.

A batch that would need much working memory is cut into pieces of whole rows. No operation mixes rows, so the native
core gives the same results for any pieces, to the last bit. NumPy's matrix products round differently for different
numbers of rows, so without the core the results agree to float32's precision.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from cellerate.errors import DataError
from cellerate.program import LAST_STATES, RECURRENT, Node, Shape
from cellerate.runtime.program import operations, recurrent

# The most bytes of the arrays of a piece, about. For models of common sizes a piece then has hundreds of rows, and the
# native core gains nothing from more; it is small beside the memory of any serving machine.
_WORKING_BYTES = 1 << 28


@dataclasses.dataclass(frozen=True)
class ExecutionPlan:
    """The plan for a choice of outputs; nodes by number.

    Attributes:
        wanted: The nodes whose results are the requested outputs.
        needed: These nodes and all that they depend on, in order.
        read: The nodes whose results another node or the caller reads; for a recurrent layer, its outputs.
        released: For each node, the nodes whose results no later node reads.
        looked_up: Embeddings that stay ids: only LSTMs read them, and LSTMs look the rows up themselves.
        states: For each recurrent layer, the needed nodes that take its last states.
    """

    wanted: frozenset[int]
    needed: tuple[int, ...]
    read: frozenset[int]
    released: Mapping[int, tuple[int, ...]]
    looked_up: frozenset[int]
    states: Mapping[int, tuple[int, ...]]


def plan_of(nodes: Sequence[Node], wanted: frozenset[int]) -> ExecutionPlan:
    """The plan for the results of some nodes."""
    needed = set(wanted)
    for number in reversed(range(len(nodes))):
        if number in needed:
            needed.update(nodes[number].inputs.values())
    readers: dict[int, list[int]] = {number: [] for number in needed}
    for number in sorted(needed):
        for source in nodes[number].inputs.values():
            readers[source].append(number)
    states = {
        number: tuple(n for n in readers[number] if nodes[n].op in LAST_STATES)
        for number in needed
        if nodes[number].op in RECURRENT
    }
    for number in states:
        readers[number] = [n for n in readers[number] if nodes[n].op not in LAST_STATES]
    released: dict[int, tuple[int, ...]] = {}
    for number in needed - wanted:
        if readers[number]:
            last = readers[number][-1]
            released[last] = (*released.get(last, ()), number)
    looked_up = frozenset(
        number
        for number in needed - wanted
        if nodes[number].op == "embedding" and all(nodes[n].op == "lstm" for n in readers[number])
    )
    read = frozenset(number for number in needed if number in wanted or readers[number])
    return ExecutionPlan(wanted, tuple(sorted(needed)), read, released, looked_up, states)


def row_bytes(plan: ExecutionPlan, found: Mapping[int, Shape]) -> int:
    """About how many bytes a row of the batch needs while it runs."""
    live, most = 0, 1
    for number in plan.needed:
        if number in plan.read:
            live += math.prod(found[number])
        most = max(most, live)
        live -= sum(math.prod(found[done]) for done in plan.released.get(number, ()))
    # Four bytes for each number, and as many again for what an operation holds while it computes.
    return 8 * most


def run(
    nodes: Sequence[Node], plan: ExecutionPlan, given: dict[int, np.ndarray], batch: int, row_bytes: int
) -> dict[int, np.ndarray]:
    """Runs a batch, in pieces of whole rows if need be; the results by node."""
    most = max(1, _WORKING_BYTES // row_bytes)
    # Pieces of about equal size: the core is slow on a last piece with only a few rows.
    rows = math.ceil(batch / math.ceil(batch / most))
    if rows == batch:
        return run_rows(nodes, plan, given)
    results: dict[int, np.ndarray] = {}
    for begin in range(0, batch, rows):
        piece = {number: array[begin : begin + rows] for number, array in given.items()}
        for number, part in run_rows(nodes, plan, piece).items():
            if begin == 0:
                results[number] = np.empty((batch, *part.shape[1:]), part.dtype)
            results[number][begin : begin + rows] = part
    return results


def run_rows(
    nodes: Sequence[Node], plan: ExecutionPlan, given: Mapping[int, np.ndarray]
) -> dict[int, np.ndarray]:
    """Runs rows in one piece; the wanted results by node."""
    results: dict[int, np.ndarray] = {}
    for number in plan.needed:
        if nodes[number].op == "input":
            results[number] = given[number].astype(str(nodes[number].options["dtype"]), copy=False)
        else:
            _run_node(nodes, plan, number, results)
        for done in plan.released.get(number, ()):
            del results[done]
    return {number: results[number] for number in plan.wanted}


def _run_node(
    nodes: Sequence[Node], plan: ExecutionPlan, number: int, results: dict[int, np.ndarray]
) -> None:
    """Runs one node on the results of others, and adds its own result."""
    node = nodes[number]
    if node.op in LAST_STATES:
        return  # added with its layer
    if number in plan.looked_up:
        results[number] = results[node.inputs["ids"]]
        return
    given = {name: results[source] for name, source in node.inputs.items()}
    try:
        if node.op not in RECURRENT:
            results[number] = operations.run(node, given)
            return
        source = node.inputs["x"]
        table = nodes[source].arrays["embeddings"] if source in plan.looked_up else None
        sequences = bool(node.options["return_sequences"]) and number in plan.read
        outputs, states = recurrent.run(node, given, table, sequences=sequences)
    except (ValueError, IndexError) as error:
        raise misfit(node, {name: array.shape for name, array in given.items()}, error) from error
    if number in plan.read:
        results[number] = outputs
    for each in plan.states[number]:
        results[each] = states[str(nodes[each].options.get("state", "h"))]


def misfit(node: Node, came: Mapping[str, Shape], error: Exception) -> DataError:
    """The error for a node that cannot take the shapes it was given, the batch included."""
    listed = ", ".join(f"{name} {shape}" for name, shape in itertools.islice(came.items(), 8))
    return DataError(
        f"{node.name}: {node.op} cannot take {listed}: {str(error).rstrip('.')}. Give inputs of the sizes that "
        "this model was made for."
    )
