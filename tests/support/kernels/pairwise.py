"""Fewer cases that still try every pair of values: most faults need only two options together."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest


def pairwise(*factors: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Cases, one value of each factor, in which every two values of two factors occur together at least once.

    Each case is the combination with the most new pairs, so the cases are the same in every run. The product of the
    factors has to be small enough to search.
    """
    places = list(itertools.combinations(range(len(factors)), 2))
    cases = list(itertools.product(*(range(len(factor)) for factor in factors)))
    left = {(a, b, i, j) for a, b in places for i in range(len(factors[a])) for j in range(len(factors[b]))}
    while left:
        best = max(cases, key=lambda case: sum((a, b, case[a], case[b]) in left for a, b in places))
        left -= {(a, b, best[a], best[b]) for a, b in places}
        yield tuple(factor[n] for factor, n in zip(factors, best, strict=True))


def marked(*factors: Sequence[Any]) -> list[tuple[tuple[Any, ...], list[pytest.MarkDecorator]]]:
    """Every combination, with the marks of its test: none if `pairwise` chooses it, else `slow`."""
    chosen = set(pairwise(*factors))
    return [(case, [] if case in chosen else [pytest.mark.slow]) for case in itertools.product(*factors)]
