"""An instruction set stands in each place that docs/architecture.md names, so that none is compiled and never run."""

import re
from pathlib import Path

import pytest

from cellerate.kernels import native
from cellerate.machine.doctor import core as doctor

ROOT = Path(__file__).resolve().parents[2]
# Compiled for its steps alone, which targets whose fma rounds twice take.
STEPS_ONLY = {"fused"}
TARGETS = sorted(path.stem.removeprefix("target_") for path in (ROOT / "csrc/simd").glob("target_*.cpp"))


def missing_places(name: str) -> list[str]:
    """The places in which a target does not stand."""
    build = (ROOT / "cmake/targets.cmake").read_text()
    dispatch = (ROOT / "csrc/simd/dispatch.cpp").read_text()
    places = {
        "cmake/targets.cmake": re.search(rf"cellerate_add_target\(\$\{{library\}} {name}[ )]", build),
        "csrc/simd/dispatch.cpp": f"found.push_back(&{name}::kTarget)" in dispatch,
        "kernels/native.py": f'"{name}"' in (native.target.__doc__ or ""),
        "machine/doctor/core.py": name in doctor._NEEDED or name == "scalar",
    }
    return [place for place, stands in places.items() if not stands]


@pytest.mark.parametrize("name", [name for name in TARGETS if name not in STEPS_ONLY])
def test_target_stands_in_every_place(name: str) -> None:
    assert missing_places(name) == []


def test_forgotten_target_is_missing_everywhere() -> None:
    assert missing_places("avx10") == [
        "cmake/targets.cmake",
        "csrc/simd/dispatch.cpp",
        "kernels/native.py",
        "machine/doctor/core.py",
    ]


def test_targets_that_run_here_are_those_of_the_files() -> None:
    assert set(native.available_targets()) <= set(TARGETS) - STEPS_ONLY
