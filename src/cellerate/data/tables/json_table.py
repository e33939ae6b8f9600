"""JSON lines: one record per line, read in blocks of whole lines."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cellerate.data.settings import TableOptions
from cellerate.data.tables.arrow_table import ArrowTable
from cellerate.errors import DataError
from cellerate.messages import argument

_BLOCK_BYTES = 4 << 20
_DEEPEST = 200
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]')


class JsonTable(ArrowTable):
    """A file of JSON lines. Its columns are the fields of the first block's records.

    Raises:
        DataError: The file is empty, or is not such a file.
    """

    def __init__(self, path: Path, options: TableOptions) -> None:
        self.path, self.options = path, options
        first = next(self._blocks(), None)
        if first is None:
            raise DataError(f"{path} is empty; expected a JSON object in each line.")
        table = self._table(first, 0, {})
        self._take_schema(table.schema)
        for batch in table.combine_chunks().to_batches()[:1]:
            self._find_forms(batch)
        encoding = options.encoding or "utf-8"
        self.written = {} if encoding == "utf-8" else {"encoding": encoding}

    def _batches(self, columns: list[str], numbers: Sequence[str], part: int) -> Iterator[Any]:
        import pyarrow as pa

        del part
        # Other values are read as text, so that neither a time nor an id such as "007" changes.
        texts = {
            name: pa.string() for name in columns if name not in numbers and self.kinds[name] != "number"
        }
        row = 0
        for block in self._blocks():
            table = self._table(block, row, texts)
            for name in columns:
                if name not in table.column_names:
                    table = table.append_column(name, pa.nulls(table.num_rows, texts.get(name, pa.float64())))
            yield from table.select(columns).combine_chunks().to_batches()
            row += table.num_rows

    def _blocks(self) -> Iterator[bytes]:
        """The file in UTF-8, some whole lines at a time."""
        import codecs

        import pyarrow as pa

        decoder = codecs.getincrementaldecoder(self.options.encoding or "utf-8-sig")()
        rest = b""
        try:
            with pa.input_stream(str(self.path), compression="detect") as stream:
                while chunk := stream.read(_BLOCK_BYTES):
                    text = decoder.decode(chunk).removeprefix("\ufeff").encode()
                    whole, end, rest = (rest + text).rpartition(b"\n")
                    if whole.strip():
                        yield whole + end
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{self.path} cannot be read: {error}") from error
        except UnicodeError as error:
            raise DataError(
                f"{self.path} is not {self.options.encoding or 'UTF-8'}: {error}. Give the encoding that it has "
                f"({argument('encoding')})."
            ) from error
        if rest.strip():
            yield rest

    def _check_depth(self, block: bytes, row: int) -> None:
        """Raises `DataError` for a record that is nested too deeply: Arrow's parser would overflow the stack."""
        # A line nested too deep needs more brackets than that; most files have one bracket per line.
        if _openings(block) <= block.count(b"\n") + _DEEPEST:
            return
        for number, line in enumerate(filter(bytes.strip, block.split(b"\n")), start=row + 1):
            if _openings(line) > _DEEPEST and _depth(line) > _DEEPEST:
                raise DataError(
                    f"{self.path}, data row {number}: the record is nested more than {_DEEPEST} deep. Expected an "
                    "object of numbers and texts."
                )

    def _table(self, block: bytes, row: int, texts: dict[str, Any]) -> Any:
        import pyarrow as pa
        from pyarrow import json

        self._check_depth(block, row)
        parse = json.ParseOptions(explicit_schema=pa.schema(texts) if texts else None)
        try:
            return json.read_json(io.BytesIO(block), json.ReadOptions(block_size=len(block) + 1), parse)
        except (pa.ArrowException, UnicodeError) as error:
            after = f" after data row {row}" if row else ""
            raise DataError(
                f"{self.path} cannot be read as JSON lines{after}: {error}. Expected one JSON object in each line, and "
                "values of one kind in each field."
            ) from error


def _openings(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


def _depth(line: bytes) -> int:
    """The depth to which a record is nested."""
    depth = deepest = 0
    for token in _TOKEN.finditer(line):
        if token[0] in (b"[", b"{"):
            depth += 1
            deepest = max(deepest, depth)
        elif token[0] in (b"]", b"}"):
            depth -= 1
    return deepest
