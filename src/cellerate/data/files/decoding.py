"""Reads files of text in chunks: encodings, byte-order marks and line ends.

It stands apart from `data.text`, because lines and settings need it without arrays and caches.
"""

from __future__ import annotations

import codecs
import difflib
import encodings.aliases
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from cellerate.data.files.text_encoding import likely_encoding
from cellerate.errors import ConfigError, DataError
from cellerate.messages import argument

Errors = Literal["strict", "replace"]

# The fields of `data.text.TextReading` that a model's record has, so that its files are read again as in training.
READ_AS = ("encoding", "field", "strip_gutenberg")
CHUNK_BYTES = 1 << 20  # with its decoded forms about 20 MB, which also roughly fits the processor's caches
_LOOK_BYTES = 4096
# Fewer bytes may have zeros at every other offset by chance.
_FEWEST_BYTES = 64
_SHOWN_BYTES = 20
_FEWEST_WIDE = 3
# Encodings that read nearly any UTF-8 without an error, but each character beyond ASCII as several.
_ONE_BYTE = ("cp1252", "iso8859-1", "iso8859-15")
# Beginnings of files that people take for texts by their names.
_NOT_TEXT = {
    b"\x1f\x8b": "compressed; unpack it first",
    b"PK\x03\x04": "an archive or an Office document; save its text as *.txt",
    b"%PDF": "a PDF; copy its text into a *.txt file",
}


def read_text(path: Path, errors: Errors = "strict", encoding: str = "utf-8") -> Iterator[str]:
    """Reads a file of text in chunks: no byte-order mark, and every line end is a newline.

    Args:
        path: The file.
        errors: "strict" raises at bytes that are not of the encoding, "replace" puts U+FFFD for them.
        encoding: A text encoding that Python knows.

    Yields:
        Text, about a megabyte at a time.

    Raises:
        DataError: The file cannot be read, or has bytes that are not of the encoding.
    """
    return decoded(read_bytes(path), path, errors, encoding)


def read_bytes(path: Path) -> Iterator[bytes]:
    """The file in chunks; an empty chunk marks the end. Raises `DataError` if it cannot be read."""
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}.") from error
    yield b""


def decoded(chunks: Iterable[bytes], path: Path, errors: Errors, encoding: str = "utf-8") -> Iterator[str]:
    """The text of chunks of bytes, which end with an empty one; see `read_text`."""
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    taken = 0
    started = False
    for chunk in chunks:
        if not taken:
            _check_likely(path, chunk, encoding)
        try:
            # An empty chunk ends the file; an unfinished character is an error there.
            text = decoder.decode(chunk, not chunk)
        except UnicodeError as error:
            # From Python 3.13 on a missing byte-order mark is a UnicodeDecodeError, too.
            if isinstance(error, UnicodeDecodeError) and "BOM" not in error.reason:
                # `error.object` begins with the bytes of a character that the previous chunk left unfinished.
                offset = taken + len(chunk) - len(error.object)
                raise _undecodable(path, error, offset, encoding) from error
            raise DataError(
                f"{path} cannot be read as {encoding}: {error}. Of UTF-16 without a byte-order mark, say which one "
                f"({argument('encoding', 'utf-16-le', 'utf-16-be')})."
            ) from error
        taken += len(chunk)
        if text and not started:
            text = text.removeprefix("\ufeff")
            started = True
        if translated := newlines.decode(text, final=not chunk):
            yield translated


def check_errors(errors: str) -> None:
    """Raises `ConfigError` unless `errors` is "strict" or "replace"."""
    if errors not in ("strict", "replace"):
        raise ConfigError(f"{argument('errors')} must be 'strict' or 'replace', not {errors!r}.")


def check_codec(encoding: object) -> None:
    """Raises `ConfigError` unless Python knows a text encoding of this name."""
    try:
        if not isinstance(encoding, str):
            raise TypeError
        # Unlike `codecs.lookup`, it refuses what does not turn bytes into text, such as "hex".
        io.TextIOWrapper(io.BytesIO(), encoding=encoding).close()
    except (LookupError, TypeError, ValueError) as error:
        known = sorted({*encodings.aliases.aliases.values(), "windows-1252", "utf-8", "utf-16", "latin-1"})
        near = difflib.get_close_matches(str(encoding).lower(), known, 3, 0.5)
        hint = f" Near it: {', '.join(near)}." if near else ""
        raise ConfigError(
            f"{argument('encoding')} must be one that Python knows, such as utf-8, utf-16, windows-1252 or "
            f"shift_jis, not {encoding!r}.{hint}"
        ) from error


def is_wide(encoding: str) -> bool:
    """True if an encoding has two or four bytes for every character, zeros among them."""
    return codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))


def _check_likely(path: Path, data: bytes, encoding: str) -> None:
    """Raises `DataError` for the beginning of a file that is not a text, or that `encoding` would read wrongly.

    UTF-16 is valid UTF-8, too, where each second byte is a zero; and nearly every byte is valid Windows-1252.
    """
    head = data[:_LOOK_BYTES]
    for beginning, kind in _NOT_TEXT.items():
        if head.startswith(beginning):
            raise DataError(f"{path} is not a text: it is {kind}.")
    likely = likely_encoding(head)
    marked = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    name = "UTF-8" if encoding == "utf-8" else encoding
    wide = likely is not None and is_wide(likely) and (marked or len(head) >= _FEWEST_BYTES)
    if likely is not None and wide and not is_wide(encoding):
        raise DataError(
            f"{path} is not {name}: it looks like {likely[:6].upper()}. Pass {argument('encoding', likely)}."
        )
    if codecs.lookup(encoding).name in _ONE_BYTE and _is_utf8(data):
        raise DataError(
            f"{path} is not {name}: it is UTF-8, with characters of several bytes. Pass "
            f"{argument('encoding', 'utf-8')}."
        )


def _is_utf8(data: bytes) -> bool:
    """True if bytes are UTF-8 with several characters beyond ASCII; other encodings hardly ever look so by chance."""
    try:
        text, _ = codecs.utf_8_decode(data, "strict", False)
    except UnicodeDecodeError:
        return False
    return not text.isascii() and sum(one > "\x7f" for one in text) >= _FEWEST_WIDE


def _undecodable(path: Path, error: UnicodeDecodeError, offset: int, encoding: str) -> DataError:
    data, place = error.object, error.start
    name = "UTF-8" if encoding == "utf-8" else encoding
    hint = f"Give the encoding that it has ({argument('encoding')})"
    if encoding == "utf-8" and likely_encoding(data) == "cp1252":
        shown = data[max(0, place - _SHOWN_BYTES) : place + _SHOWN_BYTES].decode("cp1252")
        hint = (
            f"Read as Windows-1252, the place says {shown!r}: if that is right, pass "
            f"{argument('encoding', 'windows-1252')}. Else give the encoding that it has"
        )
    return DataError(
        f"{path} is not {name}: byte 0x{data[place]:02X} at byte offset {offset + place} is invalid. {hint}, or pass "
        f"{argument('errors', 'replace')} to read such bytes as U+FFFD."
    )


def with_newlines(text: str) -> str:
    """The text with a newline in place of each carriage return, alone or before a newline."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
