"""The arguments of the kernels, as the CUDA sources define them."""

from __future__ import annotations

from cellerate.kernels.cuda import sources
from cellerate.kernels.cuda.launch import KernelArguments


class ForwardArguments(KernelArguments):
    """`ForwardArguments` of arguments.cuh; the shapes are documented there."""

    _fields_ = sources.fields("arguments.cuh", "ForwardArguments")


class BackwardArguments(KernelArguments):
    """`BackwardArguments` of arguments.cuh; the shapes are documented there."""

    _fields_ = sources.fields("arguments.cuh", "BackwardArguments")


def masked_output_code(name: str) -> int:
    """The number by which the kernels know one of `program.MASKED_OUTPUTS`."""
    return sources.code("lstm.cuh", "MaskedOutput", name)
