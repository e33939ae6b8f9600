"""Vocabularies as scripts keep them: a text, a list, a dictionary, a file of one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellerate.data.tokenizers.tokenizer import ByteTokenizer
from cellerate.data.tokenizers.vocabulary import open_vocabulary
from cellerate.errors import CellerateError, ConfigError, DataError, ModelError


@pytest.mark.parametrize(
    ("vocabulary", "characters"),
    [
        (["b", "a", "\n"], "ba\n"),
        (("b", "a"), "ba"),
        (np.array(["b", "a"]), "ba"),
        ({"b": 0, "a": 1}, "ba"),
        ({1: "a", 0: "b"}, "ba"),
        ({"1": 0, "0": 1}, "10"),
        ({"1": "5", "0": "6"}, "65"),
        # As of the old keras Tokenizer, where id 0 is the padding.
        ({"e": 1, "a": np.int64(2)}, "\0ea"),
        # As of StringLookup and TextVectorization.
        (["[UNK]", "b", "a"], "\ufffdba"),
        (["", "[UNK]", "b"], "\0\ufffdb"),
    ],
    ids=str,
)
def test_list_and_dictionary_give_the_characters_in_the_order_of_the_ids(
    tmp_path: Path, vocabulary: Any, characters: str
) -> None:
    assert open_vocabulary(vocabulary, len(characters)).decode(range(len(characters))) == characters
    if isinstance(vocabulary, list) or (isinstance(vocabulary, dict) and "e" not in vocabulary):
        (tmp_path / "v.json").write_text(json.dumps(vocabulary))
        opened = open_vocabulary(tmp_path / "v.json", len(characters))
        assert opened.decode(range(len(characters))) == characters


def test_text_gives_what_sorted_set_of_its_text_gives(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes("\ufeffWell, what, Prince\r\né\r\n".encode())
    text = path.read_text("utf-8-sig")
    expected = sorted(set(text))
    assert list(open_vocabulary(str(path), len(expected)).decode(range(len(expected)))) == expected
    lower = sorted(set(text.lower()))
    assert len(lower) < len(expected)
    assert list(open_vocabulary(path, len(lower)).decode(range(len(lower)))) == lower
    with pytest.raises(
        ModelError, match=rf"{len(expected)} distinct .*\({len(lower)} in lower case\).* 7 diff"
    ):
        open_vocabulary(path, 7)


def test_bytes_and_a_tokenizer_file_are_tokenizers(tmp_path: Path, byte_level: str) -> None:
    assert isinstance(open_vocabulary("bytes", 256), ByteTokenizer)
    with pytest.raises(ModelError, match="bytes has 256 entries, and the model predicts 65"):
        open_vocabulary("bytes", 65)
    (tmp_path / "tokenizer.json").write_text(byte_level)
    with pytest.raises(ModelError, match=r"tokenizer\.json has .* entries") as raised:
        open_vocabulary(tmp_path / "tokenizer.json", 1)
    size = int(str(raised.value).split(" has ")[1].split()[0].replace(",", ""))
    assert open_vocabulary(tmp_path / "tokenizer.json", size).kind == "file"


@pytest.mark.parametrize(
    ("vocabulary", "error", "message"),
    [
        (3, ConfigError, "is a int; expected the path of the text"),
        ({"a"}, ConfigError, "is a set; expected .* a list of its characters in the order of their ids"),
        (["a", "bc"], ConfigError, "entry 1 of vocabulary is 'bc', which is not a single character"),
        (["a", 1], ConfigError, "entry 1 of vocabulary is 1"),
        (["a", "b", "a"], ConfigError, "'a' more than once"),
        ([], ConfigError, "vocabulary is empty"),
        (["a", "\udc80"], ConfigError, "lone surrogate"),
        ({"a": 0, "b": 0}, ConfigError, "ids are not 0, 1, 2"),
        ({"a": 0, "b": 2}, ConfigError, "ids are not 0, 1, 2"),
        ({"a": "x"}, ConfigError, "ids are not 0, 1, 2"),
        (["a"], ModelError, "vocabulary has 1 entries, and the model predicts 2 different ids"),
        ("nowhere.txt", DataError, "'nowhere.txt' not found: expected the path of the text"),
    ],
    ids=str,
)
def test_what_is_no_vocabulary_of_the_model_is_refused(
    vocabulary: Any, error: type[CellerateError], message: str
) -> None:
    with pytest.raises(error, match=message):
        open_vocabulary(vocabulary, 2)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.json", b"ab", "is not JSON"),
        ("v.json", b"\xff", "is not JSON"),
        ("v.json", b"3", "holds a int: expected a list"),
        ("book.txt", b"", "is empty"),
        ("book.txt", b"ab\xff", "is not UTF-8: convert it, or give a list"),
        ("book.txt", b"\xff\xfe\xfd", "is not UTF-8: convert it, or give a list"),
    ],
)
def test_file_without_a_vocabulary_is_refused(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        open_vocabulary(tmp_path / name, 2)
