"""Every verb on a disk that fails at one change after the other: `support.disks.disk_schedule` says what must hold."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.disks import disk_schedule
from support.disks.failing_files import FailingFiles, build_library

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is preloaded is for Linux")


def scheduled(folder: Path, most: int, *verbs: str) -> dict[str, dict[str, Any]]:
    """The findings of the schedule, by verb."""
    disk = FailingFiles(folder / "control")
    environment = os.environ | disk.environment(build_library(folder))
    run = subprocess.run(
        [sys.executable, disk_schedule.__file__, str(folder), "0", str(most), *verbs],
        # The files are the same on every backend, so one backend is enough.
        env=environment
        | {"PYTHONPATH": str(Path(disk_schedule.__file__).parents[2]), "KERAS_BACKEND": "jax"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, dict[str, Any]] = json.loads(run.stdout.splitlines()[-1])
    return found


def check(found: dict[str, dict[str, Any]]) -> None:
    for verb, of_verb in found.items():
        assert not of_verb["wrong"], f"{verb}: {of_verb['wrong'][:3]}"
        # Almost every fault gives an error: only files beside the output may fail silently.
        assert of_verb["failures"] >= of_verb["runs"] > 5, of_verb
        assert of_verb["ended well"] < of_verb["runs"] / 2, of_verb


def test_packing_tables_on_a_failing_disk_leaves_no_partial_output(tmp_path: Path) -> None:
    check(scheduled(tmp_path, 6, "pack data"))


@pytest.mark.slow
def test_verb_on_a_failing_disk_leaves_no_partial_output(tmp_path: Path) -> None:
    found = scheduled(tmp_path, 1000)
    assert found.keys() == disk_schedule.VERBS.keys()
    check(found)
    print({verb: (of_verb["runs"], of_verb["failures"]) for verb, of_verb in found.items()})
