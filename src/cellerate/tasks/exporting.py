"""Exports a trained model for other runtimes, and tries it there before anyone else does."""

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cellerate
from cellerate.errors import ConfigError, ModelError
from cellerate.files import atomic_folder, atomic_write, check_writable
from cellerate.machine.environment import require
from cellerate.program import Program
from cellerate.runtime.cell import Cell, read_cell
from cellerate.runtime.program import stepping_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import keras

    from cellerate.exports.exported_model import ExportedModel
    from cellerate.exports.trials import Arrays, Deviation
    from cellerate.models.storage import TaskRecord

    _Judge = Callable[[ExportedModel], "Quality"] | None

FORMATS = {"onnx": ".onnx", "savedmodel": "", "litert": ".tflite"}
"""The values of `to` → the suffix of what is written: a file, or a folder if there is none."""
_TOLERANCE = {"onnx": 1e-5, "savedmodel": 1e-5, "litert": 1e-4}
# Of narrower weights: what is beyond is no rounding any more.
_NARROW = 1.0
# Other runtimes round inputs by one scale a batch, ours by one a row, and err up to 2.7 times as much with weights as
# training makes them. Beyond, an input with a few large numbers has cost the others their digits.
_INT8_FREE, _INT8_TIMES = 0.05, 3.0
_PRECISIONS = {
    "onnx": ("float32", "int8"),
    "savedmodel": ("float32",),
    "litert": ("float32", "float16", "int8"),
}
_PACKAGES = {"onnx": ("onnx", "onnxruntime"), "savedmodel": ("tensorflow",), "litert": ("ai_edge_litert",)}
_EXTRAS = {"onnx": "onnx", "savedmodel": "tensorflow", "litert": "litert"}
_STEP = "step"


@dataclasses.dataclass(frozen=True)
class Quality:
    """The quality of an exported model at its task, beside the original.

    Attributes:
        metric: Such as "bits per character".
        before: Of the original.
        after: Of the exported model, in its runtime.
        loss: How much worse that is, as a share; below 0 it is better.
        max_loss: How much worse it may be.
    """

    metric: str
    before: float
    after: float
    loss: float
    max_loss: float


@dataclasses.dataclass(frozen=True)
class Exported:
    """The export that was written.

    Attributes:
        path: Where.
        format: Its format.
        precision: "float32", "float16" or "int8".
        inputs: The names of its inputs.
        outputs: The names of its outputs.
        error: The largest difference from our own runtime in float32, as a share of the largest number of the
            output, or of 1 where all are smaller.
        tolerance: What the error may be; None for narrower weights, which round on purpose.
        tried: Where it was tried, and on what.
        quality: How good it is at its task; None if nobody asked.
        elsewhere: What OpenVINO makes of an ONNX file, in words; "" if it is not installed.
        largest_pair: The largest sum of two products that the weights of an int8 ONNX file allow. Processors without
            VNNI add two in 16 bits, up to 32767; a file that allows more is not kept. None for other files.
        own_error: The error of our own runtime in int8; None for a file of another precision.
    """

    path: Path
    format: str
    precision: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    error: float
    tolerance: float | None
    tried: str
    quality: Quality | None = None
    elsewhere: str = ""
    largest_pair: int | None = None
    own_error: float | None = None


def export(
    model: "str | os.PathLike[str] | keras.Model",
    output: str | os.PathLike[str],
    *,
    to: str = "onnx",
    precision: str = "float32",
    stateful: bool = False,
    batch_size: int = 1,
    record: "TaskRecord | None" = None,
    judge: "Callable[[ExportedModel], Quality] | None" = None,
) -> Exported:
    """Writes a model for another runtime, whole or not at all, after it has given the right results there.

    Args:
        model: A Keras model, its file, or a `.cell` file. It is not changed.
        output: The file; for "savedmodel" a folder, in which the model becomes the next version: 1, 2, ...
        to: The format: "onnx", "savedmodel" for TensorFlow and TensorFlow Serving, or "litert".
        precision: "float32"; for "onnx" also "int8", weights of 8 bits, one scale a column, by ONNX Runtime's dynamic
            quantisation, in ranges that every processor multiplies exactly; for "litert" also "float16", and "int8"
            by its dynamic range: one scale a matrix.
        stateful: Whether the states of the LSTMs go in and out, so that a long sequence can be given in parts: two
            inputs and two outputs more for each LSTM. In a SavedModel it is the signature "step", which is there
            in any case if the model allows it; a LiteRT model then takes one step.
        batch_size: The number of rows of a LiteRT model, which has no other; the other formats take any number.
        record: The record, as `load_model` returns it, of a model that is not given as a file.
        judge: Says how good the exported model is in its runtime: `optimization.exported_quality.quality_judge`.

    Returns:
        What was written, with its error in the other runtime.

    Raises:
        BackendError: A package that writes or tries the format is not installed.
        ConfigError: An argument has a value it cannot have.
        ModelError: The model cannot be read, the format cannot hold it (the message names the layer), the file
            gives other results than the model, an int8 file errs far more than our own int8 and there is no `judge`
            to say that it does not matter, or it is worse than `judge` allows.
        OutputError: The file could not be written.

    Example:
        >>> cellerate.export("book.keras", "book.onnx").error
        1.3e-07
    """
    target = Path(output)
    check_export(target, to, precision)
    if batch_size < 1:
        raise ConfigError(f"batch_size must be at least 1, got {batch_size}.")
    if stateful and judge is not None:
        raise ConfigError("data are judged in whole sequences: leave out either the data or stateful.")
    if to == "savedmodel":
        return _saved_model(_cell(model, record), target, stateful, judge)
    check_writable(target)
    if to == "litert":
        return _litert(_cell(model, record), target, precision, stateful, batch_size, judge)
    return _onnx(_cell(model, record), target, precision, stateful, judge)


def _onnx(cell: Cell, target: Path, precision: str, stateful: bool, judge: "_Judge") -> Exported:
    from cellerate.exports.onnx import OnnxRuntime, onnx_model
    from cellerate.exports.onnx_int8 import proved_pair
    from cellerate.exports.openvino_trial import tried_in_openvino
    from cellerate.exports.trials import deviation, own_int8_error, sizes_of, trials_of

    program = _stateful(cell.program) if stateful else cell.program
    trials = trials_of(program)
    sizes, pair, own = sizes_of(program, trials), None, None
    with atomic_write(target) as beside:
        # int8 rounds what float32 has shown to be right.
        for each in dict.fromkeys(("float32", precision)):
            beside.write_bytes(onnx_model(program, sizes, _metadata(cell), each).SerializeToString())
            found = deviation(trials, OnnxRuntime(beside).run)
            if each == "int8":
                own = own_int8_error(program, trials)
                _check_rounding(found, own, judge, "ONNX Runtime")
                pair = proved_pair(beside)
            _check_error(found, _TOLERANCE["onnx"] if each == "float32" else _NARROW)
        elsewhere = tried_in_openvino(beside, trials)
        quality = _judged(judge, OnnxRuntime(beside).run, program, "ONNX Runtime")
    made = _exported(target, "onnx", precision, program, found, "ONNX Runtime", quality)
    return dataclasses.replace(made, elsewhere=elsewhere, largest_pair=pair, own_error=own)


def _litert(
    cell: Cell, target: Path, precision: str, stateful: bool, batch_size: int, judge: "_Judge"
) -> Exported:
    from cellerate.exports.litert import LiteRt, litert_model
    from cellerate.exports.trials import deviation, own_int8_error, trials_of

    program = _one_step(_stateful(cell.program)) if stateful else cell.program
    trials = trials_of(program, (batch_size,))
    content = litert_model(program, batch_size, _metadata(cell), precision)
    own = own_int8_error(program, trials) if precision == "int8" else None
    with atomic_write(target) as beside:
        beside.write_bytes(content)
        found = deviation(trials, LiteRt(beside, program.outputs).run)
        if own is not None:
            _check_rounding(found, own, judge, "LiteRT")
        _check_error(found, _TOLERANCE["litert"] if precision == "float32" else _NARROW)
        quality = _judged(judge, LiteRt(beside, program.outputs).run, program, "LiteRT", batch_size)
    made = _exported(target, "litert", precision, program, found, "LiteRT", quality)
    return dataclasses.replace(made, own_error=own)


def _saved_model(cell: Cell, target: Path, stateful: bool, judge: "_Judge") -> Exported:
    from cellerate.exports.savedmodel import SavedModel, write_saved_model
    from cellerate.exports.trials import Deviation, deviation, trials_of

    programs = {"serving_default": cell.program}
    try:
        programs[_STEP] = _stateful(cell.program)
    except ModelError:
        if stateful:
            raise
    trials = {name: trials_of(program) for name, program in programs.items()}
    versions = [int(path.name) for path in target.glob("*") if path.name.isdecimal()]
    version = target / str(max(versions, default=0) + 1)
    with atomic_folder(version) as beside:
        write_saved_model(programs, trials, _metadata(cell), beside)
        worst = Deviation(0, 0, "")
        for name, batches in trials.items():
            worst = max(worst, deviation(batches, SavedModel(beside, name).run))
        _check_error(worst, _TOLERANCE["savedmodel"])
        quality = _judged(judge, SavedModel(beside, "serving_default").run, cell.program, "TensorFlow")
    return _exported(version, "savedmodel", "float32", cell.program, worst, "TensorFlow", quality)


def _judged(
    judge: "_Judge", run: "Callable[[Arrays], Arrays]", program: Program, where: str, rows: int | None = None
) -> Quality | None:
    from cellerate.exports.exported_model import ExportedModel

    if judge is None:
        return None
    found = judge(ExportedModel(run, program, rows))
    # Written with `not` because every comparison with NaN is False.
    if not found.loss <= found.max_loss:
        raise ModelError(
            f"in {where} the {found.metric} of the model goes from {found.before:.4g} to {found.after:.4g}: "
            f"{found.loss:.2%} worse, and at most {found.max_loss:.2%} is allowed. Nothing was written; export it in "
            "a wider precision, or allow more (--max-quality-loss)."
        )
    return found


def _exported(
    path: Path,
    format_: str,
    precision: str,
    program: Program,
    found: "Deviation",
    where: str,
    quality: Quality | None,
) -> Exported:
    return Exported(
        path=path,
        format=format_,
        precision=precision,
        inputs=tuple(program.inputs),
        outputs=tuple(program.outputs),
        error=found.error,
        tolerance=_TOLERANCE[format_] if precision == "float32" else None,
        tried=f"in {where}, {found.shapes}",
        quality=quality,
    )


def check_export(target: Path, to: str, precision: str) -> None:
    """Raise, before a model or data are read, what an export would raise about its format.

    Raises:
        BackendError: A package that writes or tries the format is not installed.
        ConfigError: There is no such format, or it has other names of files or other precisions.
    """
    if to not in FORMATS:
        raise ConfigError(f"to must be one of {', '.join(FORMATS)}; got {to!r}.")
    if target.suffix != FORMATS[to] and FORMATS[to]:
        raise ConfigError(
            f"a model for {to} is written to a path ending in {FORMATS[to]!r}; got {str(target)!r}."
        )
    precisions = _PRECISIONS[to]
    if precision not in precisions:
        raise ConfigError(
            f"precision must be {' or '.join(precisions)} in an export to {to}; got {precision!r}."
        )
    for package in _PACKAGES[to]:
        require(package, _EXTRAS[to], f"an export to {to}")


def _cell(model: "str | os.PathLike[str] | keras.Model", record: "TaskRecord | None") -> Cell:
    if isinstance(model, str | os.PathLike) and Path(model).suffix == ".cell":
        return _exportable(read_cell(model))
    from cellerate.models.storage import load_model
    from cellerate.tasks.keras_agreement import check_against_keras
    from cellerate.tasks.packing import packable, packed

    if isinstance(model, str | os.PathLike):
        if record is not None:
            raise ConfigError("record is for a model, and a file has its own: leave one of them out.")
        model, record = load_model(model)
    cell = _exportable(packed(model, record).cell)
    check_against_keras(packable(model, record), cell.program)
    return cell


def _exportable(cell: Cell) -> Cell:
    """A packed model whose recurrent layers can be exported. Raises `ModelError` for others."""
    others = [f"{node.name} ({node.op})" for node in cell.program.nodes if node.op in ("gru", "simple_rnn")]
    if others:
        raise ModelError(
            f"of recurrent layers only LSTMs can be exported; this model has {', '.join(others)}. Use Keras's own "
            "model.export, or pack the model."
        )
    return cell


def _stateful(program: Program) -> Program:
    """The program with the states of its LSTMs going in and out: of the first one h_0 and c_0, and so on."""
    made = stepping_of(program)
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


def _one_step(program: Program) -> Program:
    """The program for sequences of a single step."""
    nodes = []
    for node in program.nodes:
        shape: Any = node.options.get("shape", ())
        if node.op == "input" and -1 in shape[1:]:
            sizes = (shape[0], *(1 if size == -1 else size for size in shape[1:]))
            node = dataclasses.replace(node, options={**node.options, "shape": sizes})
        nodes.append(node)
    return Program(tuple(nodes), program.outputs)


def _metadata(cell: Cell) -> dict[str, Any]:
    return {"exported_by": cellerate.__version__} | dict(cell.header)


def _check_error(found: "Deviation", tolerance: float) -> None:
    # Written with `not` because every comparison with NaN is False.
    if not found.error <= tolerance:
        raise ModelError(
            f"the exported model gives other results than the model: its error is {found.error:.2g}, and at most "
            f"{tolerance:.2g} is right ({found.shapes}). Nothing was written; please report it, with the model."
        )


def _check_rounding(found: "Deviation", own_error: float, judge: "_Judge", where: str) -> None:
    allowed = max(_INT8_FREE, _INT8_TIMES * own_error)
    if judge is None and not found.error <= allowed:
        raise ModelError(
            f"in 8 bits this model errs by {found.error:.2g} in {where}, and by {own_error:.2g} in a .cell file of "
            "int8: its inputs or embeddings have a few numbers much larger than the others. At most "
            f"{allowed:.2g} is taken on trust, so nothing was written. Export it in float32, or give data (--data) to "
            "judge it by its task."
        )
