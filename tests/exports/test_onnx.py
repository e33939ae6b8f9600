"""Programs as ONNX, run in ONNX Runtime and compared with our own runtime."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings, strategies as st

from cellerate.errors import ModelError
from cellerate.exports.litert import LiteRt, litert_model
from cellerate.exports.onnx import OnnxRuntime, onnx_model
from cellerate.exports.onnx_lstm import _ACTIVATIONS as LSTM_ACTIVATIONS
from cellerate.exports.openvino_trial import tried_in_openvino
from cellerate.exports.trials import TrialBatch, deviation, sizes_of, trials_of
from cellerate.program import MASKED_OUTPUTS, OPERATIONS, Program
from cellerate.runtime.program.engine import Engine
from support.activation_names import IN_FILES
from support.graphs import Graph, draw
from support.runtime.programs import PROGRAMS, DrawnProgram, F, H, inputs_of, moves

# Rounding of float32, in sums of at most a few hundred products.
ERROR = 3e-6


def written(program: Program, folder: Path, sizes: Any = None) -> OnnxRuntime:
    sizes = sizes or dict.fromkeys(program.outputs, (None,) * 9)
    path = folder / "model.onnx"
    path.write_bytes(onnx_model(program, sizes, {}).SerializeToString())
    return OnnxRuntime(path)


def error_of(program: Program, folder: Path) -> float:
    trials = trials_of(program)
    model = onnx_model(program, sizes_of(program, trials), {})
    onnx.checker.check_model(model, full_check=True)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return deviation(trials, OnnxRuntime(path).run).error


@pytest.mark.parametrize("name", [*PROGRAMS, "moves"])
def test_program_gives_the_same_in_onnx_runtime(name: str, tmp_path: Path) -> None:
    assert error_of(moves() if name == "moves" else PROGRAMS[name](), tmp_path) <= ERROR


def test_programs_hold_every_operation_that_can_be_exported() -> None:
    programs = [moves(), *(program() for program in PROGRAMS.values())]
    # `tasks.exporting` refuses models with these.
    refused = {"gru", "simple_rnn", "rnn_state"}
    assert {node.op for program in programs for node in program.nodes} == set(OPERATIONS) - refused


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_program_gives_the_same_in_onnx_runtime(data: st.DataObject, tmp_path_factory: Any) -> None:
    drawn = DrawnProgram(data)
    program = drawn.program()
    given = inputs_of(program, data.draw(st.sampled_from([1, 2, 5]), "batch"), drawn.steps)
    right = Engine(program).run(given)
    found = written(program, tmp_path_factory.mktemp("drawn")).run(given)
    for name, expected in right.items():
        finite = np.isfinite(expected)
        assert np.array_equal(np.isfinite(found[name]), finite), name
        difference = np.abs(found[name][finite] - expected[finite])
        # Sums of random layers, some without a limit, beside a normalisation that magnifies what rounding leaves.
        assert np.all(difference <= 1e-4 * max(1, np.abs(expected[finite]).max(initial=0))), name


@pytest.mark.parametrize("name", [*IN_FILES, "softmax", "log_softmax"])
def test_activation_of_a_dense_layer_gives_the_same(name: str, tmp_path: Path) -> None:
    graph = Graph()
    wide = graph.affine(graph.input("x", -1, F), "wide", F, scale=4.0, offset=0.5)
    assert error_of(graph.program(y=graph.dense(wide, "head", F, 9, name)), tmp_path) <= ERROR


@pytest.mark.parametrize("name", IN_FILES)
def test_activation_of_an_lstm_gives_the_same_or_is_refused_by_name(name: str, tmp_path: Path) -> None:
    for place in ("activation", "recurrent_activation"):
        graph = Graph()
        graph.lstm(graph.input("x", -1, F), "layer", F, 7, **{place: name})
        plain, _, parameters = name.partition("(")
        # Of ReLU's parameters it has the threshold alone.
        if plain in LSTM_ACTIVATIONS and (
            plain != "relu" or not parameters or parameters.startswith("threshold")
        ):
            program = graph.program(y=1)
            # Few steps: without a limit, what rounding leaves grows with each.
            given = inputs_of(program, 3, 4)
            right, found = Engine(program).run(given)["y"], written(program, tmp_path).run(given)["y"]
            assert np.abs(found - right).max() <= ERROR * np.abs(right).max()
        else:
            with pytest.raises(
                ModelError, match=rf"^layer: ONNX's LSTM has no activation '{re.escape(name)}'"
            ):
                onnx_model(graph.program(y=1), {"y": (None,) * 3}, {})


def test_input_that_is_also_an_output_is_refused() -> None:
    graph = Graph()
    graph.dense(graph.input("x", F), "head", F, 2)
    with pytest.raises(ModelError, match="'x' names an input and an output"):
        onnx_model(graph.program(x=0, y=1), {"x": (None,) * 2, "y": (None,) * 2}, {})


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("sequences", [False, True])
@pytest.mark.parametrize("kept", MASKED_OUTPUTS)
@pytest.mark.parametrize("with_state", [False, True])
def test_masked_lstm_gives_the_same_whatever_the_mask(
    kept: str, sequences: bool, backwards: bool, with_state: bool, tmp_path: Path
) -> None:
    graph = Graph()
    x, state = graph.input("x", -1, F), graph.input("state", H)
    mask = graph.add("features_mask", "mask", {"x": x}, mask_value=0.0)
    states = {"h0": state, "c0": state} if with_state else {}
    lstm = graph.lstm(
        x,
        "lstm",
        F,
        H,
        mask=mask,
        masked_output=kept,
        return_sequences=sequences,
        go_backwards=backwards,
        **states,
    )
    h, c = (graph.add("lstm_state", each, {"lstm": lstm}, state=each) for each in "hc")
    program = graph.program(y=lstm, h=h, c=c)
    model = written(program, tmp_path)
    given = {"x": draw(64, 6, F), "state": draw(64, H)}
    # Every mask that 6 steps can have.
    given["x"][(np.arange(64)[:, None] >> np.arange(6)) % 2 == 0] = 0
    right = Engine(program).run(given)
    for name, found in model.run(given).items():
        np.testing.assert_allclose(found, right[name], atol=2e-6, rtol=0, err_msg=name)


def test_trials_have_masked_steps_anywhere_and_a_row_of_them() -> None:
    trials = trials_of(PROGRAMS["classifier"]())
    assert {trial.length for trial in trials} == {1, 2, 9, 40}
    ids = trials[-1].inputs["ids"]
    assert not ids[-1].any()
    inner = ids[:-1, 1:-1]
    assert 0 < np.count_nonzero(inner == 0) < inner.size / 2


def test_wrong_results_have_a_deviation() -> None:
    trials = trials_of(PROGRAMS["forecaster"]())
    for wrong in (
        lambda right: right + 1e-3,
        lambda right: np.where(right == right.max(), np.nan, right),
        lambda right: right[:, :1],
    ):
        found = iter([wrong(trial.expected["y"]) for trial in trials])
        assert deviation(trials, lambda _, found=found: {"y": next(found)}).error > 1e-4


def growing(weight: float) -> Program:
    """A layer without a bound, whose outputs become `weight` times as large at each step."""
    graph = Graph()
    arrays = {"kernel": np.ones((F, H), np.float32), "recurrent_kernel": weight * np.eye(H, dtype=np.float32)}
    options = {"masked_output": "previous_output", "go_backwards": False, "return_sequences": True}
    x = graph.input("x", -1, F)
    return graph.program(y=graph.add("simple_rnn", "grows", {"x": x}, arrays, activation="linear", **options))


def test_trials_leave_out_lengths_at_which_results_run_away() -> None:
    assert {trial.length for trial in trials_of(growing(1.1))} == {1, 2, 9, 40}
    assert {trial.length for trial in trials_of(growing(30.0))} == {1, 2}
    assert {trial.length for trial in trials_of(growing(1e6))} == {1}
    # From the first step on: smaller numbers.
    assert all(np.abs(trial.inputs["x"]).max() < 1 for trial in trials_of(scaled(5e6)))


def scaled(by: float) -> Program:
    graph = Graph()
    arrays = {"kernel": np.full((F, H), by, np.float32)}
    x = graph.input("x", -1, F)
    return graph.program(y=graph.add("dense", "large", {"x": x}, arrays, activation="linear"))


def test_numbers_at_the_end_of_the_range_may_overflow_in_one_runtime_and_not_in_the_other() -> None:
    right = np.float32([1.0, 3e38, np.inf, np.nan])
    (trial,) = [TrialBatch(None, {"x": right}, {"y": right})]

    def error(*found: float) -> float:
        return deviation([trial], lambda _: {"y": np.float32(found)}).error

    assert error(1.0, np.inf, 2e38, np.nan) == 0.0
    assert error(1.0, np.nan, np.nan, np.nan) == 0.0
    assert error(1.001, np.inf, np.inf, np.nan) > 1e-4
    for wrong in (np.nan, np.inf):
        assert error(wrong, 3e38, np.inf, np.nan) == np.inf
    assert error(1.0, 3e38, 5.0, np.nan) == np.inf
    assert error(1.0, 3e38, np.inf, 5.0) == np.inf


def test_two_inputs_may_have_different_lengths(tmp_path: Path) -> None:
    graph = Graph()
    first, second = graph.input("first", -1, F), graph.input("second", -1, F)
    state = graph.lstm(first, "reader", F, H, return_sequences=False)
    every = graph.add("add", "sum", {"0": graph.lstm(second, "writer", F, H), "1": state})
    program = graph.program(every=every)
    trials = trials_of(program)
    lengths = {tuple(array.shape[1] for array in trial.inputs.values()) for trial in trials}
    assert lengths == {(2, 3), (3, 4), (10, 11), (41, 42)}
    assert error_of(program, tmp_path) <= ERROR
    (tmp_path / "model.tflite").write_bytes(litert_model(program, 5, {}))
    tried = trials_of(program, (5,))
    assert deviation(tried, LiteRt(tmp_path / "model.tflite", program.outputs).run).error <= 1e-5


def test_inputs_that_must_be_of_one_length_are_tried_with_one() -> None:
    graph = Graph()
    first, second = graph.input("first", -1, F), graph.input("second", -1, F)
    trials = trials_of(graph.program(sum=graph.add("add", "sum", {"0": first, "1": second})))
    lengths = {tuple(array.shape[1] for array in trial.inputs.values()) for trial in trials}
    assert lengths == {(1, 1), (2, 2), (9, 9), (40, 40)}


def test_sizes_that_never_change_are_in_the_file(tmp_path: Path) -> None:
    program = PROGRAMS["classifier"]()
    trials = trials_of(program)
    model = onnx_model(program, sizes_of(program, trials), {"task": "text"})
    dims = {
        value.name: [dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert dims["ids"] == ["batch", "time"]
    assert dims["probabilities"] == ["batch", 4]
    assert dims["logs"] == ["batch", "logs 1", 70]
    assert model.metadata_props[0].value == '{"task": "text"}'


def both_directions(
    x: int, graph: Graph, name: str, inputs: int, *, sequences: bool = True, activation: str = "tanh"
) -> int:
    """A `Bidirectional` that concatenates, of fewer units than its inputs."""
    options = {"return_sequences": sequences, "activation": activation}
    ahead = graph.lstm(x, f"{name} ahead", inputs, 4, **options)
    back = graph.lstm(x, f"{name} back", inputs, 4, go_backwards=True, **options)
    for array in graph.nodes[back].arrays.values():
        array *= -0.5
    if sequences:
        back = graph.add("flip", f"{name} turned", {"x": back}, axis=1)
    return graph.add("concatenate", name, {"0": ahead, "1": back}, axis=-1)


def test_directions_of_a_bidirectional_are_one_node(tmp_path: Path) -> None:
    graph = Graph()
    x = both_directions(graph.input("x", -1, F), graph, "first", F, activation="relu")
    program = graph.program(every=x, last=both_directions(x, graph, "second", 8, sequences=False))
    assert error_of(program, tmp_path) <= ERROR
    for precision, op in (("float32", "LSTM"), ("int8", "DynamicQuantizeLSTM")):
        model = onnx_model(program, {"every": (None,) * 3, "last": (None,) * 2}, {}, precision)
        nodes = [node for node in model.graph.node if node.op_type == op]
        directions = [one.s for node in nodes for one in node.attribute if one.name == "direction"]
        assert directions == [b"bidirectional"] * 2
        (tmp_path / "int8.onnx").write_bytes(model.SerializeToString())
        given = {"x": draw(3, 7, F)}
        right = Engine(program).run(given)
        for name, found in OnnxRuntime(tmp_path / "int8.onnx").run(given).items():
            assert np.abs(found - right[name]).max() <= 0.03 * np.abs(right[name]).max()


def test_directions_of_a_bidirectional_are_right_in_openvino(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    graph = Graph()
    # With a fixed number of steps, OpenVINO computed the second of two nodes wrongly.
    program = graph.program(both=both_directions(graph.input("x", 6, F), graph, "both", F))
    written(program, tmp_path)
    words = tried_in_openvino(tmp_path / "model.onnx", trials_of(program))
    assert words.startswith("in OpenVINO, in float32: error")
    assert "wrong" not in words


def test_weights_that_nodes_share_are_written_once() -> None:
    graph = Graph()
    x, y = graph.input("x", -1, F), graph.input("y", -1, F)
    first = graph.lstm(x, "lstm", F, H)
    node = graph.nodes[first]
    graph.nodes.append(type(node)("lstm", "again", {"x": y}, node.arrays, node.options))
    program = graph.program(a=first, b=3)
    model = onnx_model(program, {"a": (None,) * 3, "b": (None,) * 3}, {})
    assert sum(len(array.dims) == 3 for array in model.graph.initializer) == 2
