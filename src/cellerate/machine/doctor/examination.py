"""Gathers the facts of this machine and runs all checks of the doctor on them."""

from __future__ import annotations

import dataclasses
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

from cellerate.files import cache_dir
from cellerate.machine import gpu
from cellerate.machine.doctor import (
    core as native_core,
    disk,
    gpus,
    load,
    memory,
    packages,
    processors,
    settings,
)
from cellerate.machine.doctor.core import Core, peak_of
from cellerate.machine.doctor.finding import STATUSES, Finding, read
from cellerate.machine.doctor.memory import Usage
from cellerate.machine.doctor.packages import Find
from cellerate.machine.environment import installed_backends

_TOPICS = [each.TOPIC for each in (gpus, native_core, packages, settings, processors, memory, disk, load)]
# Files with unforeseen contents, a missing package that a check needs, a user without a home folder.
_UNREADABLE = (OSError, ValueError, LookupError, ImportError, RuntimeError)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The machine and the set-up that the doctor examines.

    Attributes:
        environ: The environment variables.
        root: The folder of the machine's files.
        facts: The known facts about the GPUs; None asks the driver.
        find: Finds an installed package.
        backends: The Keras backends that are installed; None looks for them.
        python: The version of Python.
        allowed: The numbers of the logical processors that this process may run on; None asks the system.
        folders: The folders that Cellerate writes to, by their purpose; None for those of this process.
        limits: The number of files that this process may open and the bytes of addresses that it may reserve, negative
            without a limit; None asks the system.
        usage: Returns the size of a file system and its free space.
        wait: Waits for some seconds.
    """

    environ: Mapping[str, str] = dataclasses.field(default_factory=lambda: os.environ)
    root: Path = Path("/")
    facts: gpu.GpuFacts | None = None
    find: Find = packages.find_package
    backends: Sequence[str] | None = None
    python: tuple[int, int] = sys.version_info[:2]
    allowed: Collection[int] | None = None
    folders: Mapping[str, Path] | None = None
    limits: tuple[int, int] | None = None
    usage: Usage = shutil.disk_usage
    wait: Callable[[float], None] = time.sleep

    def read_counters(self) -> list[str | None]:
        """Reads the counters of processor time and of swapping."""
        return [read(self.root / name) for name in ("proc/stat", "proc/vmstat")]


def examine(
    core: Core,
    where: Surroundings | None = None,
    *,
    kernels: Callable[[gpu.GpuFacts], str | None] = gpu.diagnose_kernels,
) -> list[Finding]:
    """Looks at this machine and set-up for faults that cost an LSTM speed or correctness.

    No framework is imported. It waits a fifth of a second to see how busy the machine is. The measurements of `core`
    come on top, and are left out while other programs use the processors. A GPU is asked through its driver, which
    takes about 100 ms.

    Args:
        core: The native core's facts about itself.
        where: The machine and the set-up; None for those of this process.
        kernels: Returns the reason why Cellerate's own kernels do not run on the GPUs; None if they do.

    Returns:
        The findings, the most serious first; equally serious ones in the order of their topics. A check that cannot
        read its facts becomes a note.
    """
    where = Surroundings() if where is None else where
    # First, before this examination itself uses the processors.
    before = where.read_counters()
    where.wait(load.MOMENT_S)
    after = where.read_counters()

    environ, root, find, usage = where.environ, where.root, where.find, where.usage
    gpus_here = gpu.facts(environ=environ, root=root) if where.facts is None else where.facts
    backends = installed_backends() if where.backends is None else where.backends
    allowed = load.allowed_processors() if where.allowed is None else where.allowed
    has_gpu = bool(gpus_here.devices) or gpus_here.driver is not None
    found = _Findings()

    # A figure measured while other programs run would mislead.
    if core.measure is not None:
        quiet = _is_quiet(before[0], after[0], allowed)
        core = dataclasses.replace(core, measure=cache(core.measure) if quiet else None)

    found.add(gpus, lambda: gpus.check_gpus(gpus_here, _reasons(gpus_here, backends), environ))
    found.add(gpus, lambda: gpus.check_jax_platforms(gpus_here, backends, environ))
    found.add(gpus, lambda: gpus.check_gpu_memory(gpus_here))
    found.add(gpus, lambda: gpus.check_gpu_settings(gpus_here))
    found.add(gpus, lambda: gpus.check_gpu_kernels(gpus_here, kernels(gpus_here)))

    found.add(packages, lambda: packages.check_versions(find))
    found.add(packages, lambda: packages.check_backends(find, backends, where.python))
    found.add(packages, lambda: packages.check_cuda_wheels(find, has_gpu))

    found.add(settings, lambda: settings.check_backend(environ, backends))
    found.add(settings, lambda: settings.check_settings(environ, backends, has_gpu))
    found.add(settings, lambda: settings.check_xla_flags(environ, backends, settings.xla_knows))
    found.add(settings, lambda: settings.check_keras_file(environ))

    here = _processors(root, allowed, found)
    found.add(processors, lambda: processors.check_processors(here))
    found.add(processors, lambda: processors.check_quota(here, environ, backends))
    found.add(processors, lambda: processors.check_counts(here, environ, backends, peak_of(core)))
    found.add(processors, lambda: processors.check_binding(here, environ, backends))
    found.add(processors, lambda: processors.check_threads_left(root))
    found.add(processors, lambda: processors.check_frequency(root, allowed))
    found.add(native_core, lambda: native_core.check_core(core, here, root))

    found.add(memory, lambda: memory.check_limit(root))
    found.add(memory, lambda: memory.check_available(root))
    found.add(memory, lambda: memory.check_swap(root, before[1], after[1]))
    found.add(memory, lambda: memory.check_huge_pages(root))
    found.add(memory, lambda: memory.check_allocator(environ))
    found.add(memory, lambda: memory.check_shared(root, usage, backends))
    found.add(memory, lambda: memory.check_shell_limits(root, *(where.limits or _soft_limits())))

    folders = where.folders
    found.add(disk, lambda: disk.check_disks(_folders() if folders is None else folders, usage, root))
    found.add(load, lambda: load.check_load(root, before[0], after[0], allowed))
    return sorted(found.all, key=lambda one: (STATUSES.index(one.status), _TOPICS.index(one.topic)))


class _Findings:
    """The findings of the checks; one that fails is a note, and stops no other."""

    def __init__(self) -> None:
        self.all: list[Finding] = []

    def add(self, about: ModuleType, check: Callable[[], Iterable[Finding]]) -> None:
        """Runs a check of a module."""
        try:
            self.all.extend(check())
        except _UNREADABLE as error:
            self.add_failure(about, error)

    def add_failure(self, about: ModuleType, error: Exception) -> None:
        """Adds a note that a check of a module failed."""
        said = f"a check could not read what it needs: {type(error).__name__}: {error}"
        # The packages of the extra `cli` include all that the checks need.
        fix = "pip install 'cellerate[cli]'" if isinstance(error, ImportError) else ""
        self.all.append(Finding(about.TOPIC, "note", said, "what is wrong there stays unknown", fix))


def _is_quiet(before: str | None, after: str | None, allowed: Collection[int]) -> bool:
    try:
        return load.is_quiet(before, after, allowed)
    except _UNREADABLE:  # the check of the load says so
        return True


def _reasons(facts: gpu.GpuFacts, backends: Sequence[str]) -> dict[str, str | None]:
    return {backend: gpu.diagnose(backend, facts) for backend in backends}


def _processors(root: Path, allowed: Collection[int], found: _Findings) -> processors.Processors:
    """The processors; if the kernel's files cannot be used, the number that the system allows."""
    try:
        return processors.processors(root, allowed)
    except _UNREADABLE as error:
        found.add_failure(processors, error)
        return processors.Processors(len(allowed), len(allowed), len(allowed))


def _soft_limits() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0], resource.getrlimit(resource.RLIMIT_AS)[0]


def _folders() -> dict[str, Path]:
    return {
        "the current folder": Path.cwd(),
        "temporary files": Path(tempfile.gettempdir()),
        "encoded texts": cache_dir(),
    }
