"""Programs as LiteRT models, run in LiteRT and compared with our own runtime."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import interpreter

from cellerate.errors import ModelError
from cellerate.exports.litert import LiteRt, litert_model
from cellerate.exports.trials import deviation, trials_of
from cellerate.program import Program
from cellerate.runtime.program.engine import Engine
from cellerate.runtime.program.stepping import stepping_of
from support.activation_names import IN_FILES
from support.graphs import Graph, draw
from support.runtime.programs import PROGRAMS, E, F, H, V, attentive, convolutional, moves

ERROR = 5e-6


def error_of(program: Program, folder: Path, batch: int = 3) -> float:
    path = folder / "model.tflite"
    path.write_bytes(litert_model(program, batch, {}))
    return deviation(trials_of(program, (batch,)), LiteRt(path, program.outputs).run).error


def stacked() -> Program:
    """ids → two LSTMs, one of them in both directions → all that needs no mask."""
    graph = Graph()
    ids = graph.input("ids", -1, dtype="int32")
    rows = graph.add("embedding", "rows", {"ids": ids}, {"embeddings": draw(V, E)})
    forward = graph.lstm(rows, "forward", E, H)
    backward = graph.lstm(rows, "backward", E, H, go_backwards=True)
    put_back = graph.add("flip", "put back", {"x": backward}, axis=1)
    both = graph.add("concatenate", "both", {"0": forward, "1": put_back}, axis=-1)
    norm = graph.add(
        "layer_norm", "norm", {"x": both}, {"gamma": draw(2 * H), "beta": draw(2 * H, seed=1)}, epsilon=1e-3
    )
    top = graph.lstm(norm, "top", 2 * H, 9)
    merged = [
        graph.add(op, op, {"0": top, "1": graph.add("cumsum", "sums", {"x": top}, axis=1)})
        for op in ("add", "subtract", "multiply", "average", "maximum", "minimum")
    ]
    joined = graph.add("concatenate", "joined", {str(n): at for n, at in enumerate(merged)}, axis=2)
    last = graph.add("crop", "last", {"x": joined}, begin=-1, end=None)
    flat = graph.add("reshape", "flat", {"x": last}, shape=(54,))
    repeated = graph.add("repeat_vector", "repeated", {"x": flat}, n=4)
    state = graph.add("lstm_state", "top", {"lstm": top}, state="h")
    return graph.program(
        joined=graph.affine(joined, "affine", 54),
        capped=graph.add(
            "unembedding", "capped", {"x": repeated}, {"embeddings": draw(70, 54)}, soft_cap=3.0
        ),
        state=state,
        again=state,
        mean=graph.add("mean_over_time", "mean", {"x": joined}),
        most=graph.add("max_over_time", "most", {"x": joined}),
        turned=graph.add("permute", "turned", {"x": repeated}, axes=(2, 1)),
    )


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "program",
    [
        PROGRAMS["forecaster"],
        stacked,
        lambda: convolutional(strided=False),
        lambda: attentive(masks=False, additive=False),
        PROGRAMS["elementwise"],
    ],
    ids=["forecaster", "stacked", "convolutional", "attentive", "elementwise"],
)
def test_program_gives_the_same_in_litert_at_every_length(program: Any, batch: int, tmp_path: Path) -> None:
    assert error_of(program(), tmp_path, batch) <= ERROR


def test_activations_of_dense_layers_give_the_same(tmp_path: Path) -> None:
    graph = Graph()
    wide = graph.affine(graph.input("x", -1, F), "wide", F, scale=4.0, offset=0.5)
    outputs = {name: graph.dense(wide, name, F, 9, name) for name in (*IN_FILES, "softmax", "log_softmax")}
    assert error_of(graph.program(**outputs), tmp_path) <= ERROR


def test_steps_with_states_in_and_out_give_what_the_whole_gives(tmp_path: Path) -> None:
    graph = Graph()
    first = graph.lstm(graph.input("x", -1, F), "first", F, H, activation="elu")
    program = graph.program(y=graph.dense(graph.lstm(first, "second", H, 7), "head", 7, 3, "softmax"))
    made = stepping_of(program)
    nodes = tuple(
        type(node)(node.op, node.name, node.inputs, node.arrays, {**node.options, "shape": (-1, 1, F)})
        if node.name == "x"
        else node
        for node in made.program.nodes
    )
    outputs = {f"{n}_next" if n in made.states else n: at for n, at in made.program.outputs.items()}
    step = Program(nodes, outputs)
    assert error_of(step, tmp_path, 2) <= ERROR
    run, x = LiteRt(tmp_path / "model.tflite", step.outputs).run, draw(2, 9, F)
    state = {name: np.zeros((2, units), np.float32) for name, units in made.states.items()}
    found = []
    for t in range(9):
        results = run({"x": x[:, t : t + 1], **state})
        found.append(results["y"])
        state = {name: results[f"{name}_next"] for name in state}
    right = Engine(program).run(x)["y"]
    np.testing.assert_allclose(np.concatenate(found, axis=1), right, atol=ERROR, rtol=0)


def test_states_are_kept_between_calls_until_they_are_reset(tmp_path: Path) -> None:
    graph = Graph()
    program = graph.program(y=graph.lstm(graph.input("x", -1, F), "lstm", F, H))
    (tmp_path / "model.tflite").write_bytes(litert_model(program, 1, {"task": "series"}))
    model = interpreter.Interpreter(str(tmp_path / "model.tflite"))
    x = draw(1, 8, F)
    model.resize_tensor_input(model.get_input_details()[0]["index"], (1, 4, F))
    model.allocate_tensors()
    runner = model.get_signature_runner()
    parts = [runner(x=x[:, begin : begin + 4])["y"] for begin in (0, 4)]
    right = Engine(program).run(x)["y"]
    np.testing.assert_allclose(np.concatenate(parts, axis=1), right, atol=ERROR, rtol=0)
    model.reset_all_variables()
    np.testing.assert_array_equal(runner(x=x[:, :4])["y"], parts[0])


def test_free_sizes_and_metadata_are_in_the_file(tmp_path: Path) -> None:
    from ai_edge_litert import schema_py_generated as schema

    content = litert_model(stacked(), 2, {"task": "text"})
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content, 0))
    (graph,) = model.subgraphs
    assert list(graph.tensors[graph.inputs[0]].shapeSignature) == [2, -1]
    (about,) = model.metadata
    assert about.name == b"cellerate"
    assert json.loads(bytes(model.buffers[about.buffer].data)) == {"task": "text"}


def masked() -> Program:
    return PROGRAMS["classifier"]()


def with_gelu() -> Program:
    graph = Graph()
    return graph.program(y=graph.lstm(graph.input("x", -1, F), "odd", F, H, activation="gelu"))


def with_state() -> Program:
    graph = Graph()
    x, h = graph.input("x", -1, F), graph.input("h", H)
    return graph.program(y=graph.lstm(x, "begun", F, H, h0=h, c0=h))


def with_c() -> Program:
    graph = Graph()
    lstm = graph.lstm(graph.input("x", -1, F), "lstm", F, H)
    return graph.program(c=graph.add("lstm_state", "asked", {"lstm": lstm}, state="c"))


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (masked, r"^table: LiteRT's LSTM takes no mask"),
        (with_gelu, r"^odd: LiteRT's LSTM has the activations tanh and sigmoid; got sigmoid and gelu"),
        (with_state, r"^begun: LiteRT's LSTM takes no first state"),
        (with_c, r"^asked: LiteRT's LSTM does not give its state c"),
    ],
)
def test_what_litert_does_not_have_is_refused_by_name(program: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        litert_model(program(), 1, {})


def test_program_of_a_fixed_length_moves_as_ours_does(tmp_path: Path) -> None:
    assert error_of(moves(masks=False), tmp_path) <= ERROR
