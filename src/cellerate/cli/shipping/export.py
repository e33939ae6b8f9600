"""`cellerate export`: a trained model for another runtime."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cellerate.cli.backend import start_backend, start_backend_for, without_notes
from cellerate.cli.options import Backend, Json, operand, option, with_settings
from cellerate.cli.output import print_json, print_result
from cellerate.cli.tables import check_read
from cellerate.data.settings import TableOptions
from cellerate.errors import ConfigError
from cellerate.exports.formats.registry import FORMATS
from cellerate.format import size
from cellerate.settings import check_choice, check_number
from cellerate.tasks.settings import ReadingOptions

if TYPE_CHECKING:
    from cellerate.tasks.exporting import Exported

_PRECISIONS = "; ".join(f"{one.name}: {', '.join(one.precisions)}" for one in FORMATS.values())


@with_settings("reading", ReadingOptions, panel="Reading of series")
@with_settings("table", TableOptions, panel="Tables")
def export(
    model: Annotated[Path, operand("A .keras file, of Cellerate or of anyone, or a .cell.")],
    reading: ReadingOptions,
    table: TableOptions,
    to: Annotated[str, typer.Option(help=f"The format: {', '.join(FORMATS)}.")] = "onnx",
    output: Annotated[
        Path | None,
        option(
            "The file to write, or the folder of versions; beside the model if not given.", "--output", "-o"
        ),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            "--precision",
            "--dtype",
            help=f"How weights are kept. {_PRECISIONS}.",
        ),
    ] = "float32",
    stateful: Annotated[
        bool, typer.Option("--stateful", help="Let the states of the LSTMs go in and out, for streams.")
    ] = False,
    batch_size: Annotated[int, typer.Option(help="Rows of a LiteRT model; the others take any number.")] = 1,
    data: Annotated[
        list[Path] | None,
        option(
            "Data of the model's task, to judge the exported model on in its runtime; may be repeated.",
            "--data",
            "-d",
        ),
    ] = None,
    max_quality_loss: Annotated[
        float, typer.Option(help="How much worse it may become on the data, as a share.")
    ] = 0.01,
    backend: Backend = None,
    json: Json = False,
) -> None:
    """Write a model for another runtime, and try it there.

    Examples:
        cellerate export book.keras --to onnx

        cellerate export book.cell --to onnx --stateful -o stream.onnx

        cellerate export book.keras --to savedmodel -o models/book

        cellerate export book.keras --to litert --precision int8 --data book.txt
    """
    # Checked first, for a framework takes seconds to start.
    from cellerate.tasks.exporting import check_export, check_judged, export as export_model

    check_choice("to", to, tuple(FORMATS))
    form = FORMATS[to]
    target = output or model.with_suffix(form.suffix)
    check_export(target, to, precision)
    check_number("batch_size", batch_size, at_least=1, whole=True)
    check_number("max_quality_loss", max_quality_loss, at_least=0)
    check_read(data, reading, table)
    if data:
        check_judged(model)
    if form.backend:
        if backend not in (None, form.backend):
            raise ConfigError(
                f"an export to {to} is written by {form.runtime}; got --backend {backend}. Leave it out."
            )
        start_backend(form.backend)
    else:
        start_backend_for(model, backend, data or ())
    # A SavedModel becomes a version of its own.
    replaced = target.is_file()
    judge = None
    if data:
        from cellerate.optimization.exported_quality import quality_judge

        judge = quality_judge(model, data, max_loss=max_quality_loss, reading=reading, table=table)
    with without_notes():
        done = export_model(
            model,
            target,
            to=to,
            precision=precision,
            stateful=stateful,
            batch_size=batch_size,
            judge=judge,
        )
    parts = done.path.rglob("*") if done.path.is_dir() else [done.path]
    written = sum(part.stat().st_size for part in parts if part.is_file())
    if json:
        print_json(dataclasses.asdict(done) | {"path": str(done.path), "output_bytes": written})
        return
    print_result(f"{done.path}: {size(written)}, {to}, {precision}{', replaced' * replaced}")
    _show(done)


def _show(done: "Exported") -> None:
    """Shows the checks that an export passed."""
    print_result(f"inputs   {', '.join(done.inputs)}")
    print_result(f"outputs  {', '.join(done.outputs)}")
    allowed = "" if done.tolerance is None else f" (at most {done.tolerance:.0e})"
    if done.own_error is not None:
        allowed = f" ({done.own_error:.1e} in a .cell file of int8)"
    print_result(f"checked  {done.tried}: error {done.error:.1e}{allowed}")
    if done.largest_pair is not None:
        print_result(
            f"exact    on every processor: two products add up to {done.largest_pair:,} at most, in 16 bits"
        )
    if done.elsewhere:
        print_result(f"also     {done.elsewhere}")
    if done.quality is not None:
        found = done.quality
        change = f"{abs(found.loss):.2%} {'worse' if found.loss > 0 else 'better'}"
        if abs(found.loss) < 5e-5:
            change = "unchanged"
        print_result(
            f"quality  {found.metric} {found.before:.4g} → {found.after:.4g}, {change} "
            f"(at most {found.max_loss:.2%} worse)"
        )
