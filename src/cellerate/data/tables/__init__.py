"""Tables: CSV, Excel, JSON, Parquet, NumPy and frames of other packages, opened as blocks of columns.

A table is read block by block; `data.series` decides the meaning of its columns as a series.
"""

from cellerate.data.tables.frames import Frame, Tables, as_sources
from cellerate.data.tables.joined_times import columns_of_time, of_parts, with_clock
from cellerate.data.tables.npy_table import NpyTable
from cellerate.data.tables.series_keys import BySeries
from cellerate.data.tables.table import Table
from cellerate.data.tables.tables import Block, check_readers, find_tables, open_tables
from cellerate.data.tables.wide_table import SERIES, VALUE, WideTable

__all__ = [
    "SERIES",
    "VALUE",
    "Block",
    "BySeries",
    "Frame",
    "NpyTable",
    "Table",
    "Tables",
    "WideTable",
    "as_sources",
    "check_readers",
    "columns_of_time",
    "find_tables",
    "of_parts",
    "open_tables",
    "with_clock",
]
