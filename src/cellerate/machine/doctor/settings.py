"""Settings that cost speed or change results: environment variables, XLA's flags, Keras's configuration file."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from cellerate.files import home_dir
from cellerate.machine.doctor.finding import Finding, Status, read
from cellerate.machine.environment import BACKENDS

TOPIC = "settings"


def _is_on(value: str) -> bool:
    return value.lower() not in ("0", "false", "no", "off")


def _is_set(value: str) -> bool:
    return True


@dataclasses.dataclass(frozen=True)
class _Setting:
    """An environment variable.

    Attributes:
        status: How serious it is.
        bites: Whether a value that is not empty costs something.
        cost: The cost.
        backend: The backend that it concerns; empty for all.
        gpu: Whether it matters on a GPU alone.
    """

    status: Status
    bites: Callable[[str], bool]
    cost: str
    backend: str = ""
    gpu: bool = False


_NARROWER = "computes with narrower instructions than the processor may have"
_SETTINGS = {
    "KERAS_MAX_EPOCHS": _Setting("problem", _is_set, "every fit of Keras ends after that many epochs"),
    "KERAS_MAX_STEPS_PER_EPOCH": _Setting(
        "problem", _is_set, "every epoch, evaluation and prediction of Keras ends after that many batches"
    ),
    "TF_USE_LEGACY_KERAS": _Setting(
        "problem", _is_on, "tf.keras is Keras 2, whose layers Cellerate does not know", "tensorflow"
    ),
    "TF_ENABLE_ONEDNN_OPTS": _Setting(
        "note", lambda value: not _is_on(value), "TensorFlow computes without oneDNN's kernels", "tensorflow"
    ),
    "TF_DETERMINISTIC_OPS": _Setting(
        "note", _is_on, "TensorFlow leaves out kernels whose sums may change their order, often the fast ones",
        "tensorflow",
    ),
    "JAX_DISABLE_JIT": _Setting(
        "problem", _is_on, "JAX compiles nothing, and computes one operation after the other", "jax"
    ),
    "JAX_DEBUG_NANS": _Setting("problem", _is_on, "JAX looks for NaN in the result of every call", "jax"),
    "JAX_NUM_CPU_DEVICES": _Setting(
        "note", lambda value: value not in ("-1", "1"),
        "JAX shows the CPU as that many devices, which share its cores", "jax",
    ),
    "JAX_DEFAULT_MATMUL_PRECISION": _Setting(
        "note", _is_set, "JAX computes products of float32 in that precision on a GPU", "jax", gpu=True
    ),
    "XLA_PYTHON_CLIENT_ALLOCATOR": _Setting(
        "problem", lambda value: value == "platform",
        "JAX asks the driver for the memory of every array, which its documentation calls very slow", "jax", gpu=True,
    ),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": _Setting(
        "problem", _is_on, "torch asks the driver for the memory of every tensor", "torch", gpu=True
    ),
    "CUDA_LAUNCH_BLOCKING": _Setting(
        "problem", _is_on, "the program waits for each kernel of the GPU before it starts the next", gpu=True
    ),
    "MALLOC_PERTURB_": _Setting(
        "problem", _is_on, "the C library writes over all memory that it hands out or takes back"
    ),
    "PYTHONDEVMODE": _Setting("note", _is_set, "Python checks its memory and warns of more, and is slower"),
    "PYTHONMALLOC": _Setting(
        "note", lambda value: "debug" in value, "Python checks each piece of its memory, and is slower"
    ),
    "ATEN_CPU_CAPABILITY": _Setting("note", _is_set, f"torch {_NARROWER}", "torch"),
    "ONEDNN_MAX_CPU_ISA": _Setting("note", _is_set, f"oneDNN, in TensorFlow and torch, {_NARROWER}"),
    "DNNL_MAX_CPU_ISA": _Setting("note", _is_set, f"oneDNN, in TensorFlow and torch, {_NARROWER}"),
    "OPENBLAS_CORETYPE": _Setting("note", _is_set, f"NumPy {_NARROWER}"),
    "NPY_DISABLE_CPU_FEATURES": _Setting("note", _is_set, f"NumPy {_NARROWER}"),
}  # fmt: skip


def check_settings(environ: Mapping[str, str], backends: Sequence[str], has_gpu: bool) -> Iterator[Finding]:
    """Check whether environment variables that are meant for debugging or for trials are set.

    Args:
        environ: The environment variables.
        backends: The installed backends.
        has_gpu: Whether there is a GPU.
    """
    for name, setting in _SETTINGS.items():
        value = environ.get(name, "").strip()
        concerns = setting.backend in ("", *backends) and (has_gpu or not setting.gpu)
        if value and concerns and setting.bites(value):
            yield Finding(TOPIC, setting.status, f"{name}={value}", setting.cost, f"unset {name}")


def check_backend(environ: Mapping[str, str], backends: Sequence[str]) -> Iterator[Finding]:
    """Check whether `KERAS_BACKEND` names a backend that is there.

    Args:
        environ: The environment variables.
        backends: The installed backends.
    """
    name = environ.get("KERAS_BACKEND", "")
    if not name or name in backends:
        return
    known = name in BACKENDS
    yield Finding(
        TOPIC,
        "problem",
        f"KERAS_BACKEND={name}, " + ("which is not installed" if known else "which is not a backend"),
        "every command that needs Keras ends with an error",
        f"pip install 'cellerate[{name}]', or unset KERAS_BACKEND"
        if known
        else f"unset KERAS_BACKEND, or set it to one of {', '.join(BACKENDS)}",
    )


def check_xla_flags(
    environ: Mapping[str, str], backends: Sequence[str], knows: Callable[[str], bool]
) -> Iterator[Finding]:
    """Check whether `XLA_FLAGS` stops JAX or slows it down.

    Args:
        environ: The environment variables.
        backends: The installed backends.
        knows: Whether the installed XLA has a flag.
    """
    text = environ.get("XLA_FLAGS", "").strip()
    if "jax" not in backends or not text.startswith("-"):  # else it names a file of flags
        return
    for flag in text.split():
        name, _, value = flag.lstrip("-").partition("=")
        said, without = f"XLA_FLAGS has {flag}", f"take {flag} out of XLA_FLAGS"
        if not knows(name):
            cost = "JAX ends the process at its start, because it knows no such flag"
            yield Finding(TOPIC, "problem", said, cost, without)
        elif (name == "xla_backend_optimization_level" and value in ("0", "1")) or (
            name == "xla_llvm_disable_expensive_passes" and _is_on(value)
        ):
            cost = "JAX compiles faster, and what it compiles is slower"
            yield Finding(TOPIC, "problem", said, cost, without)
        elif name == "xla_cpu_max_isa":
            yield Finding(TOPIC, "note", said, f"JAX {_NARROWER}", without)
        elif name == "xla_force_host_platform_device_count" and value != "1":
            cost = f"JAX shows the CPU as {value} devices, which share its cores"
            yield Finding(TOPIC, "note", said, cost, without)


def check_keras_file(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check whether Keras's configuration file sets a type that makes all layers slow or inexact.

    Args:
        environ: The environment variables; `KERAS_HOME` names the file's folder.

    Raises:
        ValueError: It is not JSON.
    """
    path = Path(environ.get("KERAS_HOME") or home_dir() / ".keras") / "keras.json"
    said = json.loads(read(path) or "{}")
    kind = said.get("floatx", "float32") if isinstance(said, dict) else "float32"
    fix = f'set "floatx": "float32" in {path}'
    if kind == "float64":
        cost = "layers compute in float64, which Cellerate leaves to Keras, on twice the bytes"
        yield Finding(TOPIC, "problem", f'{path} has "floatx": "{kind}"', cost, fix)
    elif kind != "float32":
        cost = "weights are kept in it, so small updates are lost; a mixed dtype policy keeps them in float32"
        yield Finding(TOPIC, "note", f'{path} has "floatx": "{kind}"', cost, fix)


def xla_knows(flag: str) -> bool:
    """True if the XLA of the installed jaxlib has a flag, by the names in its library; True if it cannot be read."""
    # The library contains other names as well, and all flags begin like this.
    if not flag.startswith("xla_"):
        return False
    package = importlib.util.find_spec("jaxlib")
    if package is None or package.origin is None:
        return True
    library = Path(package.origin).with_name("libjax_common.so")
    try:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            return text.find(flag.encode()) >= 0
    except OSError:
        return True
