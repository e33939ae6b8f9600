"""The properties by which a kernel is compiled, loaded and started, whatever it computes."""

from __future__ import annotations

from typing import Protocol

# The most shared memory of a thread block on sm_90: CUDA's opt-in limit.
SHARED_BYTES = 232_448


class Kernel(Protocol):
    """The options that a kernel is compiled with; equal objects are the same kernel."""

    @property
    def name(self) -> str:
        """The name of the compiled function."""

    @property
    def source(self) -> str:
        """The whole source as one text."""

    @property
    def rows(self) -> int:
        """Rows of the batch per cluster."""

    @property
    def blocks(self) -> int:
        """Thread blocks per cluster."""

    @property
    def threads(self) -> int:
        """Threads per block."""

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory per block."""

    def __hash__(self) -> int: ...


def clusters(rows: int, batch: int) -> int:
    """The number of clusters a batch takes, with `rows` rows each."""
    return -(-batch // rows)
