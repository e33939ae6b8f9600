"""Encodes text files into one memory-mapped array of ids, once, and keeps it in the cache.

It handles a cache that may be damaged or written by two runs at once. `data.files` finds the files and reads
them, `data.tokenizers` says what an id means, and `data.windows` cuts batches from the ids.

The text of several files is their texts in order, with a newline after each that does not end with one, unless
it is the last.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cellerate import files
from cellerate.data.files import (
    CHUNK_BYTES,
    Errors,
    Paths,
    check_codec,
    check_errors,
    decoded,
    read_bytes,
    read_text,
    resolve_paths,
)
from cellerate.data.text.gutenberg import has_licence, without_licence
from cellerate.data.text.json_lines import field_texts, is_json_lines
from cellerate.data.tokenizers import (
    CODE_POINTS,
    CharacterTokenizer,
    Tokenizer,
    character_codes,
    open_tokenizer,
)
from cellerate.errors import ConfigError, DataError, OutputError
from cellerate.messages import argument, marked

_CACHE_VERSION = 1
_CACHE_END = struct.Struct("<QI8s")  # length and CRC-32 of the header before it, then the mark
_CACHE_MARK = b"CELLTEXT"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextReading:
    """The rules by which files become text.

    Attributes:
        errors: What to do with bytes that are not of the encoding: "strict" raises, "replace" puts U+FFFD.
        encoding: A text encoding that Python knows.
        field: The field of JSON lines (`*.jsonl`, `*.ndjson`) that has the text. Each record is a document, and an
            empty line stands between two documents.
        strip_gutenberg: Whether to leave out the licence that Project Gutenberg puts around a book.
    """

    errors: Errors = "strict"
    encoding: str = "utf-8"
    field: str | None = None
    strip_gutenberg: bool = False

    def __post_init__(self) -> None:
        check_errors(self.errors)
        check_codec(self.encoding)


@dataclasses.dataclass(frozen=True)
class EncodedText:
    """A text as ids.

    Attributes:
        ids: Shape `(N,)`, the tokenizer's narrowest unsigned type, a read-only memory map.
        tokenizer: What the ids mean.
        characters: Characters of the decoded text.
        bytes: Bytes of the files.
        files: The number of files.
        fingerprint: Identifies content, tokenizer and how the files were read.
        cached: Whether the ids came from the cache.
        licensed: How many of the files hold the licence of Project Gutenberg.
        records: How many of the files have JSON lines.
    """

    ids: np.ndarray
    tokenizer: Tokenizer
    characters: int
    bytes: int
    files: int
    fingerprint: str
    cached: bool
    licensed: int = 0
    records: int = 0

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
                f"{argument('validation_fraction')} must be at least 0 and less than 1, not {validation_fraction!r}."
            )
        cut = len(self.ids) - int(len(self.ids) * validation_fraction)
        return self.ids[:cut], self.ids[cut:]


def open_text(
    paths: Paths,
    *,
    tokenizer: str | os.PathLike[str] | Tokenizer = "characters",
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
    **reading: Any,
) -> EncodedText:
    """Opens text as ids: from the cache if this content was encoded before, else by encoding it now.

    Memory stays bounded whatever the size of the text. A `FileTokenizer` encodes every file by itself, in
    pieces cut at line ends (see there), so the ids depend on the text alone.

    Args:
        paths: Files, folders and globs; see `resolve_paths`.
        tokenizer: "characters" (the vocabulary comes from the text), "bytes", the path of a
            `tokenizer.json`, or a tokenizer.
        include: See `resolve_paths`.
        exclude: See `resolve_paths`.
        progress: Called now and then with the finished bytes and their total.
        reading: The fields of `TextReading`.

    Raises:
        ConfigError: A setting cannot be used.
        DataError: There is no text, it cannot be read or decoded, or a character is not in the vocabulary.
        BackendError: The package `tokenizers` is needed and not installed.
        OutputError: The cache could not be written.
    """
    how = TextReading(**reading)
    found = resolve_paths(paths, include=include, exclude=exclude, encoding=how.encoding)
    records = [is_json_lines(path) for path in found]
    for path, has_records in zip(found, records, strict=True):
        if has_records and how.field is None:
            # Raises at the first record, with the names of its fields.
            next(field_texts(read_text(path, how.errors, how.encoding), path, None, how.errors), None)
    known = open_tokenizer(os.fspath(tokenizer)) if isinstance(tokenizer, str | os.PathLike) else tokenizer
    source = _Source(found, how, progress)
    digests: list[str] = []
    if known is None:
        seen = np.zeros(CODE_POINTS, bool)
        for _, text in source.stream(digests):
            seen[character_codes(text)] = True
        if not seen.any():
            raise _no_text(found)
        known = CharacterTokenizer(np.flatnonzero(seen).astype("<u4").tobytes().decode("utf-32-le"))
    else:
        for path in found:
            for _ in source.watched(path, digests):
                pass
    description = [_CACHE_VERSION, digests, known.to_config(), how.errors]
    if how != TextReading(errors=how.errors):
        description += [how.encoding, how.field and [how.field, records], how.strip_gutenberg]
    fingerprint = hashlib.blake2b(json.dumps(description).encode(), digest_size=16).hexdigest()
    path = files.cache_dir() / "text" / f"{fingerprint}.ids"
    entry = _open_cache(path, known)
    cached = entry is not None
    if entry is None:
        files.check_writable(path)
        files.remove_unfinished(path.parent, files.ABANDONED_AFTER_S)
        with files.atomic_write(path) as beside:
            _encode(beside, source, known, digests)
        entry = _open_cache(path, known)
        if entry is None:
            raise OutputError(f"cannot read back {path}: the file was removed or changed meanwhile.")
    source.finish()
    ids, characters = entry
    return EncodedText(
        ids,
        known,
        characters,
        source.total,
        len(found),
        fingerprint,
        cached,
        len(source.licensed),
        sum(records),
    )


class _Source:
    """The files of a text, which are read twice; progress is reported in bytes as if there were one pass.

    Attributes:
        paths: The files.
        total: Their bytes.
        licensed: Those that hold the licence of Project Gutenberg, as far as files were read.
    """

    def __init__(
        self, paths: Sequence[Path], how: TextReading, report: Callable[[int, int], None] | None
    ) -> None:
        self.paths = paths
        self.total = sum(path.stat().st_size for path in paths)
        self.licensed: set[Path] = set()
        self._how = how
        self._report = report
        self._done = 0

    def watched(self, path: Path, digests: list[str]) -> Iterator[bytes]:
        """The file in chunks; appends its digest at the end."""
        digest = hashlib.blake2b(digest_size=16)
        begun = False
        for chunk in read_bytes(path):
            if not begun and has_licence(chunk):
                self.licensed.add(path)
            begun = True
            digest.update(chunk)
            self._done += len(chunk)
            if self._report is not None and chunk:
                self._report(min(self._done // 2, self.total), self.total)
            yield chunk
        digests.append(digest.hexdigest())

    def stream(self, digests: list[str]) -> Iterator[tuple[int, str]]:
        """The joined text in chunks, each with the index of its file; appends the digest of each file."""
        before, last = 0, "\n"
        for index, path in enumerate(self.paths):
            for text in self._file(path, digests):
                if index != before and last != "\n":
                    yield before, "\n"
                yield index, text
                before, last = index, text[-1]

    def finish(self) -> None:
        """Reports that all is done."""
        if self._report is not None:
            self._report(self.total, self.total)

    def _file(self, path: Path, digests: list[str]) -> Iterator[str]:
        how = self._how
        text = decoded(self.watched(path, digests), path, how.errors, how.encoding)
        if is_json_lines(path):
            return _documents(field_texts(text, path, how.field, how.errors))
        return without_licence(text) if how.strip_gutenberg else text


def _documents(texts: Iterator[str]) -> Iterator[str]:
    """Each text with a line end after it, and an empty line between two; empty ones are left out."""
    between = ""
    for text in filter(None, texts):
        yield between + text + ("" if text.endswith("\n") else "\n")
        between = "\n"


def _encode(target: Path, source: _Source, tokenizer: Tokenizer, digests: list[str]) -> None:
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
        for index, text in source.stream(found):
            if index != at:
                write(encoder.finish())
                encoder, at = tokenizer.stream_encoder(), index
            characters += len(text)
            try:
                write(encoder.push(text))
            except DataError as error:
                raise DataError(f"{source.paths[index]}: {marked(error)}") from error
        write(encoder.finish())
        if not count:
            raise _no_text(source.paths)
        if found != digests:
            raise DataError(
                f"{_named(source.paths)} changed while it was read: start again once it is complete."
            )
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
            for start in range(0, body, CHUNK_BYTES):
                checksum = zlib.crc32(file.read(min(CHUNK_BYTES, body - start)), checksum)
            if checksum != entry["crc32"]:
                return None
            return np.memmap(file, dtype, mode="r", shape=(count,)), entry["characters"]
    except (OSError, struct.error):
        return None


def _named(paths: Sequence[Path]) -> str:
    return str(paths[0]) if len(paths) == 1 else f"the text of {len(paths)} files from {paths[0]} on"


def _no_text(paths: Sequence[Path]) -> DataError:
    return DataError(f"{_named(paths)} is empty: expected text to learn from.")
