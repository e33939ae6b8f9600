"""What kernels for NVIDIA GPUs, Hopper or later, share: their CUDA C++ is compiled, loaded and started at run time.

Only this package and `kernels/*/cuda` may import CUDA, and they import no framework.
"""
