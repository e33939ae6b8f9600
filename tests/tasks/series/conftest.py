"""A table of two noisy sines."""

import pytest

from support.runs.wave_runs import ROWS, hours, wave, write


@pytest.fixture
def data(tmp_path):
    return write(tmp_path / "data.csv", date=hours(ROWS), load=wave(), other=wave(seed=1, level=-3.0))
