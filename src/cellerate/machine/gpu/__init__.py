"""Whether there is an NVIDIA GPU, what each installed backend makes of it, and why it is not used.

A leaf of its own because `env`, `explain` and error messages state the same reasons. Nothing here imports a framework
or a package of CUDA's, and nothing is asked before `facts()` is called.

Example:
    >>> from cellerate.machine import gpu
    >>> gpu.diagnose("jax", gpu.facts())  # doctest: +SKIP
    "JAX 0.10.2 has no CUDA plugin: pip install 'jax[cuda13]'"
"""

from cellerate.machine.gpu.builds import Build, build_of
from cellerate.machine.gpu.diagnosis import KERNELS_CAPABILITY, describe, diagnose, diagnose_kernels, memory
from cellerate.machine.gpu.machine import SETTINGS, Device, GpuFacts, facts

__all__ = [
    "KERNELS_CAPABILITY",
    "SETTINGS",
    "Build",
    "Device",
    "GpuFacts",
    "build_of",
    "describe",
    "diagnose",
    "diagnose_kernels",
    "facts",
    "memory",
]
