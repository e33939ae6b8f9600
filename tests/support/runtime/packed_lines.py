"""A packed line model made by hand, so that no Keras is needed."""

import numpy as np

from cellerate.program import Node, Program
from cellerate.runtime.cell import Cell, narrowed
from cellerate.runtime.packed import PackedModel

CHARACTERS = " abcdehlnortw"
V, E, H, LATENT, LONGEST = len(CHARACTERS) + 4, 5, 12, 6, 9
LINES = ["red hat", "", "old cow", "a", "ten bee", "the whole land", "hat", "", "bolt", "noon and dawn"]


def program(table_rows=V, output="vector"):
    """An encoder of both directions, and a stand-in for a decoder: a second input and output."""
    random = np.random.default_rng(0)

    def draw(*shape):
        return (random.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)

    def lstm(name, backwards):
        arrays = {"kernel": draw(E, 4 * H), "recurrent_kernel": draw(H, 4 * H), "bias": draw(4 * H)}
        options = {
            "activation": "tanh",
            "recurrent_activation": "sigmoid",
            "masked_output": "previous_state",
            "go_backwards": backwards,
            "return_sequences": False,
        }
        return Node("lstm", name, {"x": 2, "mask": 3}, arrays, options)

    nodes = (
        Node("input", "source", options={"shape": (-1, -1), "dtype": "int32"}),
        Node("input", "target_in", options={"shape": (-1, -1), "dtype": "int32"}),
        Node("embedding", "table", {"ids": 0}, {"embeddings": draw(table_rows, E) * 4}),
        Node("ids_mask", "table", {"ids": 0}),
        lstm("forward", False),
        lstm("backward", True),
        Node("concatenate", "both", {"0": 4, "1": 5}, options={"axis": 1}),
        Node("dense", "vector", {"x": 6}, {"kernel": draw(2 * H, LATENT)}, {"activation": "linear"}),
        Node("embedding", "decoder", {"ids": 1}, {"embeddings": draw(V, V)}),
    )
    return Program(nodes, {output: 7, "logits": 8})


def header(**changes):
    payload = {"vocabulary": {"characters": CHARACTERS}, "max_length": LONGEST, "padding": "right"}
    return {"task": "embed", "payload": payload | changes}


def packed(precision="float32", what=None, **changes):
    return PackedModel(Cell(narrowed(what or program(), precision), precision, header(**changes)))
