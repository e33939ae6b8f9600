"""A type checker sees the public names as they are: right calls pass, each wrong one is found."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cellerate

RIGHT = """
import cellerate

run = cellerate.train_text(["a.txt", "b.txt"], "m.keras", units=512, clipnorm=1.0)
text: str = cellerate.load("m.cell").generate("Well, ", max_tokens=3)
cellerate.set_num_threads(2)
try:
    cellerate.train_series("a.csv", "s.keras", target="x", resume=True)
except cellerate.CellerateError as error:
    code: int = error.exit_code
"""
WRONG = {
    'cellerate.train_text(3, "m.keras")': 'Argument 1 to "train_text" has incompatible type "int"',
    'cellerate.load("m.cell").generat("x")': '"PackedModel" has no attribute "generat"',
    "cellerate.nonsense": 'Module has no attribute "nonsense"',
    'cellerate.train_series("a.csv")': 'Missing positional argument "output" in call to "train_series"',
    'cellerate.set_num_threads("two")': 'Argument 1 to "set_num_threads" has incompatible type "str"',
}


@pytest.mark.slow
def test_type_checker_passes_right_calls_and_finds_each_wrong_one(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(RIGHT + "".join(f"{line}\n" for line in WRONG))
    first = RIGHT.count("\n") + 1
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--config-file=", f"--cache-dir={tmp_path / 'cache'}"),
            *("--ignore-missing-imports", "--follow-imports=silent", "--no-error-summary", "user.py"),
        ],
        cwd=tmp_path,
        # An editable installation is found by a hook of imports, of which mypy knows nothing.
        env=os.environ | {"MYPYPATH": str(Path(cellerate.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(WRONG), done.stdout + done.stderr
    for number, (line, expected) in enumerate(zip(lines, WRONG.values(), strict=True), first):
        assert line.startswith(f"user.py:{number}: error: {expected}"), line
