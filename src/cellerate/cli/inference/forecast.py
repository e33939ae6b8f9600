"""`cellerate forecast`."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cellerate.cli.backend import start_backend_for
from cellerate.cli.options import Backend, Json, Quiet, operand, option, with_settings
from cellerate.cli.output import check_plot, outputs, print_json, show, written
from cellerate.cli.running import progress_bar
from cellerate.cli.sharing import Processes, check_processes, is_folder, print_pass, shared_pass
from cellerate.cli.tables import Level, WithIntervals, check_table, levels_of, notes_at_end
from cellerate.data.settings import TableOptions
from cellerate.errors import ConfigError
from cellerate.messages import argument
from cellerate.tasks.settings import ReadingOptions, SeriesFiles

if TYPE_CHECKING:
    from cellerate.runtime.forecast import Example
    from cellerate.tasks.bulk import PassResult


@with_settings("reading", ReadingOptions, panel="Reading")
@with_settings("table", TableOptions, panel="Tables")
def forecast(
    model: Annotated[Path, operand("A model of `train series`, or packed.")],
    data: Annotated[list[str], operand("The series so far: tables of any format, or a packed series.")],
    reading: ReadingOptions,
    table: TableOptions,
    output: Annotated[
        Path | None,
        option("Also write the forecasts: *.csv, *.parquet, or a folder of Parquet files.", "--output", "-o"),
    ] = None,
    future: Annotated[
        list[str] | None,
        option(
            "A table of the columns that are known in advance; without it, rows without targets at the end of the "
            "series."
        ),
    ] = None,
    plot: Annotated[
        Path | None, option("Draw history, forecast and intervals, of 12 series at most: *.png or *.svg.")
    ] = None,
    level: Level = None,
    intervals: WithIntervals = True,
    processes: Processes = 1,
    backend: Backend = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Forecast what comes after the end of each series.

    Into a folder it goes block by block, for any number of series, shows nothing, and the same command goes on with
    what is left to do.

    Examples:
        cellerate forecast ett.keras ETTh1.csv

        cellerate forecast ett.cell ETTh1.csv -o tomorrow.csv --plot tomorrow.png

        cellerate forecast ett.cell ETTh1.csv --level 0.5 --level 0.9
        cellerate forecast sales.cell sales.csv --future prices-of-next-week.csv

        cellerate forecast sales.cell sales.series -o tomorrow/ --processes 4
    """
    from cellerate.files import write_csv, write_parquet

    levels = levels_of(level, intervals)
    if processes > 1 and output is None:
        raise ConfigError("several processes write a folder of Parquet files: name it with -o.")
    check_processes(processes, output)
    if output is not None and is_folder(output):
        if plot is not None:
            raise ConfigError(
                f"{argument('plot')} is for a few series: leave it out, or give a file ({argument('output')})."
            )
        series = SeriesFiles(data, future or None, reading, table)
        done = _into_folder(model, series, output, levels, processes, backend, quiet)
        print_pass(done, json)
        return
    check_plot(plot)
    if output is not None:
        if output.suffix.lower() not in (".csv", ".parquet"):
            raise ConfigError(
                f"the output ends in .csv or .parquet, or is a folder, and {output} is neither."
            )
        check_table(output, [*data, *(future or ())])
    start_backend_for(model, backend, [*data, *(future or ())])
    from cellerate.tasks import inference
    from cellerate.tasks.judging import example_record, forecast_columns, forecast_table

    say_written = outputs(output, plot)
    with notes_at_end(quiet) as collect, progress_bar("forecasting", quiet) as progress:
        examples = inference.forecast(
            model,
            data,
            future=future or None,
            levels=levels,
            progress=progress,
            notify=collect,
            **vars(reading),
            **vars(table),
        )
    columns, rows = forecast_table(examples)
    if output is not None and output.suffix.lower() == ".parquet":
        write_parquet(output, forecast_columns(examples))
    elif output is not None:
        write_csv(output, columns, rows)
    if plot is not None:
        from cellerate.report.charts import draw_forecasts

        draw_forecasts(plot, examples, f"{model.stem}: the next {_ahead(examples[0])}")
    if json:
        forecasts = [example_record(example) for example in examples]
        print_json({"forecasts": forecasts, "left_out_series": dict(examples.left_out)})
    else:
        _show_rows(columns, rows)
    say_written()


def _into_folder(
    model: Path,
    data: SeriesFiles,
    output: Path,
    levels: Sequence[float] | None,
    processes: int,
    backend: str | None,
    quiet: bool,
) -> "PassResult":
    """Forecasts any number of series, block by block."""
    with shared_pass(model, processes, output):
        start_backend_for(model, backend, data.all_paths())
        from cellerate.tasks.bulk import forecast_files

        with notes_at_end(quiet) as collect, progress_bar("forecasting", quiet) as progress:
            return forecast_files(model, data, output, levels=levels, progress=progress, notify=collect)


def _show_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Shows the table of the forecasts, with six digits of each number."""
    shown = io.StringIO()
    writer = csv.writer(shown, lineterminator="\n")
    writer.writerow(columns)
    time = columns.index("time")
    writer.writerows(
        [written(v, 6) if isinstance(v, float) and place != time else v for place, v in enumerate(row)]
        for row in rows
    )
    show(shown.getvalue())


def _ahead(example: "Example") -> str:
    """The reach of a forecast in words: "24 hours", "business day"; "96 rows" where a row has no plain word."""
    import numpy as np

    from cellerate.data.times import find_frequency

    count = len(example.times)
    times = np.concatenate([example.past_times, example.times])
    found = None
    if times.dtype.kind == "M":
        found = find_frequency(times, np.ones(len(times) - 1, bool), example.form.zone)
    many = "rows" if found is None or not found.name[0].isalpha() else found.name
    return f"{count:,} {many}" if count > 1 else many.removesuffix("s")
