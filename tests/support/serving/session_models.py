"""A small model for sessions, and steps for it."""

import numpy as np

from cellerate.runtime.cell import Cell
from cellerate.runtime.packed import PackedModel
from cellerate.serving.sessions.sessions import Sessions
from support.graphs import Graph, draw

F, H = 3, 11


def model(seed: float = 1.0) -> PackedModel:
    graph = Graph()
    scaled = graph.affine(graph.input("x", -1, F), "scaled", F, scale=seed)
    first = graph.lstm(scaled, "first", F, H)
    program = graph.program(y=graph.dense(graph.lstm(first, "second", H, 7), "head", 7, 2))
    return PackedModel(Cell(program, "float32", {}))


def steps(k: int, seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": draw(k, F, seed=seed)}


def opened(sessions: Sessions, *names: str) -> Sessions:
    for name in names:
        sessions.open(name)
    return sessions
