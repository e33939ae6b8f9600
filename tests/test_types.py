"""A type checker sees the public names as they are: right calls pass, each wrong one is found."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import cellerate

SOURCE = str(Path(cellerate.__file__).parents[1])
RIGHT = """
import numpy
import cellerate
from cellerate.models.forecast import build_forecast_model
from cellerate.models.text import build_text_model

run = cellerate.train_text(["a.txt", "b.txt"], "m.keras", units=512, clipnorm=1, track=["wandb"])
text: str = cellerate.load("m.cell").generate("Well, ", max_tokens=3)
cellerate.set_num_threads(2)
try:
    cellerate.train_series("a.csv", "s.keras", target="x", quantile=0.5, missing_values=[-999], header=True)
except cellerate.CellerateError as error:
    code: int = error.exit_code
table = cellerate.forecast("s.keras", {"x": numpy.arange(9.0)}, gaps="split", levels=[0.9]).to_pandas()
vectors: numpy.ndarray = cellerate.embed("e.keras", numpy.array(["one", "two"]))
next_rows = cellerate.load("s.cell").forecast(numpy.zeros((96, 7)), times=numpy.arange(96))
found = cellerate.backtest("s.keras", "a.csv", folds=3, separator=";")
train, validation = cellerate.text_batches("a.txt", 100, shuffle=True, errors="replace").split(0.1)
windows = cellerate.windows(numpy.zeros((90, 2)), numpy.zeros(90), 9, batch_size=4, start_index=3)
past: tuple[int, ...] = cellerate.windows({"x": [1.0]}, ["x"], 9, horizon=3, gaps="split").input_shape
built = build_text_model(64, units=[32, 32], tie_weights=True)
built = build_forecast_model(48, 2, 24, 1, target_columns=[1], quantiles=[0.1, 0.5], future=3)
kept: float = cellerate.optimize("m.keras", "a.txt", objective="size", keep=[0.5]).max_quality_loss
"""
# A wrong line → how mypy and how pyright begin to say so.
WRONG = {
    'cellerate.train_text(3, "m.keras")': (
        'Argument 1 to "train_text" has incompatible type "int"',
        'Argument of type "Literal[3]" cannot be assigned to parameter "data"',
    ),
    'cellerate.load("m.cell").generat("x")': (
        '"PackedModel" has no attribute "generat"',
        'Cannot access attribute "generat" for class "PackedModel"',
    ),
    "cellerate.nonsense": (
        'Module has no attribute "nonsense"',
        '"nonsense" is not a known attribute of module "cellerate"',
    ),
    'cellerate.train_series("a.csv")': (
        'Missing positional argument "output" in call to "train_series"',
        'Argument missing for parameter "output"',
    ),
    'cellerate.set_num_threads("two")': (
        'Argument 1 to "set_num_threads" has incompatible type "str"',
        'Argument of type "Literal[\'two\']" cannot be assigned to parameter "count"',
    ),
    'cellerate.train_text("a.txt", "m.keras", unit=512)': (
        'Unexpected keyword argument "unit" for "train_text"; did you mean "units"?',
        'No parameter named "unit"',
    ),
    'cellerate.train_series("a.csv", "s.keras", window="96")': (
        'Argument "window" to "train_series" has incompatible type "str"; expected "int"',
        'Argument of type "Literal[\'96\']" cannot be assigned to parameter "window"',
    ),
    'cellerate.forecast("s.keras", 3)': (
        'Argument 2 to "forecast" has incompatible type "int"',
        'Argument of type "Literal[3]" cannot be assigned to parameter "data"',
    ),
    'cellerate.embed("e.keras", [3])': (
        'List item 0 has incompatible type "int"; expected "str"',
        'Argument of type "list[int]" cannot be assigned to parameter "lines"',
    ),
    'cellerate.train_embed("a.txt", "e.keras", optimizer="adams")': (
        'Argument "optimizer" to "train_embed" has incompatible type "Literal[\'adams\']"',
        'Argument of type "Literal[\'adams\']" cannot be assigned to parameter "optimizer"',
    ),
    'cellerate.optimize("m.keras", "a.txt", objective="speed")': (
        'Argument "objective" to "optimize" has incompatible type "Literal[\'speed\']"',
        'Argument of type "Literal[\'speed\']" cannot be assigned to parameter "objective"',
    ),
    'cellerate.detect("s.keras", "a.csv", seperator=";")': (
        'Unexpected keyword argument "seperator" for "detect"; did you mean "separator"?',
        'No parameter named "seperator"',
    ),
    'cellerate.windows(numpy.zeros(9), None, "9")': (
        'Argument 3 to "windows" has incompatible type "str"; expected "int"',
        'Argument of type "Literal[\'9\']" cannot be assigned to parameter "sequence_length"',
    ),
    'cellerate.windows("a.csv", "x", 9, missing="skip")': (
        'Argument "missing" to "windows" has incompatible type "Literal[\'skip\']"',
        'Argument of type "Literal[\'skip\']" cannot be assigned to parameter "missing"',
    ),
    'cellerate.text_batches(["a.txt"], lenght=100)': (
        'Unexpected keyword argument "lenght" for "text_batches"; did you mean "length"?',
        'No parameter named "lenght"',
    ),
    "build_text_model(64, unit=32)": (
        'Unexpected keyword argument "unit" for "build_text_model"; did you mean "units"?',
        'No parameter named "unit"',
    ),
    "build_forecast_model(48, 2, 24, 1)": (
        'Missing named argument "target_columns" for "build_forecast_model"',
        'Argument missing for parameter "target_columns"',
    ),
    'count: int = cellerate.generate("m.keras", "Well, ")': (
        'Incompatible types in assignment (expression has type "str", variable has type "int")',
        'Type "str" is not assignable to declared type "int"',
    ),
    'cellerate.train_text("a.txt", "m.keras").bits': (
        '"TextRun" has no attribute "bits"',
        'Cannot access attribute "bits" for class "TextRun"',
    ),
}
# The types of public functions are of these packages; reading all that the project can use takes a minute.
MYPY = """
[mypy]
ignore_missing_imports = true
follow_imports = skip
[mypy-cellerate,cellerate.*,numpy.*]
follow_imports = silent
"""


def mypy(folder: Path) -> list[tuple[int, str]]:
    """The line and the text of each error that mypy finds."""
    (folder / "mypy.ini").write_text(MYPY)
    # An editable installation is found by a hook of imports, which type checkers do not run.
    found = _output(folder, "mypy", f"--cache-dir={folder / 'cache'}", "user.py", MYPYPATH=SOURCE)
    parts = [line.split(":", 3) for line in found.splitlines() if " error: " in line]
    return [(int(number), text.strip()) for _, number, _, text in parts]


def pyright(folder: Path) -> list[tuple[int, str]]:
    """The line and the text of each error that pyright finds."""
    pytest.importorskip("pyright", reason="`pip install --group dev` brings pyright")
    (folder / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [SOURCE]}))
    found = json.loads(
        _output(folder, "pyright", "--outputjson", f"--pythonpath={sys.executable}", "user.py")
    )
    errors = [one for one in found["generalDiagnostics"] if one["severity"] == "error"]
    return [(one["range"]["start"]["line"] + 1, one["message"]) for one in errors]


def _output(folder: Path, *command: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.stdout


# Where there is no Node.js, pyright downloads it.
@pytest.mark.parametrize(
    ("checker", "says"),
    [pytest.param(mypy, 0, id="mypy"), pytest.param(pyright, 1, id="pyright", marks=pytest.mark.slow)],
)
def test_type_checker_passes_right_calls_and_finds_each_wrong_one(
    tmp_path: Path, checker: Callable[[Path], list[tuple[int, str]]], says: int
) -> None:
    (tmp_path / "user.py").write_text(RIGHT + "".join(f"{line}\n" for line in WRONG))
    found = checker(tmp_path)
    first = RIGHT.count("\n") + 1
    assert [number for number, _ in found] == [*range(first, first + len(WRONG))], found
    for (_, text), expected in zip(found, WRONG.values(), strict=True):
        assert text.startswith(expected[says]), text
