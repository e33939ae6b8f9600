"""Installed packages: whether they fit Cellerate and each other, by their metadata; none is imported."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import TYPE_CHECKING

from cellerate.format import size
from cellerate.machine.doctor.finding import Finding, Status
from cellerate.machine.environment import TENSORFLOW_PACKAGES

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

TOPIC = "versions"
_OURS = "cellerate"
# Each contains the package `tensorflow`.
# The packages whose requirements are compared with the installed versions.
_CHECKED = (
    _OURS, "keras", *TENSORFLOW_PACKAGES, "jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "torch", "h5py",
    "ml-dtypes", "optree",
)  # fmt: skip
_SHOWN = ("numpy", "keras", *TENSORFLOW_PACKAGES, "jax", "torch", "h5py")
# NVIDIA's wheels for a single CUDA version, which may contain files of the same names.
_LIBRARIES = ("cudnn", "nccl", "nvshmem")
_CUDA = ("12", "13")
_TORCH_FOR_CPU = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cpu"


@dataclasses.dataclass(frozen=True)
class Package:
    """An installed package.

    Attributes:
        version: Its version.
        requires: The requirements in its metadata.
        files: The names of its files, for NVIDIA's wheels alone.
        size_bytes: Their size on the disk, for NVIDIA's wheels alone.
    """

    version: str
    requires: tuple[str, ...] = ()
    files: frozenset[str] = frozenset()
    size_bytes: int = 0


Find = Callable[[str], Package | None]
"""Finds an installed package by its name."""


def find_package(name: str) -> Package | None:
    """The metadata of an installed package; None if it is not installed.

    Args:
        name: Its name for pip.
    """
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    files = (found.files or []) if name.startswith("nvidia-") else []
    return Package(
        found.version,
        tuple(found.requires or ()),
        frozenset(str(file) for file in files),
        sum(file.size or 0 for file in files),
    )


def check_versions(find: Find) -> Iterator[Finding]:
    """Check whether the installed packages fit Cellerate and each other.

    Args:
        find: Finds an installed package.

    Raises:
        ImportError: `packaging`, which reads requirements, is not installed.
    """
    unmet: dict[str, list[tuple[str, SpecifierSet, Status]]] = {}
    for owner in _CHECKED:
        package = find(owner)
        for requirement in () if package is None else _applying(owner, package):
            name = _provider(requirement.name, find)
            status = _status(owner, requirement, find(name))
            if status != "ok":
                who = owner if package is None else f"{owner} {package.version}"
                unmet.setdefault(name, []).append((who, requirement.specifier, status))
    for name, wanted in unmet.items():
        yield _unmet(name, find(name), wanted)
    if not unmet:
        shown = ((name, find(name)) for name in _SHOWN)
        fitting = ", ".join(f"{name} {package.version}" for name, package in shown if package is not None)
        yield Finding(TOPIC, "ok", f"{fitting} fit Cellerate and each other")


def check_backends(find: Find, backends: Sequence[str], python: tuple[int, int]) -> Iterator[Finding]:
    """Check whether a backend to train on is installed, and only once.

    Args:
        find: Finds an installed package.
        backends: The installed backends.
        python: The version of Python.
    """
    twice = [name for name in TENSORFLOW_PACKAGES if find(name) is not None]
    if len(twice) > 1:
        yield Finding(
            TOPIC,
            "problem",
            f"{' and '.join(twice)} are both installed",
            "each has written over files of the other, and which is imported is left to chance",
            f"pip uninstall -y {' '.join(twice)}, then pip install {twice[0]}",
        )
    if not backends:
        cost = "packed models run, and nothing can be trained"
        yield Finding(
            TOPIC, "note", "no Keras backend is installed", cost, "to train: pip install 'cellerate[jax]'"
        )
    elif find("keras") is None:
        cost = "every command that needs Keras ends with an error"
        # The backend's own extra would install a second TensorFlow beside the present one.
        extra = backends[0] if _provider(backends[0], find) == backends[0] else "train"
        fix = f"pip install 'cellerate[{extra}]'"
        yield Finding(TOPIC, "problem", f"{backends[0]} is installed without Keras", cost, fix)
    if "jax" in backends and python < (3, 12):
        said = f"Python {python[0]}.{python[1]} gets no JAX newer than 0.10.2"
        yield Finding(TOPIC, "note", said, "", "for a newer one: an environment with Python 3.12 or later")


def check_cuda_wheels(find: Find, has_gpu: bool) -> Iterator[Finding]:
    """Check whether NVIDIA's libraries are installed without a GPU, or over each other.

    Args:
        find: Finds an installed package.
        has_gpu: Whether there is a GPU, or a driver for one.
    """
    for library in _LIBRARIES:
        names = [f"nvidia-{library}-cu{major}" for major in _CUDA]
        one, other = (find(name) for name in names)
        if one is not None and other is not None and {f for f in one.files & other.files if ".so" in f}:
            yield Finding(
                TOPIC,
                "problem",
                f"{names[0]} and {names[1]} have libraries of the same names",
                "the one that was installed last has written over the other, and a backend for the other CUDA "
                "may fail or leave the GPU",
                "give each backend an environment of its own, or install those for one CUDA alone",
            )
    torch = find("torch")
    if has_gpu or torch is None:
        return
    wheels = {_name(text) for text in torch.requires if text.startswith(("nvidia-", "cuda-"))}
    taken = sum(package.size_bytes for package in map(find, sorted(wheels)) if package is not None)
    if taken:
        yield Finding(
            TOPIC,
            "note",
            f"torch {torch.version} is a build for NVIDIA GPUs, and there is none",
            f"NVIDIA's libraries take {size(taken)} of disk",
            f"{_TORCH_FOR_CPU}, then pip uninstall the packages nvidia-*",
        )


def _provider(name: str, find: Find) -> str:
    """The installed package that provides a required name; the name itself if none does."""
    names = TENSORFLOW_PACKAGES if name == "tensorflow" else (name,)
    return next((each for each in names if find(each) is not None), name)


def _applying(owner: str, package: Package) -> Iterator[Requirement]:
    """The requirements of a package that apply here; for Cellerate those of all extras whose packages are installed."""
    from packaging.requirements import InvalidRequirement, Requirement

    for text in package.requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        extras = re.findall(r"extra == [\"']([\w-]+)[\"']", text) if owner == _OURS else []
        holds = requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in extras or [""]
        )
        if holds and requirement.name != _OURS:
            yield requirement


def _status(owner: str, requirement: Requirement, installed: Package | None) -> Status:
    """The status of a requirement: met, or how serious its violation is."""
    from packaging.version import InvalidVersion, Version

    if installed is None:
        return "ok" if owner == _OURS else "problem"
    try:
        version = Version(installed.version)
    except InvalidVersion:  # one of the system's, which pip does not compare either
        return "ok"
    failed = [each for each in requirement.specifier if not each.contains(version, prereleases=True)]
    if not failed:
        return "ok"
    # Our upper bounds exist because of other packages, which declare them themselves if they are installed.
    return "note" if owner == _OURS and all(each.operator in ("<", "<=") for each in failed) else "problem"


def _unmet(name: str, package: Package | None, wanted: Sequence[tuple[str, SpecifierSet, Status]]) -> Finding:
    """The finding on a package that does not fit."""
    said = "; ".join(f"{owner} needs {name}{specifier}" for owner, specifier, _ in wanted)
    together = wanted[0][1]
    for _, specifier, _ in wanted[1:]:
        together &= specifier
    here = f"{name} is not installed" if package is None else f"{name} {package.version} is installed"
    return Finding(
        TOPIC,
        "problem" if any(status == "problem" for *_, status in wanted) else "note",
        f"{here}; {said}",
        "what is not made for each other fails at import, or when it is used",
        f"pip install '{name}{together}'",
    )


def _name(requirement: str) -> str:
    """The name that a requirement begins with."""
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
