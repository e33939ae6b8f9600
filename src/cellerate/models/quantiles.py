"""The check of a forecaster's quantiles, which needs no framework."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from cellerate.errors import ConfigError
from cellerate.messages import argument


def check_quantiles(quantiles: Sequence[float], name: str = "quantiles") -> tuple[float, ...]:
    """Returns `quantiles` as floats if they are distinct, ascending and strictly between 0 and 1.

    Args:
        quantiles: The numbers.
        name: The argument that they were given as.

    Raises:
        ConfigError: The quantiles are not such numbers.
    """
    try:
        values = tuple(float(q) for q in quantiles)
    except (TypeError, ValueError):
        values = ()
    ascending = all(a < b for a, b in itertools.pairwise(values))
    if not values or not ascending or not all(0.0 < q < 1.0 for q in values):
        raise ConfigError(
            f"{argument(name)} must be ascending numbers strictly between 0 and 1, such as (0.1, 0.5, 0.9); "
            f"got {quantiles!r}."
        )
    return values
