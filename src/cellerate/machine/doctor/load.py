"""The use of the processors by others: other processes, and other guests on a virtual machine's host."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from cellerate.format import number, percent
from cellerate.machine.doctor.finding import Finding, read

TOPIC = "load"
MOMENT_S = 0.2
"""The seconds to look: the kernel counts time in hundredths of a second."""
_BUSY, _VERY_BUSY = 0.1, 0.5
_STOLEN_EVER, _STOLEN_NOW = 0.02, 0.1
# The kernel's files count hundredths of seconds.
_TICKS = 100


def is_quiet(before: str | None, after: str | None, allowed: Collection[int]) -> bool:
    """True if other programs leave the processors idle enough to measure, or if the load is not known.

    Args:
        before: The text of `/proc/stat` a moment ago, since when this process has done nothing.
        after: The same now.
        allowed: The numbers of the logical processors that this process may run on.
    """
    if before is None or after is None:
        return True
    spent = _spent(before, after, allowed)
    return spent["busy"] < _BUSY and spent["stolen"] < _STOLEN_NOW


def allowed_processors() -> Collection[int]:
    """The numbers of the logical processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def busy_now() -> str:
    """A line on the processors if other processes use them now; "" if they do not, or if that is not known."""
    before = read(Path("/proc/stat"))
    time.sleep(MOMENT_S)
    found = check_load(Path("/"), before, read(Path("/proc/stat")), allowed_processors())
    return "; ".join(f"{one.found}: {one.cost}" for one in found if one.status == "problem")


class Others:
    """The use of the processors by other processes from now on, during a measurement."""

    def __init__(self) -> None:
        self._allowed = allowed_processors()
        self._before, self._own_s = read(Path("/proc/stat")), _own_s()

    def processors(self) -> float | None:
        """The average number of processors that they have used since then; None if that is not known.

        This process and its children that have ended are left out.
        """
        after = read(Path("/proc/stat"))
        if self._before is None or after is None:
            return None
        now, before = _times(after, self._allowed), _times(self._before, self._allowed)
        passed = sum(now.values()) - sum(before.values())
        if passed <= 0:
            return None
        busy = (now["busy"] - before["busy"]) / _TICKS - (_own_s() - self._own_s)
        return max(0.0, busy) / (passed / _TICKS / len(self._allowed))

    def told(self) -> tuple[str, str]:
        """The load in words, and its cost; the latter is empty if it is small, both if the load is not known."""
        used = self.processors()
        if used is None:
            return "", ""
        said = f"other processes used {used:.1f} of {len(self._allowed)} processors"
        cost = "times are too long, and what changes gain may be wrong"
        return said, cost if used >= _BUSY * len(self._allowed) else ""


def _own_s() -> float:
    """The processor seconds of this process and of its ended children."""
    return sum(os.times()[:4])


def check_load(
    root: Path, before: str | None, after: str | None, allowed: Collection[int]
) -> Iterator[Finding]:
    """Check whether figures measured now can be trusted.

    Args:
        root: The root folder of the machine's files.
        before: The text of `/proc/stat` a moment ago, since when this process has done nothing.
        after: The same now.
        allowed: The numbers of the logical processors that this process may run on.
    """
    if before is None or after is None:
        return
    spent, now = _spent(before, after, allowed), _times(after, allowed)
    busy = spent["busy"]
    said = f"other processes use {number(busy * len(allowed), 2)} of {len(allowed)} processors now"
    cost = "trainings and measurements share the processors with them; figures measured now are too low"
    fix = "see which with `top`, and end them or wait"
    average = float((read(root / "proc/loadavg") or "0").split()[0])
    if busy >= _BUSY:
        yield Finding(TOPIC, "problem" if busy >= _VERY_BUSY else "note", said, cost, fix)
    elif average > len(allowed):
        said = f"in the last minute {number(average, 2)} processes wanted {len(allowed)} processors"
        yield Finding(TOPIC, "note", said, "figures measured then are too low", fix)
    else:
        yield Finding(TOPIC, "ok", said)
    yield from _stolen(spent["stolen"], now["stolen"] / max(sum(now.values()), 1))


def _stolen(recently: float, ever: float) -> Iterator[Finding]:
    """Time that the host took from a virtual machine that was ready to run."""
    fix = (
        "measure at another time, or ask for a machine with processors of its own (dedicated, not burstable)"
    )
    cost = "all threads of a layer wait for the one that does not run"
    if recently >= _STOLEN_NOW:
        said = f"the host of this virtual machine takes {percent(recently)} of its time now"
        yield Finding(TOPIC, "problem", said, cost, fix)
    elif ever >= _STOLEN_EVER:
        said = f"the host of this virtual machine has taken {percent(ever)} of its time since it started"
        yield Finding(TOPIC, "note", said, cost, fix)


def _spent(before: str, after: str, allowed: Collection[int]) -> dict[str, float]:
    """The shares of the time between two readings."""
    now = _times(after, allowed)
    spent = {name: now[name] - value for name, value in _times(before, allowed).items()}
    return {name: value / max(sum(spent.values()), 1) for name, value in spent.items()}


def _times(stat: str, allowed: Collection[int]) -> dict[str, int]:
    """Hundredths of seconds that processors were busy, idle, and taken by the host."""
    found = {"busy": 0, "idle": 0, "stolen": 0}
    for processor, text in re.findall(r"^cpu(\d+) (.*)$", stat, re.MULTILINE):
        if int(processor) in allowed:
            # Guests, which follow, are counted in the first two already.
            user, nice, system, idle, waiting, interrupts, soft, stolen = map(int, text.split()[:8])
            found["busy"] += user + nice + system + interrupts + soft
            found["idle"] += idle + waiting
            found["stolen"] += stolen
    return found
