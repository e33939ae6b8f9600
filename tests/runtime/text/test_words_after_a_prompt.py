"""Continuations with tokenizers whose ids mean other text at the beginning than within a text."""

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from cellerate.data.tokenizers.file_tokenizer import FileTokenizer
from cellerate.runtime.text.streaming import TextStream
from cellerate.serving.routes.token_details import TokenReader

STARTS, INNER = ["the", "cat", "sat"], ["s", "ly"]


def _metaspace(*more):
    words = ["<unk>", *(f"▁{one}" for one in STARTS), *INNER]
    made = tokenizers.Tokenizer(models.Unigram([(one, -1.0) for one in words], unk_id=0, byte_fallback=False))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Sequence([decoders.Metaspace(), *more]) if more else decoders.Metaspace()
    return made


def _word_piece():
    words = ["<unk>", *STARTS, *(f"##{one}" for one in INNER)]
    made = tokenizers.Tokenizer(models.WordPiece({one: n for n, one in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.decoder = decoders.WordPiece(cleanup=False)
    return made


def _llama():
    """As the files of Llama decode: a space for each mark, and the first space of a text left out."""
    made = _metaspace()
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(steps)
    return made


def _word_level():
    words = {one: n for n, one in enumerate(["<unk>", *STARTS, *INNER])}
    made = tokenizers.Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


@pytest.fixture(params=[_metaspace, _word_piece, _llama, _word_level], ids=lambda make: make.__name__[1:])
def tokenizer(request):
    return FileTokenizer(request.param().to_str())


def _ids(tokenizer, count, seed=0):
    """Ids of words and of their endings, the first of a word."""
    ids = np.random.default_rng(seed).integers(1, tokenizer.vocabulary_size, count)
    ids[0] = 1
    return ids


@pytest.mark.parametrize("place", [1, 2, 7, 20, 39])
def test_a_prompt_and_its_continuation_are_the_text_of_all_ids(tokenizer, place):
    for seed in range(5):
        ids = _ids(tokenizer, 40, seed)
        stream = TextStream(tokenizer, (), ids[:place])
        text = "".join(stream.push(ids[n : n + 1]) for n in range(place, 40)) + stream.finish()
        assert tokenizer.decode(ids[:place]) + text == tokenizer.decode(ids)


def test_texts_of_a_model_begin_with_their_space(tokenizer, packed):
    model = packed(tokenizer=tokenizer, vocabulary=tokenizer.vocabulary_size)
    prompt = "the cat"
    spaces = 0
    for seed in range(6):
        (one,) = model.complete([prompt], max_tokens=9, seed=seed)
        whole = tokenizer.decode([*tokenizer.encode(prompt), *one.ids])
        assert prompt + one.text == whole
        assert prompt + model.generate(prompt, max_tokens=9, seed=seed) == whole
        spaces += one.text.startswith(" ")
    assert spaces
    for one in model.beam_search(prompt, beams=5, max_tokens=4):
        assert prompt + one.text == tokenizer.decode([*tokenizer.encode(prompt), *one.ids])


def test_a_stop_text_may_begin_with_the_first_space(tokenizer, packed):
    model = packed(tokenizer=tokenizer, vocabulary=tokenizer.vocabulary_size)
    found = model.beam_search("the cat", beams=tokenizer.vocabulary_size, max_tokens=1, stop=[" sat"])
    (stopped,) = (one for one in found if one.reason == "stop")
    assert stopped.text == ""
    assert stopped.ids.tolist() == [STARTS.index("sat") + 1]


def test_ids_end_with_the_stop_text_that_begins_with_the_first_space(tokenizer, packed):
    model = packed(tokenizer=tokenizer, vocabulary=tokenizer.vocabulary_size)
    stops = 0
    for seed in range(12):
        (free,) = model.complete(["the cat"], max_tokens=40, seed=seed)
        (one,) = model.complete(["the cat"], max_tokens=40, seed=seed, stop=[" cat"])
        if one.reason != "stop":
            continue
        stops += one.text == ""
        assert one.ids.tolist() == free.ids[: len(one.ids)].tolist()
        np.testing.assert_array_equal(one.log_probabilities, free.log_probabilities[: len(one.ids)])
        texts = [tokenizer.decode([*tokenizer.encode("the cat"), *one.ids[:n]]) for n in (-1, None)]
        assert [" cat" in text.removeprefix("the cat") for text in texts] == [False, True]
    assert stops


@pytest.mark.parametrize("echo", [False, True])
def test_the_texts_of_single_ids_join_to_the_text(tokenizer, packed, echo):
    model = packed(tokenizer=tokenizer, vocabulary=tokenizer.vocabulary_size)
    ids = _ids(tokenizer, 12)
    text = tokenizer.decode(ids[:5])
    reader = TokenReader(model.steps, tokenizer, 1, text)
    told = reader.prompt(ids[:5], tell=echo)
    drawn = reader.drawn(ids[5:])
    whole = tokenizer.decode(ids)
    assert text + "".join(drawn["tokens"]) == whole
    assert all(
        whole[at:].startswith(name) for at, name in zip(drawn["text_offset"], drawn["tokens"], strict=True)
    )
    assert "".join(told["tokens"] if told else ()) == (text if echo else "")
