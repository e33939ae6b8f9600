"""Text files in a folder of the test."""

import pytest


@pytest.fixture
def write(tmp_path):
    """Writes a text file and gives its path."""

    def writer(text: str, name: str = "table.csv"):
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return writer
