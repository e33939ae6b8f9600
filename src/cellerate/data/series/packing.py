"""Packs tables into a series on the disk that opens at once, however long it is: `cellerate data pack`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cellerate.data.series.build import build_series, check_reading, packing_key
from cellerate.data.series.columns import ChosenColumns, choose_columns
from cellerate.data.series.pack import SUFFIX, PackedSeries, is_packed_series, open_packed
from cellerate.data.series.rows_read import Columns, EmptyColumnsError, without_value
from cellerate.data.settings import Reading, TableOptions
from cellerate.data.tables import find_tables, open_tables
from cellerate.errors import ConfigError, DataError
from cellerate.listener import SILENT, Listener


def pack_series(
    paths: Sequence[str | Path] | str | Path,
    output: str | Path,
    reading: Reading,
    *,
    table: TableOptions | None = None,
    listener: Listener = SILENT,
) -> PackedSeries:
    """Packs tables. After a kill the same call continues; a finished packed series is only opened.

    Args:
        paths: Tables in files, folders or patterns.
        output: The folder to make, named `*.series`.
        reading: See `open_series`; `features` are the columns to keep, None for all numeric ones.
        table: See `open_series`.
        listener: See `open_series`.

    Raises:
        ConfigError: An argument has an invalid value, or there is something else at `output`.
        DataError: See `open_series`.
        OutputError: The folder cannot be written.
    """
    output = Path(output)
    if output.suffix != SUFFIX:
        raise ConfigError(f"a packed series is a folder named *{SUFFIX}, not {output.name!r}.")
    check_reading(reading)
    tables_options = table or TableOptions()
    tables = open_tables(find_tables(paths), tables_options, listener)
    first = tables[0]

    def choose(empty: Sequence[str]) -> tuple[ChosenColumns, Columns, str]:
        chosen = choose_columns(first.path, first.columns, first.kinds, reading, first, empty)
        read = Columns(chosen.values, chosen.time, chosen.series, tables_options.missing_values)
        return chosen, read, packing_key(tables, read, reading)

    def build(empty: Sequence[str]) -> PackedSeries:
        chosen, read, key = choose(empty)
        notes = [chosen.note, *without_value(empty), *first.left_out(chosen.left_out)]
        return build_series(output, key, tables, read, reading, notes=notes, cache=False, listener=listener)

    if output.exists():
        chosen, _, key = choose(())
        try:
            found = open_packed(output) if is_packed_series(output) else None
        except DataError:
            found = None
        if found is not None and reading.features is None and found.fingerprint != key:
            # Columns without any value were left out.
            key = choose([name for name in chosen.values if name not in found.columns])[2]
        if found is None or found.fingerprint != key:
            raise ConfigError(f"{output} exists and holds something else. Remove it, or choose another name.")
        return found
    try:
        return build(())
    except EmptyColumnsError as error:
        if reading.features is not None:
            raise
        return build(error.columns)
