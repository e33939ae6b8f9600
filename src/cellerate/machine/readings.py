"""Readings of what this process uses: processors, memory, GPUs. A reading takes microseconds."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from typing import Any

from cellerate.machine.environment import processors, resident_memory_bytes


class MachineReadings:
    """Reads the use of the machine.

    GPUs are read by NVML, without starting CUDA: all that `CUDA_VISIBLE_DEVICES` shows, used or not.

    Args:
        environ: The environment variables.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._processors = processors()
        self._nvml, self._gpus = _gpus(environ)
        self._before = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        """The use at this moment.

        Returns:
            `cpu`, the share of all processors that this process had since the last call; `memory_bytes`, its
            resident memory; for each GPU `gpu0_use`, the share of its last sample period (a second at most) in which
            it computed, `gpu0_memory_bytes` and `gpu0_power_w`, if the GPU reports them.
        """
        now, used = time.perf_counter(), time.process_time()
        elapsed = max(now - self._before[0], 1e-9)
        found = {
            "cpu": (used - self._before[1]) / (elapsed * self._processors),
            "memory_bytes": float(resident_memory_bytes()),
        }
        self._before = now, used
        nvml: Any = self._nvml
        for number, gpu in enumerate(self._gpus):
            for name, read in (
                ("use", lambda gpu=gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100),
                ("memory_bytes", lambda gpu=gpu: float(nvml.nvmlDeviceGetMemoryInfo(gpu).used)),
                ("power_w", lambda gpu=gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000),
            ):
                # Parts of GPUs and some boards do not say everything.
                with contextlib.suppress(nvml.NVMLError):
                    found[f"gpu{number}_{name}"] = read()
        return found


def _gpus(environ: Mapping[str, str]) -> tuple[Any, list[Any]]:
    """NVML and its handles of the GPUs that CUDA sees; None and nothing where there are none."""
    try:
        import pynvml as nvml
    except ImportError:
        return None, []
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    found: list[Any] = []
    # Without a driver there are no GPUs. As in CUDA, an invalid name ends the list.
    with contextlib.suppress(nvml.NVMLError, OSError):
        nvml.nvmlInit()
        for name in range(nvml.nvmlDeviceGetCount()) if visible is None else visible.split(","):
            text = str(name).strip()
            by_number = text.isdigit()
            found.append(
                nvml.nvmlDeviceGetHandleByIndex(int(text))
                if by_number
                else nvml.nvmlDeviceGetHandleByUUID(text)
            )
    return nvml, found
