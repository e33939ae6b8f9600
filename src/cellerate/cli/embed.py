"""`cellerate embed`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from cellerate.cli.backend import start_backend
from cellerate.cli.options import Backend, Config, Json, Quiet
from cellerate.cli.output import emit, emit_json
from cellerate.cli.running import progress_bar


def embed(
    model: Annotated[Path, typer.Argument(help="A model of `train embed`, or packed.", show_default=False)],
    lines: Annotated[
        Path, typer.Argument(help="A text file with one line each, or Parquet.", show_default=False)
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the vectors: *.npy or *.parquet.")
    ] = Path("vectors.npy"),
    column: Annotated[
        str | None, typer.Option(help="The column of a Parquet file.", show_default=False)
    ] = None,
    errors: Annotated[
        Literal["strict", "replace"],
        typer.Option(help="Characters the model never saw, and bytes that are not UTF-8: refuse or replace."),
    ] = "strict",
    batch_size: Annotated[int, typer.Option(help="Lines per batch.")] = 256,
    backend: Backend = None,
    quiet: Quiet = False,
    json: Json = False,
    config: Config = None,
) -> None:
    """Write one vector per line, in the order of the lines; empty lines get one, too.

    Examples:
        cellerate embed lines.keras lines.txt -o vectors.parquet

        cellerate embed lines.cell lines.txt
    """
    from cellerate.files import check_writable

    if model.suffix != ".cell":
        start_backend(backend)
    from cellerate.data.line_files import read_lines
    from cellerate.runtime.embedding import check_vectors_path, save_vectors
    from cellerate.tasks import inference

    check_vectors_path(output)
    check_writable(output)
    texts = read_lines(lines, column=column, errors=errors, drop_empty=False)
    with progress_bar("embedding", quiet) as progress:
        vectors = inference.embed(model, texts, batch_size=batch_size, errors=errors, progress=progress)
    save_vectors(vectors, output, texts)
    if json:
        emit_json({"output": str(output), "lines": len(texts), "dimensions": vectors.shape[1]})
    else:
        emit(f"{output}: {len(texts):,} vectors of {vectors.shape[1]}")
