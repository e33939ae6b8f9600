"""Valid files, which each test damages."""

import pytest

from cellerate.program import PRECISIONS
from cellerate.runtime.cell import write_cell
from support.runtime.cell_files import small_program


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The bytes of a valid file of each precision."""
    path = tmp_path_factory.mktemp("valid") / "a.cell"
    found = {}
    for precision in PRECISIONS:
        write_cell(path, small_program(), precision=precision, header={"task": "text", "n": [1, 2.5, None]})
        found[precision] = path.read_bytes()
    return found
