"""A small next-token model, made by hand so that no Keras is needed."""

import types

import numpy as np
import pytest

from cellerate.data.tokenizers.tokenizer import CharacterTokenizer
from cellerate.program import Node, Program
from cellerate.runtime.cell import Cell, narrowed
from cellerate.runtime.packed import PackedModel

CHARACTERS = " abcdefghijklmnopqrstuvwxyzé☃"
V, E, H = len(CHARACTERS), 6, 24


def program(vocabulary=V, bias=0.0):
    random = np.random.default_rng(0)

    def draw(*shape):
        return (random.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)

    options = {
        "activation": "tanh",
        "recurrent_activation": "sigmoid",
        "masked_output": "zero",
        "go_backwards": False,
        "return_sequences": True,
    }
    lstm = {"kernel": draw(E, 4 * H), "recurrent_kernel": draw(H, 4 * H), "bias": draw(4 * H)}
    nodes = (
        Node("input", "ids", options={"shape": (-1, -1), "dtype": "int32"}),
        Node("embedding", "table", {"ids": 0}, {"embeddings": draw(vocabulary, E) * 4}),
        Node("lstm", "memory", {"x": 1}, lstm, options),
        Node(
            "dense",
            "head",
            {"x": 2},
            {"kernel": draw(H, vocabulary) * 8, "bias": np.full(vocabulary, bias, np.float32)},
            {"activation": "linear"},
        ),
    )
    return Program(nodes, {"logits": 3})


def header(tokenizer=None):
    tokenizer = tokenizer or CharacterTokenizer(CHARACTERS)
    return {"task": "text", "payload": {"tokenizer": tokenizer.to_config()}}


def packed(precision="float32", tokenizer=None, vocabulary=V, bias=0.0):
    return PackedModel(Cell(narrowed(program(vocabulary, bias), precision), precision, header(tokenizer)))


@pytest.fixture
def text_model():
    """`packed` makes a model, `program` and `header` its parts; the vocabulary is `characters`."""
    return types.SimpleNamespace(packed=packed, program=program, header=header, characters=CHARACTERS)


@pytest.fixture(name="packed")
def packed_fixture(text_model):
    """The function that makes a packed model: packed(precision, tokenizer, vocabulary, bias)."""
    return text_model.packed
