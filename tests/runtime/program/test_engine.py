"""The engine computes only what the outputs need, on whole rows, and frees arrays that it no longer needs."""

import itertools
import subprocess
import sys
import threading
import tracemalloc
import weakref

import ml_dtypes
import numpy as np
import pytest

from cellerate.errors import ConfigError, DataError
from cellerate.kernels import native
from cellerate.kernels.lstm import cpu, reference
from cellerate.kernels.lstm.spec import Arguments, LstmOptions
from cellerate.runtime.program import interpreter, operations
from cellerate.runtime.program.engine import Engine
from support.graphs import Graph, draw
from support.runtime.engine_programs import C, E, H, V, pass_on, text_program, two_inputs

pytestmark = pytest.mark.usefixtures("way")

interpreted = pytest.mark.parametrize("way", ["an operation at a time"], indirect=True)

# The design's limit for the root mean square error of a forward pass, relative to the values' root mean square.
LIMIT = 1e-6


@pytest.fixture
def numpy_alone(monkeypatch):
    monkeypatch.setattr(native, "why_unavailable", lambda: "the test wants none")
    monkeypatch.setattr(native, "core", None)


def text_ids(batch, steps, seed=0):
    ids = np.random.default_rng(seed).integers(1, V, (batch, steps)).astype(np.int32)
    ids[np.random.default_rng(seed + 1).random(ids.shape) < 0.3] = 0
    ids[:, 0] = 1
    return ids


def text_expected(program, ids):
    """The outputs of the text program by the oracle, in float64."""
    nodes = {node.name: node for node in program.nodes if node.arrays}

    def lstm(name, x, **options):
        return reference.forward(Arguments(**nodes[name].arrays, x=x, mask=mask), LstmOptions(**options))

    mask = ids != 0
    x = nodes["table"].arrays["embeddings"][ids].astype(np.float64)
    backward = lstm("backward", x, go_backwards=True).outputs[:, ::-1]
    top = lstm("top", np.concatenate([lstm("forward", x).outputs, backward], -1), masked_output="zero")
    logits = top.outputs @ nodes["head"].arrays["kernel"].astype(np.float64) + nodes["head"].arrays["bias"]
    logs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    mean = top.outputs.sum(axis=1) / mask.sum(axis=1, keepdims=True)
    return {"logs": logs, "h": top.h_T, "c": top.c_T, "mean": mean}


def assert_near(found, expected):
    assert found.keys() == expected.keys()
    for name, right in expected.items():
        assert found[name].dtype == np.float32
        assert found[name].shape == right.shape
        error = np.sqrt(np.mean((found[name] - right.astype(np.float64)) ** 2))
        assert error <= LIMIT * np.sqrt(np.mean(np.square(right, dtype=np.float64))), name


def assert_identical(found, right):
    assert list(found) == list(right)
    for name in right:
        assert found[name].shape == right[name].shape
        assert found[name].tobytes() == right[name].tobytes(), name


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (7, 1), (13, 21)], ids=str)
def test_run_of_a_text_model_equals_the_oracle(shape):
    program, ids = text_program(), text_ids(*shape)
    assert_near(Engine(program).run(ids), text_expected(program, ids))


def test_run_without_the_core_equals_the_oracle_and_the_core(numpy_alone, monkeypatch):
    program, ids = text_program(), text_ids(13, 21)
    alone = Engine(program).run(ids)
    assert_near(alone, text_expected(program, ids))
    monkeypatch.undo()
    assert native.why_unavailable() is None
    assert_near(alone, Engine(program).run(ids))


def test_run_takes_inputs_by_name_and_gives_outputs_in_the_order_asked_for():
    program, ids = text_program(), text_ids(3, 5)
    whole = Engine(program).run(ids)
    assert list(whole) == ["logs", "h", "c", "mean"]
    found = Engine(program).run({"ids": ids}, ["mean", "logs", "mean"])
    assert_identical(found, {name: whole[name] for name in ("mean", "logs")})


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int64, np.uint64, ">i4", list])
def test_run_takes_ids_of_any_integer_type(dtype):
    program, ids = text_program(), text_ids(3, 5)
    given = ids.tolist() if dtype is list else ids.astype(dtype)
    assert_identical(Engine(program).run(given), Engine(program).run(ids))


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float64, ml_dtypes.bfloat16, ">f8", np.int8, np.uint64, list]
)
def test_run_takes_numbers_of_any_real_type(dtype):
    x = np.array([[1, 2], [3, 0]])
    found = Engine(pass_on("float32", 2)).run(x.tolist() if dtype is list else x.astype(dtype))["y"]
    np.testing.assert_array_equal(found, x.astype(np.float32), strict=True)


def test_run_takes_arrays_in_any_layout():
    program, ids = text_program(), text_ids(6, 10)
    right = Engine(program).run(ids)
    for other in (np.asfortranarray(ids), np.repeat(ids, 2, axis=1)[:, ::2], ids[::-1].copy()[::-1]):
        assert_identical(Engine(program).run(other), right)


def test_run_counts_negative_ids_from_the_end_of_the_table():
    program, ids = text_program(), np.array([[1, V - 1, 3]])
    assert_identical(Engine(program).run(np.array([[1 - V, -1, 3]])), Engine(program).run(ids))


def test_run_of_the_first_row_counted_from_the_end_is_not_masked():
    program = text_program()
    found = Engine(program).run(np.array([[1, -V], [1, 0]]), ["h"])["h"]
    assert found[0].tobytes() != found[1].tobytes()


def test_run_of_nan_gives_nan_in_that_row_alone():
    graph = Graph()
    x = graph.input("x", -1, 3)
    outputs = graph.lstm(x, "lstm", 3, H)
    engine = Engine(graph.program(y=graph.dense(outputs, "head", H, C, "softmax")))
    x = draw(5, 7, 3)
    right = engine.run(x)["y"]
    x[1, 4, 0], x[3, 2, 1] = np.nan, np.inf
    found = engine.run(x)["y"]
    assert np.isnan(found[1, 4:]).all()
    assert found[1, :4].tobytes() == right[1, :4].tobytes()
    assert found[[0, 2, 4]].tobytes() == right[[0, 2, 4]].tobytes()


def test_run_of_numbers_beyond_float32_gives_infinity():
    found = Engine(pass_on("float32", 1)).run(np.array([[1e300], [-1e300]]))["y"]
    assert found.tolist() == [[np.inf], [-np.inf]]


@pytest.mark.parametrize("steps", [1, 8])
@pytest.mark.parametrize("alone", [False, True], ids=["core", "numpy"])
def test_run_of_no_rows_gives_no_rows_of_the_right_shape(alone, steps, request):
    if alone:
        request.getfixturevalue("numpy_alone")
    engine = Engine(text_program())
    empty = engine.run(np.zeros((0, steps), np.int64))
    full = engine.run(text_ids(2, steps))
    assert {name: (0, *array.shape[1:]) for name, array in full.items()} == {
        name: array.shape for name, array in empty.items()
    }
    assert all(array.dtype == np.float32 for array in empty.values())


def test_run_takes_booleans_as_0_and_1():
    flags = np.array([[True, False], [False, True]])
    for dtype in ("int32", "float32"):
        found = Engine(pass_on(dtype, 2)).run(flags)["y"]
        np.testing.assert_array_equal(found, flags.astype(dtype), strict=True)


def test_run_of_no_rows_computes_nothing_and_keeps_the_types(monkeypatch):
    names = ran_operations(monkeypatch)
    graph = Graph()
    ids = graph.input("ids", -1, dtype="int32")
    graph.add("ids_mask", "mask", {"ids": ids})
    found = Engine(graph.program(ids=0, mask=1)).run(np.zeros((0, 3), np.int64))
    assert {name: (array.shape, array.dtype) for name, array in found.items()} == {
        "ids": ((0, 3), np.int32),
        "mask": ((0, 3), np.bool_),
    }
    assert names == []


def test_run_of_no_rows_of_sizes_that_a_layer_cannot_take_raises_too():
    graph = Graph()
    x = graph.add("reshape", "flat", {"x": graph.input("x", -1, 3)}, shape=(-1,))
    engine = Engine(graph.program(y=graph.dense(x, "head", 12, C)))
    assert engine.run(draw(0, 4, 3))["y"].shape == (0, C)
    with pytest.raises(DataError, match=r"head: dense cannot take x \(0, 15\)"):
        engine.run(draw(0, 5, 3))


@pytest.mark.parametrize("alone", [False, True], ids=["core", "numpy"])
def test_run_of_a_huge_batch_gives_each_row_its_own_result(alone, request):
    if alone:
        request.getfixturevalue("numpy_alone")
    engine, few = Engine(text_program()), text_ids(13, 3)
    found = engine.run(np.tile(few, (20_000, 1)), ["h"])["h"]
    assert found.shape == (260_000, H)
    right = engine.run(few, ["h"])["h"]
    for begin in (0, 130_000, 260_000 - 13):
        np.testing.assert_allclose(found[begin : begin + 13], right, rtol=0, atol=0 if not alone else 1e-6)


def ran_operations(monkeypatch):
    """The names of the nodes that run from now on."""
    names, run = [], operations.run
    monkeypatch.setattr(operations, "run", lambda node, given: names.append(node.name) or run(node, given))
    return names


@interpreted
@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (["a"], ["top"]),
        (["b"], ["scaled"]),
        (["both"], ["top", "scaled", "sum"]),
        (["b", "a"], ["top", "scaled"]),
    ],
)
def test_run_computes_only_what_the_outputs_need(monkeypatch, wanted, expected):
    names = ran_operations(monkeypatch)
    found = Engine(two_inputs()).run({"a": draw(2, 5, 3), "b": draw(2, 3)}, wanted)
    assert names == expected
    assert list(found) == wanted


def test_run_asks_only_for_inputs_that_the_outputs_need():
    engine, b = Engine(two_inputs()), draw(2, 3)
    np.testing.assert_array_equal(engine.run({"b": b}, ["b"])["b"], b * 2 + 1)
    with pytest.raises(ConfigError, match="inputs lacks 'a'; give an array for it"):
        engine.run({"b": b}, ["both"])


def forward_calls(monkeypatch):
    """A pair for each LSTM that the core runs from now on: it looks rows up itself, it returns sequences."""
    calls, forward = [], cpu.forward

    def watched(arguments, options, *, return_sequences, keep):
        calls.append((arguments.ids is not None, return_sequences))
        return forward(arguments, options, return_sequences=return_sequences, keep=keep)

    monkeypatch.setattr(cpu, "forward", watched)
    return calls


@interpreted
def test_run_lets_the_core_look_up_rows_that_only_lstms_read(monkeypatch):
    calls, names = forward_calls(monkeypatch), ran_operations(monkeypatch)
    Engine(text_program()).run(text_ids(13, 21), ["logs"])
    assert calls == [(True, True), (True, True), (False, True)]
    assert names == ["table", "both", "both", "head"]  # the first is the mask


@interpreted
def test_run_looks_up_rows_itself_where_others_read_them_too(monkeypatch):
    graph = Graph()
    rows = graph.add(
        "embedding", "table", {"ids": graph.input("ids", -1, dtype="int32")}, {"embeddings": draw(V, E)}
    )
    mask = graph.add("features_mask", "mask", {"x": rows}, mask_value=0.0)
    plain, masked = graph.lstm(rows, "plain", E, H), graph.lstm(rows, "masked", E, H, mask=mask)
    engine = Engine(graph.program(plain=plain, masked=masked, rows=rows))
    calls, ids = forward_calls(monkeypatch), text_ids(9, 9)
    for wanted in (["plain"], ["masked"], ["plain", "masked"], ["plain", "rows"]):
        engine.run(ids, wanted)
    assert [looked_up for looked_up, _ in calls] == [True, False, False, False, False]


@interpreted
def test_run_of_the_states_alone_computes_no_sequence(monkeypatch):
    calls, engine, ids = forward_calls(monkeypatch), Engine(text_program()), text_ids(5, 7)
    found = engine.run(ids, ["h", "c"])
    assert [sequences for _, sequences in calls] == [True, True, False]
    whole = engine.run(ids)
    assert_identical(found, {name: whole[name] for name in ("h", "c")})


def test_run_passes_states_from_one_lstm_to_the_next():
    graph = Graph()
    x, y = graph.input("x", -1, 3), graph.input("y", -1, 3)
    encoder = graph.lstm(x, "encoder", 3, H, return_sequences=False)
    h = graph.add("lstm_state", "encoder", {"lstm": encoder}, state="h")
    c = graph.add("lstm_state", "encoder", {"lstm": encoder}, state="c")
    decoder = graph.lstm(y, "decoder", 3, H, h0=h, c0=c)
    program = graph.program(last=encoder, h=h, decoded=decoder)
    given = {"x": draw(4, 6, 3), "y": draw(4, 2, 3, seed=1)}
    first = reference.forward(Arguments(**program.nodes[encoder].arrays, x=given["x"]))
    second = reference.forward(
        Arguments(**program.nodes[decoder].arrays, x=given["y"], h0=first.h_T, c0=first.c_T)
    )
    found = Engine(program).run(given)
    assert_near(found, {"last": first.outputs[:, -1], "h": first.h_T, "decoded": second.outputs})


def test_run_gives_arrays_of_their_own():
    graph = Graph()
    x = graph.input("x", 4)
    reshaped = graph.add("reshape", "shape", {"x": x}, shape=(2, 2))
    scaled = graph.affine(x, "scaled", 4)
    flat = graph.add("reshape", "flat", {"x": scaled}, shape=(4,))
    x, engine = (
        draw(3, 4),
        Engine(graph.program(same=0, again=0, reshaped=reshaped, scaled=scaled, flat=flat)),
    )
    found = engine.run(x)
    before, right = x.copy(), {name: array.copy() for name, array in found.items()}
    for name in found:
        found[name][...] = np.nan
        assert x.tobytes() == before.tobytes()
        assert all(found[other].tobytes() == right[other].tobytes() for other in found if other > name)
        found[name][...] = right[name]
        assert_identical(found, right)
    assert_identical(engine.run(x), right)


@interpreted
@pytest.mark.parametrize("rows_at_most", [1, 3, 5, 12, 13])
def test_run_in_pieces_gives_the_bits_of_one_piece(monkeypatch, rows_at_most):
    engine, ids = Engine(text_program()), text_ids(13, 21)
    whole = engine.run(ids)
    pieces, run_rows = [], interpreter.run_rows

    def watched(nodes, plan, given):
        pieces.append(len(next(iter(given.values()))))
        return run_rows(nodes, plan, given)

    monkeypatch.setattr(interpreter, "run_rows", watched)
    monkeypatch.setattr(interpreter, "row_bytes", lambda *_: interpreter._WORKING_BYTES // rows_at_most)
    assert_identical(Engine(text_program()).run(ids), whole)
    assert sum(pieces) == 13
    # As few pieces as possible, of about equal size.
    assert len(pieces) == -(-13 // rows_at_most)
    assert max(pieces) == -(-13 // len(pieces))


@interpreted
def test_run_in_pieces_without_the_core_agrees_to_the_precision_of_float32(numpy_alone, monkeypatch):
    engine, ids = Engine(text_program()), text_ids(13, 21)
    whole = engine.run(ids)
    monkeypatch.setattr(interpreter, "row_bytes", lambda *_: interpreter._WORKING_BYTES // 2)
    assert_near(Engine(text_program()).run(ids), whole)


@interpreted
def test_run_of_a_row_that_is_above_the_limit_runs_it_alone(monkeypatch):
    monkeypatch.setattr(interpreter, "_WORKING_BYTES", 1)
    program, ids = text_program(), text_ids(3, 4)
    assert_near(Engine(program).run(ids), text_expected(program, ids))


@interpreted
def test_run_in_pieces_says_which_row_of_the_whole_batch_is_wrong(monkeypatch):
    monkeypatch.setattr(interpreter, "_WORKING_BYTES", 1)
    ids = text_ids(5, 4)
    ids[3, 2] = V
    with pytest.raises(DataError, match=rf"input 'ids' holds {V} at \[3, 2\]"):
        Engine(text_program()).run(ids)


def wide_program():
    """A model whose intermediate arrays are much larger than its inputs and outputs."""
    graph = Graph()
    x = graph.input("x", -1, 2)
    for number in range(3):
        x = graph.dense(x, f"wide{number}", 2 if number == 0 else 200, 200, "relu")
    x = graph.lstm(x, "lstm", 200, 200)
    return graph.program(y=graph.add("max_over_time", "top", {"x": x}))


def traced_peak(function):
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@interpreted
def test_run_of_a_long_batch_needs_bounded_memory(monkeypatch):
    engine, x = Engine(wide_program()), draw(600, 20, 2)
    output, layer, slack = 600 * 200 * 4, 600 * 20 * 200 * 4, 100 << 10
    whole = traced_peak(lambda: engine.run(x))
    # A dense layer holds its input, its sums, and their activation.
    assert 3 * layer <= whole <= 3 * layer + output + slack
    limit = 1 << 20
    monkeypatch.setattr(interpreter, "_WORKING_BYTES", limit)
    # Not much less either, because pieces of few rows are slow.
    assert limit / 2 <= traced_peak(lambda: engine.run(x)) - output <= limit + slack


@interpreted
@pytest.mark.parametrize("branch", [False, True], ids=["chain", "branch"])
def test_run_lets_an_array_go_once_its_last_reader_has_run(monkeypatch, branch):
    graph = Graph()
    first = last = graph.affine(graph.input("x", 3), "first", 3)
    for number in range(5):
        last = graph.affine(last, f"scale{number}", 3)
    if branch:
        last = graph.add("add", "sum", {"0": last, "1": first})
    last = graph.affine(last, "last", 3)
    refs, alive, run = [], {}, operations.run

    def watched(node, given):
        alive[node.name] = sum(ref() is not None for ref in refs)
        result = run(node, given)
        refs.append(weakref.ref(result))
        return result

    monkeypatch.setattr(operations, "run", watched)
    Engine(graph.program(y=last)).run(draw(2, 3))
    expected = {"first": 0, "scale0": 1, **{f"scale{n}": 2 if branch else 1 for n in range(1, 5)}}
    if branch:
        expected["sum"] = 2
    assert alive == expected | {"last": 1}
    assert not any(ref() is not None for ref in refs)


def test_run_in_several_threads_at_once_gives_each_its_own_results():
    engine = Engine(text_program())
    batches = [text_ids(11 + n, 19 + n, seed=n) for n in range(4)]
    right = [engine.run(ids) for ids in batches]
    start, failures = threading.Barrier(len(batches)), []

    def work(number):
        try:
            start.wait(30)
            for wanted in itertools.islice(itertools.cycle([None, ["h"], ["mean", "logs"]]), 30):
                found = engine.run(batches[number], wanted)
                assert_identical(found, {name: right[number][name] for name in wanted or right[number]})
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []


def test_import_of_the_engine_brings_no_framework_and_no_keras():
    code = (
        "import sys, cellerate.runtime.program.engine\n"
        "print([name for name in ('keras', 'tensorflow', 'jax', 'torch', 'ml_dtypes') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_sizes_of_results_are_those_that_come_and_nothing_is_computed(monkeypatch):
    program, ids = text_program(), text_ids(3, 5)
    engine = Engine(program)
    right = {name: (array.shape, array.dtype.name) for name, array in engine.run(ids).items()}
    names = ran_operations(monkeypatch)
    assert Engine(program).result_sizes({"ids": (3, 5)}) == right
    assert engine.result_sizes({"ids": (3, 5)}, ["h"]) == {"h": right["h"]}
    assert not names
    for given, message in (({}, "inputs lacks 'ids'"), ({"x": (3, 5)}, "inputs holds 'x'")):
        with pytest.raises(ConfigError, match=message):
            engine.result_sizes(given)
    with pytest.raises(DataError, match="expected shape"):
        engine.result_sizes({"ids": (3, 5, 1)})


def test_sizes_of_inputs_with_different_numbers_of_rows_are_refused():
    graph = Graph()
    a, b = graph.input("a", 2), graph.input("b", 2)
    engine = Engine(graph.program(y=graph.add("add", "sum", {"0": a, "1": b})))
    assert engine.result_sizes({"b": (3, 2), "a": (3, 2)}) == {"y": ((3, 2), "float32")}
    with pytest.raises(DataError, match="'a' and 'b' must have the same number of rows, got 3 and 4"):
        engine.result_sizes({"a": (3, 2), "b": (4, 2)})
