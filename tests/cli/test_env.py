import json
import os
import subprocess
import sys

import pytest

from cellerate.environment import installed_backends


def test_env_json_has_machine_versions_and_backends(cellerate):
    code, out, err = cellerate("env", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["machine"]["cores"] >= 1
    assert found["machine"]["memory_bytes"] > 2**20
    assert {"cellerate", "keras", "numpy"} <= set(found["versions"])
    assert found["backends"] == installed_backends()
    assert found["native core"]["target"] == found["native core"]["targets"][0]
    assert found["native core"]["threads"] >= 1


@pytest.mark.parametrize(
    ("name", "value", "hint"), [("CELLERATE_TARGET", "sse9", "scalar"), ("CELLERATE_THREADS", "many", "1024")]
)
def test_env_with_a_wrong_setting_of_the_native_core_is_one_clear_error(name, value, hint):
    # The core reads its environment once, so this takes a process of its own.
    program = "from cellerate.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "env"],
        env=os.environ | {name: value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert value in done.stderr and hint in done.stderr and "Traceback" not in done.stderr


def test_env_without_the_native_core_says_what_is_missing(cellerate, monkeypatch):
    monkeypatch.setattr("cellerate.kernels.cpu.missing", lambda: "not compiled: install g++")
    code, out, _ = cellerate("env")
    assert code == 0
    assert "not compiled: install g++" in out


def test_env_in_words_shows_the_same(cellerate):
    code, out, _ = cellerate("env")
    assert code == 0
    for word in ("machine", "versions", "backends", "keras", "GiB", ", ".join(installed_backends())):
        assert word in out


@pytest.mark.slow
def test_env_devices_asks_every_backend(cellerate):
    code, out, _ = cellerate("env", "--devices", "--json")
    assert code == 0
    assert all(json.loads(out)["devices"][name] for name in installed_backends())
