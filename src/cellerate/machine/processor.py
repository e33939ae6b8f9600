"""The processor in words: its family and its instruction set, from the kernel's description.

A product name ("AMD EPYC") says too little: speeds depend on the core behind it, and in a virtual machine two
generations may have the same name.

Source: the family and model numbers are those of Linux, arch/x86/kernel/cpu/amd.c, arch/x86/include/asm/intel-family.h
and arch/arm64/include/asm/cputype.h.
"""

from __future__ import annotations

import platform
import re
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")

# (family, first model, last model): the core.
_AMD = {
    (0x17, 0x00, 0x2F): "Zen",
    (0x17, 0x50, 0x5F): "Zen",
    (0x17, 0x30, 0x4F): "Zen 2",
    (0x17, 0x60, 0x7F): "Zen 2",
    (0x17, 0x90, 0x91): "Zen 2",
    (0x17, 0xA0, 0xAF): "Zen 2",
    (0x19, 0x00, 0x0F): "Zen 3",
    (0x19, 0x20, 0x5F): "Zen 3",
    (0x19, 0x10, 0x1F): "Zen 4",
    (0x19, 0x60, 0xAF): "Zen 4",
    (0x1A, 0x00, 0x2F): "Zen 5",
    (0x1A, 0x40, 0x4F): "Zen 5",
    (0x1A, 0x60, 0x7F): "Zen 5",
}
# Models of family 6. The stepping distinguishes the processors of model 0x55.
_INTEL = {
    "Haswell": (0x3C, 0x3F, 0x45, 0x46),
    "Broadwell": (0x3D, 0x47, 0x4F, 0x56),
    "Skylake": (0x4E, 0x5E),
    "Kaby Lake": (0x8E, 0x9E),
    "Comet Lake": (0xA5, 0xA6),
    "Ice Lake": (0x6A, 0x6C, 0x7D, 0x7E),
    "Tiger Lake": (0x8C, 0x8D),
    "Rocket Lake": (0xA7,),
    "Alder Lake": (0x97, 0x9A),
    "Raptor Lake": (0xB7, 0xBA, 0xBF),
    "Sapphire Rapids": (0x8F,),
    "Emerald Rapids": (0xCF,),
    "Granite Rapids": (0xAD, 0xAE),
    "Meteor Lake": (0xAA, 0xAC),
    "Arrow Lake": (0xB5, 0xC5, 0xC6),
    "Lunar Lake": (0xBD,),
}
# Sapphire Rapids has the first cores with AMX. A virtual machine may report an older model.
_OF_AMX = ("Sapphire Rapids", "Emerald Rapids", "Granite Rapids")
# (implementer, part)
_ARM = {
    (0x41, 0xD0C): "Arm Neoverse N1",
    (0x41, 0xD40): "Arm Neoverse V1",
    (0x41, 0xD49): "Arm Neoverse N2",
    (0x41, 0xD4F): "Arm Neoverse V2",
    (0x41, 0xD84): "Arm Neoverse V3",
    (0x41, 0xD8E): "Arm Neoverse N3",
    (0xC0, 0xAC3): "AmpereOne",
}
_VENDORS = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}


def describe(cpuinfo: str | None = None) -> str:
    """The processor's family and instruction set: "AMD Zen 4, AVX-512 with bfloat16 and VNNI".

    Args:
        cpuinfo: The contents of `/proc/cpuinfo`; None reads this machine's.

    Returns:
        The words. An unknown family appears by its numbers, an unknown instruction set by the architecture.
    """
    if cpuinfo is None:
        cpuinfo = CPUINFO.read_text() if CPUINFO.exists() else ""
    first = cpuinfo.split("\n\n", 1)[0]
    facts = dict(re.findall(r"^([^\t:]+?)\s*:[ \t]*(.*)$", first, re.MULTILINE))
    flags = set((facts.get("flags") or facts.get("Features") or "").split())
    return f"{_family(facts)}, {_instruction_set(flags)}"


def _family(facts: dict[str, str]) -> str:
    if "CPU implementer" in facts:
        implementer, part = int(facts["CPU implementer"], 16), int(facts.get("CPU part", "0"), 16)
        return _ARM.get((implementer, part), f"Arm implementer {implementer:#x} part {part:#x}")
    if "vendor_id" not in facts:
        return f"a processor of unknown family ({platform.machine()})"
    vendor = facts["vendor_id"]
    family, model, stepping = (_number(facts.get(name)) for name in ("cpu family", "model", "stepping"))
    name = None
    if vendor == "AuthenticAMD":
        name = next(
            (core for (of, low, high), core in _AMD.items() if of == family and low <= model <= high), None
        )
    elif vendor == "GenuineIntel" and family == 6 and model == 0x55:
        name = "Cooper Lake" if stepping >= 10 else "Cascade Lake" if stepping >= 5 else "Skylake-SP"
    elif vendor == "GenuineIntel" and family == 6:
        name = next((core for core, models in _INTEL.items() if model in models), None)
    if "amx_tile" in facts.get("flags", "").split() and name not in _OF_AMX:
        name = f"{_OF_AMX[0]} or later"
    maker = _VENDORS.get(vendor, vendor)
    return f"{maker} {name}" if name else f"{maker} family {family} model {model}"


def _number(text: str | None) -> int:
    """The number; -1 if the kernel says "unknown" or nothing."""
    return int(text) if text and text.isdigit() else -1


def _instruction_set(flags: set[str]) -> str:
    """The widest vectors, and their extensions for narrow types."""
    if "asimd" in flags:
        widest = "SVE2" if "sve2" in flags else "SVE" if "sve" in flags else "NEON"
        extras = {"bf16": "bfloat16", "i8mm": "int8 products"}
    elif "avx512f" in flags:
        widest, extras = "AVX-512", {"avx512_bf16": "bfloat16", "avx512_vnni": "VNNI", "amx_tile": "AMX"}
    elif {"avx2", "fma"} <= flags:
        widest, extras = "AVX2", {"avx_vnni": "VNNI"}
    else:
        known = (("avx", "AVX"), ("sse4_2", "SSE4.2"), ("sse2", "SSE2"))
        widest, extras = next((word for flag, word in known if flag in flags), platform.machine()), {}
    found = [word for flag, word in extras.items() if flag in flags]
    return (
        widest
        + (" with " if found else "")
        + " and ".join(filter(None, [", ".join(found[:-1]), *found[-1:]]))
    )
