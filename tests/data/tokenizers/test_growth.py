"""Tokenizer files that make a text many times as long are refused before the package runs them."""

import base64
import json
import random

import pytest
import tokenizers
from hypothesis import given, settings, strategies as st
from tokenizers import Regex, decoders, models, normalizers

from cellerate.data.tokenizers.file_tokenizer import FileTokenizer
from cellerate.data.tokenizers.growth import MOST_GROWTH, _growth, _steps, check_growth
from cellerate.errors import DataError


def made(**parts):
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"a": 0, "i": 1}, unk_token="a"))
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer.to_str()


def test_table_that_claims_more_bytes_than_it_has_is_refused_before_the_package_takes_them():
    config = {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}}
    with pytest.raises(DataError, match=r"table of characters has 4 bytes and says 4,294,967,295"):
        check_growth(config)


def precompiled(*texts):
    trie = b"\x00" * 8
    data = len(trie).to_bytes(4, "little") + trie + b"\0".join(text.encode() for text in texts)
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


REPLACED = [normalizers.Replace("i", "i" * 20)] * 8
HOSTILE = {
    "chain": made(normalizer=normalizers.Sequence(REPLACED)),
    "nested": made(normalizer=normalizers.Sequence([normalizers.NFC(), normalizers.Sequence(REPLACED)])),
    "one": made(normalizer=normalizers.Replace("i", "x" * 1_000_000)),
    "relay": made(
        normalizer=normalizers.Sequence([normalizers.Replace(a, b * 20) for a, b in ("ab", "bc", "cd")])
    ),
    "folded": made(
        normalizer=normalizers.Sequence(
            [normalizers.Replace("a", "I" * 40), normalizers.Lowercase(), normalizers.Replace("i", "x" * 40)]
        )
    ),
    "empty matches": made(normalizer=normalizers.Sequence([normalizers.Replace(Regex("x*"), "yy")] * 8)),
    "decoder": made(decoder=decoders.Sequence([decoders.Replace("a", "a" * 1000)] * 4)),
}
USUAL = [
    normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]),
    normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
    normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]),
    normalizers.BertNormalizer(),
    # The letters of a transliteration do not grow one after another.
    normalizers.Sequence(
        [normalizers.Replace(chr(letter), chr(ord("a") + letter % 26) * 2) for letter in range(0x410, 0x450)]
    ),
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_file_that_may_make_a_text_many_times_as_long_is_refused(name):
    with pytest.raises(DataError, match=f"more than {MOST_GROWTH} times as long"):
        FileTokenizer(HOSTILE[name])


def test_table_of_characters_with_long_texts_is_refused():
    config = json.loads(made())
    config["normalizer"] = {"type": "Sequence", "normalizers": [precompiled("x" * 99), precompiled("x" * 99)]}
    with pytest.raises(DataError, match="times as long"):
        FileTokenizer(json.dumps(config))


@pytest.mark.parametrize("normalizer", USUAL, ids=range(len(USUAL)))
def test_usual_files_are_taken(normalizer):
    assert FileTokenizer(made(normalizer=normalizer)).encode("a").tolist() == [0]


def test_usual_table_of_characters_and_patterns_do_not_grow_too_much():
    patterns = [{"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}] * 4
    steps = [precompiled("صلى الله عليه وسلم", "fi"), *patterns]
    assert _growth(_steps({"type": "Sequence", "normalizers": steps})) <= MOST_GROWTH


texts = st.text("abc", min_size=1, max_size=3)
replacements = st.lists(
    st.tuples(st.one_of(texts, st.sampled_from([Regex("a*"), Regex("b|c"), Regex("")])), texts), max_size=4
)


@settings(deadline=None, max_examples=200)
@given(replacements, st.text("abc", min_size=1, max_size=12))
def test_no_text_becomes_longer_than_the_bound(steps, text):
    chain = normalizers.Sequence([normalizers.Replace(pattern, content) for pattern, content in steps])
    bound = _growth(_steps(json.loads(made(normalizer=chain))["normalizer"]))
    # A pattern may match once more, at the end.
    assert len(chain.normalize_str(text)) <= bound * (len(text) + 1) + 1e-9


def test_bound_of_single_letters_is_exact():
    draw = random.Random(0)
    for _ in range(50):
        steps = [(draw.choice("abc"), "".join(draw.choices("abc", k=draw.randint(1, 3)))) for _ in range(3)]
        chain = normalizers.Sequence([normalizers.Replace(pattern, content) for pattern, content in steps])
        bound = _growth(_steps(json.loads(made(normalizer=chain))["normalizer"]))
        assert bound == max(len(chain.normalize_str(letter)) for letter in "abcx")
