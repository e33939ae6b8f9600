"""Streams give the results of the whole sequence, pushed in any parts, independently of each other."""

from typing import Any

import numpy as np
import pytest

from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.program import PRECISIONS, Program
from cellerate.runtime.cell import Cell
from cellerate.runtime.packed import PackedModel
from cellerate.runtime.program.stepping import stepping_of
from support.graphs import Graph, draw

H, F, V = 19, 3, 11


def packed(program: Program, precision: str = "float32") -> PackedModel:
    return PackedModel(Cell(program, precision, {}))


def forecaster(sequences: bool = False) -> Program:
    graph = Graph()
    first = graph.lstm(graph.input("x", 60, F), "first", F, H)
    norm = graph.add("layer_norm", "norm", {"x": first}, epsilon=1e-3)
    second = graph.lstm(norm, "second", H, H, return_sequences=sequences, activation="softsign")
    return graph.program(y=graph.dense(second, "head", H, 4))


def classifier() -> Program:
    """Masked ids, two layers whose outputs are joined, and a softmax of each step."""
    graph = Graph()
    ids = graph.input("ids", -1, dtype="int32")
    rows = graph.add("embedding", "table", {"ids": ids}, {"embeddings": draw(V, 5)})
    mask = graph.add("ids_mask", "table", {"ids": ids})
    first = graph.lstm(rows, "first", 5, H, mask=mask)
    second = graph.lstm(first, "second", H, H, mask=mask, masked_output="zero")
    both = graph.add("concatenate", "both", {"0": first, "1": second}, axis=-1)
    h = graph.add("lstm_state", "second", {"lstm": second}, state="h")
    return graph.program(each=graph.dense(both, "head", 2 * H, 4, "softmax"), last=h)


def numbers(count: int, steps: int, seed: int = 0) -> np.ndarray:
    return draw(count, steps, F, seed=seed)


def ids_of(count: int, steps: int) -> np.ndarray:
    found = np.random.default_rng(0).integers(0, V, (count, steps)).astype(np.int32)
    found[:, :2] = 0  # masked from the beginning
    return found


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("parts", [(1,) * 12, (5, 7), (11, 1), (3, 1, 8)], ids=str)
def test_pushes_give_the_bits_of_one_call(precision: str, parts: tuple[int, ...]) -> None:
    model, x = packed(forecaster(sequences=True), precision), numbers(4, 12)
    streams = model.streams(4)
    made = [streams.push(part) for part in np.split(x, np.cumsum(parts)[:-1], axis=1)]
    whole = model.streams(4)
    right = whole.push(x)
    assert np.concatenate(made, axis=1).tobytes() == np.asarray(right).tobytes()
    assert streams.state.tobytes() == whole.state.tobytes()


def test_last_output_equals_predict_over_all_pushed_steps() -> None:
    graph_of_any_length = Graph()
    first = graph_of_any_length.lstm(
        graph_of_any_length.input("x", -1, F), "lstm", F, H, return_sequences=False
    )
    model, x = packed(graph_of_any_length.program(y=first)), numbers(3, 9)
    streams = model.streams(3)
    for step in range(9):
        found = streams.push(x[:, step : step + 1])
        np.testing.assert_array_equal(found, model.predict(x[:, : step + 1]))


def test_masked_steps_do_not_change_state_or_output() -> None:
    model, ids = packed(classifier()), ids_of(5, 20)
    right: Any = model.predict(ids)
    streams = model.streams(5)
    made: list[Any] = [streams.push(ids[:, begin : begin + 4]) for begin in range(0, 20, 4)]
    np.testing.assert_array_equal(np.concatenate([each["each"] for each in made], axis=1), right["each"])
    np.testing.assert_array_equal(made[-1]["last"], right["last"])


def test_nan_in_one_stream_does_not_change_the_others() -> None:
    model, x = packed(forecaster()), numbers(7, 6)
    right = np.asarray(model.streams(7).push(x))
    x[3, 2, 1] = np.nan
    streams = model.streams(7)
    streams.push(x[:, :3])
    found = np.asarray(streams.push(x[:, 3:]))
    others = np.arange(7) != 3
    assert found[others].tobytes() == right[others].tobytes() and np.isnan(found[3]).all()
    streams.reset([3])
    assert np.isfinite(streams.state).all()


def test_streams_split_join_and_restart() -> None:
    model, x = packed(forecaster()), numbers(5, 8)
    streams = model.streams(5)
    streams.push(x[:, :4])
    fork = streams.clone()
    taken = streams.leave([4, 1])
    assert (streams.count, taken.count) == (3, 2)
    right = np.asarray(fork.push(x[:, 4:]))
    np.testing.assert_array_equal(taken.push(x[[4, 1], 4:]), right[[4, 1]])
    np.testing.assert_array_equal(streams.push(x[[0, 2, 3], 4:]), right[[0, 2, 3]])
    streams.join(taken)
    np.testing.assert_array_equal(streams.state, fork.state[[0, 2, 3, 4, 1]])
    streams.reset()
    assert not streams.state.any() and fork.state.any()
    with pytest.raises(ConfigError, match="rows is"):
        streams.leave([1, 1])
    with pytest.raises(ConfigError):
        streams.reset([5])
    with pytest.raises(ConfigError, match="another model"):
        streams.join(packed(forecaster()).streams())


def test_states_are_saved_and_restored_of_this_model_only(tmp_path: Any) -> None:
    model, x, path = packed(forecaster()), numbers(4, 6), tmp_path / "streams.state"
    streams = model.streams(4)
    streams.push(x[:, :3])
    streams.save(path)
    right = streams.push(x[:, 3:])
    other = model.streams()
    other.restore(path)
    np.testing.assert_array_equal(other.push(x[:, 3:]), right)
    before = other.state
    for wrong in (packed(forecaster(), "int8"), packed(forecaster(sequences=True))):
        with pytest.raises(DataError, match="another model"):
            wrong.streams().restore(path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError):
        other.restore(path)
    np.testing.assert_array_equal(other.state, before)
    with pytest.raises(ConfigError, match="no stream to save"):
        model.streams(0).save(path)


def test_wrong_rows_are_refused_and_change_nothing() -> None:
    streams = packed(forecaster()).streams(4)
    streams.push(numbers(4, 2))
    before = streams.state
    for wrong in (numbers(3, 2), numbers(4, 2)[..., :2], np.zeros((4, 0, F)), np.array(["a"] * 4), 3.0):
        with pytest.raises(DataError):
            streams.push(wrong)
    with pytest.raises(ConfigError, match="'z'"):
        streams.push({"z": numbers(4, 2)})
    np.testing.assert_array_equal(streams.state, before)
    with pytest.raises(ConfigError):
        packed(forecaster()).streams(-1)


def backward() -> Graph:
    graph = Graph()
    graph.lstm(graph.input("x", -1, F), "behind", F, H, go_backwards=True)
    return graph


def averaged() -> Graph:
    graph = Graph()
    lstm = graph.lstm(graph.input("x", -1, F), "lstm", F, H)
    graph.add("mean_over_time", "behind", {"x": lstm})
    return graph


def unfolded() -> Graph:
    """The second LSTM reads the first one's last output, reshaped into steps, as a new sequence after each step."""
    graph = Graph()
    last = graph.lstm(graph.input("x", -1, F), "lstm", F, H, return_sequences=False)
    cut = graph.add("reshape", "cut", {"x": last}, shape=(H, 1))
    graph.lstm(cut, "behind", 1, H)
    return graph


def cropped() -> Graph:
    """The last but one step cannot be identified before the last step arrives."""
    graph = Graph()
    lstm = graph.lstm(graph.input("x", 6, F), "lstm", F, H)
    graph.add("crop", "behind", {"x": lstm}, begin=4, end=None)
    return graph


def cropped_of_any_length() -> Graph:
    graph = Graph()
    lstm = graph.lstm(graph.input("x", -1, F), "lstm", F, H)
    graph.add("crop", "behind", {"x": lstm}, begin=-2, end=None)
    return graph


def taken_before_the_last() -> Graph:
    graph = Graph()
    lstm = graph.lstm(graph.input("x", -1, F), "lstm", F, H)
    graph.add("take", "behind", {"x": lstm}, indices=(5,), axis=1)
    return graph


def joined_in_time() -> Graph:
    graph = Graph()
    lstm = graph.lstm(graph.input("x", -1, F), "lstm", F, H)
    graph.add("concatenate", "behind", {"0": lstm, "1": lstm}, axis=1)
    return graph


def begun_by_another() -> Graph:
    graph = Graph()
    x = graph.input("x", -1, F)
    first = graph.lstm(x, "first", F, H)
    states = [graph.add("lstm_state", "first", {"lstm": first}, state=state) for state in "hc"]
    graph.lstm(x, "behind", F, H, h0=states[0], c0=states[1])
    return graph


def of_each_step(steps: int = 6) -> tuple[Graph, int]:
    """One number for each step: time is the last axis."""
    graph = Graph()
    lstm = graph.lstm(graph.input("x", steps, F), "lstm", F, H)
    return graph, graph.add("mean", "each", {"x": lstm}, axis=2, keepdims=False)


def weighed_against_other_steps() -> Graph:
    graph, each = of_each_step(-1)
    graph.add("activation", "behind", {"x": each}, activation="softmax")
    return graph


def normalized_along_time() -> Graph:
    graph, each = of_each_step(-1)
    graph.add("layer_norm", "behind", {"x": each}, epsilon=1e-3)
    return graph


def features_of_all_steps() -> Graph:
    graph, each = of_each_step()
    graph.dense(each, "behind", 6, 4)
    return graph


def beside_repeated_features() -> Graph:
    graph = Graph()
    lstm = graph.lstm(graph.input("x", 6, F), "lstm", F, H)
    again = graph.add("repeat_vector", "again", {"x": graph.input("who", 2)}, n=6)
    graph.add("concatenate", "behind", {"0": lstm, "1": again}, axis=2)
    return graph


@pytest.mark.parametrize(
    "make",
    [
        backward,
        averaged,
        unfolded,
        cropped,
        cropped_of_any_length,
        taken_before_the_last,
        joined_in_time,
        begun_by_another,
        weighed_against_other_steps,
        normalized_along_time,
        features_of_all_steps,
        beside_repeated_features,
    ],
)
def test_model_that_looks_ahead_is_refused_with_its_layer(make: Any) -> None:
    graph = make()
    with pytest.raises(ModelError, match=r"^behind: .*use predict on whole sequences"):
        stepping_of(graph.program(y=len(graph.nodes) - 1))


def test_number_of_each_step_is_known_step_by_step() -> None:
    graph, each = of_each_step()
    graph.input("unread", dtype="int32")
    model = PackedModel(Cell(graph.program(y=each), "float32", {}))
    x, unread = numbers(2, 6), np.zeros(2, np.int32)
    streams = model.streams(2)
    parts = [streams.push({"x": part, "unread": unread}) for part in (x[:, :1], x[:, 1:])]
    assert np.array_equal(np.concatenate(parts, axis=1), model.predict({"x": x, "unread": unread}))


def test_result_of_the_last_step_may_be_put_into_any_shape() -> None:
    graph = Graph()
    last = graph.lstm(graph.input("x", 6, F), "lstm", F, H, return_sequences=False)
    cut = graph.add("reshape", "cut", {"x": graph.dense(last, "head", H, 6)}, shape=(3, 2))
    model = PackedModel(Cell(graph.program(y=cut), "float32", {}))
    streams = model.streams(2)
    x = numbers(2, 6)
    for step in range(6):
        found = streams.push(x[:, step : step + 1])
    assert np.asarray(found).shape == (2, 3, 2)
    assert np.array_equal(found, model.predict(x))


@pytest.mark.parametrize(
    "op, options",
    [
        ("crop", {"begin": 5, "end": None}),
        ("crop", {"begin": -1, "end": None}),
        ("crop", {"begin": 5, "end": 6}),
        ("take", {"indices": (5,), "axis": 1}),
        ("take", {"indices": (-1,), "axis": 1}),
    ],
)
def test_forecast_from_the_last_row_takes_that_of_the_push(op: str, options: Any) -> None:
    """`train series` builds such models, which forecast the difference from the last row's targets."""
    graph = Graph()
    x = graph.input("x", 6, F)
    lstm = graph.lstm(x, "lstm", F, H, return_sequences=False)
    chosen = graph.add("take", "targets", {"x": x}, indices=(2, 0), axis=2)
    last = graph.add("reshape", "last", {"x": graph.add(op, "crop", {"x": chosen}, **options)}, shape=(1, 2))
    made = graph.add("reshape", "made", {"x": graph.dense(lstm, "head", H, 6)}, shape=(3, 2))
    model = PackedModel(Cell(graph.program(y=graph.add("add", "sum", {"0": made, "1": last})), "float32", {}))
    streams, x_given = model.streams(2), numbers(2, 6)
    for step in range(6):
        found = streams.push(x_given[:, step : step + 1])
    assert np.array_equal(found, model.predict(x_given))
    streams = model.streams(2)
    assert np.array_equal(streams.push(x_given), model.predict(x_given))


def test_model_without_a_recurrent_layer_is_refused() -> None:
    graph = Graph()
    with pytest.raises(ModelError, match="no recurrent layer"):
        stepping_of(graph.program(y=graph.affine(graph.input("x", -1, F), "affine", F)))


def test_push_to_some_streams_leaves_the_others_and_gives_them_the_bits_they_would_get_alone() -> None:
    model, x = packed(forecaster(sequences=True)), numbers(5, 6)
    streams, right = model.streams(5), model.streams(5)
    whole = right.push(x)
    for rows in ([3, 0], [4], [1, 2, 0]):
        streams.reset()
        before = streams.state
        parts = [streams.push(x[rows, :4], rows), streams.push(x[rows, 4:], np.array(rows))]
        assert np.concatenate(parts, axis=1).tobytes() == whole[rows].tobytes()
        others = sorted(set(range(5)) - set(rows))
        assert np.array_equal(streams.state[others], before[others])
        assert np.array_equal(streams.state[rows], right.state[rows])


def test_states_are_exported_and_restored() -> None:
    model, x = packed(forecaster()), numbers(3, 4)
    streams = model.streams(3)
    streams.push(x)
    taken = streams.states_of([2, 0])
    assert np.array_equal(taken, streams.state[[2, 0]])
    other = model.streams(4)
    other.set_states([1, 3], taken)
    assert np.array_equal(other.state[[1, 3]], taken) and not other.state[[0, 2]].any()
    with pytest.raises(DataError, match=r"must be numbers of the shape \(1, 76\), not float32 \(2, 76\)"):
        other.set_states([0], taken)
    with pytest.raises(ConfigError, match="expected each stream once"):
        other.set_states([1, 1], taken)
    with pytest.raises(ConfigError, match="rows"):
        other.push(x[:1], [4])
    with pytest.raises(DataError, match="has 2 rows; expected 1"):
        other.push(x[:2], [0])
