"""The bundle for a machine with a GPU has all that runs there, and a command that does it."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import records
from benchmarks.gpu import bundle as gpu_bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("carried") / "bundle"
    folder.mkdir()
    gpu_bundle.copy_project(folder)
    return folder


def test_bundle_has_the_project_without_what_was_made_of_it(bundle):
    files = {str(file.relative_to(bundle / "project")) for file in bundle.rglob("*") if file.is_file()}
    assert files >= {
        "pyproject.toml", "CMakeLists.txt", "LICENSE", "README.md", "cmake/extension.cmake",
        "csrc/bindings/bindings.cpp",
        "src/cellerate/kernels/lstm/cuda/lstm.cuh", "benchmarks/gpu/suite.py", "benchmarks/training/race.py", "BUNDLE",
    }  # fmt: skip
    assert not [name for name in files if name.endswith((".pyc", ".so", ".json"))]
    assert sum(file.stat().st_size for file in bundle.rglob("*")) < 10 << 20


def test_bundle_runs_without_git_and_knows_its_commit(bundle, tmp_path):
    project = bundle / "project"
    program = (
        "import cellerate; from benchmarks import records; from benchmarks.gpu import suite\n"
        "print(cellerate.__file__, records.new_record('gpu')['commit'])"
    )
    packages = Path(np.__file__).parents[1]
    # As there: Python with NumPy, and the bundle in place of what is installed here, which `-S` leaves out.
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=project,
        env={"PYTHONPATH": f"{project / 'src'}:{packages}", "PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    where, commit = done.stdout.split()
    assert Path(where).is_relative_to(project)
    assert [commit, records.digest_of(project)] == (project / records.BUNDLE).read_text().split()


def test_wheels_are_those_of_training_and_building():
    names = {one.replace(">", "=").split("=")[0] for one in gpu_bundle.requirements("train", "cuda")}
    assert names >= {"keras", "h5py", "rich", "numpy", "nanobind", "scikit-build-core", "ninja", "cuda-core"}
    assert not any("cellerate" in name for name in names)


def test_kernels_of_the_suite_are_compiled_in_several_processes_and_kept(tmp_path):
    program = (
        "import itertools; from benchmarks.gpu import compiling, sizes\n"
        "every = sizes.kernels\n"
        "sizes.kernels = lambda: itertools.islice(every(), 3)\n"
        "compiling.main()\n"
    )
    environment = os.environ | {"CELLERATE_CACHE": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, cwd=records.ROOT)
    kept = [file for file in (tmp_path / "cuda" / "entries").rglob("*") if file.is_file()]
    assert len(kept) == 3


def test_command_is_short_and_a_shell_takes_it(tmp_path):
    command = gpu_bundle.command(tmp_path / "bundle", 590)
    assert len(command) < 2000 and "$PWD/bundle;" in command and '-o "$OUT"' in command
    subprocess.run(["bash", "-n", "-c", command], check=True)
    # The time is what the commands before it have left.
    (minutes,) = [line.partition("--minutes ")[2] for line in command.splitlines() if "--minutes" in line]
    told = subprocess.run(
        ["bash", "-c", f"SECONDS=290; echo {minutes}"], check=True, capture_output=True, text=True
    )
    assert float(told.stdout) == pytest.approx(5, abs=0.1)
