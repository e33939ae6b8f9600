"""The arguments of the kernels, with the same layout as the structures in the CUDA sources."""

import ctypes

from cellerate.kernels.cuda.launch import KernelArguments


class ForwardArguments(KernelArguments):
    """`ForwardArguments` of lstm_forward.cuh, field by field; the shapes are documented there."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("batch", "steps", "units", "vocabulary", "masked_output")),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "projected",
                "ids",
                "weights",
                "h0",
                "c0",
                "mask",
                "recurrent_dropout",
                "outputs",
                "states",
                "gates",
                "cells",
                "last_output",
                "h_T",
                "c_T",
                "exchanged",
            )
        ),
    )


class BackwardArguments(KernelArguments):
    """`BackwardArguments` of lstm_backward.cuh, field by field; the shapes are documented there."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("batch", "steps", "units", "masked_output")),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "gates",
                "cells",
                "weights",
                "c0",
                "mask",
                "recurrent_dropout",
                "d_outputs",
                "d_last_output",
                "d_h_T",
                "d_c_T",
                "d_projected",
                "d_h0",
                "d_c0",
                "exchanged",
            )
        ),
    )
