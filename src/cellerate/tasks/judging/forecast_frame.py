"""The forecasts that `forecast` returns: a tuple that is also a table with names, for pandas, polars and Arrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cellerate.machine.environment import require
from cellerate.runtime.forecast import Example
from cellerate.tasks.judging.forecasts import forecast_columns


class Forecasts(tuple[Example, ...]):
    """The forecasts of each series, in the order of the series; as a table, one row for each series and time.

    The table has the column `series`, if series have names; `time`; and a column for each target, or for each quantile
    of it. It also exports an Arrow stream: `pyarrow.RecordBatchReader.from_stream(forecasts)`.

    Attributes:
        left_out: The series that end with too few rows for a forecast, and the number of these rows.

    Example:
        >>> cellerate.forecast("ett.cell", "ETTh1.csv").to_pandas()
    """

    left_out: Mapping[str, int]

    def __new__(cls, examples: Sequence[Example], left_out: Mapping[str, int] | None = None) -> Forecasts:
        """Makes the forecasts from the results, and from the series that are too short, with their rows."""
        made = super().__new__(cls, examples)
        made.left_out = left_out or {}
        return made

    def to_arrow(self) -> Any:
        """The table as a `pyarrow.Table`. Raises `BackendError` if pyarrow is not installed."""
        require("pyarrow", "tables", "forecasts as a table")
        import pyarrow as pa

        return pa.table(forecast_columns(self))

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame. Raises `BackendError` if pandas or pyarrow is not installed."""
        require("pandas", "frames", "forecasts as a pandas frame")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """The table as a polars DataFrame. Raises `BackendError` if polars or pyarrow is not installed."""
        require("polars", "frames", "forecasts as a polars frame")
        import polars

        return polars.from_arrow(self.to_arrow())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The table as an Arrow stream; see the Arrow PyCapsule interface."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)
