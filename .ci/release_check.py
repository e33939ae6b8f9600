"""Do offline what a release does: `make release-check`. Results are in build/release/.

The source distribution and the wheel are built twice and must be the same bytes; both are checked as PyPI checks them,
installed in an empty environment of each Python at hand, and run there. Licences and the parts of an installation are
listed.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "release"
OLDEST = (3, 11)
# A model of one operation, packed and run without a framework.
_TRY = """
import sys
import numpy as np
import cellerate
from cellerate.kernels import native
from cellerate.program import Node, Program
from cellerate.runtime.cell import write_cell
nodes = (
    Node("input", "x", options={"shape": (-1, 3), "dtype": "float32"}),
    Node("activation", "y", {"x": 0}, options={"activation": "tanh"}),
)
write_cell("tiny.cell", Program(nodes, {"y": 1}))
x = np.ones((2, 3), np.float32)
np.testing.assert_allclose(cellerate.load("tiny.cell").predict(x), np.tanh(x), rtol=1e-6)
assert native.why_unavailable() is None, native.why_unavailable()
assert not {"keras", "tensorflow", "jax", "torch"} & set(sys.modules)
print(cellerate.__version__, "on", sys.version.split()[0], "with the core for", native.target())
"""
# Licences that ask something of those who use a package in a program of their own.
_ASKING = ("GPL", "AGPL", "SSPL", "Commons Clause")


def main() -> None:
    """Build, check, install and list."""
    if not __debug__:
        raise SystemExit("run it without -O: its checks are assertions")
    shutil.rmtree(OUT, ignore_errors=True)
    files = built()
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    source, wheel = files
    run(sys.executable, "-m", "auditwheel", "show", wheel)
    for python in pythons():
        tried(python, source if "-cp311-" in wheel.name and python[1] > OLDEST else wheel)
    listed(wheel)
    print(f"release check: all well; {OUT.relative_to(ROOT)} has the files")


def run(*command: object, **options: object) -> str:
    """Run a command, show what it says, and give that."""
    done = subprocess.run(  # type: ignore[call-overload]
        [str(word) for word in command], check=False, text=True, capture_output=True, **options
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    print(done.stdout.strip())
    return str(done.stdout)


def built() -> tuple[Path, Path]:
    """The source distribution and the wheel, built twice from the committed files."""
    date = subprocess.check_output(["git", "log", "-1", "--format=%ct"], cwd=ROOT, text=True).strip()
    made = []
    for attempt in ("first", "second"):
        folder = OUT / attempt
        # At one place, whose name is in what compilers write.
        copy = Path(tempfile.gettempdir()) / "cellerate-release-source"
        shutil.rmtree(copy, ignore_errors=True)
        run("git", "clone", "--quiet", ROOT, copy)
        environment = os.environ | {"SOURCE_DATE_EPOCH": date, "CELLERATE_REQUIRE_NATIVE": "1"}
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, copy, env=environment)
        shutil.rmtree(copy)
        made.append(sorted(folder.iterdir(), reverse=True))
    for one, other in zip(*made, strict=True):
        assert one.name == other.name, f"two builds have other names: {one.name}, {other.name}"
        assert digest(one) == digest(other), f"two builds of {one.name} differ"
        print(f"{one.name}: twice the same {one.stat().st_size:,} bytes, sha256 {digest(one)}")
    found = [Path(shutil.move(path, OUT / path.name)) for path in made[0]]
    for attempt in ("first", "second"):
        shutil.rmtree(OUT / attempt)
    (source,) = (path for path in found if path.name.endswith(".tar.gz"))
    (wheel,) = (path for path in found if path.suffix == ".whl")
    return source, wheel


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def pythons() -> Iterator[tuple[str, tuple[int, int]]]:
    """Each Python at hand that is not too old: on the path, or kept by pyenv."""
    kept = sorted(Path("~/.pyenv/versions").expanduser().glob("*/bin"))
    path = os.pathsep.join([*map(str, kept), os.environ["PATH"]])
    for minor in range(OLDEST[1], 20):
        found = shutil.which(f"python3.{minor}", path=path)
        if found and subprocess.run([found, "-c", ""], check=False).returncode == 0:
            yield found, (3, minor)


def tried(python: tuple[str, tuple[int, int]], file: Path) -> None:
    """Install a file in an empty environment of a Python, and run a packed model there."""
    with tempfile.TemporaryDirectory() as top:
        run(python[0], "-m", "venv", f"{top}/venv")
        here = f"{top}/venv/bin/python"
        run(here, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", file)
        run(here, "-c", _TRY, cwd=top, env={"PATH": os.environ["PATH"]})


def listed(wheel: Path) -> None:
    """List the licences, and the parts of an installation as a CycloneDX document."""
    with tempfile.TemporaryDirectory() as top:
        run(sys.executable, "-m", "venv", f"{top}/venv")
        here = f"{top}/venv/bin/python"
        extras = "cli,report,serve,tables,onnx"
        run(here, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[{extras}]")
        text = run(sys.executable, "-m", "piplicenses", f"--python={here}", "--format=json", "--from=mixed")
        run(sys.executable, "-m", "cyclonedx_py", "environment", here, "-o", OUT / "sbom.json")
    licences = {one["Name"]: one["License"] for one in json.loads(text)}
    asking = {name: text for name, text in licences.items() if any(word in text for word in _ASKING)}
    lines = [f"{name}: {text}\n" for name, text in sorted(licences.items())]
    (OUT / "licences.txt").write_text("".join(lines))
    assert not asking, f"licences that ask something of users: {asking}"


if __name__ == "__main__":
    main()
