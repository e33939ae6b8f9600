"""Says why a backend computes on the CPU although there is a GPU, and how to fix it.

It combines facts about the machine (`machine`) with facts about packages (`builds`).
"""

from __future__ import annotations

import platform
from collections.abc import Mapping

from cellerate.machine.environment import TITLES
from cellerate.machine.gpu.builds import Build, build_of
from cellerate.machine.gpu.machine import GpuFacts

# The oldest driver for each major version of CUDA: NVIDIA, "Minor Version Compatibility".
_DRIVERS = {12: "525", 13: "580"}
_NEWEST = 13
# PyPI's torch for Linux is built for CUDA 13; 2.14 is the last version also built for CUDA 12.
_TORCH_FOR_12 = (
    "pip install --force-reinstall 'torch<2.15' --index-url https://download.pytorch.org/whl/cu126"
)
KERNELS_CAPABILITY = (9, 0)
_KERNELS_CUDA = 13
_NOTHING = "no GPU was found"


def diagnose(backend: str, facts: GpuFacts) -> str | None:
    """Gives the reason why a backend cannot use a GPU here, with its fix; None if it can.

    Nothing is imported and nothing is run, so a framework may still fail for its own reasons.

    Args:
        backend: "tensorflow", "jax" or "torch".
        facts: The result of `facts()`.

    Example:
        >>> diagnose("torch", facts())  # doctest: +SKIP
        'torch 2.13.0+cpu is a build without CUDA: pip install --force-reinstall torch'
    """
    return _reason(backend, build_of(backend), facts)


def diagnose_kernels(facts: GpuFacts) -> str | None:
    """Gives the reason why Cellerate's own kernels cannot run on a GPU of this machine; None if they can.

    It looks at the machine alone; `cellerate.kernels.cuda` checks the packages that compile kernels.
    """
    if not facts.devices:
        return next(iter(facts.problems), _NOTHING)
    capabilities = [device.compute_capability for device in facts.devices]
    if all(c is not None and c < KERNELS_CAPABILITY for c in capabilities):
        return (
            f"they need compute capability {_dotted(KERNELS_CAPABILITY)} (Hopper) or later, "
            f"here is {_devices(facts)}"
        )
    if (_major(facts.cuda) or _KERNELS_CUDA) < _KERNELS_CUDA:
        return (
            f"they are compiled for CUDA {_KERNELS_CUDA}, and the driver{_version(facts)} runs CUDA {facts.cuda} "
            f"at most: update the driver to {_DRIVERS[_KERNELS_CUDA]} or newer"
        )
    return None


def describe(backend: str, facts: GpuFacts) -> str:
    """Says in a sentence what a backend computes on here."""
    build = build_of(backend)
    reason = _reason(backend, build, facts)
    if reason is not None:
        return f"CPU: {reason}"
    libraries = [f"CUDA {build.cuda}"] if build is not None and build.cuda else []
    libraries += [f"cuDNN {build.cudnn}"] if build is not None and build.cudnn else []
    return f"GPU: {''.join(f'{library}, ' for library in libraries)}{memory(backend, facts.settings)}"


def memory(backend: str, settings: Mapping[str, str]) -> str:
    """Says how a backend takes the GPU's memory, and how to change that.

    Args:
        backend: "tensorflow", "jax" or "torch".
        settings: The environment variables that are set.

    Source: JAX, "GPU memory allocation"; TensorFlow, "Use a GPU: Limiting GPU memory growth".
    """
    if backend == "tensorflow" and settings.get("TF_FORCE_GPU_ALLOW_GROWTH") != "true":
        return "takes nearly all GPU memory at its start (TF_FORCE_GPU_ALLOW_GROWTH=true: as it needs it)"
    if backend == "jax" and settings.get("XLA_PYTHON_CLIENT_PREALLOCATE") not in ("false", "False", "0"):
        share = settings.get("XLA_CLIENT_MEM_FRACTION") or settings.get("XLA_PYTHON_CLIENT_MEM_FRACTION")
        taken = f"the share {share!r}" if share else "75 %"
        return (
            f"takes {taken} of GPU memory at its start (XLA_PYTHON_CLIENT_PREALLOCATE=false: as it needs it)"
        )
    return "takes GPU memory as it needs it"


def _reason(backend: str, build: Build | None, facts: GpuFacts) -> str | None:
    if build is None:
        return f"{TITLES[backend]} is not installed: pip install 'cellerate[{backend}]'"
    if not facts.devices:
        return next(iter(facts.problems), _NOTHING)
    platforms = facts.settings.get("JAX_PLATFORMS", "")
    if backend == "jax" and platforms.split(",")[0].strip().lower() not in ("", "cuda", "gpu"):
        return f"JAX_PLATFORMS={platforms!r} keeps JAX from the GPU: unset JAX_PLATFORMS"
    if build.cuda is None:
        return _without_cuda(backend, build, facts)
    if build.misfit is not None:
        return f"{build.misfit}, so JAX does not use it: {_install(backend, facts, upgrade=True)}"
    return (
        _driver_too_old(backend, build, facts)
        or _gpu_too_old(backend, build, facts)
        or _absent(backend, build)
    )


def _without_cuda(backend: str, build: Build, facts: GpuFacts) -> str:
    if backend == "tensorflow" and platform.machine() not in ("x86_64", "AMD64"):
        return (
            f"TensorFlow {build.version} is a build without CUDA, and none with it is published for "
            f"{platform.machine()}: use JAX or torch"
        )
    if backend == "jax":
        return f"JAX {build.version} has no CUDA plugin: {_install(backend, facts)}"
    if backend == "tensorflow":
        return (
            f"{build.distribution} {build.version} is a build without CUDA: pip uninstall {build.distribution}, "
            f"then {_install(backend, facts)}"
        )
    kind = "without CUDA" if build.other is None else f"for {build.other}"
    return f"torch {build.version} is a build {kind}: {_install(backend, facts)}"


def _driver_too_old(backend: str, build: Build, facts: GpuFacts) -> str | None:
    needed, runs = build.cuda_major, _major(facts.cuda)
    if needed is None or runs is None or runs >= needed:
        return None
    newer = f" to {_DRIVERS[needed]} or newer" if needed in _DRIVERS else ""
    fits = _target(backend, facts) <= runs
    instead = f", or {_install(backend, facts, upgrade=True)}" if fits else ""
    return (
        f"{TITLES[backend]} {build.version} is built for CUDA {build.cuda}, and the driver{_version(facts)} runs "
        f"CUDA {facts.cuda} at most: update the driver{newer}{instead}"
    )


def _gpu_too_old(backend: str, build: Build, facts: GpuFacts) -> str | None:
    capabilities = [device.compute_capability for device in facts.devices]
    if not all(c is not None and c < build.smallest_capability for c in capabilities):
        return None
    instead = (
        f": {_install(backend, facts, upgrade=True)}" if backend != "tensorflow" else ": use JAX or torch"
    )
    return (
        f"{TITLES[backend]} {build.version} is built for CUDA {build.cuda} and compute capability "
        f"{_dotted(build.smallest_capability)} or later, here is {_devices(facts)}{instead}"
    )


def _absent(backend: str, build: Build) -> str | None:
    if not build.absent:
        return None
    first, *others = build.absent
    more = (
        f" and {len(others)} more packages" if len(others) > 1 else "".join(f" and {name}" for name in others)
    )
    install = _command(backend, build.cuda_major or _NEWEST)
    are = "are" if others else "is"
    return f"{TITLES[backend]} {build.version} needs {first}{more}, which {are} not installed: {install}"


def _target(backend: str, facts: GpuFacts) -> int:
    """The major CUDA version of the build that suits this machine's driver and GPUs best."""
    if backend == "tensorflow":
        return 12
    capabilities = [device.compute_capability for device in facts.devices if device.compute_capability]
    old = any(capability < (7, 5) for capability in capabilities)
    # The remaining torch builds for CUDA 12 do not support Blackwell.
    new = backend == "torch" and any(capability >= (10, 0) for capability in capabilities)
    return 12 if old or ((_major(facts.cuda) or _NEWEST) < _NEWEST and not new) else _NEWEST


def _install(backend: str, facts: GpuFacts, *, upgrade: bool = False) -> str:
    """Says how to install a build for this machine's driver and GPUs."""
    target = _target(backend, facts)
    command = _command(backend, target, upgrade=upgrade)
    if (_major(facts.cuda) or _NEWEST) >= target:
        return command
    return f"update the NVIDIA driver to {_DRIVERS[target]} or newer, then {command}"


def _command(backend: str, major: int, *, upgrade: bool = False) -> str:
    """The command that installs a build for a major CUDA version."""
    if backend == "tensorflow":
        return "pip install 'tensorflow[and-cuda]'"
    if backend == "torch":
        return _TORCH_FOR_12 if major == 12 else "pip install --force-reinstall torch"
    return f"pip install {'--upgrade ' if upgrade else ''}'jax[cuda{major}]'"


def _version(facts: GpuFacts) -> str:
    return f" ({facts.driver})" if facts.driver else ""


def _devices(facts: GpuFacts) -> str:
    return ", ".join(
        f"{d.name} with {_dotted(d.compute_capability)}" if d.compute_capability else d.name
        for d in facts.devices
    )


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def _major(cuda: str | None) -> int | None:
    return int(cuda.split(".")[0]) if cuda else None
