"""`cellerate embed`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from cellerate.cli.backend import start_backend
from cellerate.cli.options import Backend, Config, Json, Quiet
from cellerate.cli.output import print_json, print_result
from cellerate.cli.running import progress_bar
from cellerate.cli.sharing import Processes, check_processes, is_folder, print_pass, shared_pass
from cellerate.errors import ConfigError


def embed(
    model: Annotated[Path, typer.Argument(help="A model of `train embed`, or packed.", show_default=False)],
    lines: Annotated[
        list[Path],
        typer.Argument(
            help="A text file with one line each, JSON lines or Parquet; several, or folders, with a folder as output.",
            show_default=False,
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
    column: Annotated[
        str | None, typer.Option(help="The column of a Parquet file.", show_default=False)
    ] = None,
    field: Annotated[
        str | None, typer.Option(help="The field of JSON lines that has the text.", show_default=False)
    ] = None,
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
    config: Config = None,
) -> None:
    """Write one vector per line, in the order of the lines; empty lines get one, too.

    Into a folder it goes block by block, for data of any size, and the same command goes on with what is left to do.

    Examples:
        cellerate embed lines.keras lines.txt -o vectors.parquet

        cellerate embed lines.cell products.jsonl --field title

        cellerate embed lines.cell titles/ -o vectors/ --processes 4
    """
    from cellerate.files import check_writable

    check_processes(processes, output)
    if is_folder(output):
        with shared_pass(model, processes, output):
            if model.suffix != ".cell":
                start_backend(backend)
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
    if model.suffix != ".cell":
        start_backend(backend)
    from cellerate.data.text import read_lines
    from cellerate.runtime.embedding import check_vectors_path, save_vectors
    from cellerate.tasks import inference

    check_vectors_path(output)
    check_writable(output)
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
