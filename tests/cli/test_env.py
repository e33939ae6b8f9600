import json

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
