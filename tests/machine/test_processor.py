"""A processor is told by its family and its instruction set."""

import pytest

from cellerate.machine.environment import machine
from cellerate.machine.processor import describe


def cpuinfo(vendor, family, model, flags, stepping=1):
    return (
        f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: AMD EPYC\n"
        f"stepping\t: {stepping}\nflags\t\t: {flags}\n\nprocessor\t: 1\nvendor_id\t: another\n"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            cpuinfo("AuthenticAMD", 25, 17, "avx avx2 fma avx512f avx512_bf16 avx512_vnni"),
            "AMD Zen 4, AVX-512 with bfloat16 and VNNI",
        ),
        (cpuinfo("AuthenticAMD", 26, 2, "avx512f avx512_bf16"), "AMD Zen 5, AVX-512 with bfloat16"),
        (cpuinfo("AuthenticAMD", 25, 1, "avx avx2 fma"), "AMD Zen 3, AVX2"),
        (cpuinfo("AuthenticAMD", 23, 49, "avx avx2 fma"), "AMD Zen 2, AVX2"),
        (
            cpuinfo("GenuineIntel", 6, 143, "avx512f avx512_bf16 avx512_vnni amx_tile"),
            "Intel Sapphire Rapids, AVX-512 with bfloat16, VNNI and AMX",
        ),
        (
            cpuinfo("GenuineIntel", 6, 167, "avx512f avx512_bf16 amx_tile"),
            "Intel Sapphire Rapids or later, AVX-512 with bfloat16 and AMX",
        ),
        (cpuinfo("GenuineIntel", 6, 85, "avx512f", stepping=4), "Intel Skylake-SP, AVX-512"),
        (
            cpuinfo("GenuineIntel", 6, 85, "avx512f avx512_vnni", stepping=7),
            "Intel Cascade Lake, AVX-512 with VNNI",
        ),
        (cpuinfo("GenuineIntel", 6, 42, "avx sse4_2"), "Intel family 6 model 42, AVX"),
        (cpuinfo("AuthenticAMD", 99, 1, "avx2"), "AMD family 99 model 1, " + "x86_64"),
        (
            "processor\t: 0\nFeatures\t: fp asimd sve bf16 i8mm\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n",
            "Arm Neoverse V1, SVE with bfloat16 and int8 products",
        ),
        (
            "processor\t: 0\nFeatures\t: asimd\nCPU implementer\t: 0x99\nCPU part\t: 0x1\n",
            "Arm implementer 0x99 part 0x1, NEON",
        ),
    ],
)
def test_processor_of_a_kernel_s_words_is_told_by_family_and_instruction_set(text, words, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert describe(text) == words


def test_machine_says_which_processor_it_has():
    assert machine()["processor"] == describe()
    assert machine()["processor"].count(", ") >= 1
