"""`cellerate env`: the facts a bug report needs."""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cellerate.cli.options import Json
from cellerate.cli.output import print_json, print_result

if TYPE_CHECKING:
    from cellerate.machine.gpu import Device, GpuFacts


def env(
    json: Json = False,
    devices: Annotated[
        bool, typer.Option("--devices", help="Also ask each installed backend for its devices (slow).")
    ] = False,
) -> None:
    """Show machine, versions, backends, the native core and how each backend uses a GPU.

    Example:
        cellerate env --json
    """
    from cellerate.kernels import native
    from cellerate.machine import gpu
    from cellerate.machine.environment import backend_devices, installed_backends, machine, versions

    backends = installed_backends()
    missing = native.why_unavailable()
    core: dict[str, object] = {"missing": missing}
    if missing is None:
        core = {
            "target": native.target(),
            "targets": native.available_targets(),
            "threads": native.num_threads(),
        }
    report: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(),
        "backends": backends,
        "native core": core,
    }
    facts = gpu.facts()
    if devices:
        report["devices"] = {backend: backend_devices(backend) for backend in backends}
    if json:
        print_json(report | {"gpu": _gpu(facts, backends)})
        return
    for title, values in (report | {"gpu": _gpu_in_words(facts, backends)}).items():
        print_result(title)
        if isinstance(values, dict):
            for name, value in values.items():
                print_result(f"  {name:<14} {_shown(name, value)}")
        else:
            print_result("  " + (", ".join(values) or "none: pip install 'cellerate[jax]'"))


def _gpu(facts: "GpuFacts", backends: list[str]) -> dict[str, Any]:
    """All that is known of GPUs, for programs; a reason is None if nothing is in the way."""
    from cellerate.machine import gpu

    builds = {backend: gpu.build_of(backend) for backend in backends}
    return dataclasses.asdict(facts) | {
        "backends": {
            backend: {
                "reason": gpu.diagnose(backend, facts),
                "cuda": None if build is None else build.cuda,
                "cudnn": None if build is None else build.cudnn,
            }
            for backend, build in builds.items()
        },
        "kernels": {"reason": without_kernels(facts), "packages": _compiler()},
    }


def _gpu_in_words(facts: "GpuFacts", backends: list[str]) -> dict[str, str]:
    """The same for people; a reason that holds for all is given once."""
    from cellerate.machine import gpu

    settings = {f"{name}={value!r}": f"({gpu.SETTINGS[name]})" for name, value in facts.settings.items()}
    if facts.incomplete is not None:
        settings["incomplete"] = facts.incomplete
    if not facts.devices:
        return {"none": facts.problems[0]} | settings
    reason = without_kernels(facts)
    packages = ", ".join(f"{name} {version}" for name, version in _compiler().items())
    kernels = f"can run on the GPU ({packages})" if reason is None else f"do not run on the GPU: {reason}"
    driver = f"{facts.driver or 'of unknown version'}, runs CUDA up to {facts.cuda or 'an unknown version'}"
    seen = {f"gpu {number}": _device(device) for number, device in enumerate(facts.devices)}
    hidden = [f"{_device(device)}, by CUDA_VISIBLE_DEVICES" for device in facts.hidden]
    return (
        {"driver": driver, **seen}
        | {f"hidden {number}": device for number, device in enumerate(hidden, 1)}
        | settings
        | {backend: gpu.describe(backend, facts) for backend in backends}
        | {"kernels": f"Cellerate's own {kernels}"}
    )


def without_kernels(facts: "GpuFacts") -> str | None:
    """Why Cellerate's own kernels do not run on a GPU here."""
    from cellerate.machine import gpu

    reason = gpu.diagnose_kernels(facts)
    if reason is not None:
        return reason
    from cellerate.kernels.cuda import launch

    return launch.why_unavailable(0)


def _compiler() -> dict[str, str | None]:
    """The versions of the packages that compile Cellerate's own kernels."""
    from cellerate.machine.environment import package_version

    return {name: package_version(name) for name in ("cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc")}


def _device(device: "Device") -> str:
    capability = device.compute_capability
    said = [
        device.name,
        f"compute capability {capability[0]}.{capability[1]}" if capability else None,
        f"{device.memory_bytes / 2**30:.1f} GiB" if device.memory_bytes is not None else None,
        f"{device.free_bytes / 2**30:.1f} GiB free" if device.free_bytes is not None else None,
    ]
    return ", ".join(fact for fact in said if fact is not None)


def _shown(name: str, value: object) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{value / 2**30:.1f} GiB"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
