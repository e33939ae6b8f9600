"""`cellerate embed`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from cellerate.cli.backend import start_backend_for
from cellerate.cli.options import Backend, Json, Quiet, operand, option
from cellerate.cli.output import print_json, print_result
from cellerate.cli.running import progress_bar
from cellerate.cli.sharing import Processes, check_processes, is_folder, print_pass, shared_pass
from cellerate.cli.tables import check_table
from cellerate.errors import ConfigError


def embed(
    model: Annotated[Path, operand("A model of `train embed`, or packed.")],
    lines: Annotated[
        list[Path],
        operand(
            "A text file with one line each, JSON lines or Parquet; several, or folders, with a folder as output."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Where to write the vectors: *.npy, *.parquet, or a folder of Parquet files.",
        ),
    ] = Path("vectors.npy"),
    column: Annotated[str | None, option("The column of a Parquet file.")] = None,
    field: Annotated[str | None, option("The field of JSON lines that has the text.")] = None,
    encoding: Annotated[
        str, typer.Option(help="The encoding of a text file: utf-8, utf-16, windows-1252 or another.")
    ] = "utf-8",
    errors: Annotated[
        Literal["strict", "replace"],
        typer.Option(
            help="Characters the model never saw, and bytes that are not of the encoding: refuse or replace."
        ),
    ] = "strict",
    batch_size: Annotated[int, typer.Option(help="Lines per batch.")] = 256,
    processes: Processes = 1,
    backend: Backend = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Write one vector per line, in the order of the lines; empty lines get one, too.

    Into a folder it goes block by block, for data of any size, and the same command goes on with what is left to do.

    Examples:
        cellerate embed lines.keras lines.txt -o vectors.parquet

        cellerate embed lines.cell products.jsonl --field title

        cellerate embed lines.cell titles/ -o vectors/ --processes 4
    """
    check_processes(processes, output)
    if is_folder(output):
        with shared_pass(model, processes, output):
            start_backend_for(model, backend, lines)
            from cellerate.tasks.bulk import embed_files
            from cellerate.tasks.settings import LineFiles

            with progress_bar("embedding", quiet) as progress:
                done = embed_files(
                    model,
                    LineFiles(lines, column, field, errors, encoding),
                    output,
                    batch_size=batch_size,
                    progress=progress,
                )
        print_pass(done, json)
        return
    if len(lines) > 1 or lines[0].is_dir():
        raise ConfigError(f"several files need a folder as output, not {output}: -o vectors/")
    from cellerate.runtime.embedding import check_vectors_path, save_vectors

    check_vectors_path(output)
    check_table(output, lines)
    start_backend_for(model, backend, lines)
    from cellerate.data.text import read_lines
    from cellerate.tasks import inference

    texts = read_lines(
        lines[0], column=column, field=field, errors=errors, encoding=encoding, drop_empty=False
    )
    with progress_bar("embedding", quiet) as progress:
        vectors = inference.embed(model, texts, batch_size=batch_size, errors=errors, progress=progress)
    replaced = output.exists()
    save_vectors(vectors, output, texts)
    if json:
        print_json({"output": str(output), "lines": len(texts), "dimensions": vectors.shape[1]})
    else:
        print_result(f"{output}: {len(texts):,} vectors of {vectors.shape[1]}{', replaced' * replaced}")
