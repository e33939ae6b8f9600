"""The builds of the installed backends: their CUDA version, and whether its libraries are installed.

All facts come from the metadata and sources of packages: importing a framework to ask it takes seconds.
"""

from __future__ import annotations

import ast
import dataclasses
import os
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from cellerate.machine.environment import TENSORFLOW_PACKAGES, package_version

# All distributions of TensorFlow contain the package `tensorflow`.
_LOADER_CACHE = Path("/etc/ld.so.cache")
_LIBRARIES = ("nvidia-", "cuda-toolkit", "jax-cuda")


@dataclasses.dataclass(frozen=True)
class Build:
    """An installed backend.

    Attributes:
        distribution: Its name for pip: "torch", "tensorflow-cpu".
        version: The installed version: "2.13.0+cpu".
        cuda: The CUDA version it was built for, "12.5.1"; None for a build without CUDA, empty if unknown.
        cudnn: The version of the cuDNN wheel for it; None without one.
        other: Other GPUs it was built for, "ROCm 6.4"; else None.
        misfit: Installed packages that do not fit together, in words; else None.
        absent: The wheels that it needs for a GPU and that are not installed.
        smallest_capability: The smallest compute capability of a GPU it can use, as (major, minor).
    """

    distribution: str
    version: str
    cuda: str | None
    cudnn: str | None = None
    other: str | None = None
    misfit: str | None = None
    absent: tuple[str, ...] = ()
    smallest_capability: tuple[int, int] = (0, 0)

    @property
    def cuda_major(self) -> int | None:
        """The major CUDA version; None if it is unknown."""
        found = re.match(r"(\d+)(?:\.|$)", self.cuda or "")
        return None if found is None else int(found[1])


def build_of(backend: str) -> Build | None:
    """The build of a backend, or None if it is not installed.

    Args:
        backend: "tensorflow", "jax" or "torch".
    """
    found = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[backend]()
    major = None if found is None else found.cuda_major
    if found is None or major is None:
        return found
    cudnn = package_version(f"nvidia-cudnn-cu{major}")
    # CUDA 13 dropped the GPUs before Turing.
    smallest = max(found.smallest_capability, (7, 5) if major >= 13 else (0, 0))
    absent = () if found.absent and _on_system("libcudnn.so.9") else found.absent
    return dataclasses.replace(found, cudnn=cudnn, smallest_capability=smallest, absent=absent)


def _torch() -> Build | None:
    version = package_version("torch")
    if version is None:
        return None
    module = _source("torch", "torch/version.py")
    if module is None:
        tag = re.search(r"\+(?:cpu|cu(\d+)(\d))$", version)
        cuda = "" if tag is None else f"{tag[1]}.{tag[2]}" if tag[1] else None
        return Build("torch", version, cuda)
    said = _constants(module)
    if not said.get("cuda"):
        return Build("torch", version, None, other=f"ROCm {said['hip']}" if said.get("hip") else None)
    return Build("torch", version, said["cuda"], absent=tuple(_absent("torch", "")))


def _jax() -> Build | None:
    version = package_version("jax")
    if version is None:
        return None
    for major in ("13", "12"):
        name = f"jax-cuda{major}-plugin"
        plugin = package_version(name)
        if plugin is None:
            continue
        library = package_version("jaxlib") or "none"
        # JAX compares only the numbers, because a plugin may have been rebuilt.
        fits = _release(plugin) == _release(library)
        misfit = None if fits else f"{name} {plugin} does not fit jaxlib {library}"
        absent = tuple(_absent(name, "with-cuda"))
        return Build("jax", version, major, misfit=misfit, absent=absent)
    return Build("jax", version, None)


def _tensorflow() -> Build | None:
    for name in TENSORFLOW_PACKAGES:
        version = package_version(name)
        if version is None:
            continue
        module = _source(name, "tensorflow/python/platform/build_info.py")
        if module is None:
            return Build(name, version, "")
        said = _build_info(module)
        if not said.get("is_cuda_build"):
            return Build(name, version, None, other="ROCm" if said.get("is_rocm_build") else None)
        codes = (
            re.fullmatch(r"(?:sm|compute)_(\d+)(\d)", str(c))
            for c in said.get("cuda_compute_capabilities", ())
        )
        smallest = min(((int(c[1]), int(c[2])) for c in codes if c is not None), default=(0, 0))
        cuda = str(said.get("cuda_version") or "12")
        absent = tuple(_absent(name, "and-cuda"))
        return Build(name, version, cuda, absent=absent, smallest_capability=smallest)
    return None


def _source(distribution: str, file: str) -> ast.Module | None:
    """Gives a module of an installed distribution, parsed and not imported; None if it cannot be read."""
    try:
        text = Path(str(metadata.distribution(distribution).locate_file(file))).read_text(encoding="utf-8")
        return ast.parse(text)
    except (metadata.PackageNotFoundError, OSError, ValueError, SyntaxError):
        return None


def _constants(module: ast.Module) -> dict[str, str]:
    """Gives the names that a module assigns strings to."""
    found = {}
    for node in module.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Constant):
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name) and isinstance(node.value.value, str):
                found[target.id] = node.value.value
    return found


def _build_info(module: ast.Module) -> dict[str, Any]:
    """The table of TensorFlow's `build_info.py`, written as `OrderedDict([...])`."""
    for node in module.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call) or not node.value.args:
            continue
        try:
            return dict(ast.literal_eval(node.value.args[0]))
        except (ValueError, TypeError):
            continue
    return {}


def _absent(distribution: str, extra: str) -> Iterator[str]:
    """Gives the NVIDIA wheels that a distribution requires here, extra included, and that are not installed."""
    # Loading a packed model for a GPU imports this module, and needs only NumPy and the CUDA packages.
    from packaging.requirements import InvalidRequirement, Requirement

    for text in metadata.requires(distribution) or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if applies and requirement.name.startswith(_LIBRARIES) and package_version(requirement.name) is None:
            yield requirement.name


def _on_system(library: str) -> bool:
    """True if a library is where the system looks for libraries, outside all wheels."""
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        # A folder without permission counts as not having it.
        if folder and os.access(Path(folder) / library, os.F_OK):
            return True
    try:
        return library.encode() + b"\0" in _LOADER_CACHE.read_bytes()
    except OSError:
        return False


def _release(version: str) -> tuple[int, ...] | str:
    """The numbers of a version; the version itself if it is not one that Python's tools know."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version).release
    except InvalidVersion:
        return version
