"""Checksums of long files, block by block, so that a sample of the blocks can be checked whenever one is opened."""

from __future__ import annotations

import base64
import random
import zlib
from pathlib import Path

import numpy as np

BLOCK_BYTES = 256 << 10
# Read in a few milliseconds; a file of up to 4 MiB is checked whole.
_SAMPLED = 16


def block_checksums(path: Path) -> str:
    """The CRC-32 of each `BLOCK_BYTES` of a file, little-endian, in base64.

    Raises:
        OSError: The file cannot be read.
    """
    found = bytearray()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            found += zlib.crc32(block).to_bytes(4, "little")
    return base64.b64encode(found).decode()


def damaged_byte(path: Path, checksums: str, *, every: bool) -> int | None:
    """The first byte of a block that has changed; None if no block has.

    Args:
        path: The file.
        checksums: The result of `block_checksums` when the file was written.
        every: Check all blocks, and not only the first, the last and a random few between.

    Raises:
        OSError: The file cannot be read.
        ValueError: `checksums` cannot be decoded.
    """
    known = np.frombuffer(base64.b64decode(checksums, validate=True), "<u4")
    count = -(-path.stat().st_size // BLOCK_BYTES)
    if count != len(known):
        return min(count, len(known)) * BLOCK_BYTES
    checked = range(count)
    with path.open("rb") as file:
        for number in checked if every else _some(checked):
            file.seek(number * BLOCK_BYTES)
            if zlib.crc32(file.read(BLOCK_BYTES)) != known[number]:
                return number * BLOCK_BYTES
    return None


def _some(numbers: range) -> list[int]:
    if len(numbers) <= _SAMPLED:
        return list(numbers)
    # A generator of its own: the seed of a training must not choose the same blocks each time.
    between = random.SystemRandom().sample(numbers[1:-1], _SAMPLED - 2)
    return [numbers[0], *sorted(between), numbers[-1]]
