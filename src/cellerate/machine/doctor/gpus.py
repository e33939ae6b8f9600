"""GPUs: why a backend does not use one, and problems of those in use."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from cellerate.format import size
from cellerate.machine import gpu
from cellerate.machine.doctor.finding import Finding, Status, parted
from cellerate.machine.environment import TITLES

TOPIC = "gpu"
_FULL_SHARE, _TAKEN_SHARE = 0.1, 0.5


def check_gpus(
    facts: gpu.GpuFacts, reasons: Mapping[str, str | None], environ: Mapping[str, str]
) -> Iterator[Finding]:
    """Check whether there are GPUs, and whether the installed backends use them.

    Args:
        facts: The known facts about the GPUs.
        reasons: For each installed backend the reason why it uses no GPU (`gpu.diagnose`); None if it can use one.
        environ: The environment variables.
    """
    if not facts.devices:
        yield _none(facts)
        return
    if facts.hidden:
        names = ", ".join(device.name for device in facts.hidden)
        said = f"CUDA_VISIBLE_DEVICES={environ.get('CUDA_VISIBLE_DEVICES', '')!r} hides {names}"
        yield Finding(TOPIC, "note", said, "they do nothing for this process", "unset CUDA_VISIBLE_DEVICES")
    here = ", ".join(device.name for device in facts.devices)
    works = [backend for backend, reason in reasons.items() if reason is None]
    # A chosen backend must work; among several that nobody chose, one working backend is enough.
    chosen = environ.get("KERAS_BACKEND", "")
    needed = [chosen] if chosen in reasons else [] if works else list(reasons)
    for backend, reason in reasons.items():
        name = TITLES[backend]
        if reason is None:
            said = f"{name} can use {here}, and {gpu.memory(backend, facts.settings)}"
            yield Finding(TOPIC, "ok", said)
        else:
            what, fix = parted(reason)
            status: Status = "problem" if backend in needed else "note"
            cost = f"on {name} everything is computed on the CPU, beside {here}"
            yield Finding(TOPIC, status, what, cost, fix)


def check_jax_platforms(
    facts: gpu.GpuFacts, backends: Collection[str], environ: Mapping[str, str]
) -> Iterator[Finding]:
    """Check whether `JAX_PLATFORMS` demands a GPU that does not exist.

    Args:
        facts: The known facts about the GPUs.
        backends: The installed backends.
        environ: The environment variables.
    """
    names = environ.get("JAX_PLATFORMS", "").lower().replace(" ", "").split(",")
    # If "cpu" is in the list, JAX continues without the others.
    if not facts.devices and "jax" in backends and {"cuda", "gpu"} & {*names} and "cpu" not in names:
        yield Finding(
            TOPIC,
            "problem",
            f"JAX_PLATFORMS={environ['JAX_PLATFORMS']}, and there is no GPU",
            "JAX ends with an error at its first computation",
            "unset JAX_PLATFORMS",
        )


def check_gpu_memory(facts: gpu.GpuFacts) -> Iterator[Finding]:
    """Check whether other processes hold the memory of a GPU.

    Args:
        facts: The known facts about the GPUs.
    """
    for device in facts.devices:
        if device.free_bytes is None or not device.memory_bytes:
            continue
        share = device.free_bytes / device.memory_bytes
        said = f"{device.name}: only {size(device.free_bytes)} of {size(device.memory_bytes)} are free"
        fix = "see which process holds it with `nvidia-smi`, and end it"
        if share < _FULL_SHARE:
            cost = "what needs more ends with an error that memory is exhausted"
            yield Finding(TOPIC, "problem", said, cost, fix)
        elif share < _TAKEN_SHARE:
            cost = "JAX and TensorFlow ask for most of it at their start"
            yield Finding(TOPIC, "note", said, cost, fix)


def check_gpu_settings(facts: gpu.GpuFacts) -> Iterator[Finding]:
    """Check the environment variables for GPUs, and report unknown facts.

    Args:
        facts: The known facts about the GPUs.
    """
    if not facts.devices:
        return
    for name, value in facts.settings.items():
        yield Finding(TOPIC, "note", f"{name}={value!r} is set", f"it decides: {gpu.SETTINGS[name]}")
    if facts.incomplete is not None:
        what, fix = parted(facts.incomplete)
        yield Finding(TOPIC, "note", what, "what is free of a GPU's memory is not known", fix)


def check_gpu_kernels(facts: gpu.GpuFacts, reason: str | None) -> Iterator[Finding]:
    """Check whether Cellerate's own kernels run on the GPUs.

    Args:
        facts: The known facts about the GPUs.
        reason: Why they do not; None if nothing is in the way.
    """
    if not facts.devices:
        return
    if reason is None:
        yield Finding(TOPIC, "ok", "Cellerate's own kernels can run on the GPU")
        return
    what, fix = parted(reason)
    yield Finding(
        TOPIC,
        "note",
        f"Cellerate's own kernels do not run on the GPU: {what}",
        "LSTM layers there run on cuDNN, or on Keras's own code where that does not fit them",
        fix,
    )


def _none(facts: gpu.GpuFacts) -> Finding:
    """The finding where CUDA shows no GPU: a machine may have none, which is not a fault."""
    reason = next(iter(facts.problems), "no GPU was found")
    code = reason.rpartition(" (cuInit: ")
    what, fix = parted(code[0] or reason)
    if facts.hidden:
        return Finding(TOPIC, "note", what, "everything is computed on the CPU", fix)
    if facts.driver is not None:
        return Finding(TOPIC, "problem", what, "everything is computed on the CPU", fix)
    if fix:
        return Finding(TOPIC, "note", what, "", fix)
    return Finding(TOPIC, "ok", f"{what}; everything is computed on the CPU")
