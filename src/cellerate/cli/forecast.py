"""`cellerate forecast`."""

import contextlib
import csv
import io
import warnings
from collections.abc import Iterator
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
    future: Annotated[
        list[str] | None,
        typer.Option(
            help="A table of the columns that are known in advance; without it, rows without targets at the end of the "
            "series.",
            show_default=False,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw history, forecast and intervals, of 12 series at most: *.png or *.svg.",
            show_default=False,
        ),
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
    level: Annotated[
        list[float] | None,
        typer.Option(
            help="The level of an interval; may be repeated. Default: 0.8 and 0.95, if the model was calibrated.",
            show_default=False,
        ),
    ] = None,
    intervals: Annotated[bool, typer.Option(help="Give intervals around the forecasts.")] = True,
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

        cellerate forecast ett.cell ETTh1.csv --level 0.5 --level 0.9
        cellerate forecast sales.cell sales.csv --future prices-of-next-week.csv

        cellerate forecast sales.cell sales.series -o tomorrow/ --processes 4
    """
    from cellerate.files import check_writable, write_csv, write_parquet

    if level and not intervals:
        raise ConfigError("level is for intervals: leave it out with intervals=False.")
    levels = (level or None) if intervals else ()
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

            with _as_notes(), progress_bar("forecasting", quiet) as progress:
                done = forecast_files(
                    model,
                    data,
                    output,
                    future=future or None,
                    reading=reading,
                    table=spoken(table, quiet),
                    levels=levels,
                    progress=progress,
                )
        for told in done.notes if not quiet else ():
            tell(told)
        tell_pass(done, json)
        return
    if plot is not None:
        from cellerate.report.charts import check_chart

        check_chart(plot)
    if model.suffix != ".cell":
        start_backend(backend)
    from cellerate.tasks import inference
    from cellerate.tasks.forecasts import example_record, forecast_columns, forecast_table

    if output is not None:
        check_writable(output)
    with _as_notes(), progress_bar("forecasting", quiet) as progress:
        notes: list[str] = []
        examples = inference.forecast(
            model,
            data,
            future=future or None,
            **reading,
            levels=levels,
            progress=progress,
            tell=notes.append,
            **vars(spoken(table, quiet)),
        )
    for told in notes if not quiet else ():
        tell(told)
    columns, rows = forecast_table(examples)
    if output is not None and output.suffix == ".parquet":
        write_parquet(output, forecast_columns(examples))
    elif output is not None:
        write_csv(output, columns, rows)
    if plot is not None:
        from cellerate.report.charts import draw_forecasts

        ahead = len(examples[0].times)
        draw_forecasts(plot, examples, f"{model.stem}: the next {f'{ahead:,} rows' if ahead > 1 else 'row'}")
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


@contextlib.contextmanager
def _as_notes() -> Iterator[None]:
    """Shows what Python would warn of as a line for people, such as a series that the model does not know."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: note(str(message))
        yield
