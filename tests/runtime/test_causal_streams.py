"""Streams of models with convolutions: causal ones remember their last inputs, all others are refused by name."""

from typing import Any

import numpy as np
import pytest

from cellerate.errors import ModelError
from cellerate.program import PRECISIONS, Program
from cellerate.runtime.cell import Cell
from cellerate.runtime.packed import PackedModel
from cellerate.runtime.program.stepping import stepping_of
from support.graphs import Graph, draw
from support.runtime.programs import windows

F, N, H = 3, 5, 7


def convolution(graph: Graph, x: int, inputs: int, size: int, dilation: int, padding: str = "causal") -> int:
    gathered = windows(graph, "windows", x, size, padding, dilation=dilation, features=inputs)
    return graph.dense(gathered, f"conv {size}", size * inputs, N, "relu")


def causal(*, recurrent: bool, steps: int = -1) -> Program:
    graph = Graph()
    x = graph.input("x", steps, F)
    top = convolution(graph, convolution(graph, x, F, 3, 1), N, 2, 4)
    if recurrent:
        top = graph.lstm(top, "lstm", N, H)
    return graph.program(y=graph.dense(top, "head", H if recurrent else N, 2))


def packed(program: Program, precision: str = "float32") -> PackedModel:
    return PackedModel(Cell(program, precision, {}))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("recurrent", [True, False])
@pytest.mark.parametrize("parts", [(1,) * 12, (5, 7), (11, 1), (3, 1, 8)], ids=str)
def test_pushes_through_causal_convolutions_give_the_bits_of_the_whole(
    precision: str, recurrent: bool, parts: tuple[int, ...]
) -> None:
    model, x = packed(causal(recurrent=recurrent, steps=12), precision), draw(4, 12, F)
    streams = model.streams(4)
    made = [streams.push(part) for part in np.split(x, np.cumsum(parts)[:-1], axis=1)]
    right: Any = model.predict(x)
    if precision == "float32":
        assert np.concatenate(made, axis=1).tobytes() == right.tobytes()
    whole = model.streams(4)
    assert np.concatenate(made, axis=1).tobytes() == np.asarray(whole.push(x)).tobytes()
    assert streams.state.tobytes() == whole.state.tobytes()
    assert streams.state.shape == (4, 2 * F + 4 * N + (2 * H if recurrent else 0))


def test_state_of_a_convolution_is_its_last_inputs_and_is_saved(tmp_path: Any) -> None:
    model, x = packed(causal(recurrent=False)), draw(2, 9, F)
    streams = model.streams(2)
    streams.push(x[:, :5])
    np.testing.assert_array_equal(streams.state[:, : 2 * F], x[:, 3:5].reshape(2, -1))
    streams.save(tmp_path / "s.state")
    right = streams.push(x[:, 5:])
    other = model.streams()
    other.restore(tmp_path / "s.state")
    np.testing.assert_array_equal(other.push(x[:, 5:]), right)


def test_pushes_of_frames_look_into_each_step_by_itself() -> None:
    graph = Graph()
    frames = graph.input("frames", -1, 6, 2)
    inside = windows(graph, "windows", frames, 3, "valid", axis=2, features=2)
    pooled = windows(graph, "max_pool", graph.dense(inside, "conv", 6, 4), 2, "same", strides=2, axis=2)
    mean = graph.add("mean", "mean", {"x": pooled}, axis=2, keepdims=False)
    flat = graph.add("flatten_steps", "flat", {"x": pooled})
    both = graph.add("concatenate", "both", {"0": mean, "1": flat}, axis=2)
    model, x = packed(graph.program(y=graph.lstm(both, "lstm", 12, H))), draw(3, 8, 6, 2)
    streams = model.streams(3)
    made = [streams.push(x[:, step : step + 1]) for step in range(8)]
    np.testing.assert_array_equal(np.concatenate(made, axis=1), model.predict(x))


def attending(graph: Graph, x: int) -> None:
    options = {"heads": 1, "scale": 1.0, "causal": True, "zeros": False}
    graph.add("attention", "behind", {"query": x, "key": x, "value": x}, **options)


LOOK_AHEAD = {
    "same": (lambda graph, x: windows(graph, "windows", x, 2, "same", features=F), "with padding="),
    "valid": (lambda graph, x: windows(graph, "windows", x, 2, "valid", features=F), 'padding="valid"'),
    "strides": (lambda graph, x: windows(graph, "windows", x, 2, "causal", strides=2, features=F), "strides=2"),
    "pool": (lambda graph, x: windows(graph, "max_pool", x, 2, "valid"), "those of a Conv1D with"),
    "strided-pool": (lambda graph, x: windows(graph, "average_pool", x, 2, "same", strides=2), "strides=2"),
    "attention": (attending, "attention needs the whole sequence"),
    "softmax": (lambda graph, x: graph.add("softmax", "behind", {"x": x}, axis=1), "softmax needs the whole"),
    "sum": (lambda graph, x: graph.add("sum", "behind", {"x": x}, axis=1, keepdims=False), "sum needs the whole"),
    "dot": (lambda graph, x: graph.add("dot", "behind", {"0": x, "1": x}, axes=(2, 2)), "dot needs the whole"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOK_AHEAD)
def test_layer_that_cannot_step_is_refused_with_its_name(name: str) -> None:
    add, words = LOOK_AHEAD[name]
    graph = Graph()
    add(graph, graph.lstm(graph.input("x", -1, F), "lstm", F, F))
    last = graph.nodes[-1].name
    with pytest.raises(ModelError, match=rf"^{last}: .*{words}.*use predict on whole sequences"):
        stepping_of(graph.program(y=len(graph.nodes) - 1))


def test_windows_of_one_step_and_sums_of_features_step_by_themselves() -> None:
    graph = Graph()
    lstm = graph.lstm(graph.input("x", -1, F), "lstm", F, H)
    one = windows(graph, "windows", lstm, 1, "valid", features=H)
    model = packed(graph.program(y=graph.add("sum", "sum", {"x": one}, axis=2, keepdims=True)))
    x, streams = draw(2, 5, F), model.streams(2)
    made = [streams.push(x[:, step : step + 1]) for step in range(5)]
    np.testing.assert_array_equal(np.concatenate(made, axis=1), model.predict(x))
