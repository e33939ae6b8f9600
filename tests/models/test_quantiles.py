"""The check of quantiles, which names the argument that they were given as."""

import pytest

from cellerate.errors import ConfigError
from cellerate.models.quantiles import check_quantiles


@pytest.mark.parametrize(
    "bad", [(), (0.5, 0.5), (0.9, 0.1), (0.0, 0.5), (0.5, 1.0), ("a",), 3, (float("nan"),)]
)
def test_check_quantiles_of_anything_but_ascending_fractions_raises_config_error(bad):
    with pytest.raises(ConfigError, match="quantiles"):
        check_quantiles(bad)


def test_check_quantiles_of_whole_numbers_names_the_argument_and_numbers():
    assert check_quantiles([0.1, 0.9]) == (0.1, 0.9)
    with pytest.raises(ConfigError, match=r"quantile must be ascending .* got \[10, 90\]"):
        check_quantiles([10, 90], "quantile")
