"""`cellerate forecast`."""

import csv
import io
from pathlib import Path
from typing import Annotated, Any

import typer

from cellerate.cli.backend import start_backend
from cellerate.cli.options import Backend, Config, Json, Quiet, with_settings
from cellerate.cli.output import emit_json, note, show, tell
from cellerate.cli.running import progress_bar
from cellerate.cli.sharing import Processes, check_processes, is_folder, shared_pass, tell_pass
from cellerate.cli.tables import spoken
from cellerate.data.table_options import TableOptions
from cellerate.errors import ConfigError


@with_settings("table", TableOptions, leave_out=["told"], panel="Tables")
def forecast(
    model: Annotated[Path, typer.Argument(help="A model of `train series`, or packed.", show_default=False)],
    data: Annotated[
        list[str],
        typer.Argument(
            help="The series so far: tables of any format, or a packed series.", show_default=False
        ),
    ],
    table: TableOptions,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Also write the forecasts: *.csv, *.parquet, or a folder of Parquet files.",
            show_default=False,
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw past and forecast as a PNG.", show_default=False)
    ] = None,
    time_column: Annotated[
        str | None,
        typer.Option(help="The column of times; without it, as in training.", show_default=False),
    ] = None,
    series_column: Annotated[
        list[str] | None,
        typer.Option(
            help="A column that tells several series apart; may be given again; without it, as in training.",
            show_default=False,
        ),
    ] = None,
    missing: Annotated[
        str | None,
        typer.Option(
            help="What to do with missing values of these files: error, drop, ffill or interpolate; without it, as in "
            "training.",
            show_default=False,
        ),
    ] = None,
    gaps: Annotated[
        str | None,
        typer.Option(
            help="What to do with gaps: split, error or ignore; without it, as in training.",
            show_default=False,
        ),
    ] = None,
    duplicates: Annotated[
        str | None,
        typer.Option(
            help="What to do with rows of one time: error, first, last or mean; without it, as in training.",
            show_default=False,
        ),
    ] = None,
    time_zone: Annotated[
        str | None,
        typer.Option(help="The zone of times that say none; without it, as in training.", show_default=False),
    ] = None,
    frequency: Annotated[
        str | None,
        typer.Option(
            help="How often there is a row: 15min, hour, day, business-day, week, month; without it, as in training.",
            show_default=False,
        ),
    ] = None,
    processes: Processes = 1,
    backend: Backend = None,
    quiet: Quiet = False,
    json: Json = False,
    config: Config = None,
) -> None:
    """Forecast what comes after the end of each series.

    Into a folder it goes block by block, for any number of series, shows nothing, and the same command goes on with
    what is left to do.

    Examples:
        cellerate forecast ett.keras ETTh1.csv

        cellerate forecast ett.cell ETTh1.csv -o tomorrow.csv --plot tomorrow.png

        cellerate forecast sales.cell sales.series -o tomorrow/ --processes 4
    """
    from cellerate.files import check_writable, write_csv, write_parquet

    if processes > 1 and output is None:
        raise ConfigError("several processes write a folder of Parquet files: name it with -o.")
    check_processes(processes, output)
    reading: dict[str, Any] = {
        "time_column": time_column,
        "series_column": series_column or None,
        "missing": missing,
        "gaps": gaps,
        "duplicates": duplicates,
        "time_zone": time_zone,
        "frequency": frequency,
    }
    reading = {name: value for name, value in reading.items() if value is not None}
    if output is not None and is_folder(output):
        if plot is not None:
            raise ConfigError("plot is for a few series: leave it out, or give a file as output.")
        with shared_pass(model, processes, output):
            if model.suffix != ".cell":
                start_backend(backend)
            from cellerate.tasks.bulk import forecast_files

            with progress_bar("forecasting", quiet) as progress:
                done = forecast_files(
                    model, data, output, reading=reading, table=spoken(table, quiet), progress=progress
                )
        for told in done.notes if not quiet else ():
            tell(told)
        tell_pass(done, json)
        return
    if model.suffix != ".cell":
        start_backend(backend)
    from cellerate.report.charts import check_chart, draw_forecasts
    from cellerate.tasks import inference
    from cellerate.tasks.forecasts import example_record, forecast_columns, forecast_table

    if output is not None:
        check_writable(output)
    if plot is not None:
        check_chart(plot)
    with progress_bar("forecasting", quiet) as progress:
        notes: list[str] = []
        examples = inference.forecast(
            model, data, **reading, progress=progress, tell=notes.append, **vars(spoken(table, quiet))
        )
    for told in notes if not quiet else ():
        tell(told)
    columns, rows = forecast_table(examples)
    if output is not None and output.suffix == ".parquet":
        write_parquet(output, forecast_columns(examples))
    elif output is not None:
        write_csv(output, columns, rows)
    if plot is not None:
        draw_forecasts(plot, examples, f"{model.stem}: the next {len(examples[0].times)} rows")
    if json:
        emit_json({"forecasts": [example_record(example) for example in examples]})
    else:
        shown = io.StringIO()
        writer = csv.writer(shown, lineterminator="\n")
        writer.writerow(columns)
        time = columns.index("time")
        writer.writerows(
            [f"{v:.6g}" if isinstance(v, float) and place != time else v for place, v in enumerate(row)]
            for row in rows
        )
        show(shown.getvalue())
    for target in filter(None, (output, plot)):
        note(f"written: {target}")
