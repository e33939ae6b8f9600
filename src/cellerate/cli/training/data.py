"""`cellerate data`: prepares data."""

from pathlib import Path
from typing import Annotated

import typer

from cellerate.cli.options import Config, Json, Quiet, with_settings
from cellerate.cli.output import notify_with_options, print_json, print_result
from cellerate.cli.running import progress_bar
from cellerate.cli.tables import spoken
from cellerate.data.settings import TableOptions
from cellerate.format import listed, size

# Columns that are listed of a packed series.
_SHOWN = 20


@with_settings("table", TableOptions, leave_out=["notify_reading"], panel="Tables")
def pack(
    paths: Annotated[
        list[str],
        typer.Argument(
            help="Tables (CSV, Parquet, Arrow, Excel, JSON lines, .npy), folders or patterns.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder to make, named *.series.", show_default=False)
    ],
    table: TableOptions,
    column: Annotated[
        list[str] | None,
        typer.Option(help="A column of numbers to keep; without any, all of them.", show_default=False),
    ] = None,
    time_column: Annotated[
        str | None,
        typer.Option(
            help="The column of times; without it, it is found by its name or type.", show_default=False
        ),
    ] = None,
    series_column: Annotated[
        list[str] | None,
        typer.Option(
            help="A column that tells several series apart; may be given again.", show_default=False
        ),
    ] = None,
    missing: Annotated[
        str, typer.Option(help="What to do with missing values: error, drop, ffill or interpolate.")
    ] = "error",
    gaps: Annotated[
        str, typer.Option(help="What to do where the time step differs: split, error or ignore.")
    ] = "split",
    duplicates: Annotated[
        str, typer.Option(help="What to do with rows of one time: error, or keep the first, last or mean.")
    ] = "error",
    time_zone: Annotated[
        str | None, typer.Option(help="The zone of times that say none: Europe/Berlin.", show_default=False)
    ] = None,
    frequency: Annotated[
        str | None,
        typer.Option(
            help="How often there is a row: 15min, hour, day, business-day, trading-day, week, month; "
            "without it, it is found.",
            show_default=False,
        ),
    ] = None,
    storage: Annotated[
        str,
        typer.Option(help="How values are stored: float32 (float64 where it would lose digits) or float16."),
    ] = "float32",
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
) -> None:
    """Pack tables into a series that opens at once, however long it is.

    It takes a constant amount of memory. A packing that was interrupted goes on when it is started again.

    Example:
        cellerate data pack 'sales/*.parquet' --series-column shop -o sales.series
    """
    from cellerate.data.series import pack_series

    with progress_bar("packing rows", quiet) as progress:
        packed = pack_series(
            paths,
            output,
            columns=column or None,
            time_column=time_column,
            series_column=series_column or (),
            missing=missing,  # type: ignore[arg-type]  # checked there
            gaps=gaps,  # type: ignore[arg-type]
            dtype=storage,  # type: ignore[arg-type]
            table=spoken(table, quiet),
            duplicates=duplicates,  # type: ignore[arg-type]
            time_zone=time_zone,
            frequency=frequency,
            progress=progress,
        )
    for told in packed.notes:
        if not quiet:
            notify_with_options(told)
    stretches, series = len(packed.segments), len(packed.names)
    content = sum(path.stat().st_size for path in output.iterdir())
    if json:
        print_json(
            {
                "output": str(output),
                "rows": len(packed.values),
                "columns": list(packed.columns),
                "series": series,
                "stretches": stretches,
                "bytes": content,
            }
        )
    else:
        print_result(
            f"{output}: {len(packed.values):,} rows of {listed(packed.columns, _SHOWN)} in {series:,} series, "
            f"{stretches:,} stretches without a gap, {size(content)}"
        )
