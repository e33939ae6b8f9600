"""One id drawn from logits by the rules of sampling."""

import math
from typing import Any

import numpy as np
import pytest

from cellerate.errors import ConfigError
from cellerate.kernels.decoder.sampling import SamplingRules, sample
from support.kernels.decoder_chains import V, log_softmax

pytestmark = pytest.mark.usefixtures("native_settings")


def _filtered(logits: np.ndarray, rules: SamplingRules) -> np.ndarray:
    """The distribution by the rules without a penalty, written out."""
    p = np.exp(log_softmax(logits.astype(np.float64) / rules.temperature))
    order = np.argsort(-p, kind="stable")
    keep = order[: rules.top_k]
    kept = p[keep] / p[keep].sum()
    keep = keep[np.cumsum(kept) - kept < rules.top_p]
    keep = keep[p[keep] >= rules.min_p * p.max()]
    result = np.zeros_like(p)
    result[keep] = p[keep] / p[keep].sum()
    return result


@pytest.mark.parametrize(
    "rules",
    [
        SamplingRules(seed=1),
        SamplingRules(temperature=0.7, seed=2),
        SamplingRules(top_k=6, seed=3),
        SamplingRules(top_p=0.8, seed=4),
        SamplingRules(min_p=0.1, seed=5),
        SamplingRules(temperature=1.5, top_k=12, top_p=0.9, min_p=0.15, seed=6),
    ],
    ids=["plain", "temperature", "top_k", "top_p", "min_p", "all"],
)
def test_sampling_follows_the_distribution_of_its_rules(rules: SamplingRules) -> None:
    logits = np.random.default_rng(8).standard_normal(V).astype(np.float32) * 1.5
    expected = _filtered(logits, rules)
    count = 20_000
    drawn = np.bincount([sample(logits, rules, place)[0] for place in range(count)], minlength=V)
    possible = expected > 0
    assert not drawn[~possible].any()
    chi_square = ((drawn - count * expected)[possible] ** 2 / (count * expected[possible])).sum()
    freedom = possible.sum() - 1
    # Four standard deviations of chi-square, which the fixed seeds make a matter of fact.
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)


def test_streams_of_one_seed_draw_other_ids() -> None:
    logits = np.zeros(1000, np.float32)
    ids = {
        stream: sample(logits, SamplingRules(seed=3, stream=stream))[0] for stream in (0, 1, 2**32, 2**64 - 1)
    }
    assert len(set(ids.values())) == len(ids)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 96, 1000])
@pytest.mark.parametrize("spread", [1e-3, 3.0, 400.0])
def test_log_probabilities_hold_from_flat_to_steep(size: int, spread: float) -> None:
    logits = (np.random.default_rng(size).standard_normal(size) * spread).astype(np.float32)
    expected = log_softmax(logits.astype(np.float64))
    for temperature in (0.0, 1e-300, 1.0, 1e300):
        drawn, score = sample(logits, SamplingRules(temperature=temperature, seed=4), 7)
        np.testing.assert_array_max_ulp(np.float32(score), np.float32(expected[drawn]), 1)
        if temperature < 1e-3:
            assert drawn == logits.argmax()


def test_a_sample_reports_the_log_probability_of_the_model() -> None:
    logits = np.random.default_rng(8).standard_normal(V).astype(np.float32)
    rules = SamplingRules(temperature=0.3, top_k=4, repetition_penalty=1.5)
    drawn, score = sample(logits, rules, 0, [2, 5])
    assert score == pytest.approx(log_softmax(logits.astype(np.float64))[drawn], rel=1e-6)


def test_the_penalty_makes_ids_seen_less_likely() -> None:
    logits = np.float32([2.0, 1.9, -1.0, -1.1])
    greedy = SamplingRules(temperature=0, repetition_penalty=2)
    assert sample(logits, greedy)[0] == 0
    assert sample(logits, greedy, 0, [0])[0] == 1
    assert sample(np.float32([-1.0, -1.1]), greedy, 0, [0])[0] == 1
    window = SamplingRules(temperature=0, repetition_penalty=2, penalty_window=1)
    assert sample(logits, window, 0, [0, 1])[0] == 0


@pytest.mark.parametrize("penalty", [1e-308, 1e308])
@pytest.mark.parametrize("logits", [[10.0, 0.0, 1.0], [-3.0, -1.0, -2.0], [3e38, -3e38, 0.0]])
def test_a_penalty_that_overflows_still_draws_an_id(penalty: float, logits: list[float]) -> None:
    for seen in ([0], [0, 1, 2]):
        for temperature in (0.0, 0.7):
            rules = SamplingRules(repetition_penalty=penalty, temperature=temperature)
            assert 0 <= sample(np.float32(logits), rules, 0, seen)[0] < 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"top_k": 0},
        {"top_p": 0.0},
        {"min_p": 1.5},
        {"repetition_penalty": 0.0},
        {"seed": -1},
        {"seed": 2**64},
    ],
)
def test_wrong_rules_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SamplingRules(**wrong)
