"""The healthy machine that each test changes."""

import pytest

from support.machine.machines import Machine


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)
