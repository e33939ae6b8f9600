"""Memory: limits of the container and of the shell, free memory, swapping, and the allocator."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from cellerate.format import size
from cellerate.machine.doctor.control_groups import memory_limit
from cellerate.machine.doctor.finding import Finding, read

TOPIC = "memory"
Usage = Callable[[Path], tuple[int, int, int]]
"""The bytes of the file system that holds a path: in all, used, free. As `shutil.disk_usage`."""
# A backend alone takes several hundred megabytes when it is imported.
_LITTLE_BYTES = 10**9
_LITTLE_SHARE = 0.1
_MUCH_SWAPPED_BYTES = 10**8
# Docker's default size of /dev/shm is 64 MiB.
_SMALL_SHARED_BYTES = 2**28
# The soft limit of nearly every system.
_FEW_FILES = 1024
_ALLOCATORS = {"jemalloc": "jemalloc", "tcmalloc": "tcmalloc", "mimalloc": "mimalloc"}


def check_limit(root: Path) -> Iterator[Finding]:
    """The container's limit, and whether it was ever hit.

    Args:
        root: The root folder of the machine's files.
    """
    limit, total = memory_limit(root), _meminfo(root).get("MemTotal")
    if limit is None or total is None or limit.limit_bytes >= total:
        return
    said = f"the container may use {size(limit.limit_bytes)} of the machine's {size(total)}"
    cost = "the kernel ends a process that takes more, without a message (exit code 137)"
    more = "give the container more memory (`docker run --memory`), or train with a smaller batch_size"
    if limit.kills:
        yield Finding(
            TOPIC, "problem", f"{said}; for want of it {limit.kills} processes were ended", cost, more
        )
    else:
        yield Finding(TOPIC, "note", said, cost)


def check_available(root: Path) -> Iterator[Finding]:
    """Check the free memory of the machine and within the container's limit.

    Args:
        root: The root folder of the machine's files.
    """
    memory, limit = _meminfo(root), memory_limit(root)
    if "MemAvailable" not in memory or "MemTotal" not in memory:
        return
    total, free = memory["MemTotal"], memory["MemAvailable"]
    if limit is not None and limit.limit_bytes < total:
        total, free = limit.limit_bytes, min(free, max(0, limit.limit_bytes - limit.used_bytes))
    said = f"{size(free)} of {size(total)} are free"
    fix = "see who has it with `ps aux --sort=-rss | head`, and end what is not needed"
    if free < _LITTLE_BYTES:
        cost = "a backend takes several hundred megabytes before it has read any data"
        yield Finding(TOPIC, "problem", f"only {said}", cost, fix)
    elif free < _LITTLE_SHARE * total:
        yield Finding(TOPIC, "note", f"only {said}", "a large model or batch may not fit", fix)
    else:
        yield Finding(TOPIC, "ok", said)


def check_swap(root: Path, before: str | None, after: str | None) -> Iterator[Finding]:
    """Check whether memory was swapped to the disk, and whether it is being read back now.

    Args:
        root: The root folder of the machine's files.
        before: The text of `/proc/vmstat` a moment ago.
        after: The same now.
    """
    memory = _meminfo(root)
    swapped = memory.get("SwapTotal", 0) - memory.get("SwapFree", 0)
    pages = _swapped_in(after) - _swapped_in(before)
    fix = "end what else takes memory, or train with a smaller batch_size"
    if pages > 0:
        cost = "a page from the disk takes thousands of times as long as one from memory"
        yield Finding(
            TOPIC, "problem", f"the machine is swapping: it read {pages} pages back just now", cost, fix
        )
    elif swapped > _MUCH_SWAPPED_BYTES:
        cost = "what was swapped out is slow once, when it is used again"
        yield Finding(TOPIC, "note", f"{size(swapped)} are swapped out", cost, fix)


def check_huge_pages(root: Path) -> Iterator[Finding]:
    """Check whether the native core may ask for huge pages.

    Args:
        root: The root folder of the machine's files.
    """
    text = read(root / "sys/kernel/mm/transparent_hugepage/enabled") or ""
    if "[never]" in text:
        yield Finding(
            TOPIC,
            "note",
            "the kernel gives no huge pages (transparent_hugepage is 'never')",
            "fresh arrays come page by page: in a program that accelerates a model late, a step took 105 ms without "
            "and 71 ms with them, where that was measured (docs/decisions/0004-keep-freed-memory.md)",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        )


def check_allocator(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check whether another allocator replaces the C library's, whose settings Cellerate changes for training.

    Args:
        environ: The environment variables.
    """
    preloaded = environ.get("LD_PRELOAD", "")
    name = next((name for part, name in _ALLOCATORS.items() if part in preloaded), None)
    if name is not None:
        yield Finding(
            TOPIC,
            "note",
            f"LD_PRELOAD puts {name} in the place of the C library's allocator",
            "what Cellerate sets, so that freed memory is kept for the next step, has no effect on it "
            "(docs/decisions/0004-keep-freed-memory.md)",
            "unset LD_PRELOAD, unless a step was measured to be faster with it",
        )


def check_shared(root: Path, usage: Usage, backends: Sequence[str]) -> Iterator[Finding]:
    """Check whether the workers of a torch DataLoader have room for their batches.

    Args:
        root: The root folder of the machine's files.
        usage: Says how large a file system is.
        backends: The installed backends.
    """
    folder = root / "dev/shm"
    if "torch" not in backends or not folder.is_dir():
        return
    total = usage(folder)[0]
    if total < _SMALL_SHARED_BYTES:
        yield Finding(
            TOPIC,
            "note",
            f"/dev/shm has {size(total)}",  # noqa: S108 (only looked at)
            "the workers of a torch DataLoader pass batches through it, and end with a bus error when it is full",
            "`docker run --shm-size=2g` (on Kubernetes, an emptyDir of medium Memory at /dev/shm)",
        )


def check_shell_limits(root: Path, files: int, address_space: int) -> Iterator[Finding]:
    """Limits of the shell that started this process.

    Args:
        root: The root folder of the machine's files.
        files: The number of files that it may open; negative without a limit.
        address_space: The bytes of addresses that it may reserve; negative without a limit.
    """
    total = _meminfo(root).get("MemTotal", 0)
    if 0 <= files < _FEW_FILES:
        yield Finding(
            TOPIC,
            "note",
            f"this process may open {files} files",
            "each connection of `cellerate serve` and each file of data takes one",
            "ulimit -n 4096",
        )
    if 0 <= address_space < total:
        yield Finding(
            TOPIC,
            "problem",
            f"this process may reserve {size(address_space)} of addresses, less than the machine's {size(total)}",
            "frameworks reserve more than they use, and fail at the limit although memory is free",
            "ulimit -v unlimited",
        )


def _meminfo(root: Path) -> dict[str, int]:
    rows = re.findall(r"^(\w+):\s*(\d+) kB", read(root / "proc/meminfo") or "", re.MULTILINE)
    return {name: int(value) * 1024 for name, value in rows}


def _swapped_in(vmstat: str | None) -> int:
    found = re.search(r"^pswpin (\d+)$", vmstat or "", re.MULTILINE)
    return 0 if found is None else int(found[1])
