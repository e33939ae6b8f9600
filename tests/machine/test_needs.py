"""Sizes that no memory holds are refused with the arguments to make smaller."""

import pytest

from cellerate.errors import ConfigError
from cellerate.machine import needs
from cellerate.tasks.settings import (
    AutoencoderArchitecture,
    ForecastArchitecture,
    LineOptions,
    SeriesOptions,
    TextArchitecture,
    TextOptions,
)


@pytest.fixture(autouse=True)
def _four_megabytes(monkeypatch):
    monkeypatch.setattr(needs, "memory_bytes", lambda: 4_000_000)


@pytest.mark.parametrize(
    ("architecture", "fits"),
    [
        # 4 bytes, weights and gradients, 4 gates: 32 x units squared.
        (ForecastArchitecture(units=350), True),
        (ForecastArchitecture(units=354), False),
        (ForecastArchitecture(units=354, cell="gru"), True),
        (ForecastArchitecture(units=350, layers=2), False),
        (ForecastArchitecture(units=10**12), False),
        (TextArchitecture(units=300, embedding=100), True),
        (TextArchitecture(units=300, embedding=200), False),
        (AutoencoderArchitecture(units=300, latent=10**6), False),
    ],
)
def test_model_larger_than_the_memory_is_refused(architecture, fits):
    options = {
        ForecastArchitecture: SeriesOptions(),
        TextArchitecture: TextOptions(),
        AutoencoderArchitecture: LineOptions(),
    }[type(architecture)]
    if fits:
        needs.check_memory(options, architecture)
    else:
        with pytest.raises(ConfigError, match=r"weights of the model and their gradients.*has 4 MB"):
            needs.check_memory(options, architecture)
    needs.check_memory(options, None)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (SeriesOptions(window=10**4, batch_size=101), "window=10000 and batch_size=101"),
        (TextOptions(length=10**7), "length=10000000"),
        (LineOptions(batch_size=10**9), "batch_size=1000000000"),
    ],
)
def test_batch_larger_than_the_memory_is_refused(options, named):
    with pytest.raises(ConfigError) as raised:
        needs.check_memory(options, None)
    assert str(raised.value).startswith(f"{named} would need")
    assert "for a single batch" in str(raised.value)
