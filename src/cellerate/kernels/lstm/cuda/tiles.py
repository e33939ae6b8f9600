"""The division of shared memory in the kernels of `lstm_tiles.cuh`: arithmetic about sizes."""

from __future__ import annotations

import dataclasses

from cellerate.kernels.cuda.kernel import SHARED_BYTES

ROWS = (48, 80, 112, 152)
"""Rows of the batch that a cluster computes: so that 7 or 15 clusters, as many as run at once, are nearly full with
512, 1,024 and 2,048 rows."""
BLOCK_UNITS = 64
"""Units per thread block, and how deep a chunk is."""
FEWEST_UNITS = 256
THREADS = 384
NUMBER_BYTES = 2
# The chunks that a block sends in a step.
BLOCK_CHUNKS = {"forward": 1, "backward": 4}
# The most chunks in flight or in use. Multiplying this many takes about as long as one chunk needs to arrive: weights
# from the second-level cache, chunks of other blocks after all blocks have signalled that they have room.
_MOST_SLOTS = {"forward": 5, "backward": 10}
_WEIGHT_SLOTS = {"forward": 3, "backward": 4}
# Backward, four warps use the even chunks and four the odd ones. Each four have slots of their own.
_USERS = {"forward": 1, "backward": 2}
_BARRIER_BYTES = 8


@dataclasses.dataclass(frozen=True)
class Tile:
    """The contents of a block's shared memory.

    Attributes:
        direction: "forward" or "backward".
        units: H, a multiple of `BLOCK_UNITS`.
        rows: One of `ROWS`.
        masked: Whether there is a mask.
        slots: Chunks from other blocks that are in flight or in use.
        weight_slots: Chunks of weights that are in flight or in use.
        resident: Chunks of weights that stay in shared memory.
    """

    direction: str
    units: int
    rows: int
    masked: bool
    slots: int
    weight_slots: int
    resident: int

    @property
    def chunks(self) -> int:
        """Chunks of a step, as many of weights as from other blocks."""
        return self.units // BLOCK_UNITS * BLOCK_CHUNKS[self.direction]

    @property
    def weight_bytes(self) -> int:
        """Bytes of a chunk of weights."""
        return NUMBER_BYTES * 4 * BLOCK_UNITS**2 // BLOCK_CHUNKS[self.direction]

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory per block; the kernel's source asserts the same."""
        chunk = NUMBER_BYTES * self.rows * BLOCK_UNITS
        chunks = self.slots * chunk + (self.weight_slots + self.resident) * self.weight_bytes
        barriers = self.slots + 2 * max(1, self.weight_slots) + 1 + BLOCK_CHUNKS[self.direction]
        chunks = _rounded(chunks + barriers * _BARRIER_BYTES)
        if self.direction == "forward":
            others = chunk + (chunk if self.masked else 8 * NUMBER_BYTES)
        else:
            others = 4 * BLOCK_UNITS * -(-self.rows // 16) * 16
        return _rounded(chunks + others + 2 * _BARRIER_BYTES)

    @property
    def fits(self) -> bool:
        """True if a block has as much shared memory."""
        return self.shared_bytes <= SHARED_BYTES


def tile(direction: str, units: int, rows: int, *, masked: bool) -> Tile:
    """The best use of a block's memory: all weights stay there, or as many as leave room for chunks in flight."""
    found, users = Tile(direction, units, rows, masked, 0, 0, 0), _USERS[direction]
    found = dataclasses.replace(found, slots=min(found.chunks, _MOST_SLOTS[direction]))
    all_stay = dataclasses.replace(found, resident=found.chunks)
    if all_stay.fits:
        return all_stay
    found = dataclasses.replace(found, weight_slots=_WEIGHT_SLOTS[direction])
    while not found.fits:
        found = dataclasses.replace(found, slots=found.slots - users)
    room = SHARED_BYTES // 128 * 128 - found.shared_bytes
    return dataclasses.replace(found, resident=room // found.weight_bytes // users * users)


def _rounded(count: int) -> int:
    """Up to a multiple of 128, as the structures are aligned."""
    return -(-count // 128) * 128
