"""A program as one call of the native core, against the same an operation at a time and against float64."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellerate.kernels import native
from cellerate.kernels.lstm import reference
from cellerate.kernels.lstm.spec import LstmOptions
from cellerate.kernels.program import cpu
from cellerate.kernels.program.cpu import CompiledProgram
from cellerate.program import PRECISIONS, Node, Program
from cellerate.runtime import interpreter, operations, shapes
from support.graphs import Graph, draw
from support.rounding import allowed

pytestmark = pytest.mark.usefixtures("native_settings")

V, E, H, F = 11, 6, 21, 5
Given = dict[str, np.ndarray]


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


def classifier() -> Program:
    """ids → a masked bidirectional LSTM → another one → its states, means, and a softmax."""
    graph = Graph()
    ids = graph.input("ids", -1, dtype="int32")
    rows = graph.add("embedding", "table", {"ids": ids}, {"embeddings": draw(V, E)})
    mask = graph.add("ids_mask", "table", {"ids": ids})
    forward = graph.lstm(rows, "forward", E, H, mask=mask)
    backward = graph.lstm(rows, "backward", E, H, mask=mask, go_backwards=True, masked_output="zero")
    backward = graph.add("flip", "both", {"x": backward}, axis=1)
    both = graph.add("concatenate", "both", {"0": forward, "1": backward}, axis=-1)
    top = graph.lstm(both, "top", 2 * H, H + 3, mask=mask, masked_output="previous_state")
    h = graph.add("lstm_state", "top", {"lstm": top}, state="h")
    c = graph.add("lstm_state", "top", {"lstm": top}, state="c")
    mean = graph.add("mean_over_time", "mean", {"x": top, "mask": mask})
    most = graph.add("max_over_time", "most", {"x": top})
    joined = graph.add("concatenate", "joined", {"0": mean, "1": most}, axis=1)
    return graph.program(
        probabilities=graph.dense(joined, "head", 2 * (H + 3), 4, "softmax"),
        logs=graph.dense(top, "logs", H + 3, 70, "log_softmax"),
        h=h,
        c=c,
        both=both,
    )


def forecaster(units: int = H) -> Program:
    """Two LSTMs of which the second one follows the first one, and a dense layer."""
    graph = Graph()
    first = graph.lstm(graph.input("x", -1, F), "first", F, units)
    second = graph.lstm(first, "second", units, units, return_sequences=False)
    return graph.program(y=graph.dense(second, "head", units, 3))


def sequence_to_sequence() -> Program:
    """An encoder whose states begin a decoder, masks of features, and every way to move steps."""
    graph = Graph()
    x, y = graph.input("x", -1, F), graph.input("y", -1, F)
    mask = graph.add("features_mask", "mask", {"x": x}, mask_value=0.0)
    masked = graph.add("masked", "masked", {"x": x, "mask": mask})
    flipped = graph.add("flip_mask", "flipped", {"mask": mask})
    encoder = graph.lstm(masked, "encoder", F, H, mask=flipped, go_backwards=True, return_sequences=False)
    h = graph.add("lstm_state", "encoder", {"lstm": encoder}, state="h")
    again = graph.add("lstm_state", "again", {"lstm": encoder}, state="h")
    c = graph.add("lstm_state", "encoder", {"lstm": encoder}, state="c")
    decoder = graph.lstm(y, "decoder", F, H, h0=h, c0=c, activation="softsign")
    other = graph.lstm(
        y, "other", F, H, h0=again, c0=c, recurrent_activation="hard_sigmoid", activation="relu"
    )
    norm = graph.add(
        "layer_norm", "norm", {"x": decoder}, {"gamma": draw(H), "beta": draw(H, seed=1)}, epsilon=1e-3
    )
    plain = graph.add("layer_norm", "plain", {"x": other}, epsilon=1e-3)
    sums = [
        graph.add(op, op, {"0": norm, "1": plain})
        for op in ("add", "subtract", "multiply", "average", "maximum", "minimum")
    ]
    joined = graph.add("concatenate", "joined", {str(n): at for n, at in enumerate([*sums, norm])}, axis=2)
    last = graph.add("crop", "last", {"x": joined}, begin=-1, end=None)
    flat = graph.add("reshape", "flat", {"x": last}, shape=(7 * H,))
    repeated = graph.add("repeat_vector", "repeated", {"x": flat}, n=4)
    table = {"embeddings": draw(70, 7 * H)}
    capped = graph.add("unembedding", "capped", {"x": repeated}, table, soft_cap=3.0)
    turned = graph.add("flip", "turned", {"x": joined}, axis=1)
    scaled = graph.affine(turned, "scaled", 7 * H)
    return graph.program(
        capped=capped,
        scaled=graph.add("activation", "silu", {"x": scaled}, activation="silu"),
        given=y,
        encoded=encoder,
        square=graph.add("reshape", "square", {"x": flat}, shape=(H, 7)),
    )


def inputs_of(program: Program, batch: int, steps: int, seed: int = 0) -> Given:
    found = {}
    for name, number in program.inputs.items():
        shape: Any = program.nodes[number].options["shape"]
        rng = np.random.default_rng([seed, batch, steps])
        sizes = (batch, *(steps if size == -1 else size for size in shape[1:]))
        if program.nodes[number].options["dtype"] == "int32":
            found[name] = rng.integers(0, V, sizes).astype(np.int32)
            found[name][:, : steps // 3] *= rng.random((batch, steps // 3)) < 0.5
        else:
            found[name] = rng.standard_normal(sizes).astype(np.float32)
            found[name][rng.random(sizes[:-1]) < 0.2] = 0
    return found


PROGRAMS = {"classifier": classifier, "forecaster": forecaster, "sequence to sequence": sequence_to_sequence}
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
                done = reference.forward(x, **nodes[name].arrays, options=LstmOptions())
                x = done.outputs
            (found,) = both.run(given).values()
            right = (
                done.h_T @ nodes["head"].arrays["kernel"].astype(np.float64) + nodes["head"].arrays["bias"]
            )
            # Few numbers: the size of the state's and not of their sum is what their errors have to do with.
            limit = 3 * allowed(precision, 10, max(units, 2)) * np.sqrt(units)
            assert np.abs(found - right).max() <= limit, (units, batch)


def test_large_layers_on_several_threads_give_the_bits_of_one() -> None:
    # So many units that the threads divide them; and two layers beside each other, one after the other's chunks.
    both = Both(forecaster(300))
    given = inputs_of(both.program, 1, 40)
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
        done = reference.forward(x, **nodes[name].arrays, options=LstmOptions())
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
        ([Node("input", "x", options={"shape": (-1, 3, 2, 2), "dtype": "float32"})], False),
        ([Node("permute", "p", {"x": 0}, options={"axes": (2, 1)})], False),
        ([Node("flip", "f", {"x": 0}, options={"axis": 2})], False),
        ([Node("flip", "f", {"x": 0}, options={"axis": 1})], True),
    ],
)
def test_program_that_the_core_does_not_know_is_not_taken(nodes: Sequence[Node], takes: bool) -> None:
    assert cpu.takes(nodes) == takes


def test_sizes_that_the_core_does_not_know_are_not_taken() -> None:
    x = Node("input", "x", options={"shape": (-1, -1, 3), "dtype": "float32"})
    sum_ = Node("add", "sum", {"0": 0, "1": 1})
    assert cpu.sizes_of({0: x, 1: x, 2: sum_}, {0: (4, 3), 1: (1, 3), 2: (4, 3)}) is None
    assert cpu.sizes_of({0: x, 1: x, 2: sum_}, {0: (4, 3), 1: (4, 3), 2: (4, 3)}) is not None
    joined = Node("concatenate", "joined", {"0": 0, "1": 1}, options={"axis": 1})
    assert cpu.sizes_of({0: x, 1: x, 2: joined}, {0: (4, 3), 1: (4, 3), 2: (8, 3)}) is None


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


class _Drawn:
    """A program of random operations, each on values that it can read."""

    def __init__(self, data: st.DataObject) -> None:
        self.data, self.graph = data, Graph()
        self.steps = data.draw(st.integers(1, 7), "steps")
        self.sequences: list[tuple[int, int]] = [(self.graph.input("x", -1, 3), 3)]
        self.flat: list[tuple[int, int]] = [(self.graph.input("y", 4), 4)]
        ids = self.graph.input("ids", -1, dtype="int32")
        self.masks = [self.graph.add("ids_mask", "mask", {"ids": ids})]
        rows = self.graph.add("embedding", "rows", {"ids": ids}, {"embeddings": draw(V, 5)})
        self.sequences.append((rows, 5))
        for number in range(data.draw(st.integers(1, 9), "count")):
            self.add(f"n{number}")

    def pick(self, values: list[Any]) -> Any:
        return self.data.draw(st.sampled_from(values))

    def add(self, name: str) -> None:
        kind = self.pick(["lstm", "lstm", "dense", "row", "merge", "join", "move", "over", "mask", "repeat"])
        graph = self.graph
        many = self.pick([True, False])
        (x, width), values = self.pick(self.sequences), self.sequences
        if kind in ("dense", "row", "merge", "join") and not many:
            (x, width), values = self.pick(self.flat), self.flat
        if kind == "lstm":
            units = self.pick([1, 3, 16, 19])
            mask = self.pick([None, *self.masks])
            states = [value for value, size in self.flat if size == units]
            h0 = self.pick([None, *states])
            lstm = graph.lstm(
                x,
                name,
                width,
                units,
                mask=mask,
                h0=h0,
                c0=None if h0 is None else self.pick(states),
                return_sequences=many,
                go_backwards=self.pick([True, False]),
                masked_output=self.pick(["previous_output", "previous_state", "zero"]),
                activation=self.pick(["tanh", "tanh", "relu"]),
            )
            (self.sequences if many else self.flat).append((lstm, units))
            state = graph.add("lstm_state", name, {"lstm": lstm}, state=self.pick(["h", "c"]))
            self.flat.append((state, units))
        elif kind == "dense":
            activation = self.pick(["linear", "tanh", "softmax", "log_softmax"])
            values.append((graph.dense(x, name, width, 7, activation), 7))
        elif kind == "row":
            values.append((graph.add("layer_norm", name, {"x": x}, epsilon=1e-2), width))
        elif kind == "merge":
            same = [value for value, size in values if size == width]
            op = self.pick(["add", "subtract", "multiply", "average", "maximum", "minimum"])
            values.append((graph.add(op, name, {"0": x, "1": self.pick(same)}), width))
        elif kind == "join":
            other, more = self.pick(values)
            values.append((graph.add("concatenate", name, {"0": x, "1": other}, axis=-1), width + more))
        elif kind == "move":
            self.sequences.append((graph.add("flip", name, {"x": x}, axis=1), width))
        elif kind == "over":
            mean = {"x": x} | self.pick([{}, {"mask": self.masks[0]}])
            over = (
                graph.add("mean_over_time", name, mean)
                if many
                else graph.add("max_over_time", name, {"x": x})
            )
            self.flat.append((over, width))
        elif kind == "mask":
            self.masks.append(graph.add("flip_mask", name, {"mask": self.pick(self.masks)}))
        else:
            flat, size = self.pick(self.flat)
            self.sequences.append((graph.add("repeat_vector", name, {"x": flat}, n=self.steps), size))

    def program(self) -> Program:
        values = [value for value, _ in (*self.sequences, *self.flat)]
        wanted = self.data.draw(st.sets(st.sampled_from(values), min_size=1, max_size=4), "outputs")
        return self.graph.program(**{f"o{number}": number for number in sorted(wanted)})


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_program_equals_itself_an_operation_at_a_time(data: st.DataObject) -> None:
    drawn = _Drawn(data)
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
