"""`cellerate export`: a trained model for another runtime."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from cellerate.cli.backend import start_backend
from cellerate.cli.options import Backend, Config, Json
from cellerate.cli.output import emit, emit_json
from cellerate.format import size


def export(
    model: Annotated[
        Path, typer.Argument(help="A .keras file, of Cellerate or of anyone, or a .cell.", show_default=False)
    ],
    to: Annotated[str, typer.Option(help="The format: onnx.")] = "onnx",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The file to write; beside the model if not given.", show_default=False
        ),
    ] = None,
    precision: Annotated[
        str, typer.Option("--precision", "--dtype", help="How weights are kept: float32 or int8.")
    ] = "float32",
    stateful: Annotated[
        bool, typer.Option("--stateful", help="Let the states of the LSTMs go in and out, for streams.")
    ] = False,
    backend: Backend = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Write a model for another runtime, and try it there.

    Examples:
        cellerate export book.keras --to onnx

        cellerate export ett.cell --to onnx --stateful -o stream.onnx
    """
    if model.suffix != ".cell":
        start_backend(backend)
    from cellerate.tasks.exporting import FORMATS
    from cellerate.tasks.exporting import export as export_model

    target = output or model.with_suffix(FORMATS.get(to, ".onnx"))
    done = export_model(model, target, to=to, precision=precision, stateful=stateful)
    written = target.stat().st_size
    if json:
        emit_json(dataclasses.asdict(done) | {"path": str(done.path), "output_bytes": written})
        return
    emit(f"{target}: {size(written)}, {to}, {precision}")
    emit(f"inputs   {', '.join(done.inputs)}")
    emit(f"outputs  {', '.join(done.outputs)}")
    allowed = "" if done.tolerance is None else f" (at most {done.tolerance:.0e})"
    emit(f"checked  in ONNX Runtime, {done.tried}: error {done.error:.1e}{allowed}")
