"""Prepared calls give the results of full calls, and refuse arrays that they do not fit."""

import re
from typing import Any

import numpy as np
import pytest

from cellerate.errors import CellerateError, ConfigError, DataError
from cellerate.kernels import native
from cellerate.kernels.program.cpu import CompiledProgram
from cellerate.program import PRECISIONS, Program
from cellerate.runtime.cell import Cell
from cellerate.runtime.packed import PackedModel
from support.graphs import Graph, draw

H, F, V = 19, 3, 11


def packed(program: Program, precision: str = "float32") -> PackedModel:
    return PackedModel(Cell(program, precision, {}))


def forecaster() -> Program:
    graph = Graph()
    first = graph.lstm(graph.input("x", -1, F), "first", F, H)
    return graph.program(
        all=first, y=graph.dense(graph.lstm(first, "second", H, H, return_sequences=False), "head", H, 4)
    )


def reader() -> Program:
    graph = Graph()
    rows = graph.add(
        "embedding", "table", {"ids": graph.input("ids", -1, dtype="int32")}, {"embeddings": draw(V, 5)}
    )
    return graph.program(y=graph.lstm(rows, "lstm", 5, H, return_sequences=False))


def adder() -> Program:
    graph = Graph()
    first, second = graph.input("a", 3), graph.input("b", 3)
    return graph.program(
        sum=graph.add("add", "sum", {"0": first, "1": second}), one=graph.affine(first, "one", 3)
    )


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_second_call_of_a_kind_gives_the_bits_of_the_first(precision: str) -> None:
    model = packed(forecaster(), precision)
    x = draw(5, 7, F)
    fresh: Any = packed(forecaster(), precision).predict(x)
    for found in (model.predict(x), model.predict(x), model.predict({"x": x}), model.predict({"x": x})):
        assert found["all"].tobytes() == fresh["all"].tobytes()
        assert found["y"].tobytes() == fresh["y"].tobytes()
    other: Any = model.predict(x, ["y"])
    np.testing.assert_array_equal(other, fresh["y"])
    np.testing.assert_array_equal(model.predict(x, ["y"]), fresh["y"])


def test_other_kinds_of_arrays_are_not_taken_for_the_known_one() -> None:
    model, x = packed(forecaster()), draw(4, 6, F)
    right: Any = model.predict(x, ["y"])
    turned = np.ascontiguousarray(x.transpose(0, 2, 1)).transpose(0, 2, 1)
    strided = np.repeat(x, 2, axis=1)[:, ::2]
    for other in (x.astype(np.float64), turned, strided, x.tolist(), np.ma.masked_array(x)):
        np.testing.assert_array_equal(model.predict(other, ["y"]), right)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="outputs must be a list"):
        model.predict(x, "y")  # type: ignore[arg-type]
    np.testing.assert_array_equal(model.predict(x[:2], ["y"]), right[:2])


def test_ids_are_checked_in_every_call() -> None:
    model, ids = packed(reader()), np.random.default_rng(0).integers(0, V, (3, 9)).astype(np.int32)
    right: Any = model.predict(ids)
    from_the_end = np.where(ids > 4, ids - V, ids).astype(np.int32)
    np.testing.assert_allclose(model.predict(from_the_end), right, rtol=1e-5, atol=1e-6)
    ids[1, 2] = V
    for _ in range(2):
        with pytest.raises(DataError, match=re.escape(f"'ids' holds {V} at [1, 2]")):
            model.predict(ids)


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_several_inputs_go_where_they_belong(order: str) -> None:
    model, arrays = packed(adder()), {"a": draw(4, 3), "b": draw(4, 3, seed=1)}
    given = {name: arrays[name] for name in order}
    for _ in range(2):
        found: Any = model.predict(given)
        np.testing.assert_array_equal(found["sum"], arrays["a"] + arrays["b"])
        np.testing.assert_array_equal(found["one"], arrays["a"] * 2 + 1)


def test_only_the_first_call_of_a_kind_is_checked_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = packed(forecaster()), draw(2, 5, F)
    model.predict(x)
    monkeypatch.setattr(type(model._engine), "_run", lambda *_: pytest.fail("checked again"))
    model.predict(x)


@pytest.mark.parametrize("calls", [1, 2])
def test_results_go_into_out(calls: int) -> None:
    model, x = packed(forecaster()), draw(3, 5, F)
    right: Any = model.predict(x)
    for _ in range(calls):
        out = {"all": np.full((3, 5, H), np.nan, np.float32), "y": np.full((3, 4), np.nan, np.float32)}
        found: Any = model.predict(x, out=out)
        assert found["all"] is out["all"]
        assert found["y"] is out["y"]
        np.testing.assert_array_equal(out["all"], right["all"])
        np.testing.assert_array_equal(out["y"], right["y"])
        one = np.full((3, 4), np.nan, np.float32)
        assert model.predict(x, ["y"], out=one) is one
        np.testing.assert_array_equal(one, right["y"])


@pytest.mark.parametrize("calls", [1, 2])
def test_out_may_be_strided_or_lie_on_the_input(calls: int) -> None:
    graph = Graph()
    model = packed(graph.program(y=graph.lstm(graph.input("x", -1, H), "lstm", H, H)))
    for _ in range(calls):
        x = draw(40, 6, H)
        right = packed(model.cell.program).predict(x)
        wide = np.zeros((40, 6, 2 * H), np.float32)
        assert model.predict(x, out=wide[:, :, ::2]) is not None
        np.testing.assert_array_equal(wide[:, :, ::2], right)
        assert not wide[:, :, 1::2].any()
        assert model.predict(x, out=x) is x
        np.testing.assert_array_equal(x, right)


@pytest.mark.parametrize("calls", [0, 1])
@pytest.mark.parametrize(
    ("out", "message"),
    [
        (np.zeros((3, 5), np.float32), r"expected an array \(3, 4\) float32 for 'y', got \(3, 5\) float32"),
        (np.zeros((3, 4)), "got .*float64"),
        ([[0.0] * 4] * 3, "got list"),
        ({"z": np.zeros((3, 4), np.float32)}, "an array for each of y, not z"),
        (np.broadcast_to(np.zeros(4, np.float32), (3, 4)), "read-only"),
    ],
)
def test_an_out_that_does_not_fit_is_refused(calls: int, out: Any, message: str) -> None:
    model, x = packed(forecaster()), draw(3, 5, F)
    for _ in range(calls):
        model.predict(x, ["y"])
    with pytest.raises(CellerateError, match=message):
        model.predict(x, ["y"], out=out)


def test_one_out_for_two_outputs_is_refused() -> None:
    with pytest.raises(ConfigError, match="out must be a dict of arrays by name"):
        packed(forecaster()).predict(draw(3, 5, F), out=np.zeros((3, 4), np.float32))


def test_an_empty_batch_leaves_out_as_it_is() -> None:
    out = np.zeros((0, 4), np.float32)
    assert packed(forecaster()).predict(draw(0, 5, F), ["y"], out=out) is out


@pytest.mark.parametrize("precision", PRECISIONS)
def test_prepared_calls_give_what_predict_gives(precision: str) -> None:
    model = packed(forecaster(), precision)
    call = model.prepared(4, 6, ["y"])
    assert call.inputs == {"x": ((4, 6, F), "float32")}
    assert call.outputs == {"y": ((4, 4), "float32")}
    x = draw(4, 6, F)
    right = model.predict(x, ["y"])
    np.testing.assert_array_equal(call(x), right)
    np.testing.assert_array_equal(call({"x": x}), right)
    out = np.zeros((4, 4), np.float32)
    assert call(x, out) is out
    np.testing.assert_array_equal(out, right)


def test_prepared_calls_know_ids_that_count_from_the_end_and_refuse_wrong_ones() -> None:
    model = packed(reader())
    call = model.prepared(steps=3)
    np.testing.assert_array_equal(
        call(np.array([[1 - V, -1, 3]], np.int32)), model.predict(np.array([[1 - V, -1, 3]]))
    )
    with pytest.raises(DataError, match="holds 11 at"):
        call(np.array([[1, 11, 3]], np.int32))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (draw(4, 5, F), r"expected C-contiguous arrays 'x' \(4, 6, 3\) float32, got \(4, 5, 3\) float32"),
        (draw(4, 6, F).astype(np.float64), "got .* float64"),
        (draw(4, 12, F)[:, ::2], "not C-contiguous"),
        ({"z": draw(4, 6, F)}, "inputs must be arrays for x, not z"),
        ([1.0], "inputs must be arrays for x, not list"),
        ({"x": [1.0]}, "got list"),
    ],
)
def test_prepared_calls_refuse_other_arrays(given: Any, message: str) -> None:
    call = packed(forecaster()).prepared(4, 6)
    with pytest.raises(CellerateError, match=message):
        call(given)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": 0, "steps": 5}, "batch must be a whole number from 1 on, not 0"),
        ({"batch": True, "steps": 5}, "batch must be a whole number"),
        ({"steps": 2.5}, "steps must be a whole number"),
        ({}, "give steps"),
        ({"batch": 2**40, "steps": 2**40}, r"batch=\d+ and steps=\d+ would need .* of memory"),
        ({"steps": 5, "outputs": ["z"]}, "outputs holds 'z'"),
    ],
)
def test_prepared_refuses_sizes_that_no_call_has(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        packed(forecaster()).prepared(**arguments)


def test_prepared_refuses_other_steps_than_the_model_has() -> None:
    graph = Graph()
    model = packed(graph.program(y=graph.lstm(graph.input("x", 7, F), "lstm", F, H)))
    assert model.prepared(2).inputs == {"x": ((2, 7, F), "float32")}
    with pytest.raises(ConfigError, match="steps must be 7"):
        model.prepared(2, 8)


def test_calls_without_the_core_give_the_same_results(monkeypatch: pytest.MonkeyPatch) -> None:
    x = draw(3, 5, F)
    right: Any = packed(forecaster()).predict(x, ["y"])
    monkeypatch.setattr(native, "why_unavailable", lambda: "not here")
    monkeypatch.setattr(CompiledProgram, "run", lambda *_: pytest.fail("ran on the core"))
    model = packed(forecaster())
    out = np.zeros((3, 4), np.float32)
    for found in (
        model.predict(x, ["y"]),
        model.prepared(3, 5, ["y"])(x),
        model.predict(x, ["y"], out=out),
        out,
    ):
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)
