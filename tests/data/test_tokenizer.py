import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from cellerate.data import tokenizer as module
from cellerate.data.tokenizer import (
    ByteTokenizer,
    CharacterTokenizer,
    FileTokenizer,
    StreamEncoder,
    Tokenizer,
    open_tokenizer,
    tokenizer_from_config,
)
from cellerate.errors import BackendError, DataError, ModelError

PROSE = (
    "Well, Prince, so Genoa and Lucca are now just family estates.\n\n"
    "But I warn you, 'é' is not 😀:\n  never.\n"
)

encodable = st.text(st.characters(exclude_categories=["Cs"]))


def byte_level_json() -> str:
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=360,
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<end>"],
    )
    made.train_from_iterator([PROSE * 5 + "\n\n\n" * 40], trainer)
    return made.to_str()


BYTE_LEVEL = byte_level_json()


def word_level_json(vocabulary: dict[str, int], unknown: str = "a") -> str:
    return tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=unknown)).to_str()


@pytest.mark.parametrize(
    ("size", "dtype"),
    [(1, "uint8"), (255, "uint8"), (256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32")],
)
def test_dtype_of_a_vocabulary_is_the_narrowest_that_holds_it(size: int, dtype: str) -> None:
    characters = "".join(chr(0x10000 + i) for i in range(size))
    tokenizer = CharacterTokenizer(characters)
    ids = tokenizer.encode(characters[-1] + characters[0])
    assert tokenizer.vocabulary_size == size
    assert tokenizer.dtype == ids.dtype == np.dtype(dtype)
    assert ids.tolist() == [size - 1, 0]
    # One past either end of the vocabulary is unknown, also where the unknown id needs a wider type.
    for outside in (chr(0x10000 + size), chr(0xFFFF), "a"):
        with pytest.raises(DataError, match=f"U\\+{ord(outside):04X}"):
            tokenizer.encode(characters[0] + outside)


def test_character_ids_follow_code_points_whatever_the_order_given() -> None:
    tokenizer = CharacterTokenizer("zebra, zebra 😀")
    assert tokenizer.characters == " ,aberz😀"
    assert tokenizer.encode("az😀").tolist() == [2, 6, 7]


@given(encodable.filter(bool), st.sampled_from([CharacterTokenizer, ByteTokenizer]))
def test_decode_of_encode_gives_the_text(text: str, made: type) -> None:
    tokenizer: Tokenizer = made(text) if made is CharacterTokenizer else made()
    ids = tokenizer.encode(text)
    assert ids.dtype == tokenizer.dtype
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(iter(ids.tolist())) == text
    decoder = tokenizer.stream_decoder()
    assert "".join(map(decoder.push, ids.tolist())) + decoder.finish() == text


def test_encode_an_unknown_character_names_it_its_position_and_the_way_out() -> None:
    with pytest.raises(DataError, match=r"'é' \(U\+00E9\) at position 3 .* 3 characters.*bytes tokenizer"):
        CharacterTokenizer("abc").encode("abcéa")


@pytest.mark.parametrize(
    "tokenizer", [CharacterTokenizer("ab"), ByteTokenizer(), FileTokenizer(BYTE_LEVEL)], ids=lambda t: t.kind
)
def test_encode_a_lone_surrogate_is_a_data_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match=r"surrogate \(U\+DC80\) at position 2"):
        tokenizer.encode("ab\udc80")


def test_character_vocabulary_of_nothing_or_surrogates_is_refused() -> None:
    with pytest.raises(DataError, match="empty"):
        CharacterTokenizer("")
    with pytest.raises(DataError, match="surrogate"):
        CharacterTokenizer("a\ud800")


@pytest.mark.parametrize("ids", [[256], [-1], [0, 2**70], [0.5], np.zeros((2, 2), int), ["a"]])
def test_decode_of_impossible_ids_is_a_data_error(ids: Any) -> None:
    with pytest.raises(DataError, match="id"):
        ByteTokenizer().decode(ids)


def test_decode_of_no_ids_is_the_empty_text() -> None:
    for tokenizer in (CharacterTokenizer("ab"), ByteTokenizer(), FileTokenizer(BYTE_LEVEL)):
        assert tokenizer.decode([]) == ""
        assert tokenizer.encode("").tolist() == []
        assert tokenizer.encode("").dtype == tokenizer.dtype


@given(st.binary())
def test_stream_decoder_of_any_bytes_equals_decoding_at_once(data: bytes) -> None:
    decoder = ByteTokenizer().stream_decoder()
    assert "".join(map(decoder.push, data)) + decoder.finish() == data.decode("utf-8", "replace")


def test_stream_decoder_holds_an_unfinished_character_back() -> None:
    decoder = ByteTokenizer().stream_decoder()
    shown = [decoder.push(byte) for byte in "a😀".encode()]
    assert shown == ["a", "", "", "", "😀"]
    decoder.push(0xF0)
    assert decoder.finish() == "\ufffd"


@pytest.mark.parametrize(
    "tokenizer",
    [CharacterTokenizer('a"\\\n\0é😀'), ByteTokenizer(), FileTokenizer(BYTE_LEVEL)],
    ids=lambda t: t.kind,
)
def test_config_goes_through_json_and_back(tokenizer: Tokenizer) -> None:
    again = tokenizer_from_config(json.loads(json.dumps(tokenizer.to_config())))
    assert type(again) is type(tokenizer)
    assert again.to_config() == tokenizer.to_config()
    assert again.vocabulary_size == tokenizer.vocabulary_size
    assert again.encode("a\naé").tolist() == tokenizer.encode("a\naé").tolist()


@pytest.mark.parametrize(
    "config",
    [
        None,
        [],
        "bytes",
        {},
        {"kind": None},
        {"kind": ["bytes"]},
        {"kind": "words"},
        {"kind": "characters"},
        {"kind": "characters", "characters": ""},
        {"kind": "characters", "characters": ["a", "b"]},
        {"kind": "characters", "characters": "aab"},
        {"kind": "characters", "characters": "ba"},
        {"kind": "characters", "characters": "a\udc80"},
        {"kind": "characters", "characters": "a" * 0x110001},
        {"kind": "file"},
        {"kind": "file", "json": {}},
        {"kind": "file", "json": ""},
        {"kind": "file", "json": "no json"},
        {"kind": "file", "json": "\udc80"},
        {"kind": "file", "json": "[" * 100_000},
        {"kind": "file", "json": '{"version": "1.0"}'},
        {"kind": "file", "json": '{"model": {"type": "BPE", "vocab": {}, "merges": []}}'},
        {
            "kind": "file",
            "json": '{"model": {"type": "WordLevel", "vocab": {"a": 4000000000}, "unk_token": "a"}}',
        },
    ],
    ids=lambda config: str(config)[:60],
)
def test_config_that_describes_no_tokenizer_is_a_model_error(config: Any) -> None:
    with pytest.raises(ModelError, match="tokenizer cannot be used"):
        tokenizer_from_config(config)


def test_config_of_a_huge_tokenizer_file_is_refused_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_FILE_LIMIT_BYTES", len(BYTE_LEVEL) - 1)
    with pytest.raises(ModelError, match=f"1 to {len(BYTE_LEVEL) - 1} characters"):
        tokenizer_from_config({"kind": "file", "json": BYTE_LEVEL})


def test_open_tokenizer_knows_its_words_and_files(tmp_path: Path) -> None:
    assert open_tokenizer("characters") is None
    assert isinstance(open_tokenizer("bytes"), ByteTokenizer)
    path = tmp_path / "tokenizer.json"
    path.write_text(BYTE_LEVEL, "utf-8")
    opened = open_tokenizer(str(path))
    assert isinstance(opened, FileTokenizer)
    assert opened.to_config() == {"kind": "file", "json": BYTE_LEVEL}


@pytest.mark.parametrize("content", [None, b"{}", b"\xff\xfe", b"nonsense"])
def test_open_tokenizer_of_a_bad_file_is_a_data_error_with_its_name(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        open_tokenizer(str(path))


def test_open_tokenizer_without_the_package_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(BYTE_LEVEL, "utf-8")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(BackendError, match=r"cellerate\[tokenizers\]"):
        open_tokenizer(str(path))


def test_file_tokenizer_counts_ids_not_tokens() -> None:
    tokenizer = FileTokenizer(word_level_json({"a": 0, "b": 300}))
    assert tokenizer.vocabulary_size == 301
    assert tokenizer.encode("b").tolist() == [300]
    assert tokenizer.dtype == np.uint16


def test_file_tokenizer_ignores_truncation_padding_and_special_tokens() -> None:
    plain = tokenizers.Tokenizer.from_str(BYTE_LEVEL)
    expected = plain.encode(PROSE, add_special_tokens=False).ids
    plain.enable_truncation(max_length=4)
    plain.enable_padding(length=900)
    plain.post_processor = tokenizers.processors.TemplateProcessing(
        single="<end> $A <end>", special_tokens=[("<end>", plain.token_to_id("<end>"))]
    )
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
def test_file_tokenizer_ids_do_not_depend_on_how_the_text_was_cut(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    tokenizer = FileTokenizer(BYTE_LEVEL)
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
    monkeypatch: pytest.MonkeyPatch, shared_data: Path
) -> None:
    text = (shared_data / "tinyshakespeare.txt").read_text("utf-8")[:60_000]
    sizes: list[int] = []

    def record(self: FileTokenizer, pieces: list[str]) -> np.ndarray:
        sizes.extend(map(len, pieces))
        return encode(self, pieces)

    encode: Callable[[FileTokenizer, list[str]], np.ndarray] = FileTokenizer.encode_pieces
    monkeypatch.setattr(FileTokenizer, "encode_pieces", record)
    monkeypatch.setattr(module._PieceEncoder, "piece_characters", 500)
    whole = tokenizers.Tokenizer.from_str(BYTE_LEVEL).encode(text, add_special_tokens=False).ids
    assert FileTokenizer(BYTE_LEVEL).encode(text).tolist() == whole
    assert sum(sizes) == len(text)
    assert len(sizes) > 50
    assert max(sizes) < 1000


def test_file_tokenizer_pieces_are_bounded_in_text_without_line_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    tokenizer = FileTokenizer(BYTE_LEVEL)
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
def test_file_tokenizer_stream_decoder_gives_the_text_and_no_half_characters(text: str) -> None:
    tokenizer = FileTokenizer(BYTE_LEVEL)
    decoder = tokenizer.stream_decoder()
    shown = [decoder.push(int(token)) for token in tokenizer.encode(text)]
    if "\ufffd" not in text:
        assert not any("\ufffd" in part for part in shown)
    assert "".join(shown) + decoder.finish() == text


def test_file_tokenizer_stream_decoder_shows_garbage_after_a_bounded_wait() -> None:
    tokenizer = FileTokenizer(BYTE_LEVEL)
    continuation = int(tokenizer.encode("\u0300")[-1])
    decoder = tokenizer.stream_decoder()
    shown = [decoder.push(continuation) for _ in range(40)]
    assert "".join(shown).count("\ufffd") >= 32
    assert decoder.finish().count("\ufffd") == 40 - "".join(shown).count("\ufffd")
