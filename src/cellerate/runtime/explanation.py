"""Says how a packed model runs: each operation's kernel, its share of the time, and its share of the machine's peak.

It times the model on synthetic rows and changes nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cellerate.format import aligned, milliseconds, percent, short
from cellerate.kernels import native
from cellerate.kernels.program.cpu import Way, takes
from cellerate.measure import time_repeated
from cellerate.program import OPERATIONS, RECURRENT, Node
from cellerate.runtime.program import Anatomy, Engine, input_sizes

STEPS = 100
"""The default number of time steps to measure for a model that takes any number."""
_MEASURED_S, _LEAST_CALLS = 0.3, 3


@dataclasses.dataclass(frozen=True)
class OperationReport:
    """One operation of a packed model in one call.

    Attributes:
        name: The name of the layer that it comes from, or of a part of that layer.
        operation: Its `program.Node.op`.
        kernel: The kernel that runs it, in words.
        multiplications: The number of multiplications.
        seconds: The time that the first thread spends on it; None if another operation includes it or nothing was
            measured.
        share: Its share of the time of all operations.
        share_of_peak: Its rate as a share of the machine's peak in this precision; None if it multiplies nothing,
            and on the target "scalar", whose peak is not measured.
    """

    name: str
    operation: str
    kernel: str
    multiplications: int
    seconds: float | None = None
    share: float | None = None
    share_of_peak: float | None = None


@dataclasses.dataclass(frozen=True)
class ProgramExplanation:
    """The way a packed model runs; print it.

    Attributes:
        precision: How its matrices are kept and multiplied.
        target: The instruction set of the native core; None if a call does not run as one on the core.
        reason: Why it does not; "" if it does.
        threads: The number of threads that the core may use.
        batch: Rows of the measured call.
        inputs: The shape of each input of that call.
        seconds: The median time of a call.
        calls: The number of calls measured.
        share_of_peak: The rate of all products as a share of the machine's peak; None on the target "scalar".
        operations: In the order they run.
    """

    precision: str
    target: str | None
    reason: str
    threads: int
    batch: int
    inputs: Mapping[str, tuple[int, ...]]
    seconds: float
    calls: int
    share_of_peak: float | None
    operations: tuple[OperationReport, ...]

    def to_dict(self) -> dict[str, Any]:
        """The explanation as plain values for JSON."""
        values = dataclasses.asdict(self)
        return values | {
            "inputs": {name: list(shape) for name, shape in self.inputs.items()},
            "operations": list(values["operations"]),
        }

    def __str__(self) -> str:
        shapes = ", ".join(f"{name} {shape}" for name, shape in self.inputs.items())
        where = f"on {self.target}" if self.target else "an operation at a time"
        peak = f", {percent(self.share_of_peak)} of the peak" if self.share_of_peak else ""
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        lines = [
            f"packed in {self.precision}, {where}, {threads}",
            f"a call with {shapes}: {milliseconds(1e3 * self.seconds)}, "
            f"{short(self.batch / self.seconds)} rows/s{peak}",
        ]
        if self.reason:
            lines.append(f"not as one call, because {self.reason}")
        rows = [("operation", "kernel", "time", "of the time", "of the peak")]
        for one in self.operations:
            rows.append(
                (
                    f"{one.name} ({one.operation})",
                    one.kernel,
                    "" if one.seconds is None else milliseconds(1e3 * one.seconds),
                    "" if one.share is None else percent(one.share),
                    "" if one.share_of_peak is None else percent(one.share_of_peak),
                )
            )
        return "\n".join([*lines, "", *aligned(rows, range(2, 5))])


def explain(
    engine: Engine, precision: str, batch: int, steps: int | None, outputs: Sequence[str] | None
) -> ProgramExplanation:
    """Measure calls of one size.

    Args:
        engine: Runs the program.
        precision: The precision that the engine runs it in.
        batch: Rows of a call.
        steps: Time steps of a call; None for `STEPS` if the model takes any number.
        outputs: Which outputs to compute; None for all.

    Raises:
        ConfigError: A size does not fit the model, or an output is unknown.
        DataError: The model does not take batches of this size.
    """
    inputs = _made_up(engine, batch, STEPS if steps is None else steps, free_only=steps is None)
    anatomy = engine.anatomy(inputs, outputs)
    engine.run(inputs, outputs)
    timing = time_repeated(lambda: engine.run(inputs, outputs), _MEASURED_S, least=_LEAST_CALLS)
    reason = _why_not(anatomy)
    on_core = native.why_unavailable() is None
    # The compiler decides the speed of plain C++ loops, the peak's loop included, so that peak bounds no other loop.
    peak = native.measure_peak(precision) if on_core and native.target() != "scalar" else None
    seconds, calls = timing.median_s, len(timing.seconds)
    operations = tuple(_operations(anatomy, precision, batch, calls, peak))
    products = sum(one.multiplications for one in operations)
    return ProgramExplanation(
        precision=precision if on_core else "float32",
        target=native.target() if not reason else None,
        reason=reason,
        threads=native.num_threads() if on_core else 1,
        batch=batch,
        inputs={name: array.shape for name, array in inputs.items()},
        seconds=seconds,
        calls=calls,
        share_of_peak=2 * products / seconds / peak if peak and products else None,
        operations=operations,
    )


def _made_up(engine: Engine, batch: int, steps: int, *, free_only: bool) -> dict[str, np.ndarray]:
    """Return random numbers, and ids that every table has."""
    random = np.random.default_rng(0)
    program = engine.program
    found: dict[str, np.ndarray] = {}
    for name, (shape, dtype) in input_sizes(program, batch, steps, free_only=free_only).items():
        if dtype == "int32":
            reads = [node for node in program.nodes if node.inputs.get("ids") == program.inputs[name]]
            rows = min((len(node.arrays["embeddings"]) for node in reads if node.arrays), default=2)
            # An id of 0 may be masked.
            found[name] = random.integers(min(1, rows - 1), rows, shape).astype(np.int32)
        else:
            found[name] = random.standard_normal(shape, np.float32)
    return found


def _why_not(anatomy: Anatomy) -> str:
    """The reason why a call does not run as one on the native core; "" if it does."""
    if anatomy.compiled is not None:
        return ""
    if (missing := native.why_unavailable()) is not None:
        return missing
    unknown = sorted({node.op for node in anatomy.nodes.values() if not takes([node])})
    if unknown:
        return f"the core does not take {', '.join(unknown)} here"
    return "the core does not take values of these shapes"


def _operations(
    anatomy: Anatomy, precision: str, batch: int, calls: int, peak: float | None
) -> Iterator[OperationReport]:
    names = {number: node.name for number, node in anatomy.nodes.items()}
    compiled = anatomy.compiled
    if compiled is None:
        for number, node in anatomy.nodes.items():
            products = batch * _multiplications(anatomy, number, tabled=False)
            yield OperationReport(node.name, node.op, _kernel(node, None, names, "float32"), products)
        return
    arrays = [np.ascontiguousarray(anatomy.given[number]) for number in compiled.inputs]
    results = [np.empty((batch, *anatomy.shapes[number]), np.float32) for number in compiled.outputs]
    each = np.zeros((calls, len(anatomy.nodes)))
    for times in each:
        compiled.run(anatomy.sizes, arrays, results, times)
    # The median, as for whole calls: a call that lost its processor does not move it.
    times = np.median(each, axis=0)
    ways = compiled.ways(batch, anatomy.sizes)
    for (number, node), seconds in zip(anatomy.nodes.items(), times, strict=True):
        way = ways[number]
        products = batch * _multiplications(anatomy, number, tabled=way.tabled)
        of_both = products
        if way.partner is not None:
            of_both += batch * _multiplications(anatomy, way.partner, tabled=ways[way.partner].tabled)
        measured = seconds > 0
        rate = None if peak is None or not measured or not of_both else 2 * of_both / float(seconds) / peak
        # Several teams of threads each work on their own rows, so the time of the first stands for all.
        yield OperationReport(
            node.name,
            node.op,
            _kernel(node, way, names, precision),
            products,
            float(seconds) if measured else None,
            float(seconds / times.sum()) if measured else None,
            rate,
        )


def _multiplications(anatomy: Anatomy, number: int, *, tabled: bool) -> int:
    """The multiplications of a node for one row of the batch."""
    node = anatomy.nodes[number]
    read = {name: anatomy.shapes[source] for name, source in node.inputs.items()}
    looked_up = read["x"][0] * math.prod(node.arrays["kernel"].shape) if tabled else 0
    return OPERATIONS[node.op].products(node, read, anatomy.shapes[number]) - looked_up


def _kernel(node: Node, way: Way | None, names: Mapping[int, str], precision: str) -> str:
    """The executor of a node, in words."""
    if node.op == "input":
        return "the caller's array"
    if way is not None and way.nothing:
        return f"done by {names[next(iter(node.inputs.values()))]}"
    if way is not None and way.looked_up:
        return "rows looked up by the LSTMs that read them"
    if node.op in RECURRENT:
        inputs, units = len(node.arrays["kernel"]), len(node.arrays["recurrent_kernel"])
        description = f"{precision}, {units} units"
        description += ", inputs from a table" if way is not None and way.tabled else f", {inputs} inputs"
        if way is None or way.partner is None:
            return description
        return f"{description}, beside {names[way.partner]}"
    if "kernel" in node.arrays:
        rows, columns = node.arrays["kernel"].shape
        return f"{precision}, {rows} x {columns}"
    return "float32, element by element" if way is not None else "NumPy"
