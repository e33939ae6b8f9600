"""Continuing many prompts: each as if it were alone."""

import threading

import numpy as np
import pytest

from cellerate.data.tokenizers.tokenizer import ByteTokenizer
from cellerate.errors import ConfigError, DataError
from cellerate.kernels.decoder.cpu import StepModel

PROMPTS = ["abc", "a", "the quick brown fox", "zé☃", "b" * 300]


def test_prompts_of_other_lengths_are_continued_as_if_alone(packed):
    model = packed()
    found = model.complete(PROMPTS, max_tokens=90, seed=3, temperature=0.9, repetition_penalty=1.2)
    assert [one.reason for one in found] == ["length"] * len(PROMPTS)
    for place, prompt in enumerate(PROMPTS):
        # Each prompt draws from the random sequence of its place, so alone it needs the same place.
        prompts = [PROMPTS[0]] * place + [prompt]
        alone = model.complete(prompts, max_tokens=90, seed=3, temperature=0.9, repetition_penalty=1.2)[-1]
        assert found[place].text == alone.text
        np.testing.assert_array_equal(found[place].ids, alone.ids)
        np.testing.assert_array_equal(found[place].log_probabilities, alone.log_probabilities)
    assert (
        model.generate(PROMPTS[0], max_tokens=90, seed=3, temperature=0.9, repetition_penalty=1.2)
        == found[0].text
    )


def test_more_prompts_than_rows_come_back_in_their_order(packed, monkeypatch):
    model = packed()
    prompts = ["abcdefghijklmnopqrstuvwxyz"[: 1 + n % 26] for n in range(150)]
    wanted = model.complete(prompts, max_tokens=40, temperature=0)
    assert [one.text for one in wanted[:3]] == [
        model.generate(prompt, max_tokens=40, temperature=0) for prompt in prompts[:3]
    ]
    monkeypatch.setattr(StepModel, "rows_at_once", 7)
    again = model.complete(prompts, max_tokens=40, temperature=0)
    assert [one.text for one in again] == [one.text for one in wanted]


def test_ids_and_log_probabilities_are_those_of_the_text(packed):
    model = packed()
    (one,) = model.complete(["abc"], max_tokens=50, seed=1)
    assert model.tokenizer.decode(one.ids) == one.text
    ids = np.concatenate([model.tokenizer.encode("abc"), one.ids])
    logits = model.predict(ids[None])[0].astype(np.float64)
    scores = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    wanted = scores[np.arange(2, len(ids) - 1), ids[3:]]
    np.testing.assert_allclose(one.log_probabilities, wanted, atol=1e-4)


@pytest.mark.parametrize("place", [1, 7, 8, 9, 100])
def test_a_stop_text_ends_one_and_the_ids_end_with_it(packed, place):
    model = packed()
    text = model.generate("abc", max_tokens=300, seed=5)
    stop = text[place : place + 3]
    found, other = model.complete(["abc", "q"], max_tokens=300, seed=5, stop=[stop, "☃☃☃☃☃"])
    assert found.text == text[: text.index(stop)]
    assert found.reason == "stop"
    assert model.tokenizer.decode(found.ids) == found.text + stop
    assert len(found.log_probabilities) == len(found.ids)
    assert other.text == model.complete(["abc", "q"], max_tokens=300, seed=5)[1].text.split(stop)[0]


def test_zero_tokens_give_an_empty_text(packed):
    (one,) = packed().complete(["abc"], max_tokens=0)
    assert (one.text, len(one.ids), len(one.log_probabilities), one.reason) == ("", 0, 0, "length")
    assert packed().complete([]) == []
    assert packed().generate([]) == []


def test_cancel_ends_all_texts_with_their_current_characters(packed):
    model, ended, found = packed(), threading.Event(), []

    def work():
        found.extend(model.complete(["abc", "b"], max_tokens=10**7, cancelled=ended.is_set))

    thread = threading.Thread(target=work)
    thread.start()
    ended.set()
    thread.join(60)
    assert not thread.is_alive()
    assert [one.reason for one in found] == ["cancelled"] * 2
    assert all(len(one.ids) == len(one.text) for one in found)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_cancelled_is_asked_before_each_step(packed, steps):
    asked = iter([False] * steps + [True] * 9)
    found = packed().complete(["abc", "b"], max_tokens=10**7, cancelled=lambda: next(asked))
    assert [one.reason for one in found] == ["cancelled"] * 2
    assert all((len(one.ids) > 0) == (steps > 0) for one in found)
    asked = iter([False] * steps + [True] * 9)
    pieces = packed().generate_text("abc", max_tokens=10**7, cancelled=lambda: next(asked))
    assert len("".join(pieces)) == len(found[0].ids)


def test_unknown_characters_are_left_out_where_asked(packed):
    model = packed()
    with pytest.raises(DataError, match=r"'A'.*position 1 "):
        model.generate("aAb", max_tokens=9)
    wanted = model.generate("ab", max_tokens=9, seed=1)
    assert model.generate("aAb", max_tokens=9, seed=1, errors="ignore") == wanted
    with pytest.raises(ConfigError, match="empty"):
        model.generate("AB", errors="ignore")
    with pytest.raises(ConfigError, match="'replace'"):
        model.generate("a", errors="replace")


def test_bytes_that_are_no_character_do_not_end_the_text(packed):
    model = packed(tokenizer=ByteTokenizer(), vocabulary=256)
    (one,) = model.complete(["é"], max_tokens=400, seed=2)
    assert one.text == bytes(one.ids.tolist()).decode("utf-8", "replace")
    assert "".join(model.generate_text("é", max_tokens=0)) == ""


@pytest.mark.parametrize(
    ("prompts", "options", "kind", "message"),
    [
        ("abc", {}, ConfigError, "list of texts"),
        (["abc", ""], {}, ConfigError, "prompt is empty"),
        ([3], {}, ConfigError, "a text, not int"),
        (None, {}, ConfigError, "a text or a list of texts, not NoneType"),
        (b"abc", {}, ConfigError, "a text or a list of texts, not bytes"),
        (["abc"], {"stop": "abc"}, ConfigError, r"\['abc'\]"),
        (["abc"], {"max_tokens": -1}, ConfigError, "max_tokens"),
    ],
)
def test_wrong_arguments_are_refused(packed, prompts, options, kind, message):
    with pytest.raises(kind, match=message):
        packed().complete(prompts, **options)
