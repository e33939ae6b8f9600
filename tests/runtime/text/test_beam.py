"""Beam search against every continuation there is."""

import itertools

import numpy as np
import pytest

from cellerate.data.tokenizers.tokenizer import CharacterTokenizer
from cellerate.errors import ConfigError


def _small(packed):
    return packed(tokenizer=CharacterTokenizer("abcd"), vocabulary=4)


def _all(model, prompt, length):
    """Every continuation of a length with its log-probability, the likeliest first."""
    start = model.tokenizer.encode(prompt)
    found = []
    for letters in itertools.product("abcd", repeat=length):
        text = "".join(letters)
        scores = model.score(prompt + text).log_probabilities[len(start) - 1 :]
        found.append((float(scores.sum(dtype=np.float64)), text))
    return sorted(found, reverse=True)


def test_enough_beams_find_the_likeliest_of_all(packed):
    model = _small(packed)
    wanted = _all(model, "ab", 4)
    found = model.beam_search("ab", beams=64, max_tokens=4)
    assert [one.text for one in found[:10]] == [text for _, text in wanted[:10]]
    for one, (total, _) in zip(found, wanted, strict=False):
        assert one.log_probabilities.sum() == pytest.approx(total, abs=1e-4)
        assert model.tokenizer.decode(one.ids) == one.text


def test_one_beam_is_greedy(packed):
    model = packed()
    (found,) = model.beam_search("abc", beams=1, max_tokens=30)
    assert found.text == model.generate("abc", max_tokens=30, temperature=0)
    assert found.reason == "length"


def test_more_beams_find_nothing_less_likely(packed):
    model = packed()
    totals = [
        model.beam_search("abc", beams=beams, max_tokens=12, length_penalty=0)[0].log_probabilities.sum()
        for beams in (1, 4, 32)
    ]
    assert totals[0] <= totals[1] <= totals[2]


def test_a_stop_text_finishes_a_candidate(packed):
    model = _small(packed)
    found = model.beam_search("ab", beams=8, max_tokens=6, stop=["cd", "aa"])
    stopped = [one for one in found if one.reason == "stop"]
    assert stopped
    for one in stopped:
        whole = model.tokenizer.decode(one.ids)
        assert whole in (one.text + "cd", one.text + "aa")
    for one in found:
        assert "cd" not in one.text
        assert "aa" not in one.text


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
def test_candidates_that_are_cut_short_are_not_among_the_found(packed, length_penalty):
    model, ended = _small(packed), 0
    for prompt in ("ab", "ba", "cad", "dd", "bcb"):
        found = model.beam_search(prompt, beams=3, max_tokens=12, stop=["c"], length_penalty=length_penalty)
        assert all(len(one.ids) == 12 for one in found if one.reason == "length")
        assert all(one.ids[-1] == 2 for one in found if one.reason == "stop")
        ended += len(found) == 3 and max(len(one.ids) for one in found) < 12
    assert ended >= 3


def test_no_tokens_give_the_empty_continuation(packed):
    (one,) = _small(packed).beam_search("ab", max_tokens=0)
    assert (one.text, len(one.ids)) == ("", 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beams": 0}, "beams"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"length_penalty": -1.0}, "length_penalty"),
        ({"stop": [""]}, "stop text is empty"),
        ({"prompt": ""}, "prompt is empty"),
    ],
)
def test_wrong_arguments_are_refused(packed, options, message):
    with pytest.raises(ConfigError, match=message):
        packed().beam_search(**({"prompt": "abc"} | options))
