"""Valid programs that would take much memory or time."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cellerate.errors import DataError
from cellerate.kernels.program.cpu import CompiledProgram
from cellerate.program import Node
from support.runtime.unchecked_programs import given, lstm, ones, packed


def doubled(op: str = "concatenate", count: int = 40, **options: Any) -> list[Node]:
    """Each node joins the node before it with itself."""
    nodes = [given(-1, 1)]
    for number in range(count):
        nodes.append(Node(op, f"n{number}", {"0": number, "1": number}, {}, options))
    return nodes


def repeated() -> list[Node]:
    """(B, F) -> (B, n, F) -> ... : n times as many each time."""
    nodes = [given(2)]
    for number in range(3):
        nodes.append(Node("repeat_vector", f"n{number}", {"x": number}, {}, {"n": 2**20}))
    return nodes


def taken() -> list[Node]:
    """The only axis becomes a thousand times as long at each take, and a reshape makes it the only one again."""
    nodes = [given(1)]
    for number in range(0, 8, 2):
        nodes.append(Node("take", f"t{number}", {"x": number}, {}, {"indices": (0,) * 1000, "axis": -1}))
        nodes.append(Node("reshape", f"r{number}", {"x": number + 1}, {}, {"shape": (-1, 1)}))
    return nodes


def broadcast(op: str) -> list[Node]:
    """(n, 1) and (1, n) become (n, n), which becomes (n * n, 1) and (1, n * n), ..."""
    nodes = [given(4)]
    for number in range(0, 15, 3):
        nodes.append(Node("reshape", f"r{number}", {"x": number}, {}, {"shape": (-1, 1)}))
        nodes.append(Node("reshape", f"s{number}", {"x": number}, {}, {"shape": (1, -1)}))
        nodes.append(Node(op, f"m{number}", {"0": number + 1, "1": number + 2}))
    return nodes


def widened(op: str) -> list[Node]:
    """A product turns one column into many, and a reshape turns them into rows."""
    nodes = [given(1, 1)]
    for number in range(0, 6, 2):
        if op == "dense":
            node = Node(
                "dense", f"d{number}", {"x": number}, {"kernel": ones(1, 4096)}, {"activation": "linear"}
            )
        else:
            node = Node("unembedding", "u", {"x": number}, {"embeddings": ones(4096, 1)}, {"soft_cap": None})
        nodes += [node, Node("reshape", f"r{number}", {"x": number + 1}, {}, {"shape": (-1, 1)})]
    return nodes


def bidirectional() -> list[Node]:
    """Both directions joined along time, again and again."""
    nodes = [given(-1, 1)]
    arrays = lstm(0, 1, 1).arrays
    for number in range(0, 120, 4):
        nodes += [
            lstm(number, 1, 1, arrays=dict(arrays)),
            lstm(number, 1, 1, arrays=dict(arrays)),
            Node("flip", "flip", {"x": number + 2}, {}, {"axis": 1}),
            Node("concatenate", "both", {"0": number + 1, "1": number + 3}, {}, {"axis": 1}),
        ]
    return nodes


ENORMOUS: dict[str, Callable[[], list[Node]]] = {
    "concatenate of steps": lambda: doubled(axis=1),
    "concatenate of features": lambda: doubled(axis=-1),
    "concatenate of many": lambda: [
        given(-1, 1),
        *(Node("concatenate", "all", {str(n): m for n in range(1000)}, {}, {"axis": 1}) for m in range(4)),
    ],
    "repeat_vector": repeated,
    "take": taken,
    "add that broadcasts": lambda: broadcast("add"),
    "multiply that broadcasts": lambda: broadcast("multiply"),
    "average that broadcasts": lambda: broadcast("average"),
    "maximum that broadcasts": lambda: broadcast("maximum"),
    "dense": lambda: widened("dense"),
    "unembedding": lambda: widened("unembedding"),
    "bidirectional": bidirectional,
    "embedding": lambda: [
        given(1, dtype="int32"),
        Node("take", "t", {"x": 0}, {}, {"indices": (0,) * 20_000, "axis": 1}),
        Node("embedding", "e", {"ids": 1}, {"embeddings": ones(2, 1000)}),
    ],
    "lstm of a long row": lambda: [
        given(1),
        Node("repeat_vector", "r", {"x": 0}, {}, {"n": 2**20}),
        lstm(1, 1, 100),
    ],
}


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("name", ENORMOUS)
def test_program_whose_results_grow_without_end_is_refused_before_it_runs(name, rows, tmp_path):
    model = packed(tmp_path, ENORMOUS[name]())
    shape = [1 if size == -1 else size for size in model.inputs["x"][1:]]
    with pytest.raises(DataError, match=r"would make [\d,]+ numbers from a row of \d; the limit is"):
        model.predict(np.zeros((rows, *shape), np.int32))


def test_program_that_keeps_many_large_results_is_refused(tmp_path):
    nodes = [given(16), Node("repeat_vector", "r", {"x": 0}, {}, {"n": 2**16})]
    nodes += [Node("activation", f"a{n}", {"x": 1}, {}, {"activation": "relu"}) for n in range(1030)]
    nodes += [Node("add", "sum", {str(n): n + 2 for n in range(1030)})]
    with pytest.raises(DataError, match=r"a row would need [\d,]+ numbers at once"):
        packed(tmp_path, nodes).predict(np.zeros((1, 16)))


def test_program_that_gives_one_large_result_many_times_is_refused(tmp_path):
    nodes = [given(1), Node("repeat_vector", "r", {"x": 0}, {}, {"n": 2**20})]
    model = packed(tmp_path, nodes, **{f"y{n}": 1 for n in range(1024)})
    with pytest.raises(DataError, match=r"a row would need [\d,]+ numbers at once.*fewer outputs"):
        model.predict(np.zeros((1, 1)))
    model._engine.run(np.zeros((1, 1)), ["y7"])


@pytest.mark.parametrize(
    "kind", ["dense", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("lstm", "gelu"))]
)
def test_program_of_many_nodes_with_one_large_weight_is_refused_for_the_time_it_takes(kind, tmp_path):
    kernel = {"kernel": ones(512, 512)}
    layer = dict(lstm(1, 512, 128).arrays)
    nodes = [given(1), Node("take", "t", {"x": 0}, {}, {"indices": (0,) * 512, "axis": 1})]
    nodes.append(Node("repeat_vector", "r", {"x": 1}, {}, {"n": 300}))
    for number in range(2, 8000):
        if kind == "dense":
            nodes.append(Node("dense", "d", {"x": number}, kernel, {"activation": "linear"}))
        elif kind == "lstm":
            nodes.append(lstm(2, 512, 128, arrays=layer))
        else:
            nodes.append(Node("activation", "g", {"x": number}, {}, {"activation": "gelu"}))
    outputs = {"y": 5000} if kind != "lstm" else {f"y{n}": n for n in range(3, 1000)}
    with pytest.raises(DataError, match=r"would need [\d,]+ multiplications for a row of 1 numbers"):
        packed(tmp_path, nodes, **outputs).predict(np.zeros((1, 1)))


def test_program_of_as_many_nodes_as_there_can_be_runs(tmp_path):
    nodes = [given(2)]
    for number in range(2**14 - 1):
        nodes.append(Node("activation", "a", {"x": number}, {}, {"activation": "relu"}))
    np.testing.assert_array_equal(packed(tmp_path, nodes).predict(ones(3, 2)), ones(3, 2))


def test_program_of_many_states_of_one_lstm_runs(tmp_path):
    nodes = [given(-1, 2), lstm(0, 2, 2)]
    nodes += [Node("lstm_state", "s", {"lstm": 1}, {}, {"state": "h"}) for _ in range(8000)]
    nodes.append(Node("concatenate", "c", {str(n): n + 2 for n in range(8000)}, {}, {"axis": -1}))
    assert packed(tmp_path, nodes).predict(ones(1, 3, 2)).shape == (1, 16_000)


def test_tied_table_of_many_heads_is_transposed_once(tmp_path):
    nodes = [given(500)]
    nodes += [
        Node("unembedding", f"u{n}", {"x": 0}, {"embeddings": nodes_table}, {"soft_cap": None})
        for nodes_table in [ones(1000, 500)]
        for n in range(1000)
    ]
    assert packed(tmp_path, nodes).predict(ones(1, 500)).shape == (1, 1000)


def test_result_that_does_not_fit_into_memory_is_refused(tmp_path, monkeypatch):
    def none_left(*args: Any, **kwargs: Any) -> np.ndarray:
        raise MemoryError

    model = packed(tmp_path, [given(2), Node("repeat_vector", "r", {"x": 0}, {}, {"n": 3})])
    monkeypatch.setattr(np, "repeat", none_left)
    monkeypatch.setattr(CompiledProgram, "run", none_left)
    with pytest.raises(DataError, match="results of 5 rows do not fit into memory; give fewer rows"):
        model.predict(ones(5, 2))
