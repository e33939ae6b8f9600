"""Sampling must draw from exactly the distribution its settings describe, and repeat for a seed."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellerate.errors import ConfigError, ModelError
from cellerate.runtime.sampling import Sampling, sample

# Far apart and out of order, so that a wrong sort or a wrong id is seen.
LOGITS = np.array([0.3, 2.0, -1.0, 1.1, 0.9, -3.0, 1.5], dtype=np.float32)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(np.asarray(logits, np.float64) - np.max(logits))
    return weights / weights.sum()


def counts(logits: np.ndarray, sampling: Sampling, draws: int = 40_000) -> np.ndarray:
    rows = np.tile(logits, (draws, 1))
    return np.bincount(sample(rows, sampling, sampling.generator()), minlength=len(logits))


def chi_square(observed: np.ndarray, probabilities: np.ndarray) -> float:
    """Pearson's statistic over the tokens that can be drawn; the others must never be."""
    possible = probabilities > 0
    assert observed[~possible].sum() == 0
    expected = probabilities[possible] * observed.sum()
    return float(((observed[possible] - expected) ** 2 / expected).sum())


def kept(probabilities: np.ndarray, ids: list[int]) -> np.ndarray:
    result = np.zeros_like(probabilities)
    result[ids] = probabilities[ids]
    return result / result.sum()


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(seed=1), softmax(LOGITS)),
        (Sampling(temperature=0.5, seed=2), softmax(LOGITS / 0.5)),
        (Sampling(temperature=3.0, seed=3), softmax(LOGITS / 3.0)),
        (Sampling(top_k=3, seed=4), kept(softmax(LOGITS), [1, 6, 3])),
        (Sampling(top_k=100, seed=5), softmax(LOGITS)),
        # The probabilities in order are 0.36, 0.22, 0.15, 0.12, 0.07 …: 0.7 is first passed by the third.
        (Sampling(top_p=0.7, seed=6), kept(softmax(LOGITS), [1, 6, 3])),
        (Sampling(top_p=1.0, seed=7), softmax(LOGITS)),
        # top-p counts what top-k left: of the best three, the first two hold 0.80 of the mass.
        (Sampling(top_k=3, top_p=0.79, seed=8), kept(softmax(LOGITS), [1, 6])),
        # top-p counts after the temperature: at 0.5 the first alone holds 0.56.
        (Sampling(temperature=0.5, top_p=0.55, seed=9), kept(softmax(LOGITS), [1])),
    ],
    ids=str,
)
def test_sample_frequencies_fit_the_distribution(sampling: Sampling, expected: np.ndarray) -> None:
    # 6 degrees of freedom at most: above 27.9 once in 10,000 seeds, and the seeds are fixed.
    assert chi_square(counts(LOGITS, sampling), expected) < 27.9


def test_sample_with_temperature_zero_is_the_likeliest_and_uses_no_randomness() -> None:
    rng = Sampling(seed=3).generator()
    drawn = sample(np.stack([LOGITS, -LOGITS]), Sampling(temperature=0, top_k=1), rng)
    assert drawn.tolist() == [1, 5]
    assert rng.random() == Sampling(seed=3).generator().random()


def test_sample_of_ties_with_top_k_keeps_exactly_k() -> None:
    observed = counts(np.zeros(6), Sampling(top_k=2, seed=1))
    assert np.count_nonzero(observed) == 2
    assert chi_square(observed, np.array([0.5, 0.5, 0, 0, 0, 0])) < 15.1


def test_sample_with_top_p_met_exactly_keeps_the_smallest_set() -> None:
    logits = np.log(np.array([0.25, 0.5, 0.25]))
    assert counts(logits, Sampling(top_p=0.5, seed=1)).tolist() == [0, 40_000, 0]
    assert np.count_nonzero(counts(logits, Sampling(top_p=0.51, seed=1))) == 2
    assert counts(logits, Sampling(top_p=1e-12, seed=1)).tolist() == [0, 40_000, 0]


@pytest.mark.parametrize("temperature", [1e-300, 1e-9, 1e9])
def test_sample_with_extreme_temperature_stays_defined(temperature: float) -> None:
    drawn = sample(LOGITS[None], Sampling(temperature=temperature, seed=1), Sampling(seed=1).generator())
    assert 0 <= drawn[0] < len(LOGITS)
    if temperature < 1:
        assert drawn[0] == 1


def test_sample_of_huge_logits_neither_overflows_nor_draws_the_impossible() -> None:
    observed = counts(np.array([-1e30, 1e30, 1e30, -1e30], np.float32), Sampling(seed=1))
    assert chi_square(observed, np.array([0, 0.5, 0.5, 0])) < 15.1


def test_sample_rows_are_independent() -> None:
    sampling = Sampling(seed=5)
    rows = sample(np.zeros((2_000, 50)), sampling, sampling.generator())
    assert len(set(rows.tolist())) == 50
    assert abs(np.corrcoef(rows[:-1], rows[1:])[0, 1]) < 0.1


def test_sample_with_the_same_seed_repeats_and_with_another_differs() -> None:
    def drawn(seed: int | None) -> list[int]:
        sampling = Sampling(seed=seed)
        rng = sampling.generator()
        return [int(sample(LOGITS[None], sampling, rng)[0]) for _ in range(60)]

    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)
    assert drawn(None) != drawn(None)
    assert drawn(7)[:5] == [3, 6, 6, 1, 1]  # PCG64 and float64: the same on every machine


def test_sample_leaves_the_logits_as_they_are() -> None:
    rows = np.tile(LOGITS, (2, 1)).astype(np.float64)
    before = rows.copy()
    sample(rows, Sampling(temperature=0.3, top_k=2, top_p=0.5, seed=1), Sampling(seed=1).generator())
    np.testing.assert_array_equal(rows, before)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sample_of_logits_that_are_not_finite_raises(bad: float, temperature: float) -> None:
    logits = np.zeros((2, 4))
    logits[1, 2] = bad
    with pytest.raises(ModelError, match="NaN or an infinity"):
        sample(logits, Sampling(temperature=temperature), Sampling(seed=1).generator())


@pytest.mark.parametrize("shape", [(4,), (1, 2, 4), (2, 0)])
def test_sample_of_a_wrong_shape_raises(shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match=r"\(batch, vocabulary\)"):
        sample(np.zeros(shape), Sampling(), Sampling(seed=1).generator())


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": "1"},
        {"temperature": True},
        {"top_k": 0},
        {"top_k": 2.0},
        {"top_k": True},
        {"top_p": 0},
        {"top_p": 1.0001},
        {"top_p": float("nan")},
        {"seed": -1},
        {"seed": 1.5},
    ],
    ids=str,
)
def test_sampling_with_a_value_out_of_range_raises_naming_it(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=name):
        Sampling(**options)


@given(
    st.lists(st.floats(-50, 50), min_size=1, max_size=30),
    st.floats(0.01, 10),
    st.one_of(st.none(), st.integers(1, 40)),
    st.one_of(st.none(), st.floats(0.001, 1)),
    st.integers(0, 10**6),
)
@settings(max_examples=200, deadline=None)
def test_sample_draws_only_what_the_rules_allow(
    logits: list[float], temperature: float, top_k: int | None, top_p: float | None, seed: int
) -> None:
    sampling = Sampling(temperature, top_k, top_p, seed)
    (drawn,) = sample(np.array([logits]), sampling, sampling.generator())
    probabilities = softmax(np.array(logits) / temperature)
    likelier = probabilities > probabilities[drawn]
    if top_k is not None:
        assert likelier.sum() < top_k
    if top_p is not None:
        allowed = np.sort(probabilities)[::-1][: top_k or None]
        assert probabilities[likelier].sum() <= top_p * allowed.sum() + 1e-9
