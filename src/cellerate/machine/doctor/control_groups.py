"""The limits of control groups, and so of containers, on this process: version 1, version 2, and both at once.

Control groups are nested, and each may have a limit: the lowest counts.

Source: the Linux manual, cgroups(7); the kernel's documentation, "Control Group v2" and "CFS Bandwidth Control".
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path, PurePosixPath

from cellerate.machine.doctor.finding import read

# Without a limit version 1 reports the largest possible number of pages.
_NO_LIMIT = 2**60


@dataclasses.dataclass(frozen=True)
class CpuQuota:
    """The processor time of a group.

    Attributes:
        processors: The allowed time, in processors; 1.5 is one and a half.
        periods: The number of periods in which the group has run so far.
        throttled: The number of periods whose time was used up early, so that all threads of the group stood still.
    """

    processors: float
    periods: int
    throttled: int


@dataclasses.dataclass(frozen=True)
class MemoryLimit:
    """The memory of a group.

    Attributes:
        limit_bytes: The memory that the group may use.
        used_bytes: The memory in use, without cached files, which the kernel drops when the memory is needed.
        kills: The number of its processes that the kernel killed because the memory was full.
    """

    limit_bytes: int
    used_bytes: int
    kills: int


def cpu_quota(root: Path) -> CpuQuota | None:
    """The lowest limit of processor time; None without one.

    Args:
        root: The root folder of the machine's files.

    Raises:
        ValueError: The kernel's files are not as they should be.
    """
    found = []
    for folder in _folders(root, "cpu"):
        words = (read(folder / "cpu.max") or "").split()
        if not words:
            words = [read(folder / f"cpu.cfs_{name}_us") or "-1" for name in ("quota", "period")]
        if words[0] == "max" or int(words[0]) <= 0:
            continue
        said = _table(folder / "cpu.stat")
        quota = int(words[0]) / int(words[1])
        found.append(CpuQuota(quota, said.get("nr_periods", 0), said.get("nr_throttled", 0)))
    return min(found, key=lambda group: group.processors, default=None)


def memory_limit(root: Path) -> MemoryLimit | None:
    """The lowest limit of memory; None without one.

    Args:
        root: The root folder of the machine's files.

    Raises:
        ValueError: The kernel's files are not as they should be.
    """
    found = []
    for folder in _folders(root, "memory"):
        for limit_file, used_file, cached, events in (
            ("memory.max", "memory.current", "inactive_file", "memory.events"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "memory.oom_control"),
        ):
            text = (read(folder / limit_file) or "max").strip()
            if text == "max" or int(text) >= _NO_LIMIT:
                continue
            used = int(read(folder / used_file) or 0) - _table(folder / "memory.stat").get(cached, 0)
            found.append(MemoryLimit(int(text), max(0, used), _table(folder / events).get("oom_kill", 0)))
    return min(found, key=lambda group: group.limit_bytes, default=None)


def threads_left(root: Path) -> int | None:
    """The number of threads and processes that this process's groups allow; None without a limit.

    Args:
        root: The root folder of the machine's files.

    Raises:
        ValueError: The kernel's files are not as they should be.
    """
    left = []
    for folder in _folders(root, "pids"):
        limit, used = (read(folder / f"pids.{name}") for name in ("max", "current"))
        if limit is not None and used is not None and limit.strip() != "max":
            left.append(max(0, int(limit) - int(used)))
    return min(left, default=None)


def _folders(root: Path, controller: str) -> list[Path]:
    """Where the groups of this process may have the files of a controller ("cpu"), both versions."""
    base = root / "sys/fs/cgroup"
    found = []
    for line in (read(root / "proc/self/cgroup") or "0::/").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            mounts = [base, base / "unified"]
        elif controller in controllers.split(","):
            mounts = [base / controllers, base / controller]
        else:
            continue
        group = PurePosixPath(path)
        # The path may be the one on the host, of which a container sees the last part at most.
        inside = [] if ".." in group.parts else [group, *group.parents]
        parts = [str(each).lstrip("/") for each in inside] or [""]
        found += [mount / part for mount in mounts for part in parts]
    return list(dict.fromkeys(found))


def _table(path: Path) -> dict[str, int]:
    """A file of names and whole numbers."""
    rows = re.findall(r"^(\w+) (\d+)$", read(path) or "", re.MULTILINE)
    return {name: int(value) for name, value in rows}
