"""`make test` with programs that only pretend: what it runs, and what it says in the end."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PRETENDS = """#!/bin/sh
echo "$KERAS_BACKEND $CELLERATE_TARGET $LESSER: ${0##*/} $*" >>asked
case "$KERAS_BACKEND:${0##*/} $*" in
  FAILS) test -z "$FAILED_TESTS" || echo tests/test_it.py::test_that >"$FAILED_TESTS"; exit 1;;
esac
"""


def pretended(folder: Path, *targets: str, fails: str = "nothing") -> tuple[int, str, list[str]]:
    """The exit code of `make`, its output, and the commands that ran; commands like `fails` fail."""
    shutil.copy(ROOT / "Makefile", folder)
    (folder / ".stamps").mkdir()
    for programs in (folder / ".venv/bin", folder / "build/adapters/bin"):
        programs.mkdir(parents=True)
        for name in ("python", "pip", "cmake", "ctest", "ninja"):
            (programs / name).write_text(PRETENDS.replace("FAILS", fails))
            (programs / name).chmod(0o755)
    for name in ("pyproject.toml", "CMakeLists.txt", ".stamps/tools", ".stamps/dev", ".stamps/adapters"):
        (folder / name).touch()
    clean = {
        key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS", "GNUMAKE"))
    }
    for key in ("CELLERATE_TARGET", "LESSER", "KERAS_BACKEND", "FAILED_TESTS"):
        clean.pop(key, None)
    done = subprocess.run(
        ["make", *targets], cwd=folder, env=clean, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return done.returncode, done.stdout, (folder / "asked").read_text().splitlines()


pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def test_suite_that_passes_says_nothing_of_failures(tmp_path: Path) -> None:
    code, output, asked = pretended(tmp_path, "test")
    assert code == 0
    assert "== failed" not in output
    assert sum("-m pytest" in line for line in asked) == 7
    assert not any((tmp_path / ".stamps/failed").iterdir())


@pytest.mark.parametrize(
    ("fails", "part", "tests"),
    [
        ("tensorflow:python*", "test-tensorflow", "   tests/test_it.py::test_that\n"),
        (":python*--ignore*", "test-plain", "   tests/test_it.py::test_that\n"),
        (":ctest*", "test-native-plain", ""),
        (":cmake*", "test-native-plain", ""),
    ],
)
def test_part_that_fails_hides_no_other_and_is_named_in_the_end(
    fails: str, part: str, tests: str, tmp_path: Path
) -> None:
    code, output, asked = pretended(tmp_path, "test", fails=fails)
    assert code != 0
    assert sum("-m pytest" in line for line in asked) == 7
    end = output[output.index("== failed: ") :]
    assert end.startswith(f"== failed: {part}\n{tests}make: *** ")
    assert end.count("== failed") == 1


def test_lesser_instruction_sets_run_the_same_parts_and_name_theirs(tmp_path: Path) -> None:
    code, output, asked = pretended(tmp_path, "test-lesser", fails="torch:*")
    assert code != 0
    assert "== failed: test-torch (AVX2)\n   tests/test_it.py::test_that\n" in output
    lesser = [line for line in asked if "-m pytest" in line and " avx2 AVX2: " in line]
    scalar = [line for line in asked if "-m pytest" in line and " scalar : " in line]
    assert (len(lesser), len(scalar)) == (7, 1)


def test_slow_tests_hold_the_native_ones_and_the_lesser_ones(tmp_path: Path) -> None:
    code, _, asked = pretended(tmp_path, "test-slow", fails=":ctest*address*")
    assert code != 0
    assert any("native-thread" in line for line in asked)
    assert sum("-m slow and not keras" in line or "-m keras and slow" in line for line in asked) == 4
    assert any(" avx2 AVX2: " in line for line in asked)
