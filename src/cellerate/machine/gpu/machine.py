"""The NVIDIA GPUs that this process may use and, if none, the reason, whatever packages are installed."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path

from cellerate.machine.gpu.libraries import DRIVER, Answer, Card, Load, ask_driver, ask_management

# The settings that decide whether and how GPUs are used, and their meanings.
SETTINGS = {
    "CUDA_VISIBLE_DEVICES": "the GPUs that CUDA may use",
    "JAX_PLATFORMS": "where JAX computes, the first one counts",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false: JAX takes GPU memory as it needs it",
    "XLA_CLIENT_MEM_FRACTION": "the share of a GPU's memory that JAX takes at its start",
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "the share of a GPU's memory that JAX takes at its start",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true: TensorFlow takes GPU memory as it needs it",
    "NVIDIA_TF32_OVERRIDE": "0: no float32 product is computed in TF32",
}
# Folders of the driver's library outside the loader's path: on GKE, on Colab and under WSL.
_OTHER_FOLDERS = ("usr/local/nvidia/lib64", "usr/lib64-nvidia", "usr/lib/wsl/lib")
# Files that mark a container: Docker's and Podman's.
_CONTAINER_MARKS = (".dockerenv", "run/.containerenv")
_NOT_GIVEN = (
    "but this container was not given its GPUs: start it with `docker run --gpus all` "
    "(on Kubernetes, with a limit for nvidia.com/gpu)"
)
_NO_DEVICE = 100
_MISMATCH = 803
# NVML's code for the error that the driver calls 803.
_NVML_MISMATCH = 18
# Results of `cuInit`, and what to do. 35 is a code of the runtime, which old drivers pass on.
_CODES = {
    34: f"{DRIVER} is the stub that compilers link with, not the driver: take its folder out of LD_LIBRARY_PATH",
    35: "the NVIDIA driver is too old: update it",
    36: "the NVIDIA driver is too old: update it",
    46: "another process holds the GPU for itself: end it, or allow several with `nvidia-smi -c DEFAULT`",
    _NO_DEVICE: "the NVIDIA driver finds no GPU",
    101: "CUDA_VISIBLE_DEVICES or the GPU's partitions (MIG) name a GPU that is not there: see `nvidia-smi -L`",
    304: "the operating system refused the NVIDIA driver something it needs: see `dmesg`",
    802: "the GPUs' switch is not ready: sudo systemctl start nvidia-fabricmanager",
    _MISMATCH: "the NVIDIA driver was updated while it ran, its two halves differ: reboot",
    804: "the package cuda-compat does not work with this GPU: take its folder out of LD_LIBRARY_PATH",
    805: "the MPS server does not answer: restart it, or unset CUDA_MPS_PIPE_DIRECTORY",
    999: "the NVIDIA driver does not start, for a reason it does not name: see `dmesg`, reboot",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Device:
    """One GPU.

    Attributes:
        name: The name of the GPU.
        compute_capability: As (major, minor); this and the fields below are None if the driver does not say.
        memory_bytes: Its total memory.
        free_bytes: Its memory that no process holds.
    """

    name: str
    compute_capability: tuple[int, int] | None
    memory_bytes: int | None
    free_bytes: int | None


@dataclasses.dataclass(frozen=True)
class GpuFacts:
    """The NVIDIA GPUs of this machine, and what is wrong with them.

    Attributes:
        driver: The version of NVIDIA's driver, "580.65.06"; None if there is none or it does not say.
        cuda: The newest CUDA that the driver supports, "13.0".
        devices: The GPUs that CUDA may use here.
        hidden: The GPUs that CUDA_VISIBLE_DEVICES hides.
        settings: The environment variables of `SETTINGS` that are set.
        problems: Why there are no devices and what to do about it, most telling first; else empty.
        incomplete: What these facts lack and how to get it, in a sentence; None if nothing.
    """

    driver: str | None
    cuda: str | None
    devices: tuple[Device, ...]
    hidden: tuple[Device, ...]
    settings: Mapping[str, str]
    problems: tuple[str, ...]
    incomplete: str | None = None


def facts(
    *, load: Load = ctypes.CDLL, environ: Mapping[str, str] = os.environ, root: Path = Path("/")
) -> GpuFacts:
    """Finds the NVIDIA GPUs, without any framework.

    On a machine with GPUs this starts CUDA, as any framework would. That takes about 100 ms, and from then on
    this process cannot change its CUDA_VISIBLE_DEVICES.

    Args:
        load: Loads the driver's library by its name; raises `OSError` if it cannot.
        environ: The environment variables.
        root: The root folder of the machine's files.
    """
    driver, management = ask_driver(load), ask_management()
    hidden = _hidden(driver, management, environ)
    kernel_driver = _kernel_driver(root)
    problem = None
    if driver.code is None:
        problem = _no_driver(driver, management, kernel_driver, environ, root)
    elif not driver.cards:
        problem = _no_cards(driver, management, hidden, kernel_driver, environ, root)
    return GpuFacts(
        driver=management.version or kernel_driver,
        cuda=driver.version,
        devices=tuple(_device(card, management) for card in driver.cards),
        hidden=tuple(_plain(card) for card in hidden),
        settings={name: environ[name] for name in SETTINGS if name in environ},
        problems=() if problem is None else (problem,),
        incomplete=management.error or None,
    )


def _plain(card: Card) -> Device:
    return Device(card.name, card.compute_capability, card.memory_bytes, card.free_bytes)


def _device(card: Card, management: Answer) -> Device:
    """Gives a GPU of CUDA's, with its free memory according to NVML."""
    same = next((c for c in management.cards if c.place == card.place and c.place is not None), None)
    free, total = (None, None) if same is None else (same.free_bytes, same.memory_bytes)
    # A part of a GPU (MIG) has the bus place of the whole GPU, and NVML describes the whole.
    if free is None or total is None or card.memory_bytes is None or total > 1.1 * card.memory_bytes:
        free = None
    else:
        free = min(free, card.memory_bytes)
    return dataclasses.replace(_plain(card), free_bytes=free)


def _hidden(driver: Answer, management: Answer, environ: Mapping[str, str]) -> tuple[Card, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES hides from CUDA."""
    value = environ.get("CUDA_VISIBLE_DEVICES")
    places = [card.place for card in driver.cards]
    if value is None or driver.code not in (0, _NO_DEVICE) or None in places:
        return ()
    first = value.split(",")[0].strip()
    # If the first GPU of the list exists and CUDA sees nothing at all, something else is to blame.
    if not places and first.isdecimal() and int(first) < len(management.cards):
        return ()
    return tuple(card for card in management.cards if card.place not in places)


def _no_driver(
    driver: Answer, management: Answer, kernel_driver: str | None, environ: Mapping[str, str], root: Path
) -> str:
    """Says why there is no driver to ask."""
    for folder in (root / name for name in _OTHER_FOLDERS):
        if _there(folder / DRIVER):
            return (
                f"{DRIVER}, NVIDIA's driver, is in {folder}, where it is not looked for: "
                f"export LD_LIBRARY_PATH={folder}"
            )
    version = management.version or kernel_driver
    if version is None:
        absent = not driver.error or re.search(
            r"no such file|not find|not found", driver.error, re.IGNORECASE
        )
        return f"no NVIDIA driver was found ({DRIVER if absent else driver.error})"
    if not _in_container(environ, root):
        return (
            f"NVIDIA's driver {version} is installed without its part for CUDA, {DRIVER}: "
            "install that (Debian: libcuda1, Ubuntu: libnvidia-compute of the same version)"
        )
    if management.cards:
        return f"this container has GPUs, but not {DRIVER}: start it with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    return f"the machine has NVIDIA's driver {version}, {_NOT_GIVEN}"


def _no_cards(
    driver: Answer,
    management: Answer,
    hidden: tuple[Card, ...],
    kernel_driver: str | None,
    environ: Mapping[str, str],
    root: Path,
) -> str:
    """Says why CUDA sees no GPU although there is a driver."""
    value = environ.get("CUDA_VISIBLE_DEVICES")
    # If NVML does not list them, only a value that allows none is a sign of hidden GPUs.
    allows_none = value is not None and (not value.strip() or value.strip().startswith("-"))
    unlisted = allows_none and driver.code in (0, _NO_DEVICE) and _files(root)
    if hidden or unlisted:
        names = ", ".join(card.name for card in hidden) or "all GPUs"
        return f"CUDA_VISIBLE_DEVICES={value!r} hides {names}: unset CUDA_VISIBLE_DEVICES, or set it to 0"
    if management.code == _NVML_MISMATCH:
        return _CODES[_MISMATCH]
    if driver.code in (0, _NO_DEVICE, 304, 999):
        reason = _device_files(kernel_driver, environ, root)
        if reason is not None:
            return reason
    if driver.code in (0, _NO_DEVICE) and management.cards:
        names = ", ".join(card.name for card in management.cards)
        return (
            f"CUDA may not use what `nvidia-smi` lists ({names}): it is closed to CUDA (compute mode), "
            "or is to be partitioned and is not (MIG)"
        )
    meaning = _CODES.get(driver.code or _NO_DEVICE, "the NVIDIA driver does not start: see `dmesg`")
    return f"{meaning} (cuInit: {driver.code})"


def _device_files(kernel_driver: str | None, environ: Mapping[str, str], root: Path) -> str | None:
    """Says what is wrong with the files in /dev that represent the GPUs; None if nothing is."""
    if _there(root / "dev/dxg"):  # WSL has this file instead
        return None
    files = _files(root)
    if not files:
        if kernel_driver is None:
            return (
                "the NVIDIA driver is installed but not running: this machine has no NVIDIA GPU, "
                "or the driver waits for a reboot"
            )
        if _in_container(environ, root):
            return f"the machine has NVIDIA's driver {kernel_driver}, {_NOT_GIVEN}"
        return "the NVIDIA driver runs, but /dev/nvidia0 is missing: sudo nvidia-modprobe -c0 -u"
    unified = root / "dev/nvidia-uvm"
    if not _there(unified):
        return (
            f"{unified} is missing: sudo nvidia-modprobe -c0 -u (in a container: start it with "
            "`docker run --gpus all`)"
        )
    for file in (*files, root / "dev/nvidiactl", unified):
        if _there(file) and not os.access(file, os.R_OK | os.W_OK):
            return f"this user may not open {file}{_group(file)}"
    return None


def _files(root: Path) -> list[Path]:
    return sorted((root / "dev").glob("nvidia[0-9]*"))


def _there(file: Path) -> bool:
    """True if a file exists; in a folder without permission it counts as missing."""
    return os.access(file, os.F_OK)


def _group(file: Path) -> str:
    """Says which group may open a file, and how to join it."""
    try:
        group = file.group()
    except (KeyError, OSError, NotImplementedError):
        return ""
    if group == "root":
        return ": it is root's, see its rights with `ls -l /dev/nvidia*`"
    return f": sudo usermod -aG {group} $USER, then log in again"


def _in_container(environ: Mapping[str, str], root: Path) -> bool:
    return "KUBERNETES_SERVICE_HOST" in environ or any(_there(root / name) for name in _CONTAINER_MARKS)


def _kernel_driver(root: Path) -> str | None:
    """The version of the driver that the system runs; containers see it too, with or without GPUs."""
    try:
        text = (root / "proc/driver/nvidia/version").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return "(version unknown)" if found is None else found[1]
