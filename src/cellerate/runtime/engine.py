"""Runs a packed model: which of its operations, in what order, on how many rows at once.

It knows the graph and the caller's arrays; the arithmetic is in `operations`. It needs neither Keras nor a
framework, only NumPy, and uses the native core if that is installed.

A batch that would need much working memory is cut into pieces of whole rows. No operation mixes rows, so on
the native core the results equal those of a single piece to the last bit. Without the core NumPy computes the
matrix products, whose rounding depends on the number of rows: then the results agree to float32's precision.

The sizes of all results are worked out before anything is computed. A program that asks for more memory or time
than a real model needs is refused (`shapes`).
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cellerate.errors import ConfigError, DataError
from cellerate.kernels import native
from cellerate.program import Node, Program
from cellerate.runtime import operations, shapes

# About how many bytes the arrays of a piece may take. For models of common sizes this keeps hundreds of rows
# together, and the native core gains nothing from more; it is small beside the memory of any serving machine.
_WORKING_BYTES = 1 << 28


@dataclasses.dataclass(frozen=True)
class _Plan:
    """What to do for a choice of outputs; nodes by number.

    Attributes:
        wanted: The nodes whose results are the outputs asked for.
        needed: These and all they depend on, in order.
        read: The nodes whose results another node reads or the caller wants; for an LSTM, its outputs.
        released: For each node, the nodes whose results nothing reads after it.
        looked_up: Embeddings that stay ids: only LSTMs read them, and LSTMs look the rows up themselves.
        states: For each LSTM, the needed nodes that take its last states.
    """

    wanted: frozenset[int]
    needed: tuple[int, ...]
    read: frozenset[int]
    released: Mapping[int, tuple[int, ...]]
    looked_up: frozenset[int]
    states: Mapping[int, tuple[int, ...]]


class Engine:
    """Runs a packed model on NumPy arrays, without Keras or a framework.

    Several threads may use one engine at once; the native core then serves them one after the other.

    Args:
        program: What to run. Its weights are used without a copy, except for the table of a tied head, of which
            the engine keeps a transposed copy.

    Raises:
        ModelError: The program cannot be run: a node reads ids or a mask where it needs numbers, or an operation
            works along the batch.

    Example:
        >>> from cellerate.program import Node, Program
        >>> x = Node("input", "x", options={"shape": (-1, 3), "dtype": "float32"})
        >>> halves = Node("affine", "halves", {"x": 0}, {
        ...     "scale": np.full(3, 0.5, np.float32), "offset": np.ones(3, np.float32)})
        >>> Engine(Program((x, halves), {"y": 1})).run(np.array([[2.0, 4.0, 6.0]]))
        {'y': array([[2., 3., 4.]], dtype=float32)}
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        transposed: dict[int, np.ndarray] = {}
        self._nodes = tuple(operations.prepared(node, transposed) for node in program.nodes)
        self._types: list[str] = []
        for node in self._nodes:
            read = {name: self._types[n] for name, n in node.inputs.items()}
            self._types.append(operations.result_type(node, read))

    def run(
        self, inputs: Mapping[str, np.ndarray] | np.ndarray, outputs: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """Computes the model's outputs.

        Args:
            inputs: The array of each input by its name, or one array if the model has one input; (B, ...) as the
                model says. Numbers may have any float or integer type and are computed in float32. Ids may have
                any integer type; negative ones count from the end of the table. Booleans are 0 and 1. Inputs
                that the outputs do not depend on may be left out. NaN and infinities run through the model.
            outputs: Which outputs to compute; None for all.

        Returns:
            Each output by its name, (B, ...), in the order asked for; new arrays. An empty batch gives empty
            results.

        Raises:
            ConfigError: A name is not one of the model's, or an input is missing.
            DataError: An array has the wrong shape or type, or holds an id that the model does not know; or the
                results would be larger than `shapes` allows or memory holds.
        """
        names = self._output_names(outputs)
        plan = self._plan(frozenset(self.program.outputs[name] for name in names))
        given = self._checked(self._by_name(inputs), plan)
        found = self._shapes(plan, given)
        numbers = [self.program.outputs[name] for name in names]
        row_bytes = self._row_bytes(plan, found)
        _check_elements(row_bytes // 8 + sum(math.prod(found[number]) for number in numbers))
        batch = len(next(iter(given.values())))
        if batch == 0:
            return {
                name: np.empty((0, *found[n]), self._types[n]) for name, n in zip(names, numbers, strict=True)
            }
        if native.why_unavailable() is None:
            native.num_threads()  # raises for a wrong setting of the core, before it could pass for wrong data
        try:
            with np.errstate(all="ignore"):
                results = self._run_batch(plan, given, batch, row_bytes)
            return _own(names, [results[number] for number in numbers], given.values())
        except MemoryError as error:
            raise DataError(
                f"the results of {batch} rows do not fit into memory; give fewer rows or steps at once."
            ) from error

    def _output_names(self, outputs: Sequence[str] | None) -> list[str]:
        known = list(self.program.outputs)
        if outputs is None:
            return known
        if isinstance(outputs, str) or not outputs:
            raise ConfigError(
                f"outputs must be a list of names among {', '.join(known)}, or None for all; got {outputs!r}."
            )
        for name in outputs:
            if name not in known:
                raise ConfigError(f"outputs holds {name!r}; this model's outputs are {', '.join(known)}.")
        return list(outputs)

    def _by_name(self, inputs: Mapping[str, np.ndarray] | np.ndarray) -> Mapping[str, np.ndarray]:
        known = list(self.program.inputs)
        if not isinstance(inputs, Mapping):
            if len(known) > 1:
                raise ConfigError(
                    f"inputs must be a dict of arrays by name, since this model has the inputs {', '.join(known)}; "
                    f"got one {type(inputs).__name__}."
                )
            return {known[0]: inputs}
        for name in inputs:
            if name not in known:
                raise ConfigError(f"inputs holds {name!r}; this model's inputs are {', '.join(known)}.")
        return inputs

    def _checked(self, inputs: Mapping[str, np.ndarray], plan: _Plan) -> dict[int, np.ndarray]:
        """The needed inputs by node, in the types they came in."""
        given: dict[int, np.ndarray] = {}
        first: tuple[str, int] | None = None
        tables: dict[int, Node] = {}
        for node in (self._nodes[number] for number in plan.needed):
            if node.op == "embedding":
                ids = node.inputs["ids"]
                tables[ids] = min(node, tables.get(ids, node), key=lambda one: len(one.arrays["embeddings"]))
        for name, number in self.program.inputs.items():
            if name not in inputs:
                if number in plan.needed:
                    raise ConfigError(f"inputs lacks {name!r}; give an array for it.")
                continue
            array = _checked_array(self._nodes[number], inputs[name])
            if self._nodes[number].options["dtype"] == "int32":
                _check_ids(name, array, tables.get(number))
            first = first or (name, len(array))
            if len(array) != first[1]:
                raise DataError(
                    f"inputs {first[0]!r} and {name!r} must have the same number of rows, got {first[1]} and "
                    f"{len(array)}; give one row of each for every example."
                )
            if number in plan.needed:
                given[number] = array
        return given

    def _plan(self, wanted: frozenset[int]) -> _Plan:
        nodes = self._nodes
        needed = set(wanted)
        for number in reversed(range(len(nodes))):
            if number in needed:
                needed.update(nodes[number].inputs.values())
        readers: dict[int, list[int]] = {number: [] for number in needed}
        for number in sorted(needed):
            for source in nodes[number].inputs.values():
                readers[source].append(number)
        states = {
            number: tuple(n for n in readers[number] if nodes[n].op == "lstm_state")
            for number in needed
            if nodes[number].op == "lstm"
        }
        for number in states:
            readers[number] = [n for n in readers[number] if nodes[n].op != "lstm_state"]
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
        return _Plan(wanted, tuple(sorted(needed)), read, released, looked_up, states)

    def _run_batch(
        self, plan: _Plan, given: dict[int, np.ndarray], batch: int, row_bytes: int
    ) -> dict[int, np.ndarray]:
        """Runs a batch, in pieces of whole rows if need be; the results by node."""
        most = max(1, _WORKING_BYTES // row_bytes)
        # Pieces of about equal size: the core is slow on a last piece with only a few rows.
        rows = math.ceil(batch / math.ceil(batch / most))
        if rows == batch:
            return self._run_rows(plan, given)
        results: dict[int, np.ndarray] = {}
        for begin in range(0, batch, rows):
            piece = {number: array[begin : begin + rows] for number, array in given.items()}
            for number, part in self._run_rows(plan, piece).items():
                if begin == 0:
                    results[number] = np.empty((batch, *part.shape[1:]), part.dtype)
                results[number][begin : begin + rows] = part
        return results

    def _shapes(self, plan: _Plan, given: Mapping[int, np.ndarray]) -> dict[int, shapes.Shape]:
        """The shape of a row in each needed node; refuses what no real model does before computing anything."""
        found: dict[int, shapes.Shape] = {}
        numbers = sum(math.prod(array.shape[1:]) for array in given.values())
        work = 0
        for number in plan.needed:
            node = self._nodes[number]
            if node.op == "input":
                found[number] = given[number].shape[1:]
                continue
            read = {name: found[source] for name, source in node.inputs.items()}
            try:
                found[number] = result = shapes.row_shape(node, read)
            except ValueError as error:
                batch = len(next(iter(given.values())))
                came = {name: (batch, *shape) for name, shape in read.items()}
                raise _misfit(node, came, error) from error
            # Checked at each node, so that the sizes computed for later nodes stay small numbers.
            if math.prod(result) > min(shapes.MOST_GROWTH * numbers, shapes.MOST_ELEMENTS):
                raise DataError(
                    f"{node.name}: {node.op} would make {math.prod(result):,} numbers from a row of {numbers:,}; the "
                    f"limit is {min(shapes.MOST_GROWTH * numbers, shapes.MOST_ELEMENTS):,}. Give fewer steps at "
                    "once, or another model: no real one needs so many."
                )
            work += shapes.work(node, read, result)
        if work > (most := min(shapes.MOST_WORK_PER_NUMBER * numbers, shapes.MOST_WORK)):
            raise DataError(
                f"the model would need {work:,} multiplications for a row of {numbers:,} numbers; the limit is "
                f"{most:,}. Give fewer steps at once, or another model: no real one needs so many."
            )
        return found

    def _row_bytes(self, plan: _Plan, found: Mapping[int, shapes.Shape]) -> int:
        """About how many bytes a row of the batch needs while it runs."""
        live, most = 0, 1
        for number in plan.needed:
            if number in plan.read:
                live += math.prod(found[number])
            most = max(most, live)
            live -= sum(math.prod(found[done]) for done in plan.released.get(number, ()))
        # Four bytes for each number, and as many again for what an operation holds while it computes.
        return 8 * most

    def _run_rows(self, plan: _Plan, given: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        """Runs rows in one piece; the wanted results by node."""
        results: dict[int, np.ndarray] = {}
        for number in plan.needed:
            if self._nodes[number].op == "input":
                results[number] = given[number].astype(str(self._nodes[number].options["dtype"]), copy=False)
            else:
                self._run_node(plan, number, results)
            for done in plan.released.get(number, ()):
                del results[done]
        return {number: results[number] for number in plan.wanted}

    def _run_node(self, plan: _Plan, number: int, results: dict[int, np.ndarray]) -> None:
        """Runs one node on the results of others, and adds its own result."""
        node = self._nodes[number]
        if node.op == "lstm_state":
            return  # added with its LSTM
        if number in plan.looked_up:
            results[number] = results[node.inputs["ids"]]
            return
        given = {name: results[source] for name, source in node.inputs.items()}
        try:
            if node.op != "lstm":
                results[number] = operations.run(node, given)
                return
            source = node.inputs["x"]
            table = self._nodes[source].arrays["embeddings"] if source in plan.looked_up else None
            sequences = bool(node.options["return_sequences"]) and number in plan.read
            outputs, h, c = operations.lstm(node, given, table, sequences=sequences)
        except (ValueError, IndexError) as error:
            raise _misfit(node, {name: array.shape for name, array in given.items()}, error) from error
        if number in plan.read:
            results[number] = outputs
        for each in plan.states[number]:
            results[each] = h if self._nodes[each].options["state"] == "h" else c


def _misfit(node: Node, came: Mapping[str, shapes.Shape], error: Exception) -> DataError:
    """The error for a node that cannot take the shapes it was given, the batch included."""
    listed = ", ".join(f"{name} {shape}" for name, shape in itertools.islice(came.items(), 8))
    return DataError(
        f"{node.name}: {node.op} cannot take {listed}: {str(error).rstrip('.')}. Give inputs of the sizes that "
        "this model was made for."
    )


def _check_elements(elements: int) -> None:
    """Refuses a row that needs more numbers at once than `shapes` allows."""
    if elements > shapes.MOST_ELEMENTS:
        raise DataError(
            f"a row would need {elements:,} numbers at once; the limit is {shapes.MOST_ELEMENTS:,}. Give fewer "
            "steps, or ask for fewer outputs, at once."
        )


def _checked_array(node: Node, value: Any) -> np.ndarray:
    """The array of an input if its type and shape are right."""
    shape: Any = node.options["shape"]
    text = f"({', '.join(['B', *('any' if size == -1 else str(size) for size in shape[1:])])})"
    if shape[0] != -1:
        text = text.replace("B", str(shape[0]), 1)
    expected = "ids" if node.options["dtype"] == "int32" else "numbers"
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise DataError(
            f"input {node.name!r}: expected an array of {expected} {text}, got rows of different lengths; pad "
            "them to the same length."
        ) from error
    # Booleans are 0 and 1, as in Keras: a mask that is an input is read as ids, and ids that are not 0 count.
    kinds = "biu" if expected == "ids" else "bfiu"
    # bfloat16 is not one of NumPy's own types.
    if array.dtype.kind not in kinds and not (expected == "numbers" and array.dtype.name == "bfloat16"):
        fix = "int32" if expected == "ids" else "float32"
        raise DataError(
            f"input {node.name!r}: expected {'integer ids' if expected == 'ids' else 'real numbers'} {text}, got "
            f"dtype {array.dtype}; if its values are meant as {expected}, cast it to {fix}."
        )
    if array.ndim != len(shape) or any(
        size not in (-1, found) for size, found in zip(shape, array.shape, strict=True)
    ):
        raise DataError(
            f"input {node.name!r}: expected shape {text}, got {array.shape}; give one row for each example, "
            "with the sizes this model was made for."
        )
    if 0 in array.shape[1:]:
        raise DataError(
            f"input {node.name!r}: expected shape {text} with at least one step and one feature, got "
            f"{array.shape}; leave out examples without steps."
        )
    return array


def _check_ids(name: str, ids: np.ndarray, table: Node | None) -> None:
    """Refuses ids that are not int32, or not rows of the smallest table that they are looked up in."""
    rows = 2**31 if table is None else len(table.arrays["embeddings"])
    if ids.size == 0 or (ids.min() >= -rows and ids.max() < rows):
        return
    place = tuple(int(axis) for axis in np.argwhere((ids < -rows) | (ids >= rows))[0])
    limit = (
        "ids must fit int32"
        if table is None
        else f"the ids of {table.name} run from 0 to {rows - 1}, or from the end from -1 to {-rows}"
    )
    raise DataError(
        f"input {name!r} holds {ids[place]} at {list(place)}, but {limit}; encode with the tokenizer that the "
        "model was trained with."
    )


def _own(names: Sequence[str], results: Sequence[np.ndarray], inputs: Any) -> dict[str, np.ndarray]:
    """The results by name, copied where they share memory with an input or with each other."""
    owned: dict[str, np.ndarray] = {}
    for name, array in zip(names, results, strict=True):
        shared = any(np.may_share_memory(array, other) for other in (*inputs, *owned.values()))
        owned[name] = array.copy() if shared else array
    return owned
