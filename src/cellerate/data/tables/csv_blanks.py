"""Tables whose columns are separated by any number of blanks: read as if a tab separated them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from cellerate.data.tables.csv_header import is_plain

_CHUNK_BYTES = 1 << 20
_BLANKS, _EDGES = re.compile(rb"[ \t]+"), re.compile(rb"^[ \t]+|[ \t]+(?=\r?$)", re.MULTILINE)
_LEAST_ROWS, _LEAST_FITTING, _LEAST_PLAIN = 3, 0.98, 0.5


def tabbed(line: str) -> str:
    """A line with one tab instead of each run of blanks."""
    end = "\n" if line.endswith("\n") else ""
    return "\t".join(line.split()) + end


def stands_apart(lines: Sequence[str]) -> bool:
    """True for rows of a table with blanks between columns: equally many values in each, most of them numbers."""
    rows = [line.split() for line in lines if line.strip()]
    if len(rows) < _LEAST_ROWS or len(rows[0]) < 2:
        return False
    fitting = [row for row in rows if len(row) == len(rows[0])]
    cells = [cell for row in fitting[1:] for cell in row]
    plain = sum(is_plain(cell, ".", "") or is_plain(cell, ",", "") for cell in cells)
    return len(fitting) >= _LEAST_FITTING * len(rows) and plain >= _LEAST_PLAIN * len(cells)


def tabbed_chunks(path: Path, encoding: str) -> Iterator[bytes]:
    """Yield the lines of such a table, which may be compressed, with tabs, in UTF-8, about a megabyte at a time.

    Arrow's streaming reader would read them in a thread that needs Python's lock. A reader dropped before the end of
    the file waits for its thread, while the thread waits for the lock.
    """
    import pyarrow as pa

    rest = b""
    with pa.transcoding_input_stream(
        pa.input_stream(str(path), compression="detect"), encoding, "utf8"
    ) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            whole, end, rest = (rest + chunk).rpartition(b"\n")
            if end:
                yield _BLANKS.sub(b"\t", _EDGES.sub(b"", whole)) + end
    if rest.strip():
        yield _BLANKS.sub(b"\t", _EDGES.sub(b"", rest))
