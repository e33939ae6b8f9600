"""`cellerate data`: prepares data."""

import dataclasses
from pathlib import Path
from typing import Annotated

from cellerate.cli.options import Json, Quiet, operand, option, with_settings
from cellerate.cli.output import print_json, print_result
from cellerate.cli.running import progress_bar
from cellerate.cli.tables import notes_at_end
from cellerate.data.settings import FILLED_IN, Reading, TableOptions
from cellerate.format import counted, listed, size
from cellerate.listener import Callbacks

# Columns that are listed of a packed series.
_SHOWN = 20


@with_settings("reading", Reading, leave_out=[*FILLED_IN, "wide"], panel="Series")
@with_settings("table", TableOptions, panel="Tables")
def pack(
    paths: Annotated[
        list[str], operand("Tables (CSV, Parquet, Arrow, Excel, JSON lines, .npy), folders or patterns.")
    ],
    output: Annotated[Path, option("The folder to make, named *.series.", "--output", "-o")],
    reading: Reading,
    table: TableOptions,
    column: Annotated[
        list[str] | None, option("A column of numbers to keep; without any, all of them.")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Pack tables into a series that opens at once, however long it is.

    It takes a constant amount of memory. A packing that was interrupted goes on when it is started again.

    Example:
        cellerate data pack 'sales/*.parquet' --series-column shop -o sales.series
    """
    from cellerate.data.series import pack_series

    with notes_at_end(quiet) as collect, progress_bar("packing rows", quiet) as progress:
        packed = pack_series(
            paths,
            output,
            dataclasses.replace(reading, features=column or None),
            table=table,
            listener=Callbacks(collect, progress),
        )
        for note in packed.notes:
            collect(note)
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
            f"{counted(stretches, 'stretch', 'stretches')} without a gap, {size(content)}"
        )
