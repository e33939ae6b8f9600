"""Remembers the sessions whose last pushes a failing disk lost, over a crash: bits in a file that is made beforehand.

A full disk takes nothing new, but the bytes of an existing file can be changed. The bits are a Bloom filter: every
marked session is found, and now and then an unmarked one, too.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from pathlib import Path

from cellerate.errors import OutputError

_MAGIC = b"cellerate lost 1"
_BYTES = 1 << 16
_HASHES = 4


class LossMarker:
    """The marked sessions of one file.

    Args:
        path: The file of the marker; it is made if it is missing.

    Raises:
        OutputError: The file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
            found = os.pread(self._file, len(_MAGIC) + _BYTES, 0)
            whole = len(found) == len(_MAGIC) + _BYTES and found.startswith(_MAGIC)
            self._bits = bytearray(found[len(_MAGIC) :] if whole else _BYTES)
            if not whole:
                self._write()
                os.fsync(self._file)
        except OSError as error:
            raise OutputError(f"the file {path} cannot be written: {error.strerror}.") from error

    def __contains__(self, name: str) -> bool:
        """Return True for each marked session, and for a few others."""
        return all(self._bits[byte] & bit for byte, bit in _places(name))

    @property
    def any(self) -> bool:
        """True if any session was marked."""
        return self._bits.count(0) < _BYTES

    def mark(self, names: Iterable[str]) -> None:
        """Mark sessions; if the file cannot be written, only in memory."""
        for name in names:
            for byte, bit in _places(name):
                if not self._bits[byte] & bit:
                    self._bits[byte] |= bit
                    try:
                        os.pwrite(self._file, bytes([self._bits[byte]]), len(_MAGIC) + byte)
                    except OSError:
                        # The disk fails, which is reported elsewhere; nothing more can be done here.
                        continue

    def clear(self) -> None:
        """Remove all marks."""
        if self.any:
            self._bits = bytearray(_BYTES)
            try:
                self._write()
            except OSError as error:
                raise OutputError(f"the marker of sessions cannot be written: {error.strerror}.") from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _write(self) -> None:
        os.pwrite(self._file, _MAGIC + self._bits, 0)


def _places(name: str) -> list[tuple[int, int]]:
    """Return the byte and the bit of each hash of a name."""
    text = name.encode()
    first, second = zlib.crc32(text), zlib.adler32(text[::-1], 7) | 1
    hashes = ((first + number * second) % (8 * _BYTES) for number in range(_HASHES))
    return [(place >> 3, 1 << (place & 7)) for place in hashes]
