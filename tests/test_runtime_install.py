"""What a machine that only runs packed models has: the package and NumPy, installed as a user installs them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cellerate
from cellerate.data.tokenizers.tokenizer import CharacterTokenizer
from cellerate.kernels import native
from cellerate.program import Node, Program
from cellerate.runtime.cell import write_cell

ROOT = Path(__file__).resolve().parents[1]
PIP = (sys.executable, "-m", "pip")
OWN_LIMIT_BYTES = 15_500_000  # what the package adds to NumPy, its bytecode included; decision 9
RUN_LIMIT_BYTES = 4_900_000  # of that, what generating from a packed model reads
CHARACTERS = " abcdefgh"
HEAVY = (
    "keras",
    "jax",
    "torch",
    "tensorflow",
    "pyarrow",
    "typer",
    "rich",
    "psutil",
    "safetensors",
    "ml_dtypes",
)
# Imports every module that a deployed model could need.
EVERYTHING = """
import importlib, pkgutil, sys
import cellerate.data, cellerate.kernels, cellerate.runtime
for package in (cellerate.data, cellerate.kernels, cellerate.runtime):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if module.name != "cellerate.data.pipeline":  # Keras's own batches
            importlib.import_module(module.name)
import cellerate.machine.environment, cellerate.files, cellerate.measure
"""


def run(*words, environment=None):
    """Runs a command far from the sources, with bytecode written as on a user's machine."""
    own = {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONWARNINGS", "KERAS_BACKEND"}
    return subprocess.run(
        [str(word) for word in words],
        env={name: value for name, value in os.environ.items() if name not in own} | (environment or {}),
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


def checked(*words):
    done = run(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The package as it is built from these files, but for the native core: that one is compiled already."""
    folder = tmp_path_factory.mktemp("wheel")
    without_core = ["-C", "wheel.cmake=false", "-C", "wheel.py-api=py3"]
    checked(*PIP, "wheel", "--no-deps", "--no-build-isolation", *without_core, "-w", folder, ROOT)
    return next(folder.glob("cellerate-*.whl"))


@pytest.fixture(scope="module")
def install(wheel, tmp_path_factory):
    """Makes an environment of its own with the package and an extra, and gives its folder of programs."""
    made = []

    def make(extra=""):
        folder = tmp_path_factory.mktemp("environment")
        made.append(folder)
        checked(sys.executable, "-m", "venv", "--without-pip", folder)
        python = folder / "bin" / "python"
        checked(*PIP, "--python", python, "install", f"{wheel}{extra}")
        core = Path(native.core().__file__)
        shutil.copy(core, packages(folder / "bin") / "cellerate" / "kernels" / core.name)
        return folder / "bin"

    yield make
    for folder in made:
        shutil.rmtree(folder)


def packages(programs):
    return next(programs.parent.glob("lib/python*/site-packages"))


@pytest.fixture(scope="module")
def alone(install):
    """`pip install cellerate`."""
    return install()


@pytest.fixture(scope="module")
def with_cli(install):
    """`pip install 'cellerate[cli]'`."""
    return install("[cli]")


@pytest.fixture(scope="module")
def cell(tmp_path_factory):
    """A packed model, written here."""
    random = np.random.default_rng(0)

    def draw(*shape):
        return random.normal(size=shape).astype(np.float32)

    vocabulary, units = len(CHARACTERS), 20
    options = {
        "activation": "tanh",
        "recurrent_activation": "sigmoid",
        "masked_output": "zero",
        "go_backwards": False,
        "return_sequences": True,
    }
    lstm = {"kernel": draw(6, 4 * units), "recurrent_kernel": draw(units, 4 * units), "bias": draw(4 * units)}
    nodes = (
        Node("input", "ids", options={"shape": (-1, -1), "dtype": "int32"}),
        Node("embedding", "table", {"ids": 0}, {"embeddings": draw(vocabulary, 6)}),
        Node("lstm", "memory", {"x": 1}, lstm, options),
        Node("dense", "head", {"x": 2}, {"kernel": draw(units, vocabulary)}, {"activation": "linear"}),
    )
    path = tmp_path_factory.mktemp("packed") / "model.cell"
    header = {"task": "text", "payload": {"tokenizer": CharacterTokenizer(CHARACTERS).to_config()}}
    write_cell(path, Program(nodes, {"logits": 3}), precision="int8", header=header)
    return path


def test_package_adds_little_to_numpy_with_its_bytecode(alone):
    files = [path for path in packages(alone).rglob("*") if path.is_file()]
    assert any(path.suffix == ".pyc" and "numpy" in path.parts for path in files)
    assert {path.stem.split(".")[0] for path in files if path.suffix == ".so"} >= {
        "_core",
        "_multiarray_umath",
    }
    own = [path for path in files if not path.relative_to(packages(alone)).parts[0].startswith("numpy")]
    assert any(path.suffix == ".pyc" for path in own)
    assert sum(path.stat().st_size for path in own) <= OWN_LIMIT_BYTES


def test_packed_model_reads_at_most_4_9_mb_of_the_package(alone, cell):
    program = (
        "import os, sys, cellerate\n"
        "cellerate.load(sys.argv[1]).generate('abc', max_tokens=3, seed=7)\n"
        "found = [m for name, m in sys.modules.items() if name.partition('.')[0] == 'cellerate']\n"
        "files = {getattr(m, name, None) for m in found for name in ('__file__', '__cached__')}\n"
        "print(sum(os.path.getsize(path) for path in files if path and os.path.exists(path)))\n"
    )
    assert 1_000_000 < int(checked(alone / "python", "-c", program, cell)) <= RUN_LIMIT_BYTES


def test_runtime_alone_is_the_package_and_numpy(alone):
    program = "import importlib.metadata as m; print(*sorted(d.name for d in m.distributions()))"
    assert checked(alone / "python", "-c", program) == "cellerate numpy\n"


def test_packed_model_runs_on_the_runtime_alone_as_it_does_here(alone, cell):
    program = (
        "import json, sys, cellerate, numpy as np\n"
        "model = cellerate.load(sys.argv[1])\n"
        "text = model.generate('abc', max_tokens=300, seed=7)\n"
        "logits = model.predict(np.arange(8).reshape(2, 4))\n"
        "print(json.dumps([text, logits.tolist(), sorted({name.partition('.')[0] for name in sys.modules})]))\n"
    )
    text, logits, modules = json.loads(checked(alone / "python", "-c", program, cell))
    model = cellerate.load(cell)
    assert text == model.generate("abc", max_tokens=300, seed=7)
    assert np.array_equal(np.array(logits, np.float32), model.predict(np.arange(8).reshape(2, 4)))
    assert not set(HEAVY) & set(modules)


def test_every_module_of_the_runtime_can_be_imported_on_it_alone(alone):
    program = EVERYTHING + "print(len([name for name in sys.modules if name.startswith('cellerate.')]))"
    assert int(checked(alone / "python", "-c", program)) > 25


def test_modules_of_the_runtime_import_nothing_that_is_not_theirs():
    """In this environment, where all of it could be imported."""
    program = EVERYTHING + f"print([name for name in {HEAVY} if name in sys.modules])"
    assert checked(sys.executable, "-c", program) == "[]\n"


@pytest.mark.parametrize(
    ("program", "extra"),
    [
        ("cellerate.select_backend()", "jax"),
        ("cellerate.select_backend('torch')", "torch"),
        ("import pathlib, cellerate.data.tables.tables as t; t.open_table(pathlib.Path('t.csv'))", "tables"),
        ("import cellerate.data.text.line_files as f; f.read_lines(sys.argv[1])", "tables"),
        ("import cellerate.machine.environment as e; e.resident_memory_bytes()", "train"),
        (
            "import cellerate.data.tokenizers.opening as t; t.tokenizer_from_config({'kind': 'file', 'json': '{}'})",
            "tokenizers",
        ),
    ],
)
def test_what_needs_another_package_says_how_to_install_it(alone, tmp_path, program, extra):
    parquet = tmp_path / "lines.parquet"
    parquet.write_bytes(b"PAR1")
    program = (
        "import sys, cellerate, cellerate.errors\n"
        f"try: exec({program!r})\n"
        "except cellerate.errors.BackendError as error: print(error)\n"
    )
    assert f"pip install 'cellerate[{extra}]'" in checked(alone / "python", "-c", program, parquet)


def test_command_line_on_the_runtime_alone_says_how_to_install_it(alone):
    for words in (["--help"], ["generate", "model.cell", "abc"]):
        done = run(alone / "cellerate", *words)
        assert (done.returncode, done.stdout) == (5, "")
        assert done.stderr == (
            "error: the command line needs the package 'typer', which is not installed. "
            "Install it with: pip install 'cellerate[cli]'\n"
        )


def test_command_line_without_keras_runs_packed_models(with_cli, cell):
    shown = checked(with_cli / "cellerate", "generate", cell, "abc", "-n", "50", "--seed", "7", "-t", "1")
    assert shown == f"abc{cellerate.load(cell).generate('abc', max_tokens=50, seed=7)}\n"
    found = json.loads(checked(with_cli / "cellerate", "env", "--json"))
    assert set(found["versions"]) == {"cellerate", "numpy"}
    assert found["backends"] == []
    assert found["machine"]["memory_bytes"] > 2**20
    for words in (["--help"], ["pack", "--help"], ["train", "text", "--help"]):
        assert "Usage: cellerate" in checked(with_cli / "cellerate", *words)


@pytest.mark.parametrize(
    "words",
    [
        ["generate", "book.keras", "abc"],
        ["train", "text", "book.txt", "-o", "book.keras"],
        ["explain", "book.keras"],
    ],
)
def test_command_line_without_keras_says_how_to_install_a_backend(with_cli, words):
    done = run(with_cli / "cellerate", *words)
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr == (
        "error: no Keras backend is installed. Install one with: pip install 'cellerate[jax]' "
        "(or cellerate[torch], cellerate[tensorflow])\n"
    )


def test_backend_without_keras_says_how_to_install_it(with_cli, tmp_path):
    (tmp_path / "jax.py").touch()
    done = run(with_cli / "cellerate", "explain", "book.keras", environment={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 5
    assert done.stderr == (
        "error: backend 'jax' needs the package 'keras', which is not installed. "
        "Install it with: pip install 'cellerate[jax]'\n"
    )
