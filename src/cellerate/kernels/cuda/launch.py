"""Runs the kernels: their arguments as the GPU reads them, and how they are loaded and started.

A module of its own because it is the only one that talks to the driver.
"""

import ctypes
import functools
import importlib
from typing import Any

from cellerate.errors import BackendError
from cellerate.kernels.cuda import build
from cellerate.kernels.cuda.plan import THREADS, Direction, Variant, choose, clusters, padded_units
from cellerate.kernels.spec import MASKED_OUTPUTS, LstmOptions


class ForwardArguments(ctypes.Structure):
    """`ForwardArguments` of lstm_forward.cuh, field by field; there are the shapes."""

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
            )
        ),
    )


class BackwardArguments(ctypes.Structure):
    """`BackwardArguments` of lstm_backward.cuh, field by field; there are the shapes."""

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
            )
        ),
    )


Arguments = ForwardArguments | BackwardArguments


def variant_of(
    direction: Direction,
    number: str,
    shape: tuple[int, int, int],
    options: LstmOptions,
    *,
    masked: bool,
    dropped: bool,
    device: int,
) -> Variant:
    """The kernel for a call, with the number of rows that is likely the fastest on a GPU.

    Args:
        direction: The forward or the backward recurrence.
        number: The type of h: "bfloat16", "float16" or "float32".
        shape: (B, T, H).
        options: Activations.
        masked: Whether there is a mask.
        dropped: Whether there are masks of recurrent dropout.
        device: The GPU's number.

    Raises:
        ConfigError: There is no kernel for it.
        BackendError: It cannot be compiled.
    """
    batch, _, units = shape
    activations = (options.activation, options.recurrent_activation)
    wanted = Variant(direction, number, padded_units(units), 8, *activations, masked, dropped)
    return choose(wanted, batch, lambda one: resident(one, device))


def numbers_of(shape: tuple[int, int, int], options: LstmOptions) -> dict[str, int]:
    """The fields of the arguments that are numbers, of both directions, for a call of shape (B, T, H)."""
    batch, steps, units = shape
    masked_output = MASKED_OUTPUTS.index(options.masked_output)
    return {"batch": batch, "steps": steps, "units": units, "masked_output": masked_output}


def launch(variant: Variant, arguments: Arguments, device: int, stream: int) -> None:
    """Starts a kernel; it is compiled first where that was never done.

    Args:
        variant: Which.
        arguments: Of it, the addresses of memory of that GPU.
        device: The GPU's number.
        stream: The CUDA stream, as an address.

    Raises:
        BackendError: It cannot be compiled or started.
    """
    driver = _driver()
    config = driver.CUlaunchConfig()
    config.gridDimX = clusters(variant, arguments.batch) * variant.blocks
    config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
    config.blockDimX = THREADS
    config.sharedMemBytes = variant.shared_bytes
    config.hStream = driver.CUstream(stream)
    # The size of the clusters is the kernel's own.
    config.numAttrs = 0
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
    _checked(driver.cuLaunchKernelEx(config, _function(variant, device), ctypes.addressof(pointers), 0))


def handles(variant: Variant, device: int) -> tuple[int, int]:
    """The addresses of the driver's cuLaunchKernelEx and of a kernel, for who starts it without Python.

    Raises:
        BackendError: It cannot be compiled, or there is no driver.
    """
    function = int(_function(variant, device))
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise BackendError(f"the CUDA driver is not installed: {error}") from error
    return ctypes.cast(library.cuLaunchKernelEx, ctypes.c_void_p).value or 0, function


@functools.cache
def resident(variant: Variant, device: int) -> int:
    """How many clusters of a kernel a GPU runs at once."""
    driver = _driver()
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = variant.blocks, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = THREADS, 1, 1
    config.sharedMemBytes = variant.shared_bytes
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = (
        variant.blocks,
        1,
        1,
    )
    config.attrs, config.numAttrs = [attribute], 1
    return int(_checked(driver.cuOccupancyMaxActiveClusters(_function(variant, device), config)))


@functools.cache
def _function(variant: Variant, device: int) -> Any:
    """The kernel as the driver knows it, allowed the shared memory and the size of clusters that it has."""
    driver = _driver()
    handle = _checked(driver.cuDeviceGet(device))
    attribute = driver.CUdevice_attribute
    major, minor = (
        _checked(driver.cuDeviceGetAttribute(which, handle))
        for which in (
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )
    )
    code = build.build(variant, f"sm_{major}{minor}a")
    kernel = code.get_kernel(build.kernel_name(variant)).handle
    for name, value in (
        ("CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", variant.shared_bytes),
        ("CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1),
    ):
        _checked(
            driver.cuKernelSetAttribute(getattr(driver.CUfunction_attribute, name), value, kernel, handle)
        )
    _KEPT.append(code)
    return driver.CUfunction(int(kernel))


# What a kernel is part of, which must live as long as it.
_KEPT: list[Any] = []


@functools.cache
def _driver() -> Any:
    reason = build.missing()
    if reason is not None:
        raise BackendError(reason)
    driver: Any = importlib.import_module("cuda.bindings.driver")
    _checked(driver.cuInit(0))
    return driver


def _checked(answer: tuple[Any, ...]) -> Any:
    """What a call of the driver gave, without the code that says whether it went well."""
    code, *values = answer
    if int(code) != 0:
        raise BackendError(f"the CUDA driver says {code!r}")
    return values[0] if values else None
