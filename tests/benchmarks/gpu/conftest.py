"""Parts that stand in for those of a GPU."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def sleeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the fake parts are found, and where one says which process it has started."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    file = tmp_path / "sleeper"
    monkeypatch.setenv("FAKE_SLEEPER", str(file))
    return file
