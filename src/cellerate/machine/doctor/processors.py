"""Processors and threads: limits of the container, of the environment and of the machine's settings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from cellerate.format import percent, short
from cellerate.machine.doctor.control_groups import CpuQuota, cpu_quota, threads_left
from cellerate.machine.doctor.finding import Finding, Status, read
from cellerate.machine.environment import TITLES

TOPIC = "threads"
Peak = Callable[[int], float]
"""The measured peak rate of multiply-adds on some number of threads, in operations per second."""
# For each variable the packages whose number of threads it sets. Torch takes its own number from MKL.
_COUNTS = {
    "OMP_NUM_THREADS": ("torch", "numpy"),
    "MKL_NUM_THREADS": ("torch",),
    "OPENBLAS_NUM_THREADS": ("numpy",),
    "TF_NUM_INTRAOP_THREADS": ("tensorflow",),
    "NPROC": ("jax",),
    "PJRT_NPROC": ("jax",),
}
_NAMES = TITLES | {"numpy": "NumPy"}
# The variable to set for each backend.
_OWN_COUNT = {"torch": "OMP_NUM_THREADS", "tensorflow": "TF_NUM_INTRAOP_THREADS", "jax": "NPROC"}
# Each makes libgomp, torch's OpenMP, bind the thread that loads it to its first place.
_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")
_MUCH_THROTTLED = 0.05
# A backend starts several threads per processor: within operations, between operations, and for data.
_FEW_THREADS_LEFT = 64
# Drivers that adapt the frequency to the load under either governor; another setting trades speed for power.
_ADAPTIVE_DRIVERS = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")


@dataclasses.dataclass(frozen=True)
class Processors:
    """The processors to compute on.

    Attributes:
        allowed: The logical processors that this process may run on.
        cores: The physical cores among them.
        online: The logical processors of the machine.
        quota: The limit of the container's processor time; None without one.
    """

    allowed: int
    cores: int
    online: int
    quota: CpuQuota | None = None

    @property
    def most(self) -> int:
        """The most threads that can run at once."""
        return max(1, min(self.allowed, math.ceil(self.quota.processors) if self.quota else self.allowed))

    @property
    def best(self) -> int:
        """The most threads that speed arithmetic up: one per core, as the native core chooses."""
        return min(self.cores, self.most)


def processors(root: Path, allowed: Collection[int]) -> Processors:
    """Reads the processors to compute on.

    Args:
        root: The root folder of the machine's files.
        allowed: The numbers of the logical processors that this process may run on.

    Raises:
        ValueError: The kernel's files are not as they should be.
    """
    system = root / "sys/devices/system/cpu"
    siblings = {read(system / f"cpu{n}/topology/thread_siblings_list") or f"only {n}" for n in allowed}
    online = read(system / "online")
    return Processors(
        allowed=len(allowed),
        cores=len(siblings),
        online=len(allowed) if online is None else _count(online),
        quota=cpu_quota(root),
    )


def check_processors(found: Processors) -> Iterator[Finding]:
    """Check the share of the processors that this process may use, and the limit on its container's time."""
    if found.allowed < found.online:
        yield Finding(
            TOPIC,
            "note",
            f"this process may run on {found.allowed} of the machine's {found.online} processors",
            "the others do nothing for it",
            "allow more: taskset, `docker run --cpuset-cpus`, or the scheduler's request of processors",
        )
    else:
        shared = f" of {found.cores} cores" if found.cores < found.allowed else ""
        yield Finding(TOPIC, "ok", f"{found.allowed} processors{shared}, all open to this process")


def check_quota(found: Processors, environ: Mapping[str, str], backends: Sequence[str]) -> Iterator[Finding]:
    """Check whether the container has less processor time than its processors offer.

    Args:
        found: The processors to compute on.
        environ: The environment variables.
        backends: The installed backends.
    """
    quota = found.quota
    if quota is None or found.most == found.allowed:
        return
    share = quota.throttled / quota.periods if quota.periods else 0.0
    said = f"the container has the time of {quota.processors:g} processors and sees {found.allowed}"
    stood = f"; so far that was so in {percent(share)} of its periods" if quota.periods else ""
    cost = f"once its time is used up, all of its threads stand still until the next period{stood}"
    fits = found.most
    fitting = {
        user
        for name, users in _COUNTS.items()
        for user in users
        if 0 < (_whole(environ.get(name, "")) or 0) <= fits
    }
    open_ended = [_OWN_COUNT[backend] for backend in backends if backend not in fitting]
    if open_ended:
        fix = "export " + " ".join(f"{name}={fits}" for name in open_ended)
        yield Finding(TOPIC, "problem", f"{said}, for which its backends start threads", cost, fix)
    elif share > _MUCH_THROTTLED:
        yield Finding(TOPIC, "note", said, cost, "give the container more time: `docker run --cpus`")
    else:
        yield Finding(TOPIC, "ok", f"{said}; its threads fit")


def check_counts(
    found: Processors, environ: Mapping[str, str], backends: Sequence[str], peak: Peak | None = None
) -> Iterator[Finding]:
    """Check whether the environment sets too few threads, or more than can run.

    Args:
        found: The processors to compute on.
        environ: The environment variables.
        backends: The installed backends.
        peak: Measures the rate of a number of threads; None measures nothing.
    """
    for name, users in _COUNTS.items():
        text = environ.get(name, "").strip()
        here = [user for user in users if user == "numpy" or user in backends]
        # For TensorFlow 0 is the default.
        if not text or not here or (text == "0" and here == ["tensorflow"]):
            continue
        who = " and ".join(_NAMES[user] for user in here)
        verb = "computes" if len(here) == 1 else "compute"
        # NumPy alone has little to do beside the native core.
        status: Status = "note" if here == ["numpy"] else "problem"
        fix = f"unset {name}, or export {name}={found.best}"
        # OpenMP takes a list, a number for each level of nested work.
        count = _whole(text.split(",")[0] if name == "OMP_NUM_THREADS" else text)
        if count is None or count < 1:
            yield Finding(
                TOPIC,
                status,
                f"{name}={text!r} is not a number of threads",
                f"{who} may ignore it or fail",
                fix,
            )
        elif count < found.best:
            measured = f": {rates(peak, count, found.best)}" if peak else ""
            cost = f"{who} {verb} on {count} of {found.best} cores{measured}"
            yield Finding(TOPIC, status, f"{name}={text}", cost, fix)
        elif count > found.most:
            cost = f"{who} {verb} with {count} threads, which take turns on {found.most} processors"
            yield Finding(TOPIC, status, f"{name}={text}", cost, fix)


def check_binding(
    found: Processors, environ: Mapping[str, str], backends: Sequence[str]
) -> Iterator[Finding]:
    """Check whether torch's OpenMP binds the thread that starts all others to one core.

    Args:
        found: The processors to compute on.
        environ: The environment variables.
        backends: The installed backends.
    """
    if "torch" not in backends or found.best == 1:
        return
    if environ.get("OMP_PROC_BIND", "").strip().lower() == "false":
        return
    names = [name for name in _BINDING if environ.get(name, "").strip()]
    if names:
        yield Finding(
            TOPIC,
            "problem",
            " and ".join(f"{name}={environ[name]}" for name in names),
            "torch binds the thread that imports it to one core, and the native core's threads, which start from "
            "it, all run on that one",
            f"unset {' '.join(names)}",
        )


def check_threads_left(root: Path) -> Iterator[Finding]:
    """Check whether the container has room for the threads of a backend."""
    left = threads_left(root)
    if left is not None and left < _FEW_THREADS_LEFT:
        yield Finding(
            TOPIC,
            "problem",
            f"the container has room for {left} more threads",
            "a backend starts several for each processor, and fails where it cannot",
            "raise its limit: `docker run --pids-limit`, on Kubernetes `podPidsLimit`",
        )


def check_frequency(root: Path, allowed: Collection[int]) -> Iterator[Finding]:
    """Check whether the processors are set to save power.

    Args:
        root: The root folder of the machine's files.
        allowed: The numbers of the logical processors that this process may run on.
    """
    slow = set()
    for number in allowed:
        folder = root / f"sys/devices/system/cpu/cpu{number}/cpufreq"
        governor, driver, preference = (
            (read(folder / name) or "").strip()
            for name in ("scaling_governor", "scaling_driver", "energy_performance_preference")
        )
        if driver in _ADAPTIVE_DRIVERS and preference == "power":
            slow.add("the energy preference 'power'")
        if driver not in _ADAPTIVE_DRIVERS and governor == "powersave":
            slow.add("the governor 'powersave'")
    for setting in sorted(slow):
        yield Finding(
            TOPIC,
            "problem",
            f"the processors run with {setting}",
            "they stay at a low frequency",
            "sudo cpupower frequency-set -g performance",
        )


def rates(peak: Peak, few: int, many: int) -> str:
    """The measured speeds of two numbers of threads, in words."""
    return f"{short(peak(few))}FLOP/s of {short(peak(many))}FLOP/s, measured with the native core"


def _count(processors: str) -> int:
    """The number of items that a list such as "0-3,8" names."""
    ranges = [part.split("-") for part in processors.strip().split(",")]
    return sum(int(part[-1]) - int(part[0]) + 1 for part in ranges)


def _whole(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None
