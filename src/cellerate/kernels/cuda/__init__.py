"""The common part of kernels for NVIDIA GPUs from Hopper on: CUDA C++, compiled, loaded and started at run time.

Only this package and `kernels/*/cuda` may import CUDA, and they import no framework.
"""
