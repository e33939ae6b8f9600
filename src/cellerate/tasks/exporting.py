"""Exports a trained model for other runtimes, and tries it there first."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import cellerate
from cellerate.errors import ConfigError, ModelError
from cellerate.exports.exported_model import ExportedModel
from cellerate.exports.formats.base import ExportFormat, ExportSource
from cellerate.exports.formats.registry import FORMATS
from cellerate.exports.trials import ANY_ROWS, Deviation, deviation, own_int8_error, trials_of
from cellerate.files import check_writable
from cellerate.machine.environment import require
from cellerate.messages import argument
from cellerate.runtime.cell import Cell, read_cell
from cellerate.settings import check_choice, check_counts

if TYPE_CHECKING:
    import keras

    from cellerate.models.storage import TaskRecord

    _Judge = Callable[[ExportedModel], "Quality"] | None

# The bound for narrower weights: a larger error does not come from rounding.
_NARROW = 1.0
# Other runtimes round inputs by one scale a batch, ours by one a row: with trained weights their error is up to 2.7
# times ours. Beyond this factor, a few large inputs have cost the other inputs their digits.
_INT8_FREE, _INT8_TIMES = 0.05, 3.0


@dataclasses.dataclass(frozen=True)
class Quality:
    """The quality of an exported model at its task, beside the original.

    Attributes:
        metric: Such as "bits per character".
        before: The quality of the original.
        after: The quality of the exported model, in its runtime.
        loss: The loss of quality, as a share; below 0 it is better.
        max_loss: The largest allowed loss.
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
        path: The written file or folder.
        format: The name of the format.
        precision: "float32", "float16" or "int8".
        inputs: The names of its inputs.
        outputs: The names of its outputs.
        error: The largest difference from our own runtime in float32, as a share of the output's largest number, or
            of 1 if that is larger.
        tolerance: The largest allowed error; None for narrower weights, which round on purpose.
        tried: The runtime and the batches of the trial, in words.
        quality: Its quality at its task; None if it was not judged.
        elsewhere: The outcome of an ONNX file in OpenVINO, in words; "" if it is not installed.
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
    model: str | os.PathLike[str] | keras.Model,
    output: str | os.PathLike[str],
    *,
    to: str = "onnx",
    precision: str = "float32",
    stateful: bool = False,
    batch_size: int = 1,
    record: TaskRecord | None = None,
    judge: Callable[[ExportedModel], Quality] | None = None,
) -> Exported:
    """Write a model for another runtime, whole or not at all, after its results there proved right.

    Args:
        model: A Keras model, its file, or a `.cell` file. It is not changed.
        output: The file; for "savedmodel" a folder, in which the model becomes the next version: 1, 2, ...
        to: The format: "onnx", "savedmodel" for TensorFlow and TensorFlow Serving, or "litert".
        precision: "float32"; for "onnx" also "int8", weights of 8 bits, one scale a column, by ONNX Runtime's dynamic
            quantisation, in ranges that every processor multiplies exactly; for "litert" also "float16", and "int8"
            by its dynamic range: one scale a matrix.
        stateful: Whether the states of the LSTMs are inputs and outputs, two of each for every LSTM, so that a long
            sequence can be given in parts. In a SavedModel this is the signature "step", which is written anyway if the
            model allows it; a LiteRT model then takes one step.
        batch_size: The fixed number of rows of a LiteRT model; the other formats take any number.
        record: The record, as `load_model` returns it, of a model that is not given as a file.
        judge: Measures the quality of the exported model in its runtime: `optimization.exported_quality.quality_judge`.

    Returns:
        The written export, with its error in the other runtime.

    Raises:
        BackendError: A package that writes or tries the format is not installed.
        ConfigError: An argument has an invalid value.
        ModelError: The model cannot be read; the format cannot hold it (the message names the layer); the results of
            the file differ from the model's; without `judge`, the error of an int8 file is far above that of our own
            int8; or the quality is worse than `judge` allows.
        OutputError: The file could not be written.

    Example:
        >>> cellerate.export("book.keras", "book.onnx").error
        1.3e-07
    """
    target = Path(output)
    form = check_export(target, to, precision)
    check_counts(batch_size=batch_size)
    if stateful and judge is not None:
        raise ConfigError(
            f"data are judged in whole sequences: leave out either the data or {argument('stateful')}."
        )
    if form.suffix:
        check_writable(target)
    cell = _cell(model, record)
    programs = form.programs(cell.program, stateful)
    rows = batch_size if form.fixed_rows else None
    trials = {name: trials_of(each, (rows,) if rows else ANY_ROWS) for name, each in programs.items()}
    metadata = {"exported_by": cellerate.__version__} | dict(cell.header)
    source = ExportSource(programs=programs, trials=trials, metadata=metadata, rows=rows)
    path, written_whole = form.place(target)
    with written_whole as beside:
        done = _written(form, source, precision, beside, judge)
    return dataclasses.replace(done, path=path)


def _written(form: ExportFormat, source: ExportSource, precision: str, path: Path, judge: _Judge) -> Exported:
    """Writes a model, and tries it in its runtime."""
    own = pair = None
    for each in dict.fromkeys(("float32", precision) if form.float32_first else (precision,)):
        form.write(source, each, path)
        if each == "int8" and form.prove:
            pair = form.prove(path)
        found = max(
            deviation(trials, form.open(source, path, name).run) for name, trials in source.trials.items()
        )
        if each == "int8":
            own = own_int8_error(source.program, source.trials[source.signature])
            _check_rounding(found, own, judge, form.runtime)
        _check_error(found, form.tolerance if each == "float32" else _NARROW)
    elsewhere = form.elsewhere(path, source.trials[source.signature]) if form.elsewhere else ""
    return Exported(
        path=path,
        format=form.name,
        precision=precision,
        inputs=tuple(source.program.inputs),
        outputs=tuple(source.program.outputs),
        error=found.error,
        tolerance=form.tolerance if precision == "float32" else None,
        tried=f"in {form.runtime}, {found.shapes}",
        quality=_judged(judge, form, source, path),
        elsewhere=elsewhere,
        largest_pair=pair,
        own_error=own,
    )


def _judged(judge: _Judge, form: ExportFormat, source: ExportSource, path: Path) -> Quality | None:
    if judge is None:
        return None
    runtime = form.open(source, path, source.signature)
    found = judge(ExportedModel(runtime.run, source.program, source.rows))
    # Written with `not` because every comparison with NaN is False.
    if not found.loss <= found.max_loss:
        raise ModelError(
            f"in {form.runtime} the {found.metric} of the model goes from {found.before:.4g} to {found.after:.4g}: "
            f"{found.loss:.2%} worse, and at most {found.max_loss:.2%} is allowed. Nothing was written; export it in "
            f"a wider {argument('precision')}, or allow more ({argument('max_quality_loss')})."
        )
    return found


def check_export(target: Path, to: str, precision: str) -> ExportFormat:
    """Find a format, and raise the errors that an export would raise about it before a model or data are read.

    Raises:
        BackendError: A package that writes or tries the format is not installed.
        ConfigError: The format, the suffix of the file or the precision is unknown.
    """
    check_choice("to", to, tuple(FORMATS))
    form = FORMATS[to]
    if form.suffix and target.suffix != form.suffix:
        raise ConfigError(
            f"a model for {to} is written to a path ending in {form.suffix!r}, not {str(target)!r}."
        )
    if precision not in form.precisions:
        raise ConfigError(
            f"{argument('precision')} must be {' or '.join(form.precisions)} in an export to {to}, "
            f"not {precision!r}."
        )
    for package in form.packages:
        require(package, form.extra, f"an export to {to}")
    return form


def check_judged(model: Path) -> None:
    """Raise `ConfigError` for a packed model: the data of its task need the model that it was made from."""
    if model.suffix == ".cell":
        raise ConfigError(
            f"{model} is packed; to judge an export on data, give the .keras file that it was made from."
        )


def _cell(model: str | os.PathLike[str] | keras.Model, record: TaskRecord | None) -> Cell:
    if isinstance(model, str | os.PathLike) and Path(model).suffix == ".cell":
        return _exportable(read_cell(model))
    from cellerate.exports.keras_agreement import check_against_keras
    from cellerate.models.storage import load_model
    from cellerate.tasks.packing import packable, packed

    if isinstance(model, str | os.PathLike):
        if record is not None:
            raise ConfigError(
                "record is for a Keras model, and a file has its own record: leave one of them out."
            )
        model, record = load_model(model)
    cell = _exportable(packed(model, record).cell)
    check_against_keras(packable(model, record), cell.program)
    return cell


def _exportable(cell: Cell) -> Cell:
    """The packed model, whose recurrent layers can be exported. Raises `ModelError` otherwise."""
    others = [f"{node.name} ({node.op})" for node in cell.program.nodes if node.op in ("gru", "simple_rnn")]
    if others:
        raise ModelError(
            f"of recurrent layers only LSTMs can be exported; this model has {', '.join(others)}. Use Keras's own "
            "model.export, or pack the model."
        )
    return cell


def _check_error(found: Deviation, tolerance: float) -> None:
    # Written with `not` because every comparison with NaN is False.
    if not found.error <= tolerance:
        raise ModelError(
            f"the exported model gives other results than the model: its error is {found.error:.2g}, and at most "
            f"{tolerance:.2g} is right ({found.shapes}). Nothing was written; please report it, with the model."
        )


def _check_rounding(found: Deviation, own_error: float, judge: _Judge, where: str) -> None:
    allowed = max(_INT8_FREE, _INT8_TIMES * own_error)
    if judge is None and not found.error <= allowed:
        raise ModelError(
            f"in 8 bits this model errs by {found.error:.2g} in {where}, and by {own_error:.2g} in a .cell file of "
            f"int8: its inputs or embeddings have a few numbers much larger than the others. At most {allowed:.2g} "
            f"is taken on trust, so nothing was written. Export it in float32, or give {argument('data')} to judge "
            "it by its task."
        )
