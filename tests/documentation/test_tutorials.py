"""The notebooks run from their first cell to their last, in an empty folder."""

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.keras,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]
NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "docs" / "tutorials").glob("*.ipynb"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = json.loads(notebook.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell.get("outputs") for cell in cells), "notebooks are kept without results"
    # A test installs nothing, and trains for seconds.
    assert code[0].startswith("%pip install")
    names: dict[str, Any] = {}
    for number, cell in enumerate(code[1:], 1):
        exec(
            compile(
                cell.replace("max_seconds=20", "max_seconds=3"), f"{notebook.name}, cell {number}", "exec"
            ),
            names,
        )
