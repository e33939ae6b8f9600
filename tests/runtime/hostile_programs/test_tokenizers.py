"""Tokenizers and records that do not fit their model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellerate.errors import CellerateError, ModelError
from cellerate.program import Node, Program
from cellerate.runtime.cell import read_cell, write_cell
from cellerate.runtime.packed import PackedModel, load
from support.runtime.unchecked_programs import given, lstm, ones


def with_header(tmp_path: Path, header: dict[str, Any], vocabulary: int = 5) -> PackedModel:
    nodes = [
        given(-1, dtype="int32", name="ids"),
        Node("embedding", "table", {"ids": 0}, {"embeddings": ones(vocabulary, 4)}),
        lstm(1, 4, 4),
        Node("dense", "head", {"x": 2}, {"kernel": ones(4, vocabulary)}, {"activation": "linear"}),
    ]
    write_cell(tmp_path / "a.cell", Program(tuple(nodes), {"y": 3}), header=header)
    return load(tmp_path / "a.cell")


TOKENIZERS: tuple[Any, ...] = (
    *(None, True, 0, "", "bytes", [], ["bytes"], {}, {"kind": None}, {"kind": []}, {"kind": {}}, {"kind": "pickle"}),
    *({"kind": "characters"} | more for more in ({}, {"characters": ""}, {"characters": 5}, {"characters": ["a"]})),
    *({"kind": "characters", "characters": text} for text in ("ba", "aa", "a" * 9, "abcd", "abcdef", "a" * 200_000)),
    {"kind": "characters", "characters": {"a": 0}},
    {"kind": "bytes"},
    {"kind": "bytes", "characters": "abcde"},
    *({"kind": "file"} | more for more in ({}, {"json": None}, {"json": ""}, {"json": "{"}, {"json": "[]"})),
    {"kind": "file", "json": "[" * 100_000},
    {"kind": "file", "json": '{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":-1},"unk_token":"a"}}'},
    {"kind": "file", "json": '{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":9},"unk_token":"a"}}'},
    {"kind": "file", "json": '{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":4294967295},"unk_token":"a"}}'},
    {"kind": "file", "json": '{"version":"1.0","model":{"type":"WordLevel","vocab":{},"unk_token":"a"}}'},
    {"kind": "file", "json": '{"version":"1.0","model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[["a","c"]]}}'},
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(TOKENIZERS)), ids=lambda n: str(TOKENIZERS[n])[:40])
def test_tokenizer_that_does_not_fit_is_refused_when_text_is_generated(number, tmp_path):
    model = with_header(tmp_path, {"task": "text", "payload": {"tokenizer": TOKENIZERS[number]}})
    with pytest.raises(CellerateError, match=r"\w"):
        model.generate("a", max_tokens=3, seed=1)
    assert model.predict(np.zeros((1, 2), int)).shape == (1, 2, 5)


@pytest.mark.parametrize(
    "payload", [None, True, 0, "", [], {}, {"tokenizers": 1}, [["tokenizer", 1]], "tokenizer", {"Tokenizer": {}}]
)  # fmt: skip
def test_payload_without_a_tokenizer_is_refused_when_text_is_generated(payload, tmp_path):
    for header in ({}, {"payload": payload}, {"task": "text", "payload": payload}):
        with pytest.raises(ModelError, match="has no tokenizer"):
            with_header(tmp_path, header).generate("a", max_tokens=3)


def test_tokenizer_that_fits_generates(tmp_path):
    header = {"payload": {"tokenizer": {"kind": "characters", "characters": "abcde"}}}
    assert len(with_header(tmp_path, header).generate("a", max_tokens=3, seed=1)) == 3
    header = {"payload": {"tokenizer": {"kind": "bytes"}}}
    assert with_header(tmp_path, header, 256).generate("a", max_tokens=3, seed=1)


def test_header_of_a_model_with_a_tokenizer_of_50_000_tokens_fits(tmp_path):
    vocabulary = {f"tok☃{n:05}": n for n in range(50_000)}
    merges = [[f"tok☃{n:05}", f"{n:04}"] for n in range(50_000)]
    tokenizer = {"version": "1.0", "model": {"type": "BPE", "vocab": vocabulary, "merges": merges}}
    text = json.dumps(tokenizer, ensure_ascii=False, indent=2)
    assert len(text) > 3_900_000
    header = {"task": "text", "payload": {"tokenizer": {"kind": "file", "json": text}}}
    with_header(tmp_path, header)
    assert read_cell(tmp_path / "a.cell").header == header
