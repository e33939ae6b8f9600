"""Exports a trained model for other runtimes, and tries it there before anyone else does."""

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cellerate
from cellerate.errors import ConfigError, ModelError
from cellerate.files import atomic_write, check_writable
from cellerate.machine.environment import require
from cellerate.program import Program
from cellerate.runtime.cell import Cell, read_cell
from cellerate.runtime.stepping import stepping

if TYPE_CHECKING:
    import keras

    from cellerate.exports.trials import Deviation
    from cellerate.models.storage import TaskRecord

FORMATS = {"onnx": ".onnx"}
"""What `to` may be → the suffix of its files."""
_TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        path: Where.
        format: Its format.
        precision: "float32" or "int8".
        inputs: The names of its inputs.
        outputs: The names of its outputs.
        error: The largest difference from our own runtime in float32, as a share of the largest number of the
            output, or of 1 where all are smaller.
        tolerance: What the error may be; None for int8, which rounds on purpose.
        tried: On what it was tried.
    """

    path: Path
    format: str
    precision: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    error: float
    tolerance: float | None
    tried: str


def export(
    model: "str | os.PathLike[str] | keras.Model",
    output: str | os.PathLike[str],
    *,
    to: str = "onnx",
    precision: str = "float32",
    stateful: bool = False,
    record: "TaskRecord | None" = None,
) -> Exported:
    """Writes a model for another runtime, whole or not at all, after it has given the right results there.

    Args:
        model: A Keras model, its file, or a `.cell` file. It is not changed.
        output: The file, with the suffix of the format.
        to: The format: "onnx".
        precision: "float32", or "int8": weights of 8 bits, by ONNX Runtime's dynamic quantisation.
        stateful: Whether the states of the LSTMs go in and out, so that a long sequence can be given in parts: two
            inputs and two outputs more for each LSTM.
        record: The record, as `load_model` returns it, of a model that is not given as a file.

    Returns:
        What was written, with its error in the other runtime.

    Raises:
        BackendError: A package that writes or tries the format is not installed.
        ConfigError: An argument has a value it cannot have.
        ModelError: The model cannot be read, the format cannot hold it (the message names the layer), or the file
            gives other results than the model.
        OutputError: The file could not be written.

    Example:
        >>> cellerate.export("book.keras", "book.onnx").error
        1.3e-07
    """
    target = Path(output)
    _check(target, to, precision)
    check_writable(target)
    for package in ("onnx", "onnxruntime"):
        require(package, "onnx", "an export to ONNX")
    from cellerate.exports.onnx import OnnxRuntime, onnx_model, quantise
    from cellerate.exports.trials import deviation, sizes_of, trials_of

    cell = _cell(model, record)
    program = _stateful(cell.program) if stateful else cell.program
    trials = trials_of(program)
    written = onnx_model(program, sizes_of(program, trials), _metadata(cell))
    with atomic_write(target) as beside:
        beside.write_bytes(written.SerializeToString())
        found = deviation(trials, OnnxRuntime(beside).run)
        _check_error(found, _TOLERANCE)
        if precision == "int8":
            quantise(beside)
            found = deviation(trials, OnnxRuntime(beside).run)
            _check_error(found, 1.0)
    return Exported(
        path=target,
        format=to,
        precision=precision,
        inputs=tuple(program.inputs),
        outputs=tuple(program.outputs),
        error=found.error,
        tolerance=_TOLERANCE if precision == "float32" else None,
        tried=found.shapes,
    )


def _check(target: Path, to: str, precision: str) -> None:
    if to not in FORMATS:
        raise ConfigError(f"to must be one of {', '.join(FORMATS)}; got {to!r}.")
    if target.suffix != FORMATS[to]:
        raise ConfigError(
            f"a model for {to} is written to a path ending in {FORMATS[to]!r}; got {str(target)!r}."
        )
    if precision not in ("float32", "int8"):
        raise ConfigError(f"precision must be float32 or int8 in an export; got {precision!r}.")


def _cell(model: "str | os.PathLike[str] | keras.Model", record: "TaskRecord | None") -> Cell:
    if isinstance(model, str | os.PathLike) and Path(model).suffix == ".cell":
        return read_cell(model)
    from cellerate.models.storage import load_model
    from cellerate.tasks.packing import packed

    if isinstance(model, str | os.PathLike):
        if record is not None:
            raise ConfigError("record is for a model, and a file has its own: leave one of them out.")
        model, record = load_model(model)
    return packed(model, record).cell


def _stateful(program: Program) -> Program:
    """The program with the states of its LSTMs going in and out: of the first one h_0 and c_0, and so on."""
    made = stepping(program)
    # Without the names of the layers, which Keras numbers anew in each process.
    names = {name: "_".join(name.split()[:2]) for name in made.states}
    nodes = tuple(
        dataclasses.replace(node, name=names[node.name])
        if node.op == "input" and node.name in names
        else node
        for node in made.program.nodes
    )
    outputs = {
        f"{names[name]}_next" if name in names else name: number
        for name, number in made.program.outputs.items()
    }
    return Program(nodes, outputs)


def _metadata(cell: Cell) -> dict[str, Any]:
    return {"exported_by": cellerate.__version__} | dict(cell.header)


def _check_error(found: "Deviation", tolerance: float) -> None:
    # Written with `not` because every comparison with NaN is False.
    if not found.error <= tolerance:
        raise ModelError(
            f"the exported model gives other results than the model: its error is {found.error:.2g}, and at most "
            f"{tolerance:.2g} is right ({found.shapes}). Nothing was written; please report it, with the model."
        )
