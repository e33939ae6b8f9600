"""Tables in memory: pandas, polars, Arrow and NumPy, taken as if they were files.

A frame is recognised by its methods, so none of these packages is imported for it. pyarrow is, except for NumPy arrays.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from cellerate.data.arrays import unmasked
from cellerate.data.settings import TableOptions
from cellerate.data.tables.arrow_table import ArrowTable
from cellerate.data.tables.csv_header import names_of
from cellerate.data.tables.npy_table import NpyTable
from cellerate.data.tables.table import Table
from cellerate.errors import ConfigError, DataError
from cellerate.machine.environment import require

_BLOCK_ROWS = 1 << 16
_INDEX = "__index_level_0__"  # pyarrow's name for a pandas index without a name


class ArrowStream(Protocol):
    """A frame or a column that exports its values to Arrow: of pandas, polars, Arrow, DuckDB and others."""

    def __arrow_c_stream__(self, requested_schema: Any = None, /) -> object:
        """The values, as the Arrow PyCapsule interface has them."""


Frame: TypeAlias = ArrowStream | Mapping[str, Any] | np.ndarray
Tables: TypeAlias = str | os.PathLike[str] | Frame | Table | Sequence[str | os.PathLike[str] | Frame | Table]


class FrameTable(ArrowTable):
    """An Arrow table in memory.

    Args:
        table: The table; later changes to it are not seen.
        path: Its name in messages, or the file that it was read from.
        options: The format of its dates.
    """

    def __init__(self, table: Any, path: Path, options: TableOptions | None = None) -> None:
        self.path, self.options = path, options or TableOptions()
        self._table = table.replace_schema_metadata(None)
        self._take_schema(table.schema)
        self.rows = table.num_rows
        for batch in self._table.to_batches(max_chunksize=_BLOCK_ROWS)[:1]:
            self._find_forms(batch)
        self._digest: str | None = None

    def __deepcopy__(self, memo: Any) -> FrameTable:
        return self

    def with_options(self, options: TableOptions) -> FrameTable:
        """The same table, read with other options."""
        other = FrameTable(self._table, self.path, options)
        other._digest = self._digest
        return other

    def _batches(self, columns: list[str], numbers: Sequence[str], part: int) -> Iterator[Any]:
        yield from self._table.select(columns).to_batches(max_chunksize=_BLOCK_ROWS)

    def digest(self) -> str:
        """See `Table.digest`; equal content has the same digest, however it is divided into chunks."""
        import pyarrow as pa

        if self._digest is None:
            sink = _Hash()
            whole = self._table.combine_chunks()
            with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), whole.schema) as writer:
                writer.write_table(whole, max_chunksize=_BLOCK_ROWS)
            self._digest = sink.hash.hexdigest()
        return self._digest


class ArrayTable(NpyTable):
    """A NumPy array in memory, with columns "0", "1", ..."""

    def __init__(self, values: np.ndarray, path: Path) -> None:
        super().__init__(path, values=values)

    def __deepcopy__(self, memo: Any) -> ArrayTable:
        return self

    def digest(self) -> str:
        """See `Table.digest`."""
        about = f"{self.values.dtype.str} {self.values.shape}".encode()
        found = hashlib.sha256(about)
        # In blocks, because a large array may be a view with strides, which hashing copies.
        for first in range(0, len(self.values), _BLOCK_ROWS):
            block = np.ascontiguousarray(self.values[first : first + _BLOCK_ROWS])
            found.update(block.reshape(-1).view(np.uint8).data)
        return found.hexdigest()


class _Hash:
    """A file that keeps nothing but the hash of what is written."""

    closed = False

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.hash.update(data)
        return len(data)

    def flush(self) -> None:
        """There is nothing to flush."""

    def close(self) -> None:
        """There is nothing to close."""


def as_sources(data: Tables) -> list[str | os.PathLike[str] | Table]:
    """Paths as they are, and frames as tables.

    Args:
        data: A path or a frame, or a list of them. A frame is anything of `__arrow_c_stream__` (polars, pandas, Arrow,
            DuckDB), a pandas frame without it, a mapping of columns, or an array of numbers.

    Raises:
        ConfigError: It is something else.
        DataError: A frame cannot be read as a table.
        BackendError: A frame is given and pyarrow is not installed.
    """
    given: list[Any] = list(data) if isinstance(data, list | tuple) else [data]
    found: list[str | os.PathLike[str] | Table] = []
    for number, one in enumerate(given):
        if isinstance(one, str | os.PathLike | FrameTable | NpyTable) or hasattr(one, "blocks"):
            found.append(one)
            continue
        found.append(_frame(one, Path("the frame" if len(given) == 1 else f"frame {number + 1}")))
    return found


def _frame(data: Any, name: Path) -> Table:
    if isinstance(data, np.ndarray) and data.dtype.names is None:
        return ArrayTable(unmasked(data), Path("the array") if name.name == "the frame" else name)
    kind = type(data)
    is_pandas = kind.__module__.partition(".")[0] == "pandas"
    if isinstance(data, np.ndarray):
        data = {column: data[column] for column in data.dtype.names or ()}
    frame = isinstance(data, Mapping) or hasattr(data, "__arrow_c_stream__") or is_pandas
    if not frame or (is_pandas and not hasattr(data, "columns")):
        raise ConfigError(
            f"the data must be paths of tables, or frames: pandas, polars, Arrow, a dict of columns or a NumPy array "
            f"of numbers, not a {kind.__name__}."
        )
    require("pyarrow", "tables", "reading frames")
    import pyarrow as pa

    try:
        if is_pandas:
            table = _pandas(data)
        elif isinstance(data, Mapping):
            table = pa.table({str(key): _column(values) for key, values in data.items()})
        else:
            table = pa.table(data)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{name} cannot be read as a table: {error}") from error
    return FrameTable(table, name)


def _column(values: Any) -> Any:
    """A column of a mapping, for Arrow."""
    import pyarrow as pa

    if hasattr(values, "__arrow_c_array__") or hasattr(values, "__arrow_c_stream__"):
        return values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.chunked_array(values)
    return pa.array(values if isinstance(values, list) else np.asarray(unmasked(values)))


def _pandas(frame: Any) -> Any:
    """An Arrow table of a pandas frame. An index of times becomes a column; one that only counts rows does not."""
    import pyarrow as pa

    if hasattr(frame.index, "to_timestamp"):
        frame = frame.set_axis(frame.index.to_timestamp().rename(frame.index.name), axis=0)
    # Arrow would take periods for their numbers.
    periods = [name for name, kind in frame.dtypes.items() if str(kind).startswith("period[")]
    frame = frame.astype(dict.fromkeys(periods, "datetime64[us]")) if periods else frame
    if frame.columns.nlevels > 1:
        # Two rows of names; the first column, which they leave out, is the index.
        levels = [
            ["", *map(str, frame.columns.get_level_values(level))] for level in range(frame.columns.nlevels)
        ]
        frame = frame.set_axis(names_of(levels)[1:], axis=1)
    table = pa.Table.from_pandas(frame)
    if _INDEX in table.column_names:
        place = table.column_names.index(_INDEX)
        if pa.types.is_temporal(table.schema.field(place).type):
            names = itertools.chain(["time", "timestamp"], (f"time_{n}" for n in itertools.count(2)))
            free = next(name for name in names if name not in table.column_names)
            table = table.rename_columns(
                [*table.column_names[:place], free, *table.column_names[place + 1 :]]
            )
        else:
            table = table.drop_columns([_INDEX])
    return table
