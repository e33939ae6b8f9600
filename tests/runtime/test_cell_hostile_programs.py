"""Files that are written as they should be, and whose programs, tokenizers or records are made to do harm.

What `test_cell_hostile.py` is for the bytes of a file: each case ends in an error of Cellerate's, at once, with
little memory, or in a model that works.
"""

import copy
import dataclasses
import itertools
import json
import random
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellerate.errors import CellerateError, ConfigError, DataError, ModelError
from cellerate.kernels.program.cpu import CompiledProgram
from cellerate.program import OPERATIONS, Node, Program
from cellerate.runtime.cell import read_cell, write_cell
from cellerate.runtime.packed import PackedModel, load
from cellerate.runtime.program.engine import Engine

MOST_BYTES = 128 << 20
MOST_SECONDS = 30.0  # tracing memory makes it all some ten times as slow


@pytest.fixture(autouse=True)
def little(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every case of this file ends at once and with little memory, whatever its outcome."""
    if request.node.get_closest_marker("slow"):
        yield
        return
    tracemalloc.start()
    begin = time.process_time()
    yield
    seconds, peak = time.process_time() - begin, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MOST_BYTES
    assert seconds < MOST_SECONDS


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def unchecked(nodes: list[Node], **outputs: Any) -> Program:
    """A program that nobody has looked at."""
    program = object.__new__(Program)
    object.__setattr__(program, "nodes", tuple(nodes))
    object.__setattr__(program, "outputs", outputs or {"y": len(nodes) - 1})
    return program


def given(*shape: int, dtype: str = "float32", name: str = "x") -> Node:
    return Node("input", name, {}, {}, {"shape": (-1, *shape), "dtype": dtype})


def lstm(
    x: int, inputs: int, units: int, *, arrays: dict[str, np.ndarray] | None = None, **more: int
) -> Node:
    options: dict[str, Any] = {"activation": "tanh", "recurrent_activation": "sigmoid"}
    options |= {"masked_output": "zero", "go_backwards": False, "return_sequences": True}
    arrays = arrays or {"kernel": ones(inputs, 4 * units), "recurrent_kernel": ones(units, 4 * units)}
    return Node("lstm", "lstm", {"x": x, **more}, arrays, options)


def packed(tmp_path: Path, nodes: list[Node], **outputs: int) -> PackedModel:
    """The model after it has been written to a file and loaded."""
    write_cell(tmp_path / "a.cell", unchecked(nodes, **outputs))
    return load(tmp_path / "a.cell")


# Programs that ask for more than any machine has.


def doubled(op: str = "concatenate", count: int = 40, **options: Any) -> list[Node]:
    """Each joins the one before with itself."""
    nodes = [given(-1, 1)]
    for number in range(count):
        nodes.append(Node(op, f"n{number}", {"0": number, "1": number}, {}, options))
    return nodes


def repeated() -> list[Node]:
    """(B, F) -> (B, n, F) -> ... : n times as many each time."""
    nodes = [given(2)]
    for number in range(3):
        nodes.append(Node("repeat_vector", f"n{number}", {"x": number}, {}, {"n": 2**20}))
    return nodes


def taken() -> list[Node]:
    """A thousand copies of the only axis, which is made the only one again."""
    nodes = [given(1)]
    for number in range(0, 8, 2):
        nodes.append(Node("take", f"t{number}", {"x": number}, {}, {"indices": (0,) * 1000, "axis": -1}))
        nodes.append(Node("reshape", f"r{number}", {"x": number + 1}, {}, {"shape": (-1, 1)}))
    return nodes


def broadcast(op: str) -> list[Node]:
    """(n, 1) and (1, n) become (n, n), that (n * n, 1) and (1, n * n), ..."""
    nodes = [given(4)]
    for number in range(0, 15, 3):
        nodes.append(Node("reshape", f"r{number}", {"x": number}, {}, {"shape": (-1, 1)}))
        nodes.append(Node("reshape", f"s{number}", {"x": number}, {}, {"shape": (1, -1)}))
        nodes.append(Node(op, f"m{number}", {"0": number + 1, "1": number + 2}))
    return nodes


def widened(op: str) -> list[Node]:
    """A product that makes many columns of one, and a reshape that makes them rows."""
    nodes = [given(1, 1)]
    for number in range(0, 6, 2):
        if op == "dense":
            node = Node(
                "dense", f"d{number}", {"x": number}, {"kernel": ones(1, 4096)}, {"activation": "linear"}
            )
        else:
            node = Node("unembedding", "u", {"x": number}, {"embeddings": ones(4096, 1)}, {"soft_cap": None})
        nodes += [node, Node("reshape", f"r{number}", {"x": number + 1}, {}, {"shape": (-1, 1)})]
    return nodes


def bidirectional() -> list[Node]:
    """Both directions joined along time, again and again."""
    nodes = [given(-1, 1)]
    arrays = lstm(0, 1, 1).arrays
    for number in range(0, 120, 4):
        nodes += [
            lstm(number, 1, 1, arrays=dict(arrays)),
            lstm(number, 1, 1, arrays=dict(arrays)),
            Node("flip", "flip", {"x": number + 2}, {}, {"axis": 1}),
            Node("concatenate", "both", {"0": number + 1, "1": number + 3}, {}, {"axis": 1}),
        ]
    return nodes


ENORMOUS: dict[str, Callable[[], list[Node]]] = {
    "concatenate of steps": lambda: doubled(axis=1),
    "concatenate of features": lambda: doubled(axis=-1),
    "concatenate of many": lambda: [
        given(-1, 1),
        *(Node("concatenate", "all", {str(n): m for n in range(1000)}, {}, {"axis": 1}) for m in range(4)),
    ],
    "repeat_vector": repeated,
    "take": taken,
    "add that broadcasts": lambda: broadcast("add"),
    "multiply that broadcasts": lambda: broadcast("multiply"),
    "average that broadcasts": lambda: broadcast("average"),
    "maximum that broadcasts": lambda: broadcast("maximum"),
    "dense": lambda: widened("dense"),
    "unembedding": lambda: widened("unembedding"),
    "bidirectional": bidirectional,
    "embedding": lambda: [
        given(1, dtype="int32"),
        Node("take", "t", {"x": 0}, {}, {"indices": (0,) * 20_000, "axis": 1}),
        Node("embedding", "e", {"ids": 1}, {"embeddings": ones(2, 1000)}),
    ],
    "lstm of a long row": lambda: [
        given(1),
        Node("repeat_vector", "r", {"x": 0}, {}, {"n": 2**20}),
        lstm(1, 1, 100),
    ],
}


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("name", ENORMOUS)
def test_program_whose_results_grow_without_end_is_refused_before_it_runs(name, rows, tmp_path):
    model = packed(tmp_path, ENORMOUS[name]())
    shape = [1 if size == -1 else size for size in model.inputs["x"][1:]]
    with pytest.raises(DataError, match=r"would make [\d,]+ numbers from a row of \d; the limit is"):
        model.predict(np.zeros((rows, *shape), np.int32))


def test_program_that_keeps_many_large_results_is_refused(tmp_path):
    nodes = [given(16), Node("repeat_vector", "r", {"x": 0}, {}, {"n": 2**16})]
    nodes += [Node("activation", f"a{n}", {"x": 1}, {}, {"activation": "relu"}) for n in range(1030)]
    nodes += [Node("add", "sum", {str(n): n + 2 for n in range(1030)})]
    with pytest.raises(DataError, match=r"a row would need [\d,]+ numbers at once"):
        packed(tmp_path, nodes).predict(np.zeros((1, 16)))


def test_program_that_gives_one_large_result_many_times_is_refused(tmp_path):
    nodes = [given(1), Node("repeat_vector", "r", {"x": 0}, {}, {"n": 2**20})]
    model = packed(tmp_path, nodes, **{f"y{n}": 1 for n in range(1024)})
    with pytest.raises(DataError, match=r"a row would need [\d,]+ numbers at once.*fewer outputs"):
        model.predict(np.zeros((1, 1)))
    model._engine.run(np.zeros((1, 1)), ["y7"])


@pytest.mark.parametrize(
    "kind", ["dense", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("lstm", "gelu"))]
)
def test_program_of_many_nodes_with_one_large_weight_is_refused_for_the_time_it_takes(kind, tmp_path):
    kernel = {"kernel": ones(512, 512)}
    layer = dict(lstm(1, 512, 128).arrays)
    nodes = [given(1), Node("take", "t", {"x": 0}, {}, {"indices": (0,) * 512, "axis": 1})]
    nodes.append(Node("repeat_vector", "r", {"x": 1}, {}, {"n": 300}))
    for number in range(2, 8000):
        if kind == "dense":
            nodes.append(Node("dense", "d", {"x": number}, kernel, {"activation": "linear"}))
        elif kind == "lstm":
            nodes.append(lstm(2, 512, 128, arrays=layer))
        else:
            nodes.append(Node("activation", "g", {"x": number}, {}, {"activation": "gelu"}))
    outputs = {"y": 5000} if kind != "lstm" else {f"y{n}": n for n in range(3, 1000)}
    with pytest.raises(DataError, match=r"would need [\d,]+ multiplications for a row of 1 numbers"):
        packed(tmp_path, nodes, **outputs).predict(np.zeros((1, 1)))


def test_program_of_as_many_nodes_as_there_can_be_runs(tmp_path):
    nodes = [given(2)]
    for number in range(2**14 - 1):
        nodes.append(Node("activation", "a", {"x": number}, {}, {"activation": "relu"}))
    np.testing.assert_array_equal(packed(tmp_path, nodes).predict(ones(3, 2)), ones(3, 2))


def test_program_of_many_states_of_one_lstm_runs(tmp_path):
    nodes = [given(-1, 2), lstm(0, 2, 2)]
    nodes += [Node("lstm_state", "s", {"lstm": 1}, {}, {"state": "h"}) for _ in range(8000)]
    nodes.append(Node("concatenate", "c", {str(n): n + 2 for n in range(8000)}, {}, {"axis": -1}))
    assert packed(tmp_path, nodes).predict(ones(1, 3, 2)).shape == (1, 16_000)


def test_tied_table_of_many_heads_is_transposed_once(tmp_path):
    nodes = [given(500)]
    nodes += [
        Node("unembedding", f"u{n}", {"x": 0}, {"embeddings": nodes_table}, {"soft_cap": None})
        for nodes_table in [ones(1000, 500)]
        for n in range(1000)
    ]
    assert packed(tmp_path, nodes).predict(ones(1, 500)).shape == (1, 1000)


def test_result_that_does_not_fit_into_memory_is_refused(tmp_path, monkeypatch):
    def none_left(*args: Any, **kwargs: Any) -> np.ndarray:
        raise MemoryError

    model = packed(tmp_path, [given(2), Node("repeat_vector", "r", {"x": 0}, {}, {"n": 3})])
    monkeypatch.setattr(np, "repeat", none_left)
    monkeypatch.setattr(CompiledProgram, "run", none_left)
    with pytest.raises(DataError, match="results of 5 rows do not fit into memory; give fewer rows"):
        model.predict(ones(5, 2))


# Programs that lie about themselves.


def edited(tmp_path: Path, change: Callable[[list[dict[str, Any]]], Any]) -> Path:
    """A file of a valid program whose nodes were changed, with a digest that is right."""
    path = tmp_path / "a.cell"
    changed = [dataclasses.asdict(node) | {"arrays": dict(node.arrays)} for node in TEXT]
    change(changed)
    write_cell(path, unchecked([Node(**fields) for fields in changed]))
    return path


TEXT = [
    given(-1, dtype="int32", name="ids"),
    Node("embedding", "table", {"ids": 0}, {"embeddings": ones(5, 4)}),
    lstm(1, 4, 4),
    Node("layer_norm", "norm", {"x": 2}, {"gamma": ones(4)}, {"epsilon": 1e-3}),
    Node("dense", "head", {"x": 3}, {"kernel": ones(4, 5), "bias": ones(5)}, {"activation": "linear"}),
]


def option(number: int, **values: Any) -> Callable[[list[dict[str, Any]]], Any]:
    return lambda nodes: nodes[number]["options"].update(values)


def array(number: int, **values: np.ndarray) -> Callable[[list[dict[str, Any]]], Any]:
    return lambda nodes: nodes[number]["arrays"].update(values)


def reads(number: int, **values: Any) -> Callable[[list[dict[str, Any]]], Any]:
    return lambda nodes: nodes[number].update(inputs=values)


LIES: dict[str, tuple[Callable[[list[dict[str, Any]]], Any], str]] = {
    "true for 1": (lambda n: n.append(repeat(4, True)), "option 'n' cannot be True"),
    "1.0 for 1": (lambda n: n.append(repeat(4, 1.0)), r"option 'n' cannot be 1\.0"),
    "1 for true": (option(2, go_backwards=1), "option 'go_backwards' cannot be 1"),
    "1 for 1.0": (option(3, epsilon=1), "option 'epsilon' cannot be 1"),
    "text for a number": (option(3, epsilon="0.1"), "option 'epsilon' cannot be"),
    "negative epsilon": (option(3, epsilon=-1e-9), "epsilon must be at least 0"),
    "no copies": (lambda n: n.append(repeat(4, 0)), "n must be from 1"),
    "negative copies": (lambda n: n.append(repeat(4, -3)), "n must be from 1"),
    "size 0 of the input": (option(0, shape=(-1, 0)), "input cannot have the shape"),
    "size -2 of the input": (option(0, shape=(-1, -2)), "input cannot have the shape"),
    "no axes of the input": (option(0, shape=()), "input cannot have the shape"),
    "type of the input": (option(0, dtype="int64"), "dtype must be one of float32, int32"),
    "type of numbers for ids": (option(0, dtype="float32"), "input 'ids' of embedding must be int32"),
    "activation unknown": (option(4, activation="__import__"), "activation: expected one of"),
    "softmax in an lstm": (option(2, activation="softmax"), "activation: expected one of"),
    "state of a dense": (lambda n: n.append(state(4)), "must read an lstm"),
    "node that reads itself": (reads(3, x=3), "must be an earlier node, got 3"),
    "nodes that read each other": (reads(2, x=3), "must be an earlier node, got 3"),
    "node that reads none": (reads(3, x=99), "must be an earlier node, got 99"),
    "node from the end": (reads(3, x=-1), "must be an earlier node, got -1"),
    "node true": (reads(3, x=True), "must be an earlier node, got True"),
    "input missing": (reads(3), "layer_norm has the inputs"),
    "input too many": (reads(3, x=2, y=2), "layer_norm has the inputs"),
    "states by half": (reads(2, x=1, h0=1), "h0 and c0 must be given together"),
    "kernel and gates": (array(2, kernel=ones(4, 12)), "its other weights say"),
    "gates and units": (array(2, kernel=ones(4, 12), recurrent_kernel=ones(4, 12)), "4 columns a row"),
    "bias and kernel": (array(4, bias=ones(4)), "its other weights say"),
    "bias with two axes": (array(4, bias=ones(1, 5)), "must be float32 with 1 axes"),
    "two inputs of one name": (lambda n: n.append(copy.deepcopy(n[0])), "two of one name"),
}  # fmt: skip


def repeat(x: int, n: Any) -> dict[str, Any]:
    return {"op": "repeat_vector", "name": "r", "inputs": {"x": x}, "arrays": {}, "options": {"n": n}}


def state(x: int) -> dict[str, Any]:
    return {"op": "lstm_state", "name": "s", "inputs": {"lstm": x}, "arrays": {}, "options": {"state": "h"}}


@pytest.mark.parametrize("what", LIES)
def test_program_that_no_model_has_is_refused_when_it_is_loaded(what, tmp_path):
    change, message = LIES[what]
    with pytest.raises((DataError, ModelError), match=message):
        load(edited(tmp_path, change))


MISFITS: dict[str, tuple[Callable[[list[dict[str, Any]]], Any], str]] = {
    "embedding of another width": (array(1, embeddings=ones(5, 3)), r"lstm: lstm cannot take x \(2, 3, 3\)"),
    "norm of another width": (array(3, gamma=ones(3)), r"norm: layer_norm cannot take x \(2, 3, 4\)"),
    "norm of one": (array(3, gamma=ones(1)), "norm: layer_norm cannot take x"),
    "head of another width": (array(4, kernel=ones(3, 5)), "head: dense cannot take x"),
    "states with time": (reads(2, x=1, h0=1, c0=1), r"lstm: lstm cannot take x .*h0 must be \(B, 4\)"),
}


@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("what", MISFITS)
def test_weights_that_do_not_fit_each_other_are_refused_when_it_runs(what, rows, tmp_path):
    change, message = MISFITS[what]
    model = load(edited(tmp_path, change))
    with pytest.raises(DataError, match=message if rows else "cannot take"):
        model.predict(np.zeros((rows, 3), int))


def test_steps_of_layers_that_do_not_fit_each_other_are_refused(tmp_path):
    for change, _ in MISFITS.values():
        with pytest.raises(CellerateError):
            _ = load(edited(tmp_path, change)).steps


def test_input_that_nothing_reads_is_checked_and_may_be_left_out(tmp_path):
    model = packed(tmp_path, [given(2, name="used"), given(3, name="unused")], y=0)
    np.testing.assert_array_equal(model.predict({"used": ones(1, 2)}), ones(1, 2))
    with pytest.raises(DataError, match="'unused': expected shape"):
        model.predict({"used": ones(1, 2), "unused": ones(1, 2)})
    with pytest.raises(ConfigError, match="must be a dict"):
        model.predict(ones(1, 2))


# Tokenizers and records.


def with_header(tmp_path: Path, header: dict[str, Any], vocabulary: int = 5) -> PackedModel:
    nodes = [
        given(-1, dtype="int32", name="ids"),
        Node("embedding", "table", {"ids": 0}, {"embeddings": ones(vocabulary, 4)}),
        lstm(1, 4, 4),
        Node("dense", "head", {"x": 2}, {"kernel": ones(4, vocabulary)}, {"activation": "linear"}),
    ]
    write_cell(tmp_path / "a.cell", Program(tuple(nodes), {"y": 3}), header=header)
    return load(tmp_path / "a.cell")


TOKENIZERS: tuple[Any, ...] = (
    *(None, True, 0, "", "bytes", [], ["bytes"], {}, {"kind": None}, {"kind": []}, {"kind": {}}, {"kind": "pickle"}),
    *({"kind": "characters"} | more for more in ({}, {"characters": ""}, {"characters": 5}, {"characters": ["a"]})),
    *({"kind": "characters", "characters": text} for text in ("ba", "aa", "a" * 9, "abcd", "abcdef", "a" * 200_000)),
    {"kind": "characters", "characters": {"a": 0}},
    {"kind": "bytes"},
    {"kind": "bytes", "characters": "abcde"},
    *({"kind": "file"} | more for more in ({}, {"json": None}, {"json": ""}, {"json": "{"}, {"json": "[]"})),
    {"kind": "file", "json": "[" * 100_000},
    {"kind": "file", "json": '{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":-1},"unk_token":"a"}}'},
    {"kind": "file", "json": '{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":9},"unk_token":"a"}}'},
    {"kind": "file", "json": '{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":4294967295},"unk_token":"a"}}'},
    {"kind": "file", "json": '{"version":"1.0","model":{"type":"WordLevel","vocab":{},"unk_token":"a"}}'},
    {"kind": "file", "json": '{"version":"1.0","model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[["a","c"]]}}'},
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(TOKENIZERS)), ids=lambda n: str(TOKENIZERS[n])[:40])
def test_tokenizer_that_does_not_fit_is_refused_when_text_is_generated(number, tmp_path):
    model = with_header(tmp_path, {"task": "text", "payload": {"tokenizer": TOKENIZERS[number]}})
    with pytest.raises(CellerateError, match=r"\w"):
        model.generate("a", max_tokens=3, seed=1)
    assert model.predict(np.zeros((1, 2), int)).shape == (1, 2, 5)


@pytest.mark.parametrize(
    "payload", [None, True, 0, "", [], {}, {"tokenizers": 1}, [["tokenizer", 1]], "tokenizer", {"Tokenizer": {}}]
)  # fmt: skip
def test_payload_without_a_tokenizer_is_refused_when_text_is_generated(payload, tmp_path):
    for header in ({}, {"payload": payload}, {"task": "text", "payload": payload}):
        with pytest.raises(ModelError, match="has no tokenizer"):
            with_header(tmp_path, header).generate("a", max_tokens=3)


def test_tokenizer_that_fits_generates(tmp_path):
    header = {"payload": {"tokenizer": {"kind": "characters", "characters": "abcde"}}}
    assert len(with_header(tmp_path, header).generate("a", max_tokens=3, seed=1)) == 3
    header = {"payload": {"tokenizer": {"kind": "bytes"}}}
    assert with_header(tmp_path, header, 256).generate("a", max_tokens=3, seed=1)


# Fuzzing.

VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 3, 7, 2**20, 2**31 - 1, 2**31, -(2**31), 2**63, 10**300),
    *(0.0, -0.0, 0.5, 1.0, -1.0, 1e30, 1e300, "", "x", "h", "relu", "softmax", "linear", "float32", "int32", "zero"),
    *((), (1,), (-1,), (2, -1), (-1, -1), (1, 2), (2, 1), (0,) * 5000, (1,) * 31, (1,) * 40, (2**31 - 1,) * 20),
)  # fmt: skip
SIZES = (1, 1, 2, 3, 4, 8, 12, 16)
OPTIONS: dict[type, tuple[Any, ...]] = {
    bool: (True, False),
    int: (-2, -1, 0, 1, 2, 3, 2**20),
    float: (0.0, 1e-3, 1.0),
    str: ("tanh", "sigmoid", "linear", "softmax", "float32", "int32", "zero", "previous_output", "h", "c"),
    tuple: ((1,), (-1,), (2, -1), (1, 2), (2, 1), (0,) * 5000, (-1, -1, 4), (-1, 2), (-1, 3, 1)),
    type(None): (None,),
}


def random_node(rng: random.Random, number: int) -> Node:
    """A node of any operation, most of it as it should be."""
    op = rng.choice([*OPERATIONS, "concatenate", "lstm", "dense", "embedding"])
    kind = OPERATIONS[op]
    names = [str(n) for n in range(rng.choice((1, 2, 3)))] if kind.inputs == ("*",) else kind.inputs
    inputs: dict[str, Any] = {
        name.rstrip("?"): rng.randrange(number) if rng.random() > 0.01 else rng.choice(VALUES)
        for name in names
        if not name.endswith("?") or rng.random() < 0.3
    }
    sizes = {axis: rng.choice(SIZES) for axis in "VEDHKNF"}
    sizes["G"] = 4 * sizes["H"]
    arrays = {
        name.rstrip("?"): ones(*(sizes[axis] if rng.random() > 0.02 else 5 for axis in axes))
        for name, axes in kind.arrays.items()
        if not name.endswith("?") or rng.random() < 0.5
    }
    options = {}
    for name, types in kind.options.items():
        wanted = rng.choice(types) if isinstance(types, tuple) else types
        options[name] = rng.choice(OPTIONS[wanted] if rng.random() > 0.02 else VALUES)
    if "return_sequences" in options:
        options |= {"activation": "tanh", "recurrent_activation": "sigmoid", "masked_output": "zero"}
    return Node(op, f"n{number}", inputs, arrays, options)


def random_program(rng: random.Random) -> Iterator[Program]:
    """Programs that grow by a node that can be there, the last of each by one that perhaps cannot."""
    nodes = [
        given(-1, dtype="int32", name="ids"),
        given(-1, rng.choice(SIZES), name="numbers"),
        given(rng.choice(SIZES), name="vector"),
    ]
    for _ in range(rng.choice((3, 8, 20))):
        node = random_node(rng, len(nodes))
        program = unchecked([*nodes, node])
        yield program
        try:
            Engine(Program(program.nodes, program.outputs))
        except CellerateError:
            continue
        nodes.append(node)


def fuzz(path: Path, count: int, seed: int) -> Counter[str]:
    """Writes, loads and runs `count` programs, with inputs of several sizes; counts how they ended."""
    rng = random.Random(seed)
    ends: Counter[str] = Counter()
    programs = itertools.chain.from_iterable(random_program(rng) for _ in itertools.count())
    for number, program in enumerate(itertools.islice(programs, count)):
        stage = "written"
        try:
            write_cell(path, program)
            stage = "loaded"
            model = load(path)
            rows, steps = rng.choice((0, 1, 2)), rng.choice((1, 2, 5))
            inputs = {}
            for name, shape in model.inputs.items():
                sizes = [rows, *(steps if size == -1 else size for size in shape[1:])]
                inputs[name] = np.zeros(sizes if np.prod(sizes, dtype=float) < 1e6 else [rows, 1], np.int32)
            stage = "run"
            found = model._engine.run(inputs)
            ends[f"{rows} rows"] += 1
            if rows:
                assert all(len(array) == rows for array in found.values())
                empty = model._engine.run({name: array[:0] for name, array in inputs.items()})
                assert {n: a.shape[1:] for n, a in empty.items()} == {
                    n: a.shape[1:] for n, a in found.items()
                }
                assert {n: a.dtype for n, a in empty.items()} == {n: a.dtype for n, a in found.items()}
            stage = "stepped"
            _ = model.steps
            ends["stepped"] += 1
        except CellerateError as error:
            assert len(str(error)) < 1000, error
            ends[f"not {stage}"] += 1
        except BaseException as error:
            raise AssertionError(f"program {number} of seed {seed}: {program}") from error
    return ends


def test_400_random_programs_are_refused_or_run(tmp_path):
    ends = fuzz(tmp_path / "a.cell", 400, seed=1)
    for end in ("not loaded", "not run", "not stepped", "0 rows", "1 rows", "2 rows"):
        assert ends[end] > 10, ends


@pytest.mark.slow
def test_20_000_random_programs_are_refused_or_run(tmp_path):
    ends = fuzz(tmp_path / "a.cell", 20_000, seed=2)
    assert ends["1 rows"] > 1000, ends


def test_every_operation_is_reached_by_random_programs():
    rng = random.Random(2)
    assert {random_node(rng, 3).op for _ in range(2000)} == OPERATIONS.keys()


def test_header_of_a_model_with_a_tokenizer_of_50_000_tokens_fits(tmp_path):
    vocabulary = {f"tok☃{n:05}": n for n in range(50_000)}
    merges = [[f"tok☃{n:05}", f"{n:04}"] for n in range(50_000)]
    tokenizer = {"version": "1.0", "model": {"type": "BPE", "vocab": vocabulary, "merges": merges}}
    text = json.dumps(tokenizer, ensure_ascii=False, indent=2)
    assert len(text) > 3_900_000
    header = {"task": "text", "payload": {"tokenizer": {"kind": "file", "json": text}}}
    with_header(tmp_path, header)
    assert read_cell(tmp_path / "a.cell").header == header
