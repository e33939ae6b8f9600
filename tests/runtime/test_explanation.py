"""`explain` of a packed model: the plan, and times and shares that fit together."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from cellerate.errors import ConfigError
from cellerate.kernels import native
from cellerate.program import Program
from cellerate.runtime.cell import Cell
from cellerate.runtime.explanation import ProgramExplanation
from cellerate.runtime.packed import PackedModel
from support.graphs import Graph, draw

V, E, H = 30, 8, 64


def packed(program: Program, precision: str = "float32") -> PackedModel:
    return PackedModel(Cell(program, precision, {}))


def text_model() -> Program:
    graph = Graph()
    rows = graph.add(
        "embedding", "letters", {"ids": graph.input("ids", -1, dtype="int32")}, {"embeddings": draw(V, E)}
    )
    first = graph.lstm(rows, "first", E, H)
    second = graph.lstm(first, "second", H, H, return_sequences=False)
    return graph.program(y=graph.dense(second, "head", H, V))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellerate.runtime.explanation._MEASURED_S", 0.01)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Run on one thread: two wait for each other between operations, as long as another program has a core."""
    before = native.num_threads()
    native.set_num_threads(1)
    yield
    native.set_num_threads(before)


def explained(model: PackedModel, *arguments: Any) -> tuple[ProgramExplanation, dict[str, Any]]:
    found = model.explain(*arguments)
    return found, {one.name: one for one in found.operations}


def test_operations_and_their_shares_add_up(one_thread: None) -> None:
    found, of = explained(packed(text_model(), "int8"), 16, 50)
    assert (found.precision, found.target, found.reason) == ("int8", native.target(), "")
    assert found.inputs == {"ids": (16, 50)}
    # The table replaces the first layer's product with its inputs.
    assert of["first"].multiplications == 16 * 50 * 4 * H * H
    assert of["second"].multiplications == 16 * 50 * 4 * H * 2 * H
    assert of["head"].multiplications == 16 * H * V
    assert "inputs from a table" in of["first"].kernel
    assert of["letters"].kernel == "rows looked up by the LSTMs that read them"
    assert of["letters"].seconds is None
    shares = [one.share for one in found.operations if one.share is not None]
    assert sum(shares) == pytest.approx(1)
    assert of["second"].share > of["head"].share
    assert all(one.share_of_peak is None or 0 < one.share_of_peak < 1.2 for one in found.operations)
    if found.target == "scalar":
        assert found.share_of_peak is None
    else:
        assert 0 < found.share_of_peak < 1.2
    timed = sum(one.seconds for one in found.operations if one.seconds is not None)
    assert 0.2 * found.seconds < timed < 2 * found.seconds


def test_layers_that_run_beside_each_other_say_so() -> None:
    if native.num_threads() < 2:
        pytest.skip("needs two threads")
    _, of = explained(packed(text_model()), 1, 200)
    assert of["first"].kernel.endswith("beside second")
    assert of["second"].kernel.endswith("beside first")
    assert of["second"].seconds is None
    _, of = explained(packed(text_model()), 32, 200)
    assert "beside" not in of["first"].kernel


def test_merged_operation_names_the_operation_that_computes_it() -> None:
    graph = Graph()
    backward = graph.lstm(graph.input("x", -1, 3), "backward", 3, 8, go_backwards=True)
    _, of = explained(packed(graph.program(y=graph.add("flip", "turned", {"x": backward}, axis=1))), 2, 5)
    assert of["turned"].kernel == "done by backward"


def test_a_program_that_the_core_does_not_take_says_why() -> None:
    graph = Graph()
    x = graph.input("x", 4, 3)
    # The core swaps time and features only.
    kept = graph.add("permute", "kept", {"x": x}, axes=(1, 2))
    found, of = explained(packed(graph.program(y=graph.lstm(kept, "lstm", 3, 5))))
    assert found.target is None
    assert found.reason == "the core does not take permute here"
    assert of["lstm"].seconds is None
    assert of["lstm"].multiplications == 4 * 4 * 5 * (3 + 5)
    assert "not as one call, because the core does not take permute here" in str(found)


def test_explanation_prints_a_table_and_plain_values() -> None:
    found, _ = explained(packed(text_model()), 2, 10)
    lines = str(found).splitlines()
    assert lines[0].startswith(f"packed in float32, on {native.target()}")
    assert "ids (2, 10)" in lines[1]
    assert lines[3].split() == ["operation", "kernel", "time", "of", "the", "time", "of", "the", "peak"]
    assert [line.split()[0] for line in lines[4:]] == ["ids", "letters", "first", "second", "head"]
    assert json.loads(json.dumps(found.to_dict()))["operations"][2]["name"] == "first"


def test_free_steps_are_a_hundred_and_fixed_ones_stay() -> None:
    assert packed(text_model()).explain().inputs == {"ids": (1, 100)}
    graph = Graph()
    model = packed(graph.program(y=graph.lstm(graph.input("x", 7, 3), "lstm", 3, 5)))
    assert model.explain().inputs == {"x": (1, 7, 3)}
    with pytest.raises(ConfigError, match="steps must be 7"):
        model.explain(1, 9)


def test_the_measured_rows_are_of_the_model() -> None:
    graph = Graph()
    ids = graph.input("ids", 3, dtype="int32")
    one = graph.add("embedding", "one", {"ids": ids}, {"embeddings": draw(1, 2)})
    assert np.isfinite(packed(graph.program(y=one)).explain().seconds)
