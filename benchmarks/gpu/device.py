"""The GPU that the suite runs on, and a check of the kernels there; needs no framework.

Parts of the GPU suite: `device`, which comes before all others, and `selfcheck`.
"""

import subprocess
from functools import partial
from typing import Any

from benchmarks.gpu.journal import Item, LeftOutError
from cellerate.errors import BackendError
from cellerate.kernels import native
from cellerate.kernels.cuda import launch
from cellerate.kernels.lstm.cuda import selfcheck as kernels_check
from cellerate.machine import gpu
from cellerate.machine.environment import package_version

KERNELS = "kernels"
"""The item that all measurements require."""
_PACKAGES = ("cuda-bindings", "cuda-core", "cuda-pathfinder", "nvidia-cuda-nvrtc", "keras", "jax", "torch")
_ASKED = (
    "name,driver_version,pstate,clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu,memory.total"
)


def device() -> list[Item]:
    """The device of the kernels, with the facts recorded beside the figures."""
    return [Item(KERNELS, _kernels), Item("nvidia-smi", _nvidia_smi, 20), Item("torch", _torch)]


def selfcheck() -> list[Item]:
    """The cases that `accelerate` checks before it uses a GPU, and before it uses a way other than the plain one."""
    return [
        Item(
            f"{way}, {case.precision} H{case.units}{' masked' * case.masked}{' dropped' * case.dropped}",
            partial(_try, case, way),
        )
        for way, cases in kernels_check.CASES.items()
        for case in cases
    ]


def _try(case: kernels_check.Case, way: str) -> dict[str, Any]:
    worst = kernels_check.check(case, 0, way)
    return {"worst": worst, "right": 0 < worst < 1}


def _kernels() -> dict[str, Any]:
    facts = gpu.facts()
    if reason := next(iter(facts.problems), None) or launch.why_unavailable(0):
        raise BackendError(reason)
    major, minor = facts.devices[0].compute_capability or gpu.KERNELS_CAPABILITY
    versions = {name: package_version(name) for name in _PACKAGES}
    return {
        "gpu": facts.devices[0].name,
        "driver": facts.driver,
        "architecture": f"sm_{major}{minor}a",
        "versions": {name: version for name, version in versions.items() if version is not None},
        "native_core": native.why_unavailable() or "there",
    }


def _torch() -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(0)
    return {
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "versions": {"cuda": torch.version.cuda, "cudnn": str(torch.backends.cudnn.version())},
    }


def _nvidia_smi() -> dict[str, Any]:
    command = ["nvidia-smi", f"--query-gpu={_ASKED}", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError as error:
        raise LeftOutError(str(error)) from None
    return dict(zip(_ASKED.split(","), told.strip().splitlines()[0].split(", "), strict=False))
