import codecs
import gzip
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from cellerate.data.files import decoding
from cellerate.data.files.decoding import check_codec, read_text
from cellerate.errors import ConfigError, DataError

WORDS = ["a", "é", "ß", "\n", "\r\n", "\r", " ", "日本", "ж", "😀"]
ENCODINGS = [
    "utf-8",
    "utf-8-sig",
    "utf-16",
    "utf-16-le",
    "utf-16-be",
    "utf-32",
    "cp1252",
    "shift_jis",
    "gb18030",
    "koi8-r",
]


def read(path: Path, **options: str) -> str:
    return "".join(read_text(path, **options))  # type: ignore[arg-type]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.sampled_from(WORDS), max_size=30), st.sampled_from(ENCODINGS), st.integers(1, 9))
def test_text_in_any_encoding_is_what_python_reads_wherever_the_chunks_are_cut(
    words: list[str], encoding: str, size: int
) -> None:
    content = "".join(words).encode(encoding, "ignore")
    expected = content.decode(encoding).removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "CHUNK_BYTES", size)
        path = Path(folder, "a.txt")
        path.write_bytes(content)
        assert read(path, encoding=encoding) == expected


@pytest.mark.parametrize("chunk", [1, 3, 1000])
@pytest.mark.parametrize(
    ("encoding", "content", "offset"),
    [("utf-8", b"a\xc3\xa9\xff", 3), ("shift_jis", b"ab\x82\xa0\x82\xff", 4), ("ascii", b"abc\xe9", 3)],
)
def test_byte_that_is_not_of_the_encoding_is_named_with_its_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, content: bytes, offset: int, chunk: int
) -> None:
    monkeypatch.setattr(decoding, "CHUNK_BYTES", chunk)
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    name = "UTF-8" if encoding == "utf-8" else encoding
    with pytest.raises(
        DataError, match=rf"a\.txt is not {name}: byte 0x.. at byte offset {offset} .*errors='replace'"
    ):
        read(path, encoding=encoding)
    assert "\ufffd" in read(path, encoding=encoding, errors="replace")


PROSE = "Der süße Brei, für 5 €. " * 10


@pytest.mark.parametrize(
    ("content", "encoding", "message"),
    [
        (PROSE.encode("utf-16"), "utf-8", "it looks like UTF-16. Pass encoding='utf-16'"),
        (codecs.BOM_UTF16_BE + PROSE.encode("utf-16-be"), "cp1252", "Pass encoding='utf-16'"),
        (PROSE.encode("utf-16-le"), "utf-8", "Pass encoding='utf-16-le'"),
        (PROSE.encode("utf-16-be"), "utf-8", "Pass encoding='utf-16-be'"),
        (
            PROSE.encode("cp1252"),
            "utf-8",
            r"'Der süße Brei, für 5 €.*if that is right, pass encoding='windows-1252'",
        ),
        (PROSE.encode(), "windows-1252", "it is UTF-8, .*Pass encoding='utf-8'"),
        (PROSE.encode(), "latin-1", "it is UTF-8, .*Pass encoding='utf-8'"),
        (PROSE.encode("utf-16-le"), "utf-16", "encoding='utf-16-le' or 'utf-16-be'"),
        (
            b"\x81\xff\x8d" * 5,
            "utf-8",
            r"Give the encoding that it has \(encoding\), or pass errors='replace'",
        ),
    ],
)
def test_file_in_another_encoding_is_refused_with_the_option_that_reads_it(
    tmp_path: Path, content: bytes, encoding: str, message: str
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as raised:
        read(path, encoding=encoding)
    if offered := re.search(r"ass encoding='(.*?)'\.", str(raised.value)):
        assert read(path, encoding=offered[1]) == PROSE


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (gzip.compress(b"Hello. " * 100), "compressed; unpack it first"),
        (b"PK\x03\x04\x14\x00\x06\x00", "an archive or an Office document"),
        (b"%PDF-1.7\n1 0 obj\n", "a PDF"),
    ],
)
@pytest.mark.parametrize("errors", ["strict", "replace"])
def test_file_that_is_not_a_text_is_refused_with_what_it_is(
    content: bytes, kind: str, errors: str, tmp_path: Path
) -> None:
    (tmp_path / "t.txt").write_bytes(content)
    with pytest.raises(DataError, match=f"is not a text: it is {kind}"):
        read(tmp_path / "t.txt", errors=errors)


def test_bytes_that_are_utf8_by_chance_are_read_as_what_they_are_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"Stra\xc3\x9fe, f\xc3\xbcr")
    assert read(path, encoding="windows-1252") == "Stra\u00c3\u0178e, f\u00c3\u00bcr"


@pytest.mark.parametrize("encoding", ["windows-9999", "hex", "rot13", "", "utf\0", None, 7])
def test_encoding_that_python_has_not_is_refused(encoding: object) -> None:
    with pytest.raises(ConfigError, match="encoding must be one that Python knows"):
        check_codec(encoding)  # type: ignore[arg-type]


def test_encoding_with_a_slip_is_refused_with_those_near_it() -> None:
    with pytest.raises(ConfigError, match=r"Near it: .*windows-1252"):
        check_codec("window-1252")
    for encoding in ENCODINGS:
        check_codec(encoding)
