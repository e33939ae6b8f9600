"""Ids as text: no part of a stop text is shown, however the ids are cut."""

import itertools

import numpy as np
import pytest

from cellerate.data.tokenizers.tokenizer import ByteTokenizer, CharacterTokenizer
from cellerate.errors import ConfigError
from cellerate.runtime.text.streaming import TextStream, pieces

TEXT = "abcabdabcabcé☃abcx"


def _cuts(ids, sizes):
    ends = list(itertools.accumulate(sizes))
    return [ids[a:b] for a, b in itertools.pairwise([0, *ends, len(ids)])]


@pytest.mark.parametrize(
    "tokenizer", [CharacterTokenizer(TEXT), ByteTokenizer()], ids=["characters", "bytes"]
)
@pytest.mark.parametrize(
    ("stop", "wanted"),
    [
        ([], TEXT),
        (["abd"], "abc"),
        (["abcabc"], "abcabd"),
        (["☃a"], "abcabdabcabcé"),
        (["cx", "x"], "abcabdabcabcé☃ab"),
        (["zzz", "abcxx"], TEXT),
        # The stop text that is complete first ends the text, though another one begins before it.
        (["abcabdabcz", "bd", "abcabdab"], "abca"),
    ],
)
def test_stop_texts_end_the_text_however_it_is_cut(tokenizer, stop, wanted):
    ids = tokenizer.encode(TEXT)
    for sizes in ([], [1] * len(ids), [2] * (len(ids) // 2), [5, 1, 7], [0, 3, 0]):
        shown = list(pieces(_cuts(ids, sizes), tokenizer, stop, ids[:0]))
        assert "".join(shown) == wanted
        assert all(shown)


def test_nothing_is_asked_for_after_a_stop_text():
    tokenizer = CharacterTokenizer(TEXT)

    def chunks():
        yield tokenizer.encode("abc")
        raise AssertionError("asked for more")

    assert list(pieces(chunks(), tokenizer, ["bc"], tokenizer.encode("c"))) == ["a"]


def test_text_is_shown_as_soon_as_it_cannot_be_a_stop_text():
    tokenizer = CharacterTokenizer(TEXT)
    stream = TextStream(tokenizer, ["abd"], tokenizer.encode("c"))
    assert [stream.push(tokenizer.encode(one)) for one in "xabca"] == ["x", "", "", "abc", ""]
    assert stream.finish() == "a"
    assert not stream.stopped


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        ([""], "empty"),
        (["a", ""], "empty"),
        ("ab", r"\['ab'\]"),
        ([1], r"\[1\]; expected a list of texts"),
        (None, "None; expected a list of texts"),
    ],
)
def test_wrong_stop_texts_are_refused(stop, message):
    with pytest.raises(ConfigError, match=message):
        pieces([], ByteTokenizer(), stop, np.empty(0, np.int32))
