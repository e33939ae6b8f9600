"""The hash of a file's content, and for which files it is remembered."""

import hashlib
import os
import time

import pytest

from cellerate.data.files import digests as module
from cellerate.data.files.digests import file_digest
from cellerate.errors import DataError


@pytest.mark.parametrize(
    ("size", "age_s", "remembered"),
    [(100, 60, True), (101, 60, True), (99, 60, False), (100, 0, False), (99, 0, False)],
    ids=["large", "larger", "small", "fresh", "small and fresh"],
)
def test_hash_of_a_large_file_that_has_settled_is_remembered(tmp_path, monkeypatch, size, age_s, remembered):
    monkeypatch.setenv("CELLERATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_REMEMBER_BYTES", 100)
    path = tmp_path / "data"
    path.write_bytes(b"x" * size)
    os.utime(path, (time.time() - age_s,) * 2)
    expected = hashlib.sha256(b"x" * size).hexdigest()
    assert file_digest(path) == expected
    notes = list((tmp_path / "cache").rglob("*/*"))
    assert len(notes) == remembered
    for note in notes:
        assert note.read_text() == expected
        note.write_text("ab" * 32)
        assert file_digest(path) == "ab" * 32
        note.write_text("damaged")
        assert file_digest(path) == expected


def test_hash_is_that_of_the_content_now(tmp_path, monkeypatch):
    monkeypatch.setenv("CELLERATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_REMEMBER_BYTES", 1)
    path = tmp_path / "data"
    for content in (b"one", b"two"):
        path.write_bytes(content)
        os.utime(path, (1e9, 1e9))
        assert file_digest(path) == hashlib.sha256(content).hexdigest()
    with pytest.raises(DataError, match=r"cannot read .*nowhere"):
        file_digest(tmp_path / "nowhere")
