"""A new operation is one row: all code that runs, steps or stores a program reads the row."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellerate.errors import ModelError
from cellerate.program import OPERATIONS, Node
from cellerate.program.operation import Operation, step_by_step
from cellerate.runtime.cell import read_cell, write_cell
from cellerate.runtime.packed import PackedModel
from cellerate.runtime.program import operations, shapes
from support.graphs import Graph, draw

B, T, F, H = 3, 6, 4, 5


def check(node: Node) -> None:
    if node.options["digits"] == 13:
        raise ModelError("digits cannot be 13")


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Operation(
        inputs=("x", "mask?"),
        arrays={"shift": "F"},
        options={"digits": int},
        check=check,
        shape=lambda node, read: (*read["x"], 2),
        run=lambda node, given, _: np.stack(
            [given["x"], np.round(given["x"] + node.arrays["shift"], int(str(node.options["digits"])))], -1
        ),
        products=lambda node, read, result: 7_000_000,
        step=step_by_step,
    )
    monkeypatch.setitem(OPERATIONS, "pair", row)  # type: ignore[arg-type]


def model(shift: Any, **options: Any) -> Graph:
    """The planted operation on the outputs of an LSTM."""
    graph = Graph()
    first = graph.lstm(graph.input("x", -1, F), "first", F, H)
    graph.add("pair", "both", {"x": first}, {"shift": shift}, **({"digits": 2} | options))
    return graph


def test_planted_operation_has_a_shape_a_cost_a_type_and_a_result() -> None:
    shift, x = draw(F), draw(B, T, F)
    node = Node("pair", "both", {"x": 0}, {"shift": shift}, {"digits": 2})
    read, result = {"x": (T, F)}, (T, F, 2)
    assert shapes.row_shape(node, read) == result
    assert shapes.work(node, read, result) > 7_000_000
    assert operations.result_type(node, {"x": "float32", "mask": "bool"}) == "float32"
    with pytest.raises(ModelError, match="input 'x' of pair must be float32, not bool"):
        operations.result_type(node, {"x": "bool"})
    assert operations.run(node, {"x": x}).tobytes() == np.stack([x, np.round(x + shift, 2)], -1).tobytes()


def test_planted_operation_is_checked() -> None:
    for shift, options, words in (
        (draw(F), {"digits": 2.0}, "option 'digits' cannot be 2.0"),
        (draw(F), {"digits": 13}, "digits cannot be 13"),
        (draw(F, F), {}, "shift must be float32 with 1 axes"),
    ):
        with pytest.raises(ModelError, match=words):
            model(shift, **options).program(y=2)


def test_planted_operation_runs_steps_and_is_kept_in_a_file(tmp_path: Path) -> None:
    shift, x = draw(H), draw(B, T, F)
    write_cell(tmp_path / "m.cell", model(shift).program(h=1, y=2))
    packed = PackedModel(read_cell(tmp_path / "m.cell"))
    found = packed.predict(x)
    right = np.stack([found["h"], np.round(found["h"] + shift, 2)], -1)
    assert found["y"].tobytes() == right.tobytes()
    streams = packed.streams(B)
    pushed = [streams.push(x[:, step : step + 1])["y"] for step in range(T)]
    np.testing.assert_allclose(np.concatenate(pushed, axis=1), right, rtol=0, atol=0.02)
    text = str(packed.explain(batch=B, steps=T))
    assert "the core does not take pair here" in text
    assert "both (pair)" in text
