"""Sampling must draw from exactly the distribution its rules describe, and the very ids of the native core."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.kernels.decoder import sampling
from cellerate.kernels.decoder.sampling import SamplingRules
from cellerate.runtime.text.sampling import sample, sampling_rules, uniform

# Far apart and out of order, so that a wrong sort or a wrong id is seen.
LOGITS = np.array([0.3, 2.0, -1.0, 1.1, 0.9, -3.0, 1.5], dtype=np.float32)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(np.asarray(logits, np.float64) - np.max(logits))
    return weights / weights.sum()


def counts(logits: np.ndarray, rules: SamplingRules, draws: int = 40_000) -> np.ndarray:
    """The number of times that each id is drawn, with one seed and a stream for each draw."""
    rows = np.tile(logits, (draws, 1))
    return np.bincount(sample(rows, rules)[0], minlength=len(logits))


def drawn_natively(
    logits: np.ndarray, rules: SamplingRules, *arguments: Any
) -> tuple[list[int], list[float]]:
    """Ids and scores drawn by the native core, row by row."""
    position, previous = (*arguments, 0, None)[:2]
    pairs = [
        sampling.sample(
            row,
            dataclasses.replace(rules, stream=rules.stream + number),
            position,
            () if previous is None else previous[number],
        )
        for number, row in enumerate(logits)
    ]
    return [drawn for drawn, _ in pairs], [score for _, score in pairs]


def chi_square(observed: np.ndarray, probabilities: np.ndarray) -> float:
    """Pearson's statistic over the ids that can be drawn; the others must never be drawn."""
    possible = probabilities > 0
    assert observed[~possible].sum() == 0
    expected = probabilities[possible] * observed.sum()
    return float(((observed[possible] - expected) ** 2 / expected).sum())


def kept(probabilities: np.ndarray, ids: list[int]) -> np.ndarray:
    result = np.zeros_like(probabilities)
    result[ids] = probabilities[ids]
    return result / result.sum()


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (SamplingRules(seed=1), softmax(LOGITS)),
        (SamplingRules(temperature=0.5, seed=2), softmax(LOGITS / 0.5)),
        (SamplingRules(temperature=3.0, seed=3), softmax(LOGITS / 3.0)),
        (SamplingRules(top_k=3, seed=4), kept(softmax(LOGITS), [1, 6, 3])),
        (SamplingRules(top_k=100, seed=5), softmax(LOGITS)),
        # The sorted probabilities are 0.36, 0.22, 0.15, 0.12, 0.07 …: the sum passes 0.7 at the third.
        (SamplingRules(top_p=0.7, seed=6), kept(softmax(LOGITS), [1, 6, 3])),
        (SamplingRules(top_p=1.0, seed=7), softmax(LOGITS)),
        # top-p applies after top-k: of the best three, the first two hold 0.80 of the mass.
        (SamplingRules(top_k=3, top_p=0.79, seed=8), kept(softmax(LOGITS), [1, 6])),
        # top-p applies after the temperature: at 0.5 the first alone holds 0.56.
        (SamplingRules(temperature=0.5, top_p=0.55, seed=9), kept(softmax(LOGITS), [1])),
        # min-p is relative to the likeliest id: e^(0.9 - 2) = 0.33 stays, e^(0.3 - 2) = 0.18 does not.
        (SamplingRules(min_p=0.2, seed=10), kept(softmax(LOGITS), [1, 6, 3, 4])),
        (SamplingRules(top_k=6, top_p=0.99, min_p=0.5, seed=11), kept(softmax(LOGITS), [1, 6])),
    ],
    ids=str,
)
def test_sample_frequencies_fit_the_distribution(rules: SamplingRules, expected: np.ndarray) -> None:
    # At most 6 degrees of freedom: one seed in 10,000 exceeds 27.9, and the seeds are fixed.
    assert chi_square(counts(LOGITS, rules), expected) < 27.9


def test_sample_with_a_penalty_fits_the_distribution_of_the_logits_it_leaves() -> None:
    # The logit of id 1 is above 0, that of id 2 below; id 6 has left the window.
    rules = SamplingRules(repetition_penalty=2, penalty_window=3, seed=12)
    previous = [np.array([6, 1, 2, 1])] * 40_000
    drawn, _ = sample(np.tile(LOGITS, (40_000, 1)), rules, 0, previous)
    expected = softmax(np.array([0.3, 1.0, -2.0, 1.1, 0.9, -3.0, 1.5]))
    assert chi_square(np.bincount(drawn, minlength=len(LOGITS)), expected) < 27.9


def test_sample_with_temperature_zero_is_the_likeliest_whatever_the_seed() -> None:
    for seed in range(3):
        rules = SamplingRules(temperature=0, top_k=1, seed=seed)
        assert sample(np.stack([LOGITS, -LOGITS, 0 * LOGITS]), rules)[0].tolist() == [1, 5, 0]


RULES = [
    SamplingRules(),
    SamplingRules(temperature=0),
    SamplingRules(temperature=0, repetition_penalty=3, penalty_window=2),
    SamplingRules(temperature=0.6, seed=2**64 - 1, stream=2**40),
    SamplingRules(temperature=3.0, seed=5, stream=7),
    SamplingRules(top_k=4, seed=2**33),
    SamplingRules(top_k=10_000, seed=1),
    SamplingRules(top_p=0.6, seed=2),
    SamplingRules(top_p=1e-9, seed=2),
    SamplingRules(min_p=0.3, seed=3),
    SamplingRules(min_p=1.0, seed=3),
    SamplingRules(repetition_penalty=1.7, seed=4),
    SamplingRules(repetition_penalty=0.5, penalty_window=3, seed=4),
    SamplingRules(repetition_penalty=1.3, penalty_window=8, temperature=1.8, top_k=9, top_p=0.9, min_p=0.05, seed=6),
]  # fmt: skip


@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize("vocabulary", [1, 2, 23, 300])
def test_sample_draws_the_ids_and_scores_of_the_native_core(rules: SamplingRules, vocabulary: int) -> None:
    random = np.random.default_rng(vocabulary)
    for position in (0, 1, 77, 2**32 + 5, 2**63 - 1):
        logits = (random.normal(size=(40, vocabulary)) * 3).astype(np.float32)
        logits[20:] = logits[20:].round()  # ties
        # Ids beyond the logits are known to the embeddings only; some rows have no previous ids yet.
        previous = [random.integers(0, vocabulary + 2, row % 12) for row in range(40)]
        drawn, scores = sample(logits, rules, position, previous)
        expected, expected_scores = drawn_natively(logits, rules, position, previous)
        assert drawn.tolist() == expected
        np.testing.assert_allclose(scores, expected_scores, rtol=1e-6, atol=1e-7)
        assert drawn.dtype == np.int64
        assert scores.dtype == np.float32


def test_uniform_is_philox_as_published() -> None:
    # The first and the last known answer of Random123, 1.14: counter and key are zeros, and digits of pi.
    assert uniform(0, 0, 0) == ((0xE169C58D << 32 | 0x6627E8D5) >> 11) * 2.0**-53
    key, stream, position = 0x299F31D0A4093822, 0x0370734413198A2E, 0x85A308D3243F6A88
    assert uniform(key, stream, position) == ((0x94FDCCEB << 32 | 0xD16CFE09) >> 11) * 2.0**-53


def test_sample_of_ties_with_top_k_keeps_exactly_k() -> None:
    observed = counts(np.zeros(6), SamplingRules(top_k=2, seed=1))
    assert np.count_nonzero(observed) == 2
    assert chi_square(observed, np.array([0.5, 0.5, 0, 0, 0, 0])) < 15.1


def test_sample_with_top_p_met_exactly_keeps_the_smallest_set() -> None:
    logits = np.log(np.array([0.25, 0.5, 0.25]))
    assert counts(logits, SamplingRules(top_p=0.5, seed=1)).tolist() == [0, 40_000, 0]
    assert np.count_nonzero(counts(logits, SamplingRules(top_p=0.51, seed=1))) == 2
    assert counts(logits, SamplingRules(top_p=1e-12, seed=1)).tolist() == [0, 40_000, 0]


@pytest.mark.parametrize("temperature", [1e-300, 1e-9, 1e9])
def test_sample_with_extreme_temperature_stays_defined(temperature: float) -> None:
    drawn, _ = sample(LOGITS[None], SamplingRules(temperature=temperature, seed=1))
    assert 0 <= drawn[0] < len(LOGITS)
    if temperature < 1:
        assert drawn[0] == 1


def test_sample_of_huge_logits_neither_overflows_nor_draws_the_impossible() -> None:
    observed = counts(np.array([-1e30, 1e30, 1e30, -1e30], np.float32), SamplingRules(seed=1))
    assert chi_square(observed, np.array([0, 0.5, 0.5, 0])) < 15.1


@pytest.mark.parametrize(("penalty", "sign"), [(1e-308, 1), (1e308, -1)])
def test_sample_with_a_penalty_beyond_all_bounds_stays_defined(penalty: float, sign: int) -> None:
    # Both logits would leave the range of float64; kept within it they are equal.
    rules = SamplingRules(repetition_penalty=penalty, seed=1)
    drawn, _ = sample(np.full((40, 2), 10.0 * sign), rules, 0, [np.array([0, 1])] * 40)
    assert set(drawn.tolist()) == {0, 1}


def test_sample_without_a_position_draws_the_first_of_a_sequence() -> None:
    logits = np.zeros(1_000, np.float32)
    firsts, seconds = (
        [sampling.sample(logits, SamplingRules(seed=s), at)[0] for s in range(9)] for at in (0, 1)
    )
    assert [sampling.sample(logits, SamplingRules(seed=s))[0] for s in range(9)] == firsts != seconds
    assert [int(sample(logits[None], SamplingRules(seed=s))[0][0]) for s in range(9)] == firsts


def test_sample_rows_are_independent() -> None:
    rows, _ = sample(np.zeros((2_000, 50)), SamplingRules(seed=5))
    assert len(set(rows.tolist())) == 50
    assert abs(np.corrcoef(rows[:-1], rows[1:])[0, 1]) < 0.1


def test_sample_with_the_same_seed_repeats_and_with_another_differs() -> None:
    def drawn(**given: Any) -> list[int]:
        rules = sampling_rules(**given)
        return [int(sample(LOGITS[None], rules, position)[0][0]) for position in range(60)]

    assert drawn(seed=7) == drawn(seed=7)
    assert drawn(seed=7) != drawn(seed=8)
    assert drawn() != drawn()
    assert drawn(seed=7)[:5] == [4, 6, 0, 1, 6]


def test_sample_gives_a_row_of_a_batch_what_it_gives_its_stream_alone() -> None:
    rows = np.random.default_rng(0).normal(size=(5, 9))
    rules = SamplingRules(seed=2, stream=10)
    alone = [sample(rows[n : n + 1], SamplingRules(seed=2, stream=10 + n), 3)[0][0] for n in range(5)]
    assert sample(rows, rules, 3)[0].tolist() == alone


def test_sample_leaves_what_it_is_given_as_it_is() -> None:
    rows = np.tile(LOGITS, (2, 1)).astype(np.float64)
    previous = [np.array([1, 2]), np.array([3])]
    before = rows.copy()
    sample(rows, SamplingRules(temperature=0.3, top_k=2, top_p=0.5, repetition_penalty=2), 0, previous)
    np.testing.assert_array_equal(rows, before)
    assert [array.tolist() for array in previous] == [[1, 2], [3]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sample_of_logits_that_are_not_finite_raises(bad: float, temperature: float) -> None:
    logits = np.zeros((2, 4))
    logits[1, 2] = bad
    with pytest.raises(ModelError, match="NaN or an infinity"):
        sample(logits, SamplingRules(temperature=temperature))


@pytest.mark.parametrize("shape", [(4,), (1, 2, 4), (2, 0)])
def test_sample_of_a_wrong_shape_raises(shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match=r"\(batch, vocabulary\)"):
        sample(np.zeros(shape), SamplingRules())


@pytest.mark.parametrize(
    ("position", "previous", "error", "words"),
    [
        (-1, None, ConfigError, "position"),
        (1.0, None, ConfigError, "position"),
        (0, [np.array([1])], ConfigError, "1 rows; the logits have 2"),
        (0, [np.array([1]), np.array([-1])], DataError, "previous holds -1"),
        (0, [np.array([1]), np.array([0.5])], DataError, "whole numbers"),
    ],
)
def test_sample_with_a_wrong_argument_raises(
    position: Any, previous: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        sample(np.zeros((2, 4)), SamplingRules(repetition_penalty=2), position, previous)


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
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"repetition_penalty": 0},
        {"repetition_penalty": float("inf")},
        {"seed": -1},
        {"seed": 2**64},
        {"seed": 1.5},
    ],
    ids=str,
)
def test_rules_with_a_value_out_of_range_raises_naming_it(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=name):
        sampling_rules(**options)


@given(
    st.lists(st.floats(-50, 50), min_size=1, max_size=30),
    st.floats(0.01, 10),
    st.one_of(st.none(), st.integers(1, 40)),
    st.one_of(st.none(), st.floats(0.001, 1)),
    st.floats(0, 1),
    st.integers(0, 10**6),
)
@settings(max_examples=200, deadline=None)
def test_sample_draws_only_what_the_rules_allow(
    logits: list[float], temperature: float, top_k: int | None, top_p: float | None, min_p: float, seed: int
) -> None:
    rules = sampling_rules(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    (drawn,), (score,) = sample(np.array([logits]), rules)
    assert score == pytest.approx(np.log(softmax(np.array(logits))[drawn]), rel=1e-6, abs=1e-6)
    probabilities = softmax(np.array(logits) / temperature)
    assert probabilities[drawn] >= (min_p - 1e-9) * probabilities.max()
    likelier = probabilities > probabilities[drawn]
    if top_k is not None:
        assert likelier.sum() < top_k
    if top_p is not None:
        allowed = np.sort(probabilities)[::-1][: top_k or None]
        assert probabilities[likelier].sum() <= top_p * allowed.sum() + 1e-9


def test_draw_without_a_position_is_the_first_of_its_stream():
    logits = np.random.default_rng(0).normal(size=500).astype(np.float32)
    firsts = [
        (sampling.sample(logits, rules), sampling.sample(logits, rules, 0), sampling.sample(logits, rules, 1))
        for rules in (SamplingRules(seed=seed) for seed in range(8))
    ]
    assert all(one == first for one, first, _ in firsts)
    assert any(one != second for one, _, second in firsts)
