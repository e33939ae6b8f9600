"""Repeated pushes of one size and prepared calls, which pass only pointers to the core, give what other pushes give.

From the second push of a size on, the core keeps the states in two sets of arrays that take turns.
"""

import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cellerate.errors import CellerateError, ConfigError, DataError
from cellerate.kernels import native
from cellerate.program import PRECISIONS, Program
from cellerate.runtime import streams as streams_module
from cellerate.runtime.cell import Cell
from cellerate.runtime.packed import PackedModel
from cellerate.runtime.streams import Streams
from support.graphs import Graph, draw

H, F, V, B = 19, 3, 11, 5


def forecaster() -> Program:
    graph = Graph()
    first = graph.lstm(graph.input("x", -1, F), "first", F, H)
    return graph.program(y=graph.dense(graph.lstm(first, "second", H, H), "head", H, 4))


def reader() -> Program:
    graph = Graph()
    ids = graph.input("ids", -1, dtype="int32")
    rows = graph.add("embedding", "table", {"ids": ids}, {"embeddings": draw(V, 5)})
    return graph.program(y=graph.lstm(rows, "lstm", 5, H))


def both() -> Program:
    graph = Graph()
    lstm = graph.lstm(graph.input("x", -1, F), "lstm", F, H)
    return graph.program(all=lstm, y=graph.dense(lstm, "head", H, 4))


def packed(program: Program, precision: str = "float32") -> PackedModel:
    return PackedModel(Cell(program, precision, {}))


def is_prepared(streams: Streams) -> bool:
    return streams._alike is not None


def ready(model: PackedModel, x: np.ndarray) -> Streams:
    """Streams that have read two steps, so that their next push of one step is a prepared call."""
    streams = model.streams(len(x))
    for step in range(2):
        assert not is_prepared(streams)
        streams.push(x[:, step : step + 1])
    assert is_prepared(streams)
    return streams


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("into", [False, True], ids=["push", "push_into"])
def test_repeated_pushes_give_the_bits_of_one_call(precision: str, into: bool) -> None:
    model, x = packed(forecaster(), precision), draw(B, 12, F)
    whole = model.streams(B)
    right = np.asarray(whole.push(x))
    streams, made = model.streams(B), np.full((B, 12, 4), np.nan, np.float32)
    for step in range(12):
        part, out = np.ascontiguousarray(x[:, step : step + 1]), np.empty((B, 1, 4), np.float32)
        if into:
            assert streams.push_into(part, out) is None
        else:
            out = np.asarray(streams.push(part))
        made[:, step : step + 1] = out
    assert is_prepared(streams)
    assert made.tobytes() == right.tobytes()
    assert streams.state.tobytes() == whole.state.tobytes()


def test_results_of_earlier_pushes_stay_as_they_are() -> None:
    x = draw(B, 8, F)
    streams = ready(packed(forecaster()), x)
    made = [np.asarray(streams.push(x[:, step : step + 1])) for step in range(2, 8)]
    before = [each.copy() for each in made]
    streams.push(x[:, :1])
    for each, kept in zip(made, before, strict=True):
        np.testing.assert_array_equal(each, kept)


def test_ids_are_checked_in_each_push_and_may_be_negative() -> None:
    model, ids = packed(reader()), np.array([[1, 2, 3, 4]], np.int32)
    streams, other = ready(model, ids), ready(model, ids)
    before = streams.state
    with pytest.raises(DataError, match="id"):
        streams.push(np.array([[V]], np.int32))
    np.testing.assert_array_equal(streams.state, before)
    from_end = streams.push(np.array([[-1]], np.int32))
    np.testing.assert_array_equal(from_end, other.push(np.array([[V - 1]], np.int32)))


def join(streams: Streams) -> None:
    streams.join(streams.clone())
    streams.leave(range(B))


def leave(streams: Streams) -> None:
    streams.leave([1])


def reset(streams: Streams) -> None:
    streams.reset([0, 2])


def put_back(streams: Streams) -> None:
    streams.set_states([3, 0], streams.states_of([0, 3]))


def push_to_some(streams: Streams) -> None:
    streams.push(draw(2, 1, F, seed=3), rows=[4, 1])


def push_other_steps(streams: Streams) -> None:
    streams.push(draw(streams.count, 3, F, seed=3))


@pytest.mark.parametrize("change", [join, leave, reset, put_back, push_to_some, push_other_steps])
def test_state_changes_between_pushes_take_effect(change: Callable[[Streams], None]) -> None:
    model, x = packed(forecaster()), draw(B, 9, F)
    streams, right = ready(model, x), model.streams(B)
    right.push(x[:, :2])
    for part in (x[:, 2:3], x[:, 3:4], x[:, 4:5]):
        streams.push(part)
        change(streams)
        right._pushed = {}  # so that it never prepares a call
        right.push(part)
        change(right)
        assert not is_prepared(right)
        assert streams.state.tobytes() == right.state.tobytes()
        x = x[: streams.count]
        last = draw(streams.count, 1, F, seed=9)
        right._pushed = {}
        np.testing.assert_array_equal(streams.clone().push(last), right.clone().push(last))
        if streams.count != B:
            break


def test_reset_streams_stay_prepared() -> None:
    x = draw(B, 4, F)
    streams = ready(packed(forecaster()), x)
    streams.reset()
    assert is_prepared(streams)
    np.testing.assert_array_equal(
        streams.push(x[:, :1]), packed(forecaster()).streams(B).push(np.ascontiguousarray(x[:, :1]))
    )


def test_copies_are_independent() -> None:
    x = draw(B, 6, F)
    streams = ready(packed(forecaster()), x)
    copied, cloned = copy.copy(streams), streams.clone()
    right = np.asarray(streams.push(x[:, 2:3]))
    np.testing.assert_array_equal(copied.push(x[:, 2:3]), right)
    np.testing.assert_array_equal(cloned.push(x[:, 2:3]), right)


@pytest.mark.parametrize(
    "given",
    [
        draw(B, 1, F).astype(np.float64),
        draw(B, 1, F).tolist(),
        np.asfortranarray(draw(B, 1, F)),
        draw(B, 2, F)[:, ::2],
        {"x": draw(B, 1, F)},
        np.frombuffer(draw(B, 1, F).tobytes(), np.float32).reshape(B, 1, F),
    ],
    ids=["float64", "list", "Fortran", "strided", "dict", "read-only"],
)
def test_other_array_types_of_the_same_numbers_give_equal_results(given: Any) -> None:
    model, x = packed(forecaster()), draw(B, 4, F)
    streams, right = ready(model, x), ready(model, x)
    plain = given["x"] if isinstance(given, dict) else np.ascontiguousarray(given, np.float32)
    given = np.asarray(given) if isinstance(given, list) else given
    np.testing.assert_array_equal(streams.push(given), right.push(plain))
    np.testing.assert_array_equal(streams.state, right.state)


@pytest.mark.parametrize(
    "given",
    [draw(B - 1, 1, F), draw(B, 1, F + 1), draw(B, F), np.zeros((B, 1, F), "U1"), draw(B, 0, F), None],
    ids=["rows", "features", "axes", "text", "no steps", "None"],
)
def test_wrong_arrays_are_refused_and_change_nothing(given: Any) -> None:
    x = draw(B, 4, F)
    streams = ready(packed(forecaster()), x)
    before, out = streams.state, np.full((B, 1, 4), 7, np.float32)
    with pytest.raises(CellerateError):
        streams.push(given)
    with pytest.raises(CellerateError):
        streams.push_into(given, out)
    np.testing.assert_array_equal(streams.state, before)
    assert (out == 7).all()


@pytest.mark.parametrize("pushes", [0, 1, 2], ids=["first", "second", "third"])
@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (np.zeros((B, 4), np.float32), DataError, r"expected an array \(5, 1, 4\) float32"),
        (np.zeros((B, 1, 4)), DataError, "float32"),
        (None, ConfigError, "out is None"),
        ({"z": np.zeros((B, 1, 4), np.float32)}, ConfigError, "out"),
    ],
    ids=["shape", "float64", "None", "name"],
)
def test_an_out_that_does_not_fit_is_refused_and_nothing_is_read(
    pushes: int, out: Any, error: type[Exception], message: str
) -> None:
    model, x = packed(forecaster()), draw(B, 6, F)
    streams, right = model.streams(B), model.streams(B)
    for step in range(pushes):
        streams.push(x[:, step : step + 1])
        right.push(x[:, step : step + 1])
    with pytest.raises(error, match=message):
        streams.push_into(x[:, 2:3], out)
    for step in range(2, 5):
        np.testing.assert_array_equal(streams.push(x[:, step : step + 1]), right.push(x[:, step : step + 1]))


def test_out_may_be_read_only_never_and_strided_or_on_the_input_always() -> None:
    model, x = packed(forecaster()), draw(B, 4, F)
    streams, right = ready(model, x), ready(model, x)
    fixed = np.zeros((B, 1, 4), np.float32)
    fixed.flags.writeable = False
    with pytest.raises(DataError, match="read-only"):
        streams.push_into(x[:, 2:3], fixed)
    strided = np.zeros((B, 2, 4), np.float32)[:, ::2]
    streams.push_into(x[:, 2:3], strided)
    np.testing.assert_array_equal(strided, right.push(x[:, 2:3]))
    # The next inputs lie in the memory of the results.
    memory = np.zeros(B * 4 + B * F, np.float32)
    given, out = memory[4 : 4 + B * F].reshape(B, 1, F), memory[: B * 4].reshape(B, 1, 4)
    given[:] = x[:, 3:4]
    streams.push_into(given, out)
    np.testing.assert_array_equal(out, right.push(x[:, 3:4]))


def test_several_outputs_go_into_arrays_by_name() -> None:
    model, x = packed(both()), draw(B, 4, F)
    streams, right = model.streams(B), model.streams(B)
    for step in range(3):
        out = {"all": np.empty((B, 1, H), np.float32), "y": np.empty((B, 1, 4), np.float32)}
        streams.push_into(x[:, step : step + 1], out)
        found: Any = right.push(x[:, step : step + 1])
        for name, each in out.items():
            np.testing.assert_array_equal(each, found[name])
    assert not is_prepared(streams)


def test_number_of_threads_may_change_between_pushes() -> None:
    model = packed(forecaster())
    x, most = draw(400, 3, F), native.num_threads()
    streams, right = ready(model, x), model.streams(400)
    try:
        native.set_num_threads(1 if most > 1 else 2)
        found = streams.push(x[:, 2:3])
    finally:
        native.set_num_threads(most)
    right.push(x[:, :2])
    np.testing.assert_array_equal(found, right.push(x[:, 2:3]))


def test_a_prepared_call_serves_several_threads_at_once() -> None:
    model, x = packed(forecaster()), draw(8, B, 6, F)
    call = model.prepared(B, 6)
    right = [np.asarray(model.predict(each)) for each in x]
    found: list[Any] = [None] * 8

    def work(place: int) -> None:
        for _ in range(50):
            found[place] = call(x[place])

    threads = [threading.Thread(target=work, args=(place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each, expected in zip(found, right, strict=True):
        np.testing.assert_array_equal(each, expected)


def test_nothing_but_the_result_is_made_for_a_push(monkeypatch: pytest.MonkeyPatch) -> None:
    x = draw(B, 4, F)
    streams = ready(packed(forecaster()), x)
    part, out = np.ascontiguousarray(x[:, 2:3]), np.empty((B, 1, 4), np.float32)
    monkeypatch.setattr(streams._engine, "run", None)
    monkeypatch.setattr(streams_module, "by_name", None)
    streams.push(part)
    monkeypatch.setattr(np, "empty", None)
    streams.push_into(part, out)


def test_without_the_core_pushes_are_never_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    x = draw(B, 5, F)
    right = [np.asarray(each) for each in pushed(packed(forecaster()), x)]
    monkeypatch.setattr(native, "why_unavailable", lambda: "as on a machine without it")
    model = packed(forecaster())
    for found, expected in zip(pushed(model, x), right, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    streams = model.streams(B)
    out = np.empty((B, 1, 4), np.float32)
    for step in range(3):
        streams.push_into(x[:, step : step + 1], out)
    np.testing.assert_allclose(out, right[2], rtol=1e-5, atol=1e-6)
    assert not is_prepared(streams)


def pushed(model: PackedModel, x: np.ndarray) -> list[Any]:
    streams = model.streams(len(x))
    return [streams.push(x[:, step : step + 1]) for step in range(x.shape[1])]


def test_pushes_by_name_prepare_nothing() -> None:
    x = draw(B, 5, F)
    streams = packed(forecaster()).streams(B)
    for step in range(5):
        streams.push({"x": x[:, step : step + 1]})
        assert not is_prepared(streams)


@pytest.mark.parametrize("count", [1, 4])
def test_time_pushes_leaves_the_streams_as_so_many_pushes_do(count):
    model, x = packed(forecaster()), draw(B, 1, F)
    timed, pushed = ready(model, np.repeat(x, 3, axis=1)), ready(model, np.repeat(x, 3, axis=1))
    out = np.empty((B, 1, 4), np.float32)
    seconds = timed.time_pushes(x, out, count)
    for _ in range(count):
        wanted = pushed.push(x)
    assert len(seconds) == count and min(seconds) > 0
    np.testing.assert_array_equal(out, wanted)
    np.testing.assert_array_equal(timed.state, pushed.state)
    np.testing.assert_array_equal(timed.push(x), pushed.push(x))


def test_time_pushes_before_others_of_the_size_is_refused():
    streams = packed(forecaster()).streams(B)
    with pytest.raises(ConfigError, match="three times"):
        streams.time_pushes(draw(B, 1, F), np.empty((B, 1, 4), np.float32), 1)


def test_time_pushes_of_another_size_is_refused():
    streams = ready(packed(forecaster()), draw(B, 3, F))
    with pytest.raises(ConfigError, match="do not fit"):
        streams.time_pushes(draw(B, 2, F), np.empty((B, 1, 4), np.float32), 1)
