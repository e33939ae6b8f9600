import math

import numpy as np
import pytest

from cellerate.data.tokenizers.tokenizer import ByteTokenizer, CharacterTokenizer
from cellerate.tasks.text.split import count_split, counting_verdict


def split(text, fraction, tokenizer=None):
    tokenizer = tokenizer or CharacterTokenizer(text)
    ids = tokenizer.encode(text)
    cut = len(ids) - int(len(ids) * fraction)
    return count_split(tokenizer, ids[:cut], ids[cut:], asked=fraction > 0)


def test_text_that_is_long_enough_leaves_nothing_to_say():
    assert split("the cat sat on the mat.\n" * 1000, 0.05).remarks() == []


def test_text_small_for_its_vocabulary_says_how_often_each_character_occurs():
    text = "".join(chr(0x4E00 + n) for n in range(600)) * 20
    (said,) = split(text, 0.05).remarks()
    assert said.startswith(
        "the text is small for its vocabulary: 11,400 characters to train on, 600 different ones"
    )
    assert "19.0 times on average" in said
    assert "tokenizer='bytes'" in said
    for tokenizer, unit in ((ByteTokenizer(), "bytes"), (None, "characters")):
        (said,) = split("abcdefghijklmnopqrstuvwxyz" * 10, 0.0, tokenizer).remarks()
        assert f"260 {unit} to train on, 26 different ones" in said
        assert "tokenizer=" not in said


def test_characters_of_the_held_out_part_alone_are_named_with_their_share():
    (said,) = split("ab" * 9500 + "c" * 1000, 0.05).remarks()
    assert said.startswith("'c' occurs in the held-out part only, 100.0% of it: the model cannot learn it")
    (said,) = split("ab" * 9500 + "abcdefghij" * 100, 0.05).remarks()
    assert said.startswith("'c', 'd', 'e', 'f', 'g' and 3 more occur in the held-out part only, 80.0% of it")


def test_held_out_part_too_small_to_judge_by_says_so():
    (said,) = split("ab" * 500, 0.05).remarks()
    assert said.startswith("the held-out part has 50 characters: too few")
    (said,) = split("ab" * 500, 0.001).remarks()
    assert said.startswith("nothing is held out: of 1,000 characters the share asked for is 1.")
    assert split("ab" * 500, 0.0).remarks() == []


def test_unigram_bits_are_those_of_counting_by_hand():
    found = split("aaab" * 100 + "ab" * 10, 20 / 420)
    chances = np.array([301, 101]) / 402
    assert found.unigram_bits() == pytest.approx(-(math.log2(chances[0]) + math.log2(chances[1])) / 2)


def test_counts_are_the_same_however_long_the_text_is(monkeypatch):
    whole = split("abcabca" * 50, 0.3)
    monkeypatch.setattr("cellerate.tasks.text.split._CHUNK", 7)
    again = split("abcabca" * 50, 0.3)
    np.testing.assert_array_equal(whole.head, again.head)
    np.testing.assert_array_equal(whole.tail, again.tail)


def test_verdict_of_a_model_that_is_worse_than_counting_says_so_and_why():
    worse = counting_verdict(7468.2, 4.3, "Training made it worse.")
    assert worse == {
        "beats_counting": False,
        "sentence": "Worse than counting: 7,468.20 bits per character against 4.30 by how often each occurs. "
        "Training made it worse.",
    }
    better = counting_verdict(2.1, 4.3, "It has not learned enough yet.")
    assert better["beats_counting"] is True
    assert "learned" not in better["sentence"]
