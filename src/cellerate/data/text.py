"""Encodes text files into one memory-mapped array of ids, once, and keeps it in the cache.

It handles byte-order marks, line ends and broken UTF-8, and a cache that may be damaged or written by two runs at
once. `data.paths` finds the files, `data.tokenizer` says what an id means, and `data.text_windows` cuts batches
from the ids.

The text of several files is their texts in order, with a newline after each that does not end with one, unless
it is the last.
"""

import codecs
import dataclasses
import hashlib
import io
import json
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cellerate import files
from cellerate.data.paths import Paths, resolve_paths
from cellerate.data.tokenizer import CODE_POINTS, CharacterTokenizer, Tokenizer, character_codes
from cellerate.data.tokenizers import open_tokenizer
from cellerate.errors import ConfigError, DataError, OutputError

Errors = Literal["strict", "replace"]

_CHUNK_BYTES = 1 << 20  # with its decoded forms about 20 MB, which also roughly fits the processor's caches
_STALE_S = 24 * 3600
_CACHE_VERSION = 1
_CACHE_END = struct.Struct("<QI8s")  # length and CRC-32 of the header before it, then the mark
_CACHE_MARK = b"CELLTEXT"


@dataclasses.dataclass(frozen=True)
class EncodedText:
    """A text as ids.

    Attributes:
        ids: Shape `(N,)`, the tokenizer's narrowest unsigned type, a read-only memory map.
        tokenizer: What the ids mean.
        characters: Characters of the decoded text.
        bytes: Bytes of the files.
        files: The number of files.
        fingerprint: Identifies content, tokenizer and error policy.
        cached: Whether the ids came from the cache.
    """

    ids: np.ndarray
    tokenizer: Tokenizer
    characters: int
    bytes: int
    files: int
    fingerprint: str
    cached: bool

    def split(self, validation_fraction: float) -> tuple[np.ndarray, np.ndarray]:
        """Splits by position, without a copy: the head trains, the tail is held out.

        Args:
            validation_fraction: The tail's share of the ids, 0 <= fraction < 1.

        Returns:
            The head and the tail, views of `ids`.

        Raises:
            ConfigError: The fraction is not in that range.
        """
        if not 0 <= validation_fraction < 1:
            raise ConfigError(
                f"validation_fraction should be at least 0 and less than 1, got {validation_fraction!r}."
            )
        cut = len(self.ids) - int(len(self.ids) * validation_fraction)
        return self.ids[:cut], self.ids[cut:]


def open_text(
    paths: Paths,
    *,
    tokenizer: str | Tokenizer = "characters",
    errors: Errors = "strict",
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> EncodedText:
    """Opens text as ids: from the cache if this content was encoded before, else by encoding it now.

    Memory stays bounded whatever the size of the text. A `FileTokenizer` encodes every file by itself, in
    pieces cut at line ends (see there), so the ids depend on the text alone.

    Args:
        paths: Files, folders and globs; see `resolve_paths`.
        tokenizer: "characters" (the vocabulary comes from the text), "bytes", the path of a
            `tokenizer.json`, or a tokenizer.
        errors: What to do with bytes that are not UTF-8: "strict" raises, "replace" puts U+FFFD.
        include: See `resolve_paths`.
        exclude: See `resolve_paths`.
        progress: Called now and then with the bytes done and the bytes in all.

    Raises:
        DataError: There is no text, it cannot be read or decoded, or a character is not in the vocabulary.
        BackendError: The package `tokenizers` is needed and not installed.
        OutputError: The cache could not be written.
    """
    check_errors(errors)
    found = resolve_paths(paths, include=include, exclude=exclude)
    known = open_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
    meter = _Meter(found, progress)
    digests: list[str] = []
    if known is None:
        seen = np.zeros(CODE_POINTS, bool)
        for _, text in _stream(found, errors, digests, meter):
            seen[character_codes(text)] = True
        if not seen.any():
            raise _no_text(found)
        known = CharacterTokenizer(np.flatnonzero(seen).astype("<u4").tobytes().decode("utf-32-le"))
    else:
        for path in found:
            for _ in _watched(path, digests, meter):
                pass
    description = [_CACHE_VERSION, digests, known.to_config(), errors]
    fingerprint = hashlib.blake2b(json.dumps(description).encode(), digest_size=16).hexdigest()
    path = files.cache_dir() / "text" / f"{fingerprint}.ids"
    entry = _open_cache(path, known)
    cached = entry is not None
    if entry is None:
        try:
            files.check_writable(path)
            _sweep(path.parent)
            with files.atomic_write(path) as beside:
                _encode(beside, found, known, errors, digests, meter)
        except OutputError as error:
            raise OutputError(
                f"{error} The encoded text is cached there; "
                "set CELLERATE_CACHE to a folder with room that you may write to."
            ) from error
        entry = _open_cache(path, known)
        if entry is None:
            raise OutputError(f"cannot read back {path}: the file was removed or changed meanwhile.")
    meter.finish()
    ids, characters = entry
    return EncodedText(ids, known, characters, meter.total, len(found), fingerprint, cached)


def read_text(path: Path, errors: Errors = "strict") -> Iterator[str]:
    """Reads a file as UTF-8 in chunks: no byte-order mark, and every line end is a newline.

    Args:
        path: The file.
        errors: "strict" raises at bytes that are not UTF-8, "replace" puts U+FFFD for them.

    Yields:
        Text, about a megabyte at a time.

    Raises:
        DataError: The file cannot be read, or has bytes that are not UTF-8.
    """
    return _decoded(_read_bytes(path), path, errors)


def check_errors(errors: str) -> None:
    """Raises `ConfigError` unless `errors` is "strict" or "replace"."""
    if errors not in ("strict", "replace"):
        raise ConfigError(f"errors should be 'strict' or 'replace', got {errors!r}.")


def _read_bytes(path: Path) -> Iterator[bytes]:
    """The file in chunks; an empty chunk marks the end."""
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}.") from error
    yield b""


def _decoded(chunks: Iterable[bytes], path: Path, errors: Errors) -> Iterator[str]:
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    held = b""
    offset = 0
    started = False
    for chunk in chunks:
        data = held + chunk
        try:
            # An empty chunk ends the file; an unfinished character is an error there.
            text, used = codecs.utf_8_decode(data, errors, not chunk)
        except UnicodeDecodeError as error:
            raise _not_utf8(path, data, error.start, offset) from error
        held = data[used:]
        offset += used
        if text and not started:
            text = text.removeprefix("\ufeff")
            started = True
        if translated := newlines.decode(text, final=not chunk):
            yield translated


def _not_utf8(path: Path, data: bytes, place: int, offset: int) -> DataError:
    start = data[:2] if not offset else b""
    hint = (
        f"It looks like UTF-16: convert it with iconv -f UTF-16 -t UTF-8 {path}"
        if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        else "Convert it to UTF-8, or pass --errors replace to read such bytes as U+FFFD"
    )
    return DataError(
        f"{path} is not UTF-8: byte 0x{data[place]:02X} at byte offset {offset + place} is invalid. {hint}."
    )


class _Meter:
    """Reports the progress of two passes over the files as if it were one pass, in bytes."""

    def __init__(self, paths: Sequence[Path], report: Callable[[int, int], None] | None) -> None:
        self._report = report
        self._done = 0
        self.total = sum(path.stat().st_size for path in paths)

    def add(self, count: int) -> None:
        self._done += count
        if self._report is not None and count:
            self._report(min(self._done // 2, self.total), self.total)

    def finish(self) -> None:
        if self._report is not None:
            self._report(self.total, self.total)


def _watched(path: Path, digests: list[str], meter: _Meter) -> Iterator[bytes]:
    """The file in chunks; appends its digest at the end."""
    digest = hashlib.blake2b(digest_size=16)
    for chunk in _read_bytes(path):
        digest.update(chunk)
        meter.add(len(chunk))
        yield chunk
    digests.append(digest.hexdigest())


def _stream(
    paths: Sequence[Path], errors: Errors, digests: list[str], meter: _Meter
) -> Iterator[tuple[int, str]]:
    """The joined text in chunks, each with the index of its file; appends the digest of each file."""
    before, last = 0, "\n"
    for index, path in enumerate(paths):
        for text in _decoded(_watched(path, digests, meter), path, errors):
            if index != before and last != "\n":
                yield before, "\n"
            yield index, text
            before, last = index, text[-1]


def _encode(
    target: Path,
    paths: Sequence[Path],
    tokenizer: Tokenizer,
    errors: Errors,
    digests: list[str],
    meter: _Meter,
) -> None:
    """Writes the ids of the joined text, followed by a header that describes them."""
    count = characters = checksum = 0
    found: list[str] = []
    with target.open("wb") as file:

        def write(ids: np.ndarray) -> None:
            nonlocal count, checksum
            count += len(ids)
            checksum = zlib.crc32(ids.data, checksum)
            file.write(ids.data)

        at = -1
        encoder = tokenizer.stream_encoder()
        for index, text in _stream(paths, errors, found, meter):
            if index != at:
                write(encoder.finish())
                encoder, at = tokenizer.stream_encoder(), index
            characters += len(text)
            try:
                write(encoder.push(text))
            except DataError as error:
                raise DataError(f"{paths[index]}: {error}") from error
        write(encoder.finish())
        if not count:
            raise _no_text(paths)
        if found != digests:
            raise DataError(f"{_named(paths)} changed while it was read: start again once it is complete.")
        entry = {"dtype": tokenizer.dtype.str, "count": count, "characters": characters, "crc32": checksum}
        header = json.dumps(entry).encode()
        file.write(header + _CACHE_END.pack(len(header), zlib.crc32(header), _CACHE_MARK))


def _open_cache(path: Path, tokenizer: Tokenizer) -> tuple[np.ndarray, int] | None:
    """The ids and the count of characters; None if there is no such entry, or it is damaged."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _CACHE_END.size, 0))
            length, check, mark = _CACHE_END.unpack(file.read(_CACHE_END.size))
            if mark != _CACHE_MARK or length > size - _CACHE_END.size:
                return None
            body = size - _CACHE_END.size - length
            file.seek(body)
            header = file.read(length)
            if zlib.crc32(header) != check:
                return None
            entry: dict[str, Any] = json.loads(header)
            count, dtype = entry["count"], np.dtype(entry["dtype"])
            if dtype != tokenizer.dtype or count * dtype.itemsize != body:
                return None
            file.seek(0)
            checksum = 0
            for start in range(0, body, _CHUNK_BYTES):
                checksum = zlib.crc32(file.read(min(_CHUNK_BYTES, body - start)), checksum)
            if checksum != entry["crc32"]:
                return None
            return np.memmap(file, dtype, mode="r", shape=(count,)), entry["characters"]
    except (OSError, struct.error):
        return None


def _sweep(folder: Path) -> None:
    """Removes what killed runs left behind: temporary files nobody has written to for a day."""
    for left in folder.glob(".*.ids"):
        try:
            if time.time() - left.stat().st_mtime > _STALE_S:
                left.unlink()
        except OSError:  # another run was faster, or another user owns the file: no reason to stop
            continue


def _named(paths: Sequence[Path]) -> str:
    return str(paths[0]) if len(paths) == 1 else f"the text of {len(paths)} files from {paths[0]} on"


def _no_text(paths: Sequence[Path]) -> DataError:
    return DataError(f"{_named(paths)} is empty: expected text to learn from.")
