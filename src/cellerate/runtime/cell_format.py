"""The container of a `.cell` file: safetensors with a digest. The reader does not trust the file.

This module knows bytes and names only; `runtime.cell` knows what they mean. A file is the length of the header
(8 bytes, little-endian), the header (JSON) and the tensors, one after the other, so that any safetensors tool can
look into it. The `safetensors` package is not used: its writer has no fixed place for a digest in the header, and
its reader has no bfloat16 for NumPy and accepts files that this writer would never produce.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cellerate.errors import ConfigError, DataError
from cellerate.files import atomic_write

FLOAT32, BFLOAT16, INT8, INT4 = np.dtype("<f4"), np.dtype("<u2"), np.dtype("i1"), np.dtype("u1")
"""The dtypes that a tensor may hold. NumPy has neither bfloat16, whose bits are kept as uint16, nor int4, two of which
are kept in a byte."""

LARGEST_HEADER = 24 * 2**20
"""Bytes. The header contains the tokenizer: 50,000 tokens take 4 MB there, 128,000 about 12. While the header is
read, a character can take 4 bytes in four places at once, so the limit means a few hundred MB of memory."""

_MOST_TOKENS = 1 << 20
"""Texts, brackets and commas in one JSON value. The smallest of them take a hundred times the memory of their
characters as Python objects. A node of a program has about forty, the entry of a tensor about twenty."""
_DEEPEST = 64
"""Levels of lists and dictionaries. Python fails at some hundreds or thousands, or when the stack ends."""
_LONGEST_NUMBER = 400
"""Digits of a number; the time to read an integer grows with their square."""
_TOKENS = re.compile(
    # An unterminated text matches to the end, so it is scanned once and not again from each of its quotes.
    rf'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[][{{}},]|[-+.0-9eE]{{{_LONGEST_NUMBER + 1}}}',
    re.DOTALL,
)

_DTYPES: dict[str, np.dtype[Any]] = {"F32": FLOAT32, "BF16": BFLOAT16, "I8": INT8, "U8": INT4}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_VERSION = "1"
_MAGIC = b'{"__metadata__":{"format":"cellerate.cell","version":"'
_START = _MAGIC + _VERSION.encode() + b'","sha256":"'
_DIGEST = slice(8 + len(_START), 8 + len(_START) + 64)
_OWN = {"format", "version", "sha256"}
_ALIGNMENT = 64
_REASON_CHARACTERS = 300


def damaged(path: Path, reason: str) -> DataError:
    """The error for a damaged or foreign file; text from a hostile file is kept short and plain."""
    plain = "".join(c if c.isprintable() else "?" for c in reason[:_REASON_CHARACTERS]).rstrip(".")
    return DataError(
        f"{path} is damaged or was not written by Cellerate: {plain}; copy it again, or pack the model again."
    )


def to_json(value: Any) -> str:
    """JSON in the one form that `from_json` reads.

    Raises:
        TypeError, ValueError, RecursionError: The value is not plain JSON, is too large or is nested too deeply.
    """
    text = _dumped(value)
    _check_tokens(text)
    return text


def from_json(text: str) -> Any:
    """Reads JSON, only in the form that `to_json` writes: one text for each value.

    That rule alone refuses duplicate keys, NaN and infinities in any spelling, and lone surrogates.

    Raises:
        ValueError, RecursionError: It is not JSON, has another form, is too large or is nested too deeply.
    """
    _check_tokens(text)
    value = json.loads(text)
    if _dumped(value) != text:
        raise ValueError("it is not in the form that Cellerate writes")
    return value


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _check_tokens(text: str) -> None:
    """Refuses JSON that would take much memory, time or stack to read, before parsing any of it."""
    depth = 0
    for count, found in enumerate(_TOKENS.finditer(text)):
        first = text[found.start()]
        if first in "[{":
            depth += 1
        elif first in "]}":
            depth -= 1
        elif first not in '",':
            raise ValueError(f"a number in it has more than {_LONGEST_NUMBER} digits")
        if depth > _DEEPEST:
            raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
        if count >= _MOST_TOKENS:
            raise ValueError(f"it has more than {_MOST_TOKENS:,} texts, brackets and commas")


def write_container(
    path: str | os.PathLike[str], metadata: Mapping[str, str], tensors: Mapping[str, np.ndarray]
) -> str:
    """Write a file, whole or not at all, and return its digest.

    Args:
        path: The file.
        metadata: The entries of the header besides the tensors and the digest.
        tensors: By name; `FLOAT32`, `BFLOAT16`, `INT8` or `INT4`, contiguous, with one or two axes.

    Raises:
        ConfigError: The header is larger than `LARGEST_HEADER`, or there are too many tensors.
        OutputError: The file could not be written.
    """
    entries: dict[str, Any] = {
        "__metadata__": {"format": "cellerate.cell", "version": _VERSION, "sha256": "0" * 64, **metadata}
    }
    # The format allows no gaps. With the widest elements first, each tensor is aligned to its element size.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].itemsize)
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.nbytes
        entries[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    try:
        text = to_json(entries).encode()
    except ValueError as error:
        raise ConfigError(
            f"the header of a .cell file cannot be written: {error}; pack a smaller model."
        ) from error
    length = -(-(8 + len(text)) // _ALIGNMENT) * _ALIGNMENT - 8
    if length > LARGEST_HEADER:
        raise ConfigError(
            f"the header of a .cell file takes at most {LARGEST_HEADER:,} bytes, got {length:,}: use a smaller "
            "tokenizer."
        )
    digest = hashlib.sha256()
    with atomic_write(path) as beside, beside.open("wb") as file:
        start = length.to_bytes(8, "little") + text.ljust(length)
        for block in (memoryview(start), *(tensor.data for _, tensor in ordered)):
            digest.update(block)
            file.write(block)
        file.seek(_DIGEST.start)
        file.write(digest.hexdigest().encode())
    return digest.hexdigest()


def read_container(
    path: Path, check: Callable[[str], None] | None = None
) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Reads a file that `write_container` has written, once, into one buffer in memory.

    Args:
        path: The file.
        check: Called with the digest of the file before anything is parsed; it may raise.

    Returns:
        The metadata, and the tensors by name: parts of one buffer, aligned to their elements.

    Raises:
        DataError: There is no such file, it cannot be read, or it was changed since it was written.
    """
    content = _read(path)
    digest = hashlib.sha256(content[: _DIGEST.start].data)
    digest.update(b"0" * 64)
    digest.update(content[_DIGEST.stop :].data)
    if digest.hexdigest().encode() != content[_DIGEST].tobytes():
        raise damaged(path, "its checksum is wrong, so it has been cut short or changed since")
    if check is not None:
        check(digest.hexdigest())
    end = 8 + int.from_bytes(content[:8].tobytes(), "little")
    try:
        # A digest is not a signature: a file that passes may still be hostile.
        entries = from_json(content[8:end].tobytes().rstrip(b" ").decode())
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"its header cannot be read: {error}") from error
    metadata = entries.pop("__metadata__")
    if not all(isinstance(value, str) for value in metadata.values()):
        raise damaged(path, "its metadata are not all texts")
    data = content[end:]
    tensors = {}
    begin = 0
    for name, entry in entries.items():
        dtype, shape = _dtype_and_shape(entry)
        end = begin + math.prod(shape) * dtype.itemsize
        aligned = begin % dtype.itemsize == 0
        if not shape or not aligned or end > len(data) or entry["data_offsets"] != [begin, end]:
            raise damaged(
                path,
                f"the tensor {name[:40]!r} must be {', '.join(_DTYPES)} with one or two axes, and take the bytes "
                "that follow the tensor before",
            )
        tensors[name] = data[begin:end].view(dtype).reshape(shape)
        begin = end
    if begin != len(data):
        raise damaged(path, f"its tensors take {begin:,} bytes, and it holds {len(data):,} of them")
    return {name: value for name, value in metadata.items() if name not in _OWN}, tensors


def _dtype_and_shape(entry: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The header's entry for a tensor; an empty shape if the entry is wrong."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        return FLOAT32, ()
    dtype, shape = entry["dtype"], entry["shape"]
    known = isinstance(dtype, str) and dtype in _DTYPES and isinstance(shape, list) and len(shape) in (1, 2)
    # No file has more elements than this limit, and products of larger numbers are slow.
    if not known or not all(type(size) is int and 0 < size < 1 << 63 for size in shape):
        return FLOAT32, ()
    return _DTYPES[dtype], tuple(shape)


def _read(path: Path) -> np.ndarray:
    """The bytes of a file that starts like a `.cell` file of this version and is long enough for its header."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise DataError(f"{path} is a folder; give the path of a .cell file.")
        # Opening a pipe would block until its other end opens.
        if not stat.S_ISREG(mode):
            raise DataError(f"{path} is not a regular file; give the path of a .cell file.")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            _check_start(path, file.read(_DIGEST.stop + 1), size)
            content = np.empty(size, np.uint8)
            file.seek(0)
            if file.readinto(content.data) != size:
                raise damaged(path, "it became shorter while it was read")
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}; check the path, or pack a model first.") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(f"{path} cannot be read: {reason}; check the path and who may read it.") from error
    except DataError:
        raise
    except ValueError as error:  # A path with a NUL in it.
        raise DataError(f"{str(path)!r} is not the path of a file: {error}; check it.") from error
    return content


def _check_start(path: Path, start: bytes, size: int) -> None:
    """Check the first bytes and the size before memory is allocated for the rest."""
    if size == 0:
        raise DataError(f"{path} is empty; copy it again, or pack the model again.")
    if start.startswith(b"PK\x03\x04"):
        raise DataError(
            f"{path} is a zip archive, as a .keras model is, and not a .cell file: pack the model first, and "
            "give the .cell file that comes out."
        )
    if start[8 : 8 + len(_MAGIC)] != _MAGIC:
        raise DataError(
            f"{path} is not a .cell file, or its beginning is damaged: pack a model, or copy the file again."
        )
    version = start[8 + len(_MAGIC) :].split(b'"')[0]
    if version != _VERSION.encode() and re.fullmatch(rb"[0-9]{1,9}", version):
        raise DataError(
            f"{path} is a .cell file of version {version.decode()}, and this Cellerate knows version {_VERSION}: "
            "install the Cellerate it was packed with, or pack the model again."
        )
    if not start[8:].startswith(_START) or not re.fullmatch(rb'[0-9a-f]{64}"', start[_DIGEST.start :]):
        raise damaged(path, "its checksum is not where it should be")
    length = int.from_bytes(start[:8], "little")
    if length > min(LARGEST_HEADER, size - 8) or length % 8:
        raise damaged(path, f"it claims a header of {length:,} bytes, and has {size:,} in all")
