"""Runs a packed model: checks the caller's arrays and the sizes of all results, then has the program run.

On the native core a program runs as one call (`kernels.program`). If the core is missing or does not take the program,
it runs one operation at a time (`interpreter`). Only NumPy is needed, neither Keras nor a framework.

The engine computes the sizes of all results first, and refuses a program that needs more memory or time than any real
model (`shapes`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cellerate.errors import ConfigError, DataError
from cellerate.kernels import native
from cellerate.kernels.program.cpu import CompiledProgram, sizes_of, takes
from cellerate.program import Node, Program, Shape
from cellerate.runtime.program import interpreter, operations, shapes
from cellerate.runtime.program.inputs import by_name, check_ids, check_shape, checked_array, smallest_tables
from cellerate.runtime.program.prepared import Inputs, Out, Prepared, checked_out, signature

# The most plans (one for each choice of outputs) and the most call sizes to cache.
_MOST_CHOICES, _MOST_SIZES = 16, 256
_UNTRIED = "untried"


@dataclasses.dataclass(frozen=True)
class _Call:
    """The facts about a call that the shapes of its rows give.

    Attributes:
        shapes: The shape of a row in each needed node.
        row_bytes: About the bytes that a row needs while the interpreter runs.
        sizes: The sizes that the core needs; None if it does not take these shapes.
    """

    shapes: Mapping[int, Shape]
    row_bytes: int
    sizes: Any


class Anatomy(NamedTuple):
    """The parts of a call, nodes by number.

    Attributes:
        nodes: The nodes that the call needs, in order.
        shapes: The shape of a row of each node.
        compiled: The program on the native core; None if the core does not take it.
        sizes: The sizes that the core needs; None if it does not take these shapes.
        given: The arrays of the inputs.
    """

    nodes: Mapping[int, Node]
    shapes: Mapping[int, Shape]
    compiled: CompiledProgram | None
    sizes: Any
    given: Mapping[int, np.ndarray]


class Engine:
    """Runs a packed model on NumPy arrays, without Keras or a framework.

    Several threads may use one engine at once; the native core then serves them one after the other.

    Args:
        program: What to run.
        precision: How the core keeps and multiplies matrices, one of `program.PRECISIONS`; operations that it does
            not take run in float32. bfloat16, int8 and int4 round as `kernels.decoder.cpu.StepModel` says.

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

    def __init__(self, program: Program, precision: str = "float32") -> None:
        self.program = program
        self._precision = precision
        self._plans: dict[tuple[int, ...], interpreter.ExecutionPlan] = {}
        self._calls: dict[Any, _Call] = {}
        self._prepared: dict[Hashable, Prepared] = {}
        self._programs: dict[frozenset[int], CompiledProgram | None] = {}
        transposed: dict[int, np.ndarray] = {}
        self._nodes = tuple(operations.prepared(node, transposed) for node in program.nodes)
        self._types: list[str] = []
        for node in self._nodes:
            read = {name: self._types[n] for name, n in node.inputs.items()}
            self._types.append(operations.result_type(node, read))

    def run(
        self, inputs: Inputs, outputs: Sequence[str] | None = None, out: Out = None
    ) -> dict[str, np.ndarray]:
        """Computes the model's outputs.

        Args:
            inputs: The array of each input by its name, or one array if the model has one input; (B, ...) as the
                model says. Numbers may have any float or integer type and are computed in float32. Ids may have
                any integer type; negative ones count from the end of the table. Booleans are 0 and 1. Inputs
                that the outputs do not depend on may be left out. NaN and infinities run through the model.
            outputs: Which outputs to compute; None for all.
            out: Arrays for the results; they may share memory with the inputs.

        Returns:
            Each output by its name, (B, ...), in the order asked for; new arrays, or those of `out`. An empty batch
            gives empty results.

        Raises:
            ConfigError: A name is not one of the model's, or an input is missing.
            DataError: An array has the wrong shape or type, or holds an id that the model does not know; or the
                results would be larger than `shapes` allows or memory holds.
        """
        key, arrays = signature(inputs, outputs)
        prepared = self._prepared.get(key)
        if prepared is not None:
            try:
                return prepared.run(arrays, out)
            except (IndexError, MemoryError):
                pass  # the checks below handle ids that count from the end, and word the errors
        return self._run(inputs, outputs, out, key)

    def result_sizes(
        self, given: Mapping[str, tuple[int, ...]], outputs: Sequence[str] | None = None
    ) -> dict[str, tuple[tuple[int, ...], str]]:
        """The shape and dtype of each result, from the shapes of the inputs alone: nothing is computed.

        Args:
            given: The shape of each input by its name, the batch first.
            outputs: As `run` takes them.

        Raises:
            ConfigError, DataError: As in `run`.
        """
        names = self._output_names(outputs)
        numbers = tuple(self.program.outputs[name] for name in names)
        plan = self._plan(numbers)
        rows: dict[int, Shape] = {}
        named = by_name(given, list(self.program.inputs))
        counts: dict[str, int] = {}
        for name, number in self._given(named, plan):
            check_shape(self._nodes[number], named[name])
            counts[name] = named[name][0]
            _check_rows(counts)
            if number in plan.needed:
                rows[number] = named[name][1:]
        batch = next(iter(counts.values()))
        found = self._call(plan, numbers, rows, batch).shapes
        return {
            name: ((batch, *found[number]), self._types[number])
            for name, number in zip(names, numbers, strict=True)
        }

    def anatomy(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str] | None = None) -> Anatomy:
        """The parts of a call.

        Args:
            inputs: As `run` takes them, in the types of the model's inputs and C-contiguous.
            outputs: As `run` takes them.

        Raises:
            ConfigError, DataError: As in `run`.
        """
        names = self._output_names(outputs)
        plan, given, call = self._settled(by_name(inputs, list(self.program.inputs)), names)
        return Anatomy(self._needed(plan), call.shapes, self._program_of(plan, call), call.sizes, given)

    def prepared_for(self, inputs: Inputs, outputs: Sequence[str] | None) -> Prepared | None:
        """The cached call for arrays of these shapes and types; None if the core does not take it."""
        return self._prepared.get(signature(inputs, outputs)[0])

    def _run(
        self, inputs: Inputs, outputs: Sequence[str] | None, out: Out, key: Hashable
    ) -> dict[str, np.ndarray]:
        """Run with all checks, and cache the call unless the key is None."""
        names = self._output_names(outputs)
        named = by_name(inputs, list(self.program.inputs))
        plan, given, call = self._settled(named, names)
        numbers, batch = [self.program.outputs[name] for name in names], len(next(iter(given.values())))
        wanted = {
            name: ((batch, *call.shapes[n]), self._types[n]) for name, n in zip(names, numbers, strict=True)
        }
        places = checked_out(out, wanted)
        if batch == 0:
            return places or {name: np.empty(shape, dtype) for name, (shape, dtype) in wanted.items()}
        if native.why_unavailable() is None:
            native.num_threads()  # raises for a wrong setting of the core, before it could pass for wrong data
        try:
            with np.errstate(all="ignore"):
                results = self._results(plan, call, given, batch)
            found = _own(names, [results[number] for number in numbers], given.values())
        except MemoryError as error:
            raise DataError(
                f"the results of {batch} rows do not fit into memory; give fewer rows or steps at once."
            ) from error
        if key is not None:
            self._remember(key, plan, call, named, wanted)
        for name, place in places.items():
            np.copyto(place, found[name])
        return places or found

    def _settled(
        self, named: Mapping[str, Any], names: Sequence[str]
    ) -> tuple[interpreter.ExecutionPlan, dict[int, np.ndarray], _Call]:
        """Return the plan for some outputs, the checked inputs by node, and the facts about the call."""
        numbers = tuple(self.program.outputs[name] for name in names)
        plan = self._plan(numbers)
        given = self._checked(named, plan)
        batch = len(next(iter(given.values())))
        shapes_given = {number: array.shape[1:] for number, array in given.items()}
        return plan, given, self._call(plan, numbers, shapes_given, batch)

    def _program_of(self, plan: interpreter.ExecutionPlan, call: _Call) -> CompiledProgram | None:
        """The program that runs a call on the core; None if the core does not take it."""
        return None if call.sizes is None else self._compiled(plan)

    def _results(
        self, plan: interpreter.ExecutionPlan, call: _Call, given: dict[int, np.ndarray], batch: int
    ) -> dict[int, np.ndarray]:
        """The wanted results by node."""
        compiled = self._program_of(plan, call)
        if compiled is not None:
            arrays = [np.ascontiguousarray(given[n], self._types[n]) for n in compiled.inputs]
            made = {n: np.empty((batch, *call.shapes[n]), np.float32) for n in sorted(plan.wanted)}
            try:
                compiled.run(call.sizes, arrays, list(made.values()))
                return made
            except IndexError:
                pass  # ids that count from the end
        return interpreter.run(self._nodes, plan, given, batch, call.row_bytes)

    def _remember(
        self,
        key: Hashable,
        plan: interpreter.ExecutionPlan,
        call: _Call,
        given: Mapping[str, Any],
        wanted: Mapping[str, tuple[tuple[int, ...], str]],
    ) -> None:
        """Cache a call under the key of its shapes and types, so that the next such call runs without checks."""
        compiled = self._program_of(plan, call)
        order = sorted(plan.wanted)
        if compiled is None or len(order) != len(wanted):
            return
        names = {number: name for name, number in self.program.inputs.items()}
        needed = [names[number] for number in compiled.inputs]
        # Only if all arrays are handed on unchanged.
        if any(given[names[n]].dtype != self._types[n] for n in compiled.inputs):
            return
        results = tuple(
            (name, order.index(self.program.outputs[name]), shape) for name, (shape, _) in wanted.items()
        )
        if len(self._prepared) >= _MOST_SIZES:
            self._prepared = {}
        places = tuple(list(given).index(name) for name in needed)
        self._prepared[key] = Prepared(compiled, call.sizes, places, results)

    def _output_names(self, outputs: Sequence[str] | None) -> list[str]:
        known = list(self.program.outputs)
        if outputs is None:
            return known
        if isinstance(outputs, str) or not outputs:
            raise ConfigError(
                f"outputs must be a list of names among {', '.join(known)}, or None for all, not {outputs!r}."
            )
        for name in outputs:
            if name not in known:
                raise ConfigError(f"outputs holds {name!r}; this model's outputs are {', '.join(known)}.")
        return list(outputs)

    def _checked(
        self, inputs: Mapping[str, np.ndarray], plan: interpreter.ExecutionPlan
    ) -> dict[int, np.ndarray]:
        """The needed inputs by node, in the types they came in."""
        given: dict[int, np.ndarray] = {}
        counts: dict[str, int] = {}
        tables = smallest_tables(self._nodes[number] for number in plan.needed)
        for name, number in self._given(inputs, plan):
            array = checked_array(self._nodes[number], inputs[name])
            if self._nodes[number].options["dtype"] == "int32":
                check_ids(name, array, tables.get(number))
            counts[name] = len(array)
            _check_rows(counts)
            if number in plan.needed:
                given[number] = array
        return given

    def _given(self, inputs: Mapping[str, Any], plan: interpreter.ExecutionPlan) -> Iterator[tuple[str, int]]:
        """The inputs of the call by name and node; raises `ConfigError` if a needed input is missing."""
        for name, number in self.program.inputs.items():
            if name in inputs:
                yield name, number
            elif number in plan.needed:
                raise ConfigError(f"inputs lacks {name!r}; give an array for it.")

    def _plan(self, numbers: tuple[int, ...]) -> interpreter.ExecutionPlan:
        plan = self._plans.get(numbers)
        if plan is None:
            if len(self._plans) >= _MOST_CHOICES:
                self._plans, self._programs, self._calls = {}, {}, {}
            plan = self._plans[numbers] = interpreter.plan_of(self._nodes, frozenset(numbers))
        return plan

    def _call(
        self,
        plan: interpreter.ExecutionPlan,
        numbers: tuple[int, ...],
        given: Mapping[int, Shape],
        batch: int,
    ) -> _Call:
        key = numbers, tuple(given.items())
        call = self._calls.get(key)
        if call is None:
            found = self._shapes(plan, given, batch)
            row_bytes = interpreter.row_bytes(plan, found)
            _check_elements(row_bytes // 8 + sum(math.prod(found[number]) for number in numbers))
            # Only the core needs the sizes, and only if it takes the program.
            sizes = None if self._compiled(plan) is None else sizes_of(self._needed(plan), found)
            call = _Call(found, row_bytes, sizes)
            if len(self._calls) >= _MOST_SIZES:
                self._calls = {}
            self._calls[key] = call
        return call

    def _needed(self, plan: interpreter.ExecutionPlan) -> dict[int, Node]:
        return {number: self._nodes[number] for number in plan.needed}

    def _compiled(self, plan: interpreter.ExecutionPlan) -> CompiledProgram | None:
        """The program of a choice of outputs on the core; None if the core does not take it."""
        # Another thread may clear the cache at any time, so each program is looked up only once.
        made = self._programs.get(plan.wanted, _UNTRIED)
        if isinstance(made, str):
            made = None
            nodes, wanted = self._needed(plan), sorted(plan.wanted)
            numbers_only = all(self._types[number] == "float32" for number in wanted)
            if native.why_unavailable() is None and numbers_only and takes(nodes.values()):
                with contextlib.suppress(ValueError, MemoryError):
                    made = CompiledProgram(nodes, wanted, self._precision)
            self._programs[plan.wanted] = made
        return made

    def _shapes(
        self, plan: interpreter.ExecutionPlan, given: Mapping[int, Shape], batch: int
    ) -> dict[int, Shape]:
        """Return the shape of a row in each needed node; refuse sizes beyond those of real models."""
        found: dict[int, Shape] = {}
        numbers = sum(map(math.prod, given.values()))
        work = 0
        for number in plan.needed:
            node = self._nodes[number]
            if node.op == "input":
                found[number] = given[number]
                continue
            read = {name: found[source] for name, source in node.inputs.items()}
            try:
                found[number] = result = shapes.row_shape(node, read)
            except ValueError as error:
                came = {name: (batch, *shape) for name, shape in read.items()}
                raise interpreter.misfit(node, came, error) from error
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


def _check_rows(counts: dict[str, int]) -> None:
    """Refuse inputs if the last one has another number of rows than the first."""
    (first, rows), (last, found) = next(iter(counts.items())), next(reversed(counts.items()))
    if rows != found:
        raise DataError(
            f"inputs {first!r} and {last!r} must have the same number of rows, got {rows} and {found}; give one row "
            "of each for every example."
        )


def _check_elements(elements: int) -> None:
    """Refuses a row that needs more numbers at once than `shapes` allows."""
    if elements > shapes.MOST_ELEMENTS:
        raise DataError(
            f"a row would need {elements:,} numbers at once; the limit is {shapes.MOST_ELEMENTS:,}. Give fewer "
            "steps, or ask for fewer outputs, at once."
        )


def _own(names: Sequence[str], results: Sequence[np.ndarray], inputs: Any) -> dict[str, np.ndarray]:
    """The results by name, copied where they share memory with an input or with each other."""
    owned: dict[str, np.ndarray] = {}
    for name, array in zip(names, results, strict=True):
        shared = any(np.may_share_memory(array, other) for other in (*inputs, *owned.values()))
        owned[name] = array.copy() if shared else array
    return owned
