"""Files that are missing, foreign or damaged: each ends in one `DataError`."""

import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellerate.errors import DataError
from cellerate.program import PRECISIONS
from cellerate.runtime.cell import read_cell, write_cell
from support.runtime.cell_files import START, refusal, sealed, small_program


def test_path_without_a_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"there is no file .*absent\.cell; check the path"):
        read_cell(tmp_path / "absent.cell")
    with pytest.raises(DataError, match="is a folder"):
        read_cell(tmp_path)
    with pytest.raises(DataError, match="cannot be read"):
        (tmp_path / "file").touch()
        read_cell(tmp_path / "file" / "a.cell")
    with pytest.raises(DataError, match="cannot be read"):
        read_cell(tmp_path / ("x" * 5000))
    with pytest.raises(DataError, match="is not the path of a file"):
        read_cell("a\0b.cell")


def test_file_that_nobody_may_read_is_refused(tmp_path, contents, monkeypatch):
    path = tmp_path / "a.cell"
    path.write_bytes(contents["float32"])

    def denied(*args: Any, **kwargs: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(DataError, match=r"a\.cell cannot be read: Permission denied"):
        read_cell(path)


def test_pipe_and_device_are_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe.cell")
    for path in (tmp_path / "pipe.cell", Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(DataError, match="is not a regular file"):
            read_cell(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04" + b"\0" * 100, "is a zip archive"),
        (b"PK\x03\x04", "is a zip archive"),
        (b"\x89HDF\r\n\x1a\n" + b"\0" * 100, "is not a .cell file"),
        (b"To be, or not to be, that is the question:\n" * 9, "is not a .cell file"),
        (b"\0", "is not a .cell file"),
        (b"\0" * 4096, "is not a .cell file"),
        (b"\xff" * 4096, "is not a .cell file"),
        (struct.pack("<Q", 2) + b"{}", "is not a .cell file"),
        (
            struct.pack("<Q", 8) + b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}\0\0\0\0',
            "is not a",
        ),
        (struct.pack("<Q", 64) + START[:-20], "is not a .cell file, or its beginning is damaged"),
        (struct.pack("<Q", 64) + START, "its checksum is not where"),
    ],
)
def test_foreign_file_is_refused_by_what_it_is(content, message, tmp_path):
    assert message in refusal(tmp_path / "a.cell", content)


@pytest.mark.parametrize("version", ["2", "0", "10", "999999999"])
def test_file_of_another_version_is_refused_with_the_version_known(version, tmp_path, contents):
    content = contents["int8"].replace(b'"version":"1"', f'"version":"{version}"'.encode())
    message = refusal(tmp_path / "a.cell", content)
    assert f"is a .cell file of version {version}, and this Cellerate knows version 1" in message


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_flipped_bit_is_noticed(precision, tmp_path, contents):
    content = bytearray(contents[precision])
    path = tmp_path / "a.cell"
    path.write_bytes(content)
    read_cell(path)
    with path.open("r+b", buffering=0) as file:
        for place in range(len(content)):
            for bit in range(8):
                file.seek(place)
                file.write(bytes([content[place] ^ 1 << bit]))
                with pytest.raises(DataError):
                    read_cell(path)
            file.seek(place)
            file.write(content[place : place + 1])
    read_cell(path)


def test_every_shortened_and_lengthened_file_is_noticed(tmp_path, contents):
    content, path = contents["bfloat16"], tmp_path / "a.cell"
    path.write_bytes(content)
    for length in reversed(range(len(content))):
        os.truncate(path, length)
        with pytest.raises(DataError):
            read_cell(path)
    for more in (b"\0", b" ", content[-1:], content):
        assert "checksum is wrong" in refusal(path, content + more)


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 2**40, 24 * 2**20 + 8, 5_000_000])
def test_file_that_claims_a_long_header_is_refused_without_memory_for_it(length, tmp_path, contents):
    content = sealed(struct.pack("<Q", length) + contents["float32"][8:])
    (tmp_path / "a.cell").write_bytes(content)
    tracemalloc.start()
    with pytest.raises(DataError, match=r"claims a header of [\d,]+ bytes"):
        read_cell(tmp_path / "a.cell")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300_000


def test_header_above_24_mib_is_refused_though_the_file_is_as_long(tmp_path, contents):
    path = tmp_path / "a.cell"
    path.write_bytes(struct.pack("<Q", 24 * 2**20 + 8) + contents["float32"][8:])
    with path.open("r+b") as file:
        file.truncate(30 * 2**20)
    tracemalloc.start()
    with pytest.raises(DataError, match="claims a header"):
        read_cell(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300_000


def test_file_that_becomes_shorter_while_it_is_read_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.cell"
    write_cell(path, small_program(), header={"longer than": "what is read ahead" * 100_000})
    empty = np.empty

    def cutting(*args: Any, **kwargs: Any) -> np.ndarray:
        os.truncate(path, 1_000_000)
        return empty(*args, **kwargs)

    monkeypatch.setattr(np, "empty", cutting)
    with pytest.raises(DataError, match="it became shorter while it was read"):
        read_cell(path)


def test_file_that_does_not_fit_into_memory_is_refused(tmp_path, contents, monkeypatch):
    def none_left(*args: Any, **kwargs: Any) -> np.ndarray:
        raise MemoryError

    path = tmp_path / "a.cell"
    path.write_bytes(contents["float32"])
    monkeypatch.setattr(np, "empty", none_left)
    with pytest.raises(DataError, match="does not fit into memory"):
        read_cell(path)
