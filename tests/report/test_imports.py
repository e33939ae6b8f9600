"""Reports are drawn and compared where only the extra `report` is installed."""

import subprocess
import sys

from cellerate.report.record import write_run

# An import of any of these would fail there.
ABSENT = ("keras", "jax", "torch", "tensorflow", "h5py", "pyarrow", "psutil", "matplotlib", "safetensors")
PROGRAM = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
from cellerate.cli.main import main
main()
"""


def test_report_needs_neither_keras_nor_a_framework(text_run, tmp_path):
    write_run(text_run, tmp_path / "a")
    for words in (["a"], ["a", "a", "-o", "b"]):
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM, "report", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (0, "")
    assert {path.name for path in tmp_path.rglob("*.*")} == {
        "report.json", "report.html", "report.md", "compare.html", "compare.md", "compare.json"
    }  # fmt: skip
