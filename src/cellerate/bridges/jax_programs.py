"""Keeps the programs that JAX compiles on disk, so that the next process loads them instead.

Compiling takes seconds before the first step of a training, most of them for programs that are the same in each run.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

import jax

from cellerate.machine.processor import CPUINFO

_MOST_BYTES = 256 << 20


def keep_programs(folder: Path) -> bool:
    """Has JAX keep compiled programs in a folder; call it before JAX compiles any.

    Only where it is safe: on one device, which is a CPU. Programs for several devices and for GPUs refer to what is in
    the memory of the process. JAX knows a program again by its operations, its options and the version of JAX, but not
    by the processor that it is compiled for, so each kind of processor has a folder of its own.

    The folder is kept below 256 MiB: what was written first goes first.

    Args:
        folder: The folder, which need not exist. JAX's own settings win: a folder that the user chose stays, and
            `JAX_ENABLE_COMPILATION_CACHE=false` keeps nothing.

    Returns:
        Whether programs are kept in this folder.
    """
    if jax.config.jax_compilation_cache_dir or not jax.config.jax_enable_compilation_cache:
        return False
    if jax.device_count() > 1 or jax.default_backend() != "cpu":
        return False
    folder = folder / "jax"
    own = folder / _processor()
    try:
        own.mkdir(parents=True, exist_ok=True)
        _shrink(folder)
    except OSError:
        return False
    if not os.access(own, os.W_OK):
        return False
    jax.config.update("jax_compilation_cache_dir", str(own))
    # Many are small, and each takes longer to compile than to read.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # Else an equal program might come with the names of another one's operations, by which `profile` knows layers.
    jax.config.update("jax_compilation_cache_include_metadata_in_key", True)
    return True


def _processor() -> str:
    """A name for what compiled code depends on: the processor's model and instructions."""
    text = CPUINFO.read_text() if CPUINFO.exists() else ""
    first = text.split("\n\n", 1)[0]
    names = ("vendor_id", "cpu family", "model", "flags", "CPU implementer", "CPU part", "Features")
    facts = sorted(line for line in first.splitlines() if line.split(":")[0].strip() in names)
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _shrink(folder: Path) -> None:
    """Deletes the oldest files of a folder if they are too large together, and those that a full disk left empty."""
    found = []
    for path in folder.glob("*/*"):
        with contextlib.suppress(FileNotFoundError):  # another process shrinks it, too
            fact = path.stat()
            found.append((fact.st_size > 0, fact.st_mtime, fact.st_size, path))
    found.sort()
    total = sum(size for _, _, size, _ in found)
    for whole, _, size, path in found:
        if whole and total <= _MOST_BYTES:
            break
        path.unlink(missing_ok=True)
        total -= size
