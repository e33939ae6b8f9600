"""What a kernel is to who compiles, loads and starts it: neither needs to know what it computes."""

from typing import Protocol

# Of a thread block on sm_90: what CUDA calls the opt-in limit.
SHARED_BYTES = 232_448


class Kernel(Protocol):
    """What a kernel is compiled for; equal ones are the same kernel."""

    @property
    def name(self) -> str:
        """The function in what is compiled."""

    @property
    def source(self) -> str:
        """All of the source, as one text."""

    @property
    def rows(self) -> int:
        """Rows of the batch that a cluster has."""

    @property
    def blocks(self) -> int:
        """Thread blocks of a cluster."""

    @property
    def threads(self) -> int:
        """Of a block."""

    @property
    def shared_bytes(self) -> int:
        """The shared memory of a block."""

    def __hash__(self) -> int: ...


def clusters(rows: int, batch: int) -> int:
    """How many clusters of so many rows a batch takes."""
    return -(-batch // rows)
