import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from cellerate.data.tokenizers import opening as module
from cellerate.data.tokenizers.file_tokenizer import FileTokenizer
from cellerate.data.tokenizers.opening import open_tokenizer, tokenizer_from_config
from cellerate.data.tokenizers.tokenizer import ByteTokenizer, CharacterTokenizer, Tokenizer
from cellerate.errors import BackendError, DataError, ModelError

encodable = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.fixture(params=["characters", "bytes", "file"])
def tokenizer(request: pytest.FixtureRequest, byte_level: str) -> Tokenizer:
    """One of each kind."""
    if request.param == "characters":
        return CharacterTokenizer('ab"\\\n\0é😀')
    return ByteTokenizer() if request.param == "bytes" else FileTokenizer(byte_level)


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


def test_character_ids_in_order_are_those_given_and_come_back_from_the_config() -> None:
    tokenizer = CharacterTokenizer("z😀ab", in_order=True)
    for made in (tokenizer, tokenizer_from_config(tokenizer.to_config())):
        assert made.encode("abz😀").tolist() == [2, 3, 0, 1]
        assert made.decode([1, 0, 3]) == "😀zb"
        with pytest.raises(DataError, match=r"'c' \(U\+0063"):
            made.encode("ac")
    with pytest.raises(DataError, match="'b' more than once"):
        CharacterTokenizer("abcb", in_order=True)


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


def test_encode_unknown_characters_names_each_once_with_the_nearest_known_one() -> None:
    with pytest.raises(DataError) as raised:
        CharacterTokenizer("abes -'12").encode("a“Bé\u2014éß7\0ж")
    named = [
        "'“' (U+201C, nearest \"'\")", "'B' (U+0042, nearest 'b')", "'é' (U+00E9, nearest 'e')",
        "'\u2014' (U+2014, nearest '-')", "'ß' (U+00DF, nearest 'ss') and 3 more, the first at position 1, are",
    ]  # fmt: skip
    assert str(raised.value).startswith(
        f"characters {', '.join(named)} not in the vocabulary of 9 characters"
    )


def test_prompt_has_the_line_ends_of_a_training_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.prompt_text("a\r\nb\rc\n") == "a\nb\nc\n"


def test_prompt_of_a_vocabulary_with_carriage_returns_keeps_them() -> None:
    tokenizer = CharacterTokenizer("ab\r\n")
    assert tokenizer.encode_prompt("a\r\nb").tolist() == tokenizer.encode("a\r\nb").tolist()
    assert CharacterTokenizer("ab\n").encode_prompt("a\r\nb").tolist() == [1, 0, 2]


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


def test_decode_of_no_ids_is_the_empty_text(tokenizer: Tokenizer) -> None:
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
        {"kind": "characters", "characters": "bab"},
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
    monkeypatch: pytest.MonkeyPatch, byte_level: str
) -> None:
    monkeypatch.setattr(module, "_FILE_LIMIT_BYTES", len(byte_level) - 1)
    with pytest.raises(ModelError, match=f"1 to {len(byte_level) - 1} characters"):
        tokenizer_from_config({"kind": "file", "json": byte_level})


def test_open_tokenizer_knows_its_words_and_files(tmp_path: Path, byte_level: str) -> None:
    assert open_tokenizer("characters") is None
    assert isinstance(open_tokenizer("bytes"), ByteTokenizer)
    path = tmp_path / "tokenizer.json"
    path.write_text(byte_level, "utf-8")
    opened = open_tokenizer(str(path))
    assert isinstance(opened, FileTokenizer)
    assert opened.to_config() == {"kind": "file", "json": byte_level}


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, byte_level: str
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(byte_level, "utf-8")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(BackendError, match=r"cellerate\[tokenizers\]"):
        open_tokenizer(str(path))
