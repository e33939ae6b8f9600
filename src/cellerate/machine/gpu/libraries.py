"""Asks NVIDIA's two libraries: the CUDA driver through ctypes, its management library NVML through `pynvml`.

Whatever a library lacks or answers, the caller gets values or None.
"""

from __future__ import annotations

import ctypes
import dataclasses
import re
from collections.abc import Callable
from typing import Any

Load = Callable[[str], Any]
DRIVER = "libcuda.so.1"
# No machine has more GPUs: a larger count would be an error.
_MOST_CARDS = 64
_NO_FUNCTION = -1
_NAMELESS = "a GPU without a name"
# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and ..._MINOR.
_CAPABILITY = (75, 76)
_NO_PACKAGE = (
    "free memory, hidden GPUs and part of the diagnosis are missing, because the package nvidia-ml-py is not "
    "installed: pip install nvidia-ml-py"
)


@dataclasses.dataclass(frozen=True)
class Card:
    """One library's facts about a GPU; a field is None if it does not say.

    Attributes:
        place: The place on the PCI bus: domain, bus, device. Both libraries agree on it, while their
            numbering of GPUs may differ.
        name: The name of the GPU.
        compute_capability: As (major, minor).
        memory_bytes: Its total memory.
        free_bytes: Its memory that no process holds; only NVML knows it.
    """

    place: tuple[int, int, int] | None
    name: str
    compute_capability: tuple[int, int] | None
    memory_bytes: int | None
    free_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class Answer:
    """One library's facts.

    Attributes:
        code: The result of its first call, 0 for success; None if the library cannot be loaded.
        error: From the driver, why it cannot be loaded; from NVML, that its package is not installed.
        version: From the driver, the version of CUDA ("13.0"); from NVML, that of the driver ("580.65.06").
        cards: The GPUs it lists.
    """

    code: int | None
    error: str = ""
    version: str | None = None
    cards: tuple[Card, ...] = ()


def ask_driver(load: Load) -> Answer:
    """Starts CUDA, which takes about 100 ms on a machine with GPUs, and lists the GPUs CUDA may use.

    Args:
        load: Loads a library by its name; raises `OSError` if it cannot.

    Source: CUDA Driver API, "Initialization" and "Device Management".
    """
    try:
        library = load(DRIVER)
    except OSError as error:
        return Answer(None, str(error))
    code = _call(library, "cuInit", 0)
    number = _number(library, "cuDriverGetVersion") or 0
    version = f"{number // 1000}.{number % 1000 // 10}" if number >= 1000 else None
    if code != 0:
        return Answer(code, version=version)
    count = _number(library, "cuDeviceGetCount") or 0
    cards = (_driver_card(library, index) for index in range(min(count, _MOST_CARDS)))
    return Answer(code, version=version, cards=tuple(card for card in cards if card is not None))


def ask_management() -> Answer:
    """Lists the GPUs of the machine or container, whether or not CUDA may use them.

    Source: NVML API Reference, "Initialization and Cleanup" and "Device Queries".
    """
    try:
        import pynvml
    except ImportError:
        return Answer(None, _NO_PACKAGE)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Answer(None if isinstance(error, pynvml.NVMLError_LibraryNotFound) else error.value)

    def ask(name: str, *arguments: Any) -> Any:
        """Return a function's result; None if it fails or returns bytes that are not text."""
        try:
            return getattr(pynvml, name)(*arguments)
        except (pynvml.NVMLError, UnicodeDecodeError):
            return None

    version = ask("nvmlSystemGetDriverVersion")
    count = ask("nvmlDeviceGetCount") or 0
    handles = (ask("nvmlDeviceGetHandleByIndex", index) for index in range(min(count, _MOST_CARDS)))
    cards = tuple(_management_card(ask, handle) for handle in handles if handle is not None)
    ask("nvmlShutdown")
    return Answer(0, version=_printable(version), cards=cards)


def _driver_card(library: Any, index: int) -> Card | None:
    device = _number(library, "cuDeviceGet", index)
    if device is None:
        return None
    name = _text(library, "cuDeviceGetName", device)
    major, minor = (_number(library, "cuDeviceGetAttribute", which, device) for which in _CAPABILITY)
    memory = _number(library, "cuDeviceTotalMem_v2", device, kind=ctypes.c_size_t)
    bus_id = _text(library, "cuDeviceGetPCIBusId", device) or ""
    found = re.fullmatch(r"([0-9a-fA-F]+):([0-9a-fA-F]+):([0-9a-fA-F]+)\.\w+", bus_id)
    place = None if found is None else (int(found[1], 16), int(found[2], 16), int(found[3], 16))
    return Card(place, name or _NAMELESS, _capability(major, minor), memory or None)


def _management_card(ask: Callable[..., Any], handle: Any) -> Card:
    name = ask("nvmlDeviceGetName", handle)
    capability = ask("nvmlDeviceGetCudaComputeCapability", handle) or (None, None)
    memory = ask("nvmlDeviceGetMemoryInfo", handle)
    pci = ask("nvmlDeviceGetPciInfo", handle)
    return Card(
        None if pci is None else (pci.domain, pci.bus, pci.device),
        _printable(name) or _NAMELESS,
        _capability(*capability),
        None if memory is None else memory.total,
        None if memory is None else memory.free,
    )


def _capability(major: int | None, minor: int | None) -> tuple[int, int] | None:
    return None if major is None or minor is None or major < 1 or minor < 0 else (major, minor)


def _call(library: Any, name: str, *arguments: Any) -> int:
    """Gives the result of a library's function, or `_NO_FUNCTION` if it has none of that name."""
    function = getattr(library, name, None)
    return _NO_FUNCTION if function is None else int(function(*arguments))


def _number(library: Any, name: str, *arguments: Any, kind: Any = ctypes.c_int) -> int | None:
    """Gives the number that a function writes to its first argument, or None if it fails."""
    value = kind()
    return int(value.value) if _call(library, name, ctypes.byref(value), *arguments) == 0 else None


def _text(library: Any, name: str, *arguments: Any) -> str | None:
    """Gives the text that a function writes into a buffer of a given length, or None if it fails."""
    buffer = ctypes.create_string_buffer(96)
    if _call(library, name, buffer, len(buffer), *arguments) != 0:
        return None
    return _printable(buffer.value.decode(errors="replace"))


def _printable(text: str | None) -> str | None:
    """Gives the printable letters of a text; None if it has none."""
    return "".join(letter for letter in text or "" if letter.isprintable()).strip() or None
