import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings, strategies as st

from cellerate.data.tokenizers import file_tokenizer as module
from cellerate.data.tokenizers.file_tokenizer import FileTokenizer
from cellerate.data.tokenizers.tokenizer import StreamEncoder
from cellerate.errors import DataError

PROSE = "So Genoa and Lucca, Prince, are now estates.\n\nBut I warn you, 'é' is not just 😀:\n  never.\n"

encodable = st.text(st.characters(exclude_categories=["Cs"]))


def word_level_json(vocabulary: dict[str, int], unknown: str = "a") -> str:
    return tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=unknown)).to_str()


def test_file_tokenizer_counts_ids_not_tokens() -> None:
    tokenizer = FileTokenizer(word_level_json({"a": 0, "b": 300}))
    assert tokenizer.vocabulary_size == 301
    assert tokenizer.encode("b").tolist() == [300]
    assert tokenizer.dtype == np.uint16


def test_file_tokenizer_ignores_truncation_padding_and_special_tokens(byte_level: str) -> None:
    plain = tokenizers.Tokenizer.from_str(byte_level)
    expected = plain.encode(PROSE, add_special_tokens=False).ids
    plain.enable_truncation(max_length=4)
    plain.enable_padding(length=900)
    plain.post_processor = tokenizers.processors.TemplateProcessing(
        single="<end> $A <end>", special_tokens=[("<end>", plain.token_to_id("<end>"))]
    )
    assert FileTokenizer(plain.to_str()).encode(PROSE).tolist() == expected


def test_file_tokenizer_with_dropout_gives_the_ids_without_it(byte_level: str) -> None:
    plain = tokenizers.Tokenizer.from_str(byte_level)
    expected = plain.encode(PROSE, add_special_tokens=False).ids
    plain.model.dropout = 0.9
    assert FileTokenizer(plain.to_str()).encode(PROSE).tolist() == expected


def test_file_tokenizer_that_cannot_encode_is_a_data_error() -> None:
    tokenizer = FileTokenizer(word_level_json({"a": 0}, unknown="missing"))
    with pytest.raises(DataError, match="cannot encode"):
        tokenizer.encode("b")


def push_all(encoder: StreamEncoder, chunks: list[str]) -> list[int]:
    return np.concatenate([*map(encoder.push, chunks), encoder.finish()]).tolist()


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from([PROSE, "\n\n", "a\nb", " ", "\n", "é", "warn you", "x" * 40]), max_size=40),
    st.lists(st.integers(0, 2000), max_size=6),
)
def test_file_tokenizer_ids_do_not_depend_on_how_the_text_was_cut(
    byte_level: str, parts: list[str], cuts: list[int]
) -> None:
    text = "".join(parts)
    tokenizer = FileTokenizer(byte_level)
    at = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    chunks = [text[a:b] for a, b in itertools.pairwise(at)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module._PieceEncoder, "piece_characters", 50)
        patch.setattr(module._PieceEncoder, "longest_characters", 200)
        ids = tokenizer.encode(text)
        assert push_all(tokenizer.stream_encoder(), chunks) == ids.tolist()
        assert push_all(tokenizer.stream_encoder(), list(text)) == ids.tolist()
    assert tokenizer.decode(ids) == text


def test_file_tokenizer_pieces_change_no_id_where_the_text_has_line_breaks(
    monkeypatch: pytest.MonkeyPatch, shared_data: Path, byte_level: str
) -> None:
    text = (shared_data / "tinyshakespeare.txt").read_text("utf-8")[:60_000]
    sizes: list[int] = []

    def record(self: FileTokenizer, pieces: list[str]) -> np.ndarray:
        sizes.extend(map(len, pieces))
        return encode(self, pieces)

    encode: Callable[[FileTokenizer, list[str]], np.ndarray] = FileTokenizer.encode_pieces
    monkeypatch.setattr(FileTokenizer, "encode_pieces", record)
    monkeypatch.setattr(module._PieceEncoder, "piece_characters", 500)
    whole = tokenizers.Tokenizer.from_str(byte_level).encode(text, add_special_tokens=False).ids
    assert FileTokenizer(byte_level).encode(text).tolist() == whole
    assert sum(sizes) == len(text)
    assert len(sizes) > 50
    assert max(sizes) < 1000


def test_file_tokenizer_pieces_are_bounded_in_text_without_line_breaks(
    monkeypatch: pytest.MonkeyPatch, byte_level: str
) -> None:
    sizes: list[int] = []
    tokenizer = FileTokenizer(byte_level)
    monkeypatch.setattr(module._PieceEncoder, "piece_characters", 50)
    monkeypatch.setattr(module._PieceEncoder, "longest_characters", 200)
    monkeypatch.setattr(
        FileTokenizer,
        "encode_pieces",
        lambda _, pieces: sizes.extend(map(len, pieces)) or np.array([], np.uint16),
    )
    tokenizer.encode("x" * 1000)
    assert sizes == [200] * 5
    sizes.clear()
    # No break between two visible characters: any line end will do, the last one before the limit.
    tokenizer.encode(("y" * 30 + "\n \n") * 20)
    assert sum(sizes) == 33 * 20
    assert sizes[:-1] == [198] * 3


@settings(deadline=None, max_examples=60)
@given(encodable)
def test_file_tokenizer_stream_decoder_gives_the_text_and_no_half_characters(
    byte_level: str, text: str
) -> None:
    tokenizer = FileTokenizer(byte_level)
    decoder = tokenizer.stream_decoder()
    shown = [decoder.push(int(token)) for token in tokenizer.encode(text)]
    if "\ufffd" not in text:
        assert not any("\ufffd" in part for part in shown)
    assert "".join(shown) + decoder.finish() == text


def test_file_tokenizer_stream_decoder_shows_garbage_after_a_bounded_wait(byte_level: str) -> None:
    tokenizer = FileTokenizer(byte_level)
    continuation = int(tokenizer.encode("\u0300")[-1])
    decoder = tokenizer.stream_decoder()
    shown = [decoder.push(continuation) for _ in range(40)]
    assert "".join(shown).count("\ufffd") >= 32
    assert decoder.finish().count("\ufffd") == 40 - "".join(shown).count("\ufffd")


def test_file_tokenizer_stream_decoder_separates_words_around_many_ids_without_a_token() -> None:
    tokenizer = FileTokenizer(word_level_json({"a": 0, "b": 3}))
    ids = [3] + [1] * 40 + [0, 3] + [2] * 20
    decoder = tokenizer.stream_decoder()
    assert "".join(map(decoder.push, ids)) + decoder.finish() == tokenizer.decode(ids) == "b a b"


def test_a_pattern_that_needs_too_many_steps_back_is_an_error_of_the_data():
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    pattern = tokenizers.Regex(r"(?:(a+)+)+\d")
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split(pattern, "isolated")
    found = FileTokenizer(made.to_str())
    # The package panics, which is not an exception of Python's.
    with pytest.raises(DataError, match="the tokenizer file cannot encode this text"):
        found.encode("a" * 40)
    assert found.encode("ab").tolist() == [0, 1]
