"""The score of a text, read in one go and in pieces."""

import math

import numpy as np
import pytest

from cellerate.data.tokenizers.tokenizer import ByteTokenizer, CharacterTokenizer
from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.runtime.text import scoring


def _text(characters, length, seed=0):
    return "".join(np.random.default_rng(seed).choice(list(characters), length))


def _log_probabilities(model, text):
    ids = model.tokenizer.encode(text).astype(int)
    logits = model.predict(ids[None])[0].astype(np.float64)
    return (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))[np.arange(len(ids) - 1), ids[1:]]


@pytest.mark.parametrize("length", [2, 3, 100, 1500])
def test_a_score_is_that_of_predict(packed, text_model, length):
    model, text = packed(), _text(text_model.characters, length)
    score, wanted = model.score(text), _log_probabilities(packed(), text)
    np.testing.assert_allclose(score.log_probabilities, wanted, atol=1e-5 * np.abs(wanted).max())
    assert score.nats_per_token == pytest.approx(-wanted.mean(), rel=1e-6)
    assert score.bits_per_character == pytest.approx(-wanted.mean() / math.log(2), rel=1e-6)
    assert score.perplexity == pytest.approx(math.exp(-wanted.mean()), rel=1e-5)
    assert (score.tokens, score.characters) == (length - 1, length)


def test_bytes_are_counted_as_characters(packed):
    model = packed(tokenizer=ByteTokenizer(), vocabulary=256)
    score = model.score("é☃é")
    assert (score.tokens, score.characters) == (6, 3)
    assert score.bits_per_character == pytest.approx(score.nats_per_token / math.log(2) * 7 / 3)


def test_texts_are_scored_as_if_alone(packed, text_model):
    model = packed()
    texts = [_text(text_model.characters, n, n) for n in (70, 2, 500, 9, 71)]
    for one, text in zip(model.score(texts), texts, strict=True):
        np.testing.assert_array_equal(one.log_probabilities, model.score(text).log_probabilities)
    assert model.score([]) == []


def test_more_texts_than_rows_are_scored_in_their_order(packed, text_model, monkeypatch):
    model = packed()
    texts = [_text(text_model.characters, 2 + n % 50, n) for n in range(130)]
    wanted = model.score(texts)
    monkeypatch.setattr(scoring, "_ROWS", 9)
    for one, same in zip(model.score(texts), wanted, strict=True):
        np.testing.assert_array_equal(one.log_probabilities, same.log_probabilities)


@pytest.mark.parametrize("context", [1, 7, 40])
def test_pieces_score_every_id_once_and_start_their_context_early(packed, text_model, context):
    model, text = packed(), _text(text_model.characters, 8 * 40 * 5 + 3)
    whole = model.score(text, context=None).log_probabilities
    found = model.score(text, context=context).log_probabilities
    np.testing.assert_array_equal(whole, model.score(text, context=10**6).log_probabilities)
    pieces = scoring._pieces(0, len(text), context)
    assert len(pieces) > 4
    for piece in pieces:
        # The scores by predict, reading from `context` ids before the piece.
        part = _log_probabilities(model, text[piece.start : piece.stop])
        wanted = part[piece.first - 1 - piece.start :]
        np.testing.assert_allclose(
            found[piece.first - 1 : piece.stop - 1], wanted, atol=1e-5 * np.abs(part).max()
        )
        assert piece.start == max(0, piece.first - 1 - context)
    np.testing.assert_array_equal(
        np.concatenate([np.arange(p.first, p.stop) for p in pieces]), np.arange(1, len(text))
    )


def test_pieces_forget_what_lies_before_their_context(packed, text_model):
    model, text = packed(), _text(text_model.characters, 30_000)
    whole, pieces = model.score(text, context=None), model.score(text)
    assert len(scoring._pieces(0, len(text), scoring.CONTEXT)) > 2
    # After so many ids the beginning has no effect that float32 can represent.
    np.testing.assert_allclose(pieces.log_probabilities, whole.log_probabilities, atol=1e-5)
    assert pieces.bits_per_character == pytest.approx(whole.bits_per_character, rel=1e-7)


@pytest.mark.parametrize("errors", ["strict", "ignore"])
@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_line_ends_count_as_they_are_read(packed, end, errors):
    model = packed(tokenizer=CharacterTokenizer("\nabcd"), vocabulary=5)
    found, expected = (model.score(f"ab{each}{each}cd", errors=errors) for each in (end, "\n"))
    assert (found.characters, found.tokens) == (expected.characters, expected.tokens) == (6, 5)
    assert found.bits_per_character == expected.bits_per_character


def test_characters_left_out_are_not_counted(packed):
    model = packed()
    score = model.score("aAbBc", errors="ignore")
    assert (score.tokens, score.characters) == (2, 3)
    np.testing.assert_array_equal(score.log_probabilities, model.score("abc").log_probabilities)


@pytest.mark.parametrize(
    ("text", "options", "kind", "message"),
    [
        ("", {}, ConfigError, "text to score is empty"),
        ("a", {}, DataError, "at least 2"),
        (["abc", "b"], {}, DataError, "text 1"),
        ("aA", {}, DataError, "'A'"),
        ("ab", {"context": 0}, ConfigError, "context"),
        ("ab", {"errors": "no"}, ConfigError, "'no'"),
    ],
)
def test_wrong_arguments_are_refused(packed, text, options, kind, message):
    with pytest.raises(kind, match=message):
        packed().score(text, **options)


def test_logits_that_overflow_are_named(packed):
    model = packed()
    for node in model.cell.program.nodes:
        if node.op == "dense":
            overflowing = dict(node.arrays) | {"kernel": np.full_like(node.arrays["kernel"], 3e38)}
            object.__setattr__(node, "arrays", overflowing)
    with pytest.raises(ModelError, match="diverged"):
        model.score("abcabc")


def test_files_are_scored_as_their_text(packed, text_model, tmp_path, monkeypatch):
    monkeypatch.setenv("CELLERATE_CACHE", str(tmp_path / "cache"))
    model, text = packed(), _text(text_model.characters, 3000)
    (tmp_path / "a.txt").write_text(text)
    found = model.score_files([tmp_path / "a.txt"])
    np.testing.assert_array_equal(found.log_probabilities, model.score(text).log_probabilities)
    (tmp_path / "wide.txt").write_text(text, encoding="utf-16")
    wide = model.score_files([tmp_path / "wide.txt"], encoding="utf-16")
    np.testing.assert_array_equal(wide.log_probabilities, found.log_probabilities)
    with pytest.raises(ConfigError, match="held out"):
        model.score_files([tmp_path / "a.txt"], part="held-out")
    model.cell.header["payload"]["validation_fraction"] = 0.1
    held = model.score_files([tmp_path / "a.txt"], part="held-out")
    np.testing.assert_array_equal(held.log_probabilities, model.score(text[-300:]).log_probabilities)
    model.cell.header["payload"]["validation_fraction"] = "1"
    with pytest.raises(ModelError, match="validation_fraction is '1'"):
        model.score_files([tmp_path / "a.txt"], part="held-out")
    with pytest.raises(ConfigError, match="'some'"):
        model.score_files([tmp_path / "a.txt"], part="some")
    with pytest.raises(DataError, match=r"b\.txt"):
        model.score_files([tmp_path / "b.txt"])


def test_bytes_held_out_are_counted_as_characters(packed, tmp_path, monkeypatch):
    monkeypatch.setenv("CELLERATE_CACHE", str(tmp_path / "cache"))
    model = packed(tokenizer=ByteTokenizer(), vocabulary=256)
    (tmp_path / "a.txt").write_text("é" * 50)
    model.cell.header["payload"]["validation_fraction"] = 0.2
    found = model.score_files([tmp_path / "a.txt"], part="held-out")
    assert (found.tokens, found.characters) == (19, 10)
