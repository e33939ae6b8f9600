"""The load of the machine while it is measured: the share of other processes and other machines."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from cellerate.machine.environment import processors

STAT = Path("/proc/stat")
_WATCHED_S = 1.0


class Times(NamedTuple):
    """Seconds since the machine's start, summed over the processors that we may use.

    Attributes:
        busy: Seconds used by all processes, and by the system for them.
        stolen: Seconds taken by other virtual machines.
        own: Seconds used by this process and its ended children.
        all: All seconds, busy or idle.
    """

    busy: float
    stolen: float
    own: float
    all: float


def times() -> Times | None:
    """The times now; None if the system has no `/proc/stat`."""
    try:
        rows = [row.split() for row in STAT.read_text().splitlines()]
    except OSError:
        return None
    ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    tick = os.sysconf("SC_CLK_TCK")
    # user, nice, system, idle, iowait, irq, softirq, steal; guests count as user already.
    user, nice, system, _, _, irq, softirq, stolen = (
        sum(int(row[place]) for row in rows if row and row[0] in ours) / tick for place in range(1, 9)
    )
    own = sum(os.times()[:4])
    return Times(user + nice + system + irq + softirq, stolen, own, time.monotonic() * processors())


def shares(before: Times | None, after: Times | None) -> tuple[float | None, float | None]:
    """The processor time of others between two moments: other processes, and other virtual machines."""
    if before is None or after is None or after.all <= before.all:
        return None, None
    span = after.all - before.all
    others = (after.busy - before.busy) - (after.own - before.own)
    # `busy` and `own` come from clocks that tick apart, so their difference can be a little below 0.
    return max(0.0, others) / span, max(0.0, after.stolen - before.stolen) / span


def idle() -> float | None:
    """The processor time of others while we do nothing for a second; None if the system does not report it."""
    before = times()
    time.sleep(_WATCHED_S)
    return shares(before, times())[0]
