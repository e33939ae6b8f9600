"""Finds the NVIDIA GPUs, how each installed backend uses them, and why one does not.

Nothing here imports a framework or a CUDA package, and nothing is probed before `facts()` is called.

Example:
    >>> from cellerate.machine import gpu
    >>> gpu.diagnose("jax", gpu.facts())  # doctest: +SKIP
    "JAX 0.10.2 has no CUDA plugin: pip install 'jax[cuda13]'"
"""

from cellerate.machine.gpu.builds import build_of
from cellerate.machine.gpu.diagnosis import KERNELS_CAPABILITY, describe, diagnose, diagnose_kernels, memory
from cellerate.machine.gpu.machine import SETTINGS, Device, GpuFacts, facts

__all__ = [
    "KERNELS_CAPABILITY",
    "SETTINGS",
    "Device",
    "GpuFacts",
    "build_of",
    "describe",
    "diagnose",
    "diagnose_kernels",
    "facts",
    "memory",
]
