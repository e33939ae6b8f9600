"""Where a packed model generates: on the CPU, or on an NVIDIA GPU.

The rest of the runtime works with a step model and does not know where it computes.
"""

from __future__ import annotations

import re

from cellerate.errors import ConfigError, ModelError
from cellerate.kernels.decoder.contract import Steps
from cellerate.kernels.decoder.cpu import StepModel
from cellerate.messages import argument, marked
from cellerate.program import Program
from cellerate.runtime.text.decoder_chain import chain_of
from cellerate.runtime.text.program_steps import ProgramSteps

_GPU = re.compile(r"cuda(?::(\d{1,4}))?")


def check_device(device: str) -> None:
    """Raises `ConfigError` unless a device is "cpu", "cuda" or "cuda:N", and `BackendError` if it cannot be used."""
    number = _gpu(device)
    if number is None:
        return
    # Imported only now: users who ask for no GPU import no CUDA code.
    from cellerate.kernels.decoder.cuda.model import check_gpu

    check_gpu(number)


def check_implementation(implementation: str, device: str) -> None:
    """Raises `ConfigError` unless a packed model on a device runs the named implementation.

    Args:
        implementation: "auto", "cellerate-cpu", "cellerate-cuda" or "keras".
        device: "cpu", "cuda" or "cuda:N".
    """
    if implementation == "keras":
        raise ConfigError(
            f"{argument('implementation')} is 'keras', but a packed model has no Keras layers: leave "
            f"{argument('implementation')} out."
        )
    here = "cpu" if _gpu(device) is None else "cuda"
    wanted = {"cellerate-cpu": "cpu", "cellerate-cuda": "cuda"}.get(implementation, here)
    if wanted != here:
        raise ConfigError(
            f"{argument('implementation')} is {implementation!r}, but the packed model is on device {device!r}: load "
            f"it with {argument('device', wanted)}, or leave {argument('implementation')} out."
        )


def step_model(program: Program, precision: str, device: str) -> Steps:
    """The model one time step at a time, with its weights packed for the device.

    Args:
        program: What the model computes. A GPU runs a chain (`decoder_chain`) only.
        precision: The file's: "float32", or "bfloat16", "int8" and "int4", which a GPU computes in bfloat16.
        device: "cpu", "cuda" or "cuda:N".

    Raises:
        ModelError: The device does not run such a program; the message says why.
        BackendError: The device cannot be used.
    """
    number = _gpu(device)
    try:
        chain = chain_of(program)
    except ModelError as error:
        if number is not None:
            raise ModelError(
                f"{marked(error)} A GPU runs only stacks of LSTMs; a CPU may run this model."
            ) from None
        return ProgramSteps(program, precision)
    if number is None:
        return StepModel(chain, precision=precision)
    from cellerate.kernels.decoder.cuda.model import CudaStepModel

    kept = "float32" if precision == "float32" else "bfloat16"
    return CudaStepModel(chain, precision=kept, device=number)


def _gpu(device: str) -> int | None:
    """The number of the GPU, None for the CPU. Raises `ConfigError` for anything else."""
    if device == "cpu":
        return None
    found = _GPU.fullmatch(device) if isinstance(device, str) else None
    if found is None:
        raise ConfigError(
            f"{argument('device')} is {device!r}; expected 'cpu', 'cuda', or 'cuda:N' with the number of an NVIDIA GPU."
        )
    return int(found[1] or 0)
