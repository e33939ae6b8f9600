"""Series: tables put in order of time, gaps and missing values filled, stored and packed.

`SeriesData` is an open series; `pack_series` stores it on the disk, so that the next run opens it at once.
"""

from cellerate.data.series.columns import MissingColumnError
from cellerate.data.series.future_rows import open_known
from cellerate.data.series.pack import SUFFIX, PackedSeries, describe, is_packed_series, open_packed
from cellerate.data.series.packing import pack_series
from cellerate.data.series.series import SeriesData, SeriesPart, SeriesSplit, open_series

__all__ = [
    "SUFFIX",
    "MissingColumnError",
    "PackedSeries",
    "SeriesData",
    "SeriesPart",
    "SeriesSplit",
    "describe",
    "is_packed_series",
    "open_known",
    "open_packed",
    "open_series",
    "pack_series",
]
