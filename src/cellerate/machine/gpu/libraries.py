"""Asks NVIDIA's two libraries through ctypes: the CUDA driver and its management library, NVML.

Whatever a library lacks or answers, the caller gets values or None.
"""

import ctypes
import dataclasses
import re
from collections.abc import Callable
from typing import Any

Load = Callable[[str], Any]
DRIVER = "libcuda.so.1"
MANAGEMENT = "libnvidia-ml.so.1"
# No machine has more; a larger count counts as none.
_MOST_CARDS = 64
_NO_FUNCTION = -1
_NAMELESS = "a GPU without a name"
# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and ..._MINOR.
_CAPABILITY = (75, 76)


@dataclasses.dataclass(frozen=True)
class Card:
    """What one library says about a GPU; a field is None if it does not say.

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
    """What one library says.

    Attributes:
        code: The result of its first call, 0 for success; None if the library cannot be loaded.
        error: Why it cannot be loaded.
        version: From the driver, the version of CUDA ("13.0"); from NVML, that of the driver ("580.65.06").
        cards: The GPUs it lists.
    """

    code: int | None
    error: str = ""
    version: str | None = None
    cards: tuple[Card, ...] = ()


class _PciInfo(ctypes.Structure):
    """`nvmlPciInfo_t`."""

    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        *((name, ctypes.c_uint) for name in ("domain", "bus", "device", "device_id", "subsystem_id")),
        ("bus_id", ctypes.c_char * 32),
    )


class _Memory(ctypes.Structure):
    """`nvmlMemory_t`."""

    _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("total", "free", "used"))


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


def ask_management(load: Load) -> Answer:
    """Lists the GPUs of the machine or container, whether or not CUDA may use them.

    Args:
        load: Loads a library by its name; raises `OSError` if it cannot.

    Source: NVML API Reference, "Initialization and Cleanup" and "Device Queries".
    """
    try:
        library = load(MANAGEMENT)
    except OSError as error:
        return Answer(None, str(error))
    code = _call(library, "nvmlInit_v2")
    if code != 0:
        return Answer(code)
    version = _text(library, "nvmlSystemGetDriverVersion")
    count = _number(library, "nvmlDeviceGetCount_v2") or 0
    cards = [_management_card(library, index) for index in range(min(count, _MOST_CARDS))]
    _call(library, "nvmlShutdown")
    return Answer(code, version=version, cards=tuple(card for card in cards if card is not None))


def _driver_card(library: Any, index: int) -> Card | None:
    device = _number(library, "cuDeviceGet", index)
    if device is None:
        return None
    name = _text(library, "cuDeviceGetName", after=(device,))
    major, minor = (_number(library, "cuDeviceGetAttribute", which, device) for which in _CAPABILITY)
    memory = _number(library, "cuDeviceTotalMem_v2", device, kind=ctypes.c_size_t)
    bus_id = _text(library, "cuDeviceGetPCIBusId", after=(device,)) or ""
    found = re.fullmatch(r"([0-9a-fA-F]+):([0-9a-fA-F]+):([0-9a-fA-F]+)\.\w+", bus_id)
    place = None if found is None else (int(found[1], 16), int(found[2], 16), int(found[3], 16))
    return Card(place, name or _NAMELESS, _capability(major, minor), memory or None)


def _management_card(library: Any, index: int) -> Card | None:
    handle = ctypes.c_void_p()
    if _call(library, "nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle)) != 0:
        return None
    name = _text(library, "nvmlDeviceGetName", before=(handle,))
    major, minor, memory, pci = ctypes.c_int(-1), ctypes.c_int(-1), _Memory(), _PciInfo()
    _call(library, "nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
    knows = _call(library, "nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory)) == 0
    placed = _call(library, "nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(pci)) == 0
    return Card(
        (pci.domain, pci.bus, pci.device) if placed else None,
        name or _NAMELESS,
        _capability(major.value, minor.value),
        memory.total if knows else None,
        memory.free if knows else None,
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


def _text(
    library: Any, name: str, *, before: tuple[Any, ...] = (), after: tuple[Any, ...] = ()
) -> str | None:
    """Gives the text that a function writes into a buffer of a given length, or None if it fails."""
    buffer = ctypes.create_string_buffer(96)
    if _call(library, name, *before, buffer, len(buffer), *after) != 0:
        return None
    text = buffer.value.decode(errors="replace")
    return "".join(letter for letter in text if letter.isprintable()).strip() or None
