"""A program as one call of the native core, against the same an operation at a time and against float64."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from cellerate.kernels import native
from cellerate.kernels.lstm import reference
from cellerate.kernels.lstm.spec import Arguments
from cellerate.kernels.program import cpu
from cellerate.kernels.program.cpu import CompiledProgram
from cellerate.program import PRECISIONS, Node, Program
from cellerate.runtime.program import interpreter, operations, shapes
from support.graphs import Graph, draw
from support.rounding import allowed
from support.runtime.programs import (
    PROGRAMS,
    DrawnProgram,
    E,
    Given,
    H,
    V,
    classifier,
    forecaster,
    inputs_of,
    sequence_to_sequence,
)

pytestmark = pytest.mark.usefixtures("native_settings")


class Both:
    """A program on the core and by the interpreter, with all of its outputs."""

    def __init__(self, program: Program, precision: str = "float32") -> None:
        self.program, transposed = program, {}
        self.nodes = tuple(operations.prepared(node, transposed) for node in program.nodes)
        self.plan = interpreter.plan_of(self.nodes, frozenset(program.outputs.values()))
        self.needed = {number: self.nodes[number] for number in self.plan.needed}
        assert cpu.takes(self.needed.values())
        self.wanted = sorted(self.plan.wanted)
        self.compiled = CompiledProgram(self.needed, self.wanted, precision)

    def shapes(self, given: Given) -> dict[int, tuple[int, ...]]:
        found: dict[int, tuple[int, ...]] = {}
        for number, node in self.needed.items():
            read = {name: found[source] for name, source in node.inputs.items()}
            found[number] = given[node.name].shape[1:] if node.op == "input" else shapes.row_shape(node, read)
        return found

    def run(self, given: Given) -> dict[int, np.ndarray]:
        found = self.shapes(given)
        sizes = cpu.sizes_of(self.needed, found)
        assert sizes is not None
        batch = len(next(iter(given.values())))
        made = [np.full((batch, *found[number]), np.nan, np.float32) for number in self.wanted]
        arrays = self._by_number(given)
        self.compiled.run(sizes, [arrays[number] for number in self.compiled.inputs], made)
        return dict(zip(self.wanted, made, strict=True))

    def interpreted(self, given: Given) -> dict[int, np.ndarray]:
        batch = len(next(iter(given.values())))
        with np.errstate(all="ignore"):
            return interpreter.run(self.nodes, self.plan, self._by_number(given), batch, 1)

    def _by_number(self, given: Given) -> dict[int, np.ndarray]:
        return {self.program.inputs[name]: array for name, array in given.items()}


def assert_near(found: np.ndarray, right: np.ndarray, limit: float = 2e-6, what: Any = "") -> None:
    assert found.shape == right.shape, what
    error = np.sqrt(np.mean(np.square(found.astype(np.float64) - right)))
    assert error <= limit * np.sqrt(np.mean(np.square(right.astype(np.float64)))) + 1e-7, (what, error)


SIZES = ((1, 1), (1, 9), (2, 30), (3, 17), (7, 5), (13, 8), (40, 3))


@pytest.mark.parametrize("target", native.available_targets() if native.why_unavailable() is None else [])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_call_equals_an_operation_at_a_time(name: str, target: str) -> None:
    native.set_target(target)
    both = Both(PROGRAMS[name]())
    for batch, steps in SIZES:
        given = inputs_of(both.program, batch, steps)
        right = both.interpreted(given)
        for number, found in both.run(given).items():
            assert_near(found, right[number], what=(batch, steps, both.nodes[number].name))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_results_depend_on_neither_the_threads_nor_the_rows_beside_them(name: str, precision: str) -> None:
    both = Both(PROGRAMS[name](), precision)
    given = inputs_of(both.program, 9, 12)
    native.set_num_threads(1)
    right = both.run(given)
    for threads in (2, 3, 5):
        native.set_num_threads(threads)
        for rows in (slice(0, 1), slice(1, 3), slice(3, 9), slice(0, 9)):
            part = {key: np.ascontiguousarray(array[rows]) for key, array in given.items()}
            for number, found in both.run(part).items():
                assert found.tobytes() == right[number][rows].tobytes(), (threads, rows)


@pytest.mark.parametrize("target", native.available_targets() if native.why_unavailable() is None else [])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_layers_of_any_width_err_by_their_rounding(precision: str, target: str) -> None:
    # The gates of units that fill no vector lie otherwise than those of the others, and 1 to 15 of them may be left.
    native.set_target(target)
    for units in (*range(1, 20), 25, 26, 27, 28, 29):
        both = Both(forecaster(units), precision)
        nodes = {node.name: node for node in both.nodes}
        for batch in (1, 5):
            given = inputs_of(both.program, batch, 4)
            x = given["x"].astype(np.float64)
            for name in ("first", "second"):
                done = reference.forward(Arguments(**nodes[name].arrays, x=x))
                x = done.outputs
            (found,) = both.run(given).values()
            right = (
                done.h_T @ nodes["head"].arrays["kernel"].astype(np.float64) + nodes["head"].arrays["bias"]
            )
            # Few numbers: the size of the state's and not of their sum is what their errors have to do with.
            limit = 3 * allowed(precision, 10, max(units, 2)) * np.sqrt(units)
            assert np.abs(found - right).max() <= limit, (units, batch)


@pytest.mark.parametrize("rows", [1, 5])
def test_large_layers_on_several_threads_give_the_bits_of_one(rows: int) -> None:
    # So many units that the threads divide them, also those of a few rows; and two layers beside each other, one after
    # the other's chunks.
    both = Both(forecaster(300))
    given = inputs_of(both.program, rows, 40)
    native.set_num_threads(1)
    (right,) = both.run(given).values()
    for threads in (2, 3, 4):
        native.set_num_threads(threads)
        for _ in range(5):
            (found,) = both.run(given).values()
            assert found.tobytes() == right.tobytes(), threads


def test_batch_of_several_blocks_gives_the_bits_of_single_rows() -> None:
    graph = Graph()
    wide = graph.dense(graph.input("x", -1, 3), "wide", 3, 3000)
    narrow = graph.dense(wide, "narrow", 3000, 40)
    program = graph.program(y=graph.lstm(narrow, "lstm", 40, 40))
    both = Both(program)
    # A row of 60 steps takes more than a block should, so each has 12, and the last one of a thread fewer.
    given = inputs_of(program, 199, 60)
    (found,) = both.run(given).values()
    for row in (0, 41, 98, 99, 150, 198):
        (alone,) = both.run({"x": given["x"][row : row + 1].copy()}).values()
        assert found[row].tobytes() == alone[0].tobytes(), row


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("target", native.available_targets() if native.why_unavailable() is None else [])
def test_precision_errs_by_its_rounding(precision: str, target: str) -> None:
    native.set_target(target)
    both = Both(forecaster(90), precision)
    given = inputs_of(both.program, 12, 25)
    nodes = {node.name: node for node in both.nodes}
    x = given["x"].astype(np.float64)
    for name in ("first", "second"):
        done = reference.forward(Arguments(**nodes[name].arrays, x=x))
        x = done.outputs
    right = done.h_T @ nodes["head"].arrays["kernel"].astype(np.float64) + nodes["head"].arrays["bias"]
    (found,) = both.run(given).values()
    # Both factors of x·W and h·R of two layers, and of the dense layer.
    assert_near(found, right, allowed(precision, 10, 90))
    if precision != "float32":
        with pytest.raises(AssertionError):
            assert_near(found, right, allowed("float32", 10, 90))


def test_embedding_that_is_read_by_others_too_or_is_too_large_for_a_table() -> None:
    graph = Graph()
    ids = graph.input("ids", -1, dtype="int32")
    large = graph.add("embedding", "large", {"ids": ids}, {"embeddings": draw(9000, E)})
    small = graph.add("embedding", "small", {"ids": ids}, {"embeddings": draw(V, E)})
    units = 128  # 9000 rows of 4 · 128 floats are 18 MB
    top = graph.lstm(large, "top", E, units)
    beside = graph.lstm(small, "beside", E, H)
    program = graph.program(top=top, beside=beside, small=small)
    both, given = Both(program), {"ids": np.random.default_rng(0).integers(0, V, (3, 8)).astype(np.int32)}
    right = both.interpreted(given)
    for number, found in both.run(given).items():
        assert_near(found, right[number])


def test_wrong_ids_are_refused() -> None:
    both = Both(classifier())
    given = inputs_of(both.program, 5, 6)
    for wrong in (V, -1, 2**31 - 1, -(2**31)):
        given["ids"][3, 2] = wrong
        with pytest.raises(IndexError, match="not a row of its table"):
            both.run(given)


def test_nan_stays_in_its_row() -> None:
    both = Both(sequence_to_sequence())
    given = inputs_of(both.program, 7, 6)
    right = both.run(given)
    given["y"][3, 2, 1] = np.nan
    for number, found in both.run(given).items():
        others = np.arange(7) != 3
        assert found[others].tobytes() == right[number][others].tobytes()
    assert np.isnan(found[3]).any()


@pytest.mark.parametrize(
    ("nodes", "takes"),
    [
        ([Node("input", "x", options={"shape": (-1, 3, 2, 2), "dtype": "float32"})], True),
        ([Node("input", "x", options={"shape": (-1, 3, 2, 2, 2), "dtype": "float32"})], True),
        ([Node("input", "x", options={"shape": (-1,), "dtype": "float32"})], False),
        *(
            ([Node("permute", "p", {"x": 0}, options={"axes": axes})], True)
            for axes in ((2, 1), (1, 3, 2), (2, 1, 3), (1, 3, 2, 4), (1, 2, 4, 3))
        ),
        *(
            ([Node("permute", "p", {"x": 0}, options={"axes": axes})], False)
            for axes in ((3, 1, 2), (3, 2, 1), (2, 1, 3, 4), (2, 1, 4, 3), (1, 2))
        ),
        ([Node("crop", "c", {"x": 0}, options={"axis": 2})], False),
    ],
)
def test_program_that_the_core_does_not_know_is_not_taken(nodes: Sequence[Node], takes: bool) -> None:
    assert cpu.takes(nodes) == takes


def test_sizes_that_the_core_does_not_know_are_not_taken() -> None:
    x = Node("input", "x", options={"shape": (-1, -1, 3), "dtype": "float32"})
    sum_ = Node("add", "sum", {"0": 0, "1": 1})
    assert cpu.sizes_of({0: x, 1: x, 2: sum_}, {0: (4, 3), 1: (1, 3), 2: (4, 3)}) is not None
    assert cpu.sizes_of({0: x, 1: x, 2: sum_}, {0: (2, 4, 3), 1: (4, 3), 2: (2, 4, 3)}) is not None
    assert cpu.sizes_of({0: x, 1: x, 2: sum_}, {0: (7, 2, 3), 1: (7, 1, 3), 2: (7, 2, 3)}) is None
    for shape, axis, takes in (
        ((4, 3), 1, True),
        ((4, 3), 2, True),
        ((2, 4, 3), 3, True),
        ((2, 4, 3), 2, False),
    ):
        flip = Node("flip", "flip", {"x": 0}, options={"axis": axis})
        assert (cpu.sizes_of({0: x, 1: flip}, {0: shape, 1: shape}) is not None) == takes
    joined = Node("concatenate", "joined", {"0": 0, "1": 1}, options={"axis": 1})
    assert cpu.sizes_of({0: x, 1: x, 2: joined}, {0: (4, 3), 1: (4, 3), 2: (8, 3)}) is not None
    assert cpu.sizes_of({0: x, 1: x, 2: joined}, {0: (4, 2, 3), 1: (4, 2, 3), 2: (8, 2, 3)}) is None
    repeated = Node("repeat_vector", "repeated", {"x": 0}, options={"n": 2})
    assert cpu.sizes_of({0: x, 1: repeated}, {0: (4, 3), 1: (2, 4, 3)}) is None


@pytest.mark.parametrize("target", native.available_targets() if native.why_unavailable() is None else [])
@pytest.mark.parametrize("one", [(1, 1, 1), (1, 1, 9), (1, 2, 1), (2, 9), (9,), (7, 2, 1), (7, 2, 9)])
@pytest.mark.parametrize("other", [(1, 1, 9), (1, 2, 9), (7, 2, 1), (7, 2, 9)])
def test_value_is_stretched_along_its_first_axes(
    one: tuple[int, ...], other: tuple[int, ...], target: str
) -> None:
    native.set_target(target)
    merge = Node("subtract", "merge", {"0": 0, "1": 1})
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(3, *shape)).astype(np.float32) for shape in (one, other))
    right = x.reshape(3, *(1,) * (len(other) - len(one)), *one) - y
    nodes = {0: Node("input", "x"), 1: Node("input", "y"), 2: merge}
    sizes = cpu.sizes_of(nodes, {0: one, 1: other, 2: right.shape[1:]})
    made = np.full(right.shape, np.nan, np.float32)
    CompiledProgram(nodes, [2], "float32").run(sizes, [x, y], [made])
    np.testing.assert_array_equal(made, right)


@pytest.mark.parametrize("shape", [(5,), (4, 1), (4, 19), (3, 4, 5)])
def test_features_are_summed_and_flipped(shape: tuple[int, ...]) -> None:
    axis = len(shape)
    x = np.random.default_rng(0).normal(size=(3, *shape)).astype(np.float32)
    right = {"cumsum": np.cumsum(x, axis=-1)} | ({"flip": x[..., ::-1]} if axis > 1 else {})
    for op, expected in right.items():
        nodes = {0: Node("input", "x"), 1: Node(op, "y", {"x": 0}, options={"axis": axis})}
        made = np.full(x.shape, np.nan, np.float32)
        sizes = cpu.sizes_of(nodes, {0: shape, 1: shape})
        CompiledProgram(nodes, [1], "float32").run(sizes, [x], [made])
        np.testing.assert_array_equal(made, expected)


MOVED = [((4, 5), (2, 1)), ((3, 4, 5), (1, 3, 2)), ((3, 4, 5), (2, 1, 3)), ((2, 3, 4, 5), (1, 3, 2, 4))]


@pytest.mark.parametrize("target", native.available_targets() if native.why_unavailable() is None else [])
@pytest.mark.parametrize(("shape", "axes"), [*MOVED, ((2, 3, 4, 5), (1, 2, 4, 3))])
def test_two_axes_are_swapped(shape: tuple[int, ...], axes: tuple[int, ...], target: str) -> None:
    native.set_target(target)
    for batch, threads in ((1, 1), (1, 2), (7, 3)):
        native.set_num_threads(threads)
        x = np.random.default_rng(0).normal(size=(batch, *shape)).astype(np.float32)
        assert_equals({"x": x}, Node("permute", "y", {"x": 0}, options={"axes": axes}))


WINDOWS = {"size": 2, "strides": 1, "dilation": 2, "padding": "same", "axis": 3}


@pytest.mark.parametrize(
    "node",
    [
        Node("windows", "y", {"x": 0}, options={**WINDOWS, "features": 5}),
        Node("max_pool", "y", {"x": 0}, options=WINDOWS),
        Node("sum", "y", {"x": 0}, options={"axis": 3, "keepdims": False}),
        Node("max", "y", {"x": 0}, options={"axis": 4, "keepdims": True}),
        Node("softmax", "y", {"x": 0}, options={"axis": 3}),
        Node("multiply", "y", {"0": 0, "1": 1}),
        Node("cumsum", "y", {"x": 0}, options={"axis": 4}),
        Node("take", "y", {"x": 0}, options={"indices": (2, 0), "axis": 4}),
        Node("reshape", "y", {"x": 0}, options={"shape": (3, 2, 20)}),
    ],
    ids=lambda node: node.op,
)
def test_further_axes_are_sequences(node: Node) -> None:
    x = np.random.default_rng(0).normal(size=(3, 2, 3, 4, 5)).astype(np.float32)
    assert_equals({"x": x, "y": np.ascontiguousarray(x[:, :1, :1])} if "1" in node.inputs else {"x": x}, node)


def assert_equals(given: Given, node: Node) -> None:
    """Compares a node on the core with the table of operations."""
    arrays = list(given.values())
    read = {name: arrays[source] for name, source in node.inputs.items()}
    right = operations.run(node, read)
    nodes = {**dict(enumerate(Node("input", name) for name in given)), len(given): node}
    shapes_ = [array.shape[1:] for array in (*arrays, right)]
    made = np.full(right.shape, np.nan, np.float32)
    sizes = cpu.sizes_of(nodes, dict(enumerate(shapes_)))
    CompiledProgram(nodes, [len(given)], "float32").run(sizes, arrays, [made])
    np.testing.assert_allclose(made, right, rtol=1e-6)


@pytest.mark.parametrize("indices", [(0,), (-1,), (1, 2, 3), (3, 1, 1, -4), (0, 2, 1, 3, 0)])
@pytest.mark.parametrize(
    ("shape", "axis"), [((4,), 1), ((5, 4), 2), ((5, 4), -1), ((4, 3), 1), ((2, 3, 4), 3)]
)
def test_any_entries_are_taken(shape: tuple[int, ...], axis: int, indices: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(size=(3, *shape)).astype(np.float32)
    right = np.take(x, indices, axis)
    nodes = {
        0: Node("input", "x"),
        1: Node("take", "y", {"x": 0}, options={"indices": indices, "axis": axis}),
    }
    made = np.full(right.shape, np.nan, np.float32)
    sizes = cpu.sizes_of(nodes, {0: shape, 1: right.shape[1:]})
    program = CompiledProgram(nodes, [1], "float32")
    program.run(sizes, [x], [made])
    np.testing.assert_array_equal(made, right)
    fewer = tuple(3 if size == 4 else size for size in shape)
    short = np.zeros((3, *fewer), np.float32)
    if not {*indices} <= {0, -1, 1, 2}:
        with pytest.raises(ValueError, match="shapes of its inputs"):
            program.run(cpu.sizes_of(nodes, {0: fewer, 1: right.shape[1:]}), [short], [made])


@pytest.mark.parametrize("axis", [1, 2])
def test_outputs_of_a_backward_layer_are_flipped_along_the_axis(axis: int) -> None:
    graph = Graph()
    layer = graph.lstm(graph.input("x", -1, 3), "lstm", 3, 4, go_backwards=True)
    both = Both(graph.program(y=graph.add("flip", "flip", {"x": layer}, axis=axis)))
    given = inputs_of(both.program, 5, 6)
    right = both.interpreted(given)
    for number, found in both.run(given).items():
        assert_near(found, right[number])


def test_weights_that_many_nodes_share_are_not_packed_many_times() -> None:
    graph = Graph()
    x = graph.input("x", -1, 400)
    first = graph.lstm(x, "first", 400, 400)
    for number in range(300):
        x = graph.add("lstm", f"{number}", {"x": x}, graph.nodes[first].arrays, **graph.nodes[first].options)
    program = graph.program(y=x)
    with pytest.raises(ValueError, match="the packed weights would take"):
        CompiledProgram(dict(enumerate(program.nodes)), [x])


def test_several_threads_use_one_program() -> None:
    both = Both(classifier())
    batches = [inputs_of(both.program, 11 + n, 9 + n, seed=n) for n in range(4)]
    right = [both.run(given) for given in batches]
    start, failures = threading.Barrier(len(batches)), []

    def work(number: int) -> None:
        try:
            start.wait(30)
            for _ in range(30):
                for node, found in both.run(batches[number]).items():
                    assert found.tobytes() == right[number][node].tobytes()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures and not any(thread.is_alive() for thread in threads)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_program_equals_itself_an_operation_at_a_time(data: st.DataObject) -> None:
    drawn = DrawnProgram(data)
    both = Both(drawn.program())
    batch = data.draw(st.sampled_from([1, 2, 5, 14]), "batch")
    native.set_num_threads(data.draw(st.sampled_from([1, 2, 3]), "threads"))
    given = inputs_of(both.program, batch, drawn.steps)
    needed = {both.nodes[number].name for number in both.plan.needed}
    given = {name: array for name, array in given.items() if name in needed}
    right = both.interpreted(given)
    for number, found in both.run(given).items():
        finite = np.isfinite(right[number])
        assert np.array_equal(np.isfinite(found), finite), both.nodes[number].name
        assert_near(found[finite], right[number][finite], 1e-4, both.nodes[number].name)
