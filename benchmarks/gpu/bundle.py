"""Make the folder to carry to a machine with a GPU, and print the command to run there.

    python -m benchmarks.gpu.bundle FOLDER [--seconds 590] [--carry pyarrow] [--with PYTHON]

For a machine with CPython 3.12 on x86-64 Linux, torch and CUDA's compiler for Python, but without a network: the folder
has the project, and the wheels of its further requirements. With `--with PYTHON`, an interpreter of that version that
has NumPy and that machine's NVRTC, the package and the kernels are built here, which saves minutes there.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.records import BUNDLE, ROOT, commit_of, digest_of

PROJECT = ("src", "csrc", "cmake", "benchmarks", "CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE")
_NOT_COPIED = ("__pycache__", "*.so", "*.egg-info", "results")
# Packages that such a machine has, which are too large to carry.
THERE = ("numpy", "torch", "jax", "jaxlib", "nvidia-cuda-nvrtc", "pyarrow", "cmake")
# Packages that the machine has but perhaps too old: installed only in that case.
CUDA = ("cuda-core", "cuda-bindings", "cuda-pathfinder")
MOST_BYTES = 60 << 20
_FOR = [
    *("--python-version", "3.12", "--implementation", "cp", "--only-binary=:all:"),
    *("--platform", "manylinux2014_x86_64"),
    *(word for n in range(17, 29) for word in ("--platform", f"manylinux_2_{n}_x86_64")),
]
BUILT, KERNELS = "built", "kernels.tar.xz"
# Enter the folder; install its wheels, and the CUDA wheels if the installed ones are too old; install the prebuilt
# kernels and package, or else build the package, with its native core if that compiles in time; and run the suite in
# the remaining time.
_COMMAND = """\
B=$PWD/{folder}; T=$(mktemp -d); OUT=${{OUT:-$PWD/gpu-results}}
I="python3 -m pip install -q --no-index --no-deps --no-compile --disable-pip-version-check --root-user-action ignore"
export PYTHONUNBUFFERED=1 PYTHONPATH=$T:$B/project/src PATH=$T/bin:$PATH
$I --target $T $B/wheels/*.whl
python3 -c 'from cellerate.kernels.cuda import build; exit(build.why_unavailable())' ||
$I --target $T $B/wheels/cuda/*.whl
if [ -e $B/{kernels} ]; then export CELLERATE_CACHE=$(mktemp -d); tar -xJf $B/{kernels} -C $CELLERATE_CACHE; fi
cd $B/project; $I --target $T $B/{built}/*.whl 2>/dev/null || timeout 150 $I --target $T --no-build-isolation . ||
echo 'the package is not installed: no native core'
python3 -m benchmarks.gpu.suite -o "$OUT" --minutes $(python3 -c "print(({seconds}-$SECONDS)/60)")
"""


def copy_project(folder: Path) -> None:
    """Put the project into a folder of a bundle, with its commit."""
    to = folder / "project"
    for name in PROJECT:
        from_ = ROOT / name
        if from_.is_dir():
            shutil.copytree(from_, to / name, ignore=shutil.ignore_patterns(*_NOT_COPIED))
        else:
            shutil.copy(from_, to / name)
    (to / BUNDLE).write_text(f"{commit_of(ROOT)} {digest_of(to)}\n")


def requirements(*extras: str) -> list[str]:
    """The packages that the project needs with some of its extras, and to be built, from pyproject.toml."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())
    own = f"{told['project']['name']}["
    found = [*told["project"]["dependencies"], *told["dependency-groups"]["build"]]
    asked = list(extras)
    for extra in asked:
        for one in told["project"]["optional-dependencies"][extra]:
            if one.startswith(own):
                asked.append(one.removeprefix(own).rstrip("]"))
            else:
                found.append(one)
    return found


def download(folder: Path, carried: Sequence[str]) -> None:
    """Fetch the wheels into a folder of a bundle; of packages on every machine, only those named in `carried`."""
    wanted = _resolved(requirements("train", "cuda"), folder)
    left_out = set(THERE) - set(carried)
    for to, names in (
        ("wheels", [name for name in wanted if name not in left_out and name not in CUDA]),
        ("wheels/cuda", [name for name in wanted if name in CUDA]),
    ):
        pinned = [f"{name}=={wanted[name]}" for name in names]
        _pip("download", "--no-deps", "--dest", str(folder / to), *_FOR, *pinned)


def _resolved(required: Sequence[str], folder: Path) -> dict[str, str]:
    """The version of each required package, including dependencies."""
    report = folder / "report.json"
    unused = str(folder / "unused")
    _pip(
        "install",
        "--dry-run",
        "--ignore-installed",
        "--target",
        unused,
        "--report",
        str(report),
        *_FOR,
        *required,
    )
    installed: list[dict[str, Any]] = json.loads(report.read_text())["install"]
    report.unlink()
    found = [one["metadata"] for one in installed]
    return {one["name"].lower().replace("_", "-"): one["version"] for one in found}


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True)


def command(folder: Path, seconds: float) -> str:
    """The shell command to run in the folder that holds the bundle; results go to $OUT.

    Args:
        folder: The folder of the bundle.
        seconds: The most seconds of the command.
    """
    return _COMMAND.format(folder=folder.name, seconds=f"{seconds:g}", built=BUILT, kernels=KERNELS)


def build_beforehand(folder: Path, python: Path) -> None:
    """Put the package as a wheel, and all kernels of the suite, into a bundle with its project and wheels.

    Args:
        folder: The folder of the bundle.
        python: An interpreter of the machine's version, with NumPy and the machine's NVRTC.

    Raises:
        subprocess.CalledProcessError: Something cannot be built; the output above says why.
    """
    with tempfile.TemporaryDirectory() as temporary:
        site, cache = Path(temporary) / "site", Path(temporary) / "cache"
        environment = os.environ | {
            "PYTHONPATH": str(site),
            "PATH": f"{site / 'bin'}:{os.environ['PATH']}",
            "CELLERATE_CACHE": str(cache),
        }

        def run(*arguments: object) -> None:
            command = [str(python), *map(str, arguments)]
            project = folder / "project"
            subprocess.run(command, check=True, env=environment, cwd=project, stdout=sys.stderr)

        pip = ("-m", "pip", "--quiet", "--disable-pip-version-check")
        install = (*pip, "install", "--no-index", "--no-deps", "--target", site)
        run(*install, *sorted((folder / "wheels").rglob("*.whl")))
        to = ("--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", folder / BUILT)
        run(*pip, "wheel", *to, folder / "project")
        run(*install, *(folder / BUILT).glob("*.whl"))
        run("-m", "benchmarks.gpu.compiling")
        with tarfile.open(folder / KERNELS, "w:xz", preset=6) as archive:
            archive.add(cache, ".")


def main() -> int:
    """Make the bundle, and check its size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where to; it must not be there yet")
    parser.add_argument("--seconds", type=float, default=590, help="what the command may take; default: 590")
    parser.add_argument(
        "--carry", action="append", default=[], choices=THERE, help="a wheel that is left out else"
    )
    parser.add_argument(
        "--with", type=Path, dest="python", metavar="PYTHON", help="builds the package and the kernels here"
    )
    given = parser.parse_args()
    if given.folder.exists():
        parser.error(f"{given.folder} is there already")
    given.folder.mkdir(parents=True)
    copy_project(given.folder)
    download(given.folder, given.carry)
    if given.python is not None:
        build_beforehand(given.folder, given.python)
    sizes = {file: file.stat().st_size for file in given.folder.rglob("*") if file.is_file()}
    total = sum(sizes.values())
    print(f"{given.folder}: {total / (1 << 20):.1f} MiB in {len(sizes)} files", file=sys.stderr)
    if total > MOST_BYTES:
        for file in sorted(sizes, key=sizes.__getitem__)[-5:]:
            print(f"{sizes[file] / (1 << 20):.1f} MiB {file}", file=sys.stderr)
        print(f"that is more than {MOST_BYTES >> 20} MiB", file=sys.stderr)
        return 1
    print("Carry it, and run in the folder that it lies in:\n", file=sys.stderr)
    print(command(given.folder, given.seconds), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
