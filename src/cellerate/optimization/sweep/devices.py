"""Where points are trained: the variables that make a process see only the CPU, or the GPU, on each backend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cellerate.errors import BackendError
from cellerate.machine import gpu
from cellerate.messages import argument

_VARIABLES: Mapping[str, Mapping[str, str | None]] = {
    "auto": {},
    # With these, TensorFlow and torch see no GPU, and JAX does not look for one.
    "cpu": {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"},
    # JAX takes the GPU by itself, unless a variable names other platforms.
    "gpu": {"JAX_PLATFORMS": None, "JAX_PLATFORM_NAME": None},
}
CPU_WORDS = "CUDA_VISIBLE_DEVICES= JAX_PLATFORMS=cpu"
"""The variables before a command, to run it on the CPU of a machine with a GPU."""


def environment_of(device: str) -> Mapping[str, str | None]:
    """The variables of a process that trains on a device; None for those that it must not have."""
    return _VARIABLES[device]


def check_devices(devices: Iterable[str], backend: str) -> None:
    """Raises `BackendError` if the GPU is requested and the backend cannot use one here."""
    if "gpu" not in devices:
        return
    reason = gpu.diagnose(backend, gpu.facts())
    if reason is not None:
        raise BackendError(
            f"{argument('device')} names the gpu, and {backend} cannot use one here: {reason}. To sweep without it, "
            f"give {argument('device', 'cpu')}."
        )
