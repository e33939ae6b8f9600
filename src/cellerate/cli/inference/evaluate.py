"""`cellerate evaluate`."""

import contextlib
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cellerate.cli.backend import start_backend_for
from cellerate.cli.figures import Rank, Statistics, show_figures
from cellerate.cli.options import Backend, Json, Quiet, operand, option, with_settings
from cellerate.cli.output import check_plot, notify, outputs, print_json, print_result
from cellerate.cli.running import progress_bar
from cellerate.cli.sharing import Processes, check_processes, is_folder, pass_record, shared_pass
from cellerate.cli.tables import notes_at_end
from cellerate.cli.words import in_options
from cellerate.data.settings import TableOptions
from cellerate.errors import ConfigError
from cellerate.messages import argument
from cellerate.tasks.settings import ReadingOptions, SeriesFiles, TextFileReading


@with_settings("reading", ReadingOptions, panel="Reading of series")
@with_settings("table", TableOptions, panel="Tables")
def evaluate(
    model: Annotated[Path, operand("A model that `train` wrote, or a packed one of text or of series.")],
    data: Annotated[list[str], operand("Data of the model's task.")],
    reading: ReadingOptions,
    table: TableOptions,
    part: Annotated[
        Literal["all", "held-out"] | None,
        option(
            "Which rows of the data to judge on (the files themselves stand behind the model): all, or those that "
            "training on the same data held out (text and series). Default: all; but of the data that a forecaster "
            "was trained on, those held out."
        ),
    ] = None,
    column: Annotated[
        str | None, option("Lines: the column of a Parquet file. Default: that of the training.")
    ] = None,
    field: Annotated[
        str | None, option("The field of JSON lines that has the text. Default: that of the training.")
    ] = None,
    errors: Annotated[
        Literal["strict", "replace"],
        typer.Option(help="Bytes that are not of the encoding: refuse or replace."),
    ] = "strict",
    batch_size: Annotated[int, typer.Option(help="Rows per batch.")] = 128,
    output: Annotated[
        Path | None,
        option("Series: a folder for the errors of each stretch, as Parquet files.", "--output", "-o"),
    ] = None,
    plot: Annotated[
        Path | None, option("Series: draw how the errors grow with the steps ahead: *.png or *.svg.")
    ] = None,
    statistical: Statistics = None,
    rank: Rank = 10,
    processes: Processes = 1,
    backend: Backend = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Judge a model: bits per character, forecast errors beside those of baselines, or reconstruction.

    Examples:
        cellerate evaluate book.keras other.txt

        cellerate evaluate ett.keras ETTh1.csv --part held-out --json

        cellerate evaluate book.cell other.txt

        cellerate evaluate sales.cell sales.series -o errors/ --processes 4
    """
    check_processes(processes, output)
    say_written = outputs(plot)
    check_plot(plot)
    texts: dict[str, Any] = {"column": column, "field": field, "errors": errors}
    if output is not None or processes > 1:
        TextFileReading(**texts).check_used("series")
        if plot is not None:
            raise ConfigError(f"{argument('plot')} is for one process that writes no folder: leave it out.")
        if statistical:
            raise ConfigError(
                f"{argument('statistical')} is for one process that writes no folder: leave it out."
            )
        series = SeriesFiles(data, reading=reading, table=table)
        found = _in_pieces(model, series, output, part, processes, backend, quiet)
    else:
        start_backend_for(model, backend, data)
        from cellerate.tasks import inference

        with notes_at_end(quiet) as collect:
            found = inference.evaluate(
                model,
                data,
                part=part,
                batch_size=batch_size,
                by_step=plot is not None,
                statistical=statistical or (),
                notify=collect,
                **texts,
                **vars(reading),
                **vars(table),
            )
    if plot is not None:
        _draw(plot, found, f"{model.stem}: errors by the step ahead")
    if json:
        print_json(found)
    elif "verdict" in found:
        print_result(f"judged on {found['windows']:,} windows: {in_options(found['judged'])}")
        show_figures(found, rank)
    else:
        for name, value in found.items():
            print_result(f"{name:<22} {_shown(value)}")
    say_written()


def _draw(path: Path, found: dict[str, Any], title: str) -> None:
    import numpy as np

    from cellerate.report.charts import draw_errors
    from cellerate.tasks.judging import LABELS

    targets = found["targets"]
    draw_errors(
        path,
        {LABELS[name]: np.array(values) for name, values in found["by_step"].items()},
        title,
        unit=targets[0] if len(targets) == 1 else "in standard deviations",
    )


def _in_pieces(
    model: Path,
    data: SeriesFiles,
    output: Path | None,
    part: str | None,
    processes: int,
    backend: str | None,
    quiet: bool,
) -> dict[str, Any]:
    """The figures of a forecaster, whose errors are written into a folder: one that goes again if none is named."""
    from cellerate.distributed.group import own_share

    if output is not None and not is_folder(output):
        raise ConfigError(f"the errors of each stretch go into a folder, and {output} is a file.")
    with contextlib.ExitStack() as opened:
        further = []
        if output is None:
            if own_share()[1] > 1:
                raise ConfigError("processes that were started elsewhere share a folder: name it with -o.")
            output = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="cellerate-")), "errors")
            further = ["--output", str(output)]
        opened.enter_context(shared_pass(model, processes, output, *further))
        start_backend_for(model, backend)
        from cellerate.tasks.bulk import judge_files

        with notes_at_end(quiet) as collect, progress_bar("judging windows", quiet) as progress:
            done, report = judge_files(model, data, output, part=part, progress=progress, notify=collect)
    if report is None:
        notify("other processes are still at work; once they have ended, the same command tells the figures.")
    return report or pass_record(done)


def _shown(value: Any) -> str:
    return (
        f"{value:,.4f}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )
