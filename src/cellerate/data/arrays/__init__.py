"""Batches as indices: a window is a position, a batch one gather, a shuffle a permutation without memory.

Sources of windows, of text and of series are built on these.
"""

from cellerate.data.arrays.batches import (
    CHUNK_BYTES,
    Batch,
    BatchSource,
    GatheredBatches,
    at_least,
    digest,
    iterate,
    joined,
    source_fingerprint,
)
from cellerate.data.arrays.gather import (
    MIXING_BYTES,
    FileRows,
    Shuffle,
    WindowFinder,
    WindowIndex,
    open_rows,
    plan_windows,
    take_windows,
    windows_at,
)
from cellerate.data.arrays.masked import unmasked
from cellerate.data.arrays.shuffle import Permutation, derive_seed

__all__ = [
    "CHUNK_BYTES",
    "MIXING_BYTES",
    "Batch",
    "BatchSource",
    "FileRows",
    "GatheredBatches",
    "Permutation",
    "Shuffle",
    "WindowFinder",
    "WindowIndex",
    "at_least",
    "derive_seed",
    "digest",
    "iterate",
    "joined",
    "open_rows",
    "plan_windows",
    "source_fingerprint",
    "take_windows",
    "unmasked",
    "windows_at",
]
