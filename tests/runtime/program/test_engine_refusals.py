"""The engine refuses arrays, ids, arguments and programs that do not fit, and says why."""

import itertools
import subprocess
import sys

import numpy as np
import pytest

from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.program import Node, Program
from cellerate.runtime.program.engine import Engine
from cellerate.runtime.program.interpreter import misfit
from support.graphs import Graph, draw
from support.runtime.engine_programs import C, E, H, V, pass_on, text_program, two_inputs

pytestmark = pytest.mark.usefixtures("way")


SHAPES = "expected shape (B, any, 3)"


BAD_X = {
    "axes": (np.zeros((5, 3)), f"input 'x': {SHAPES}, got (5, 3); give one row for each example"),
    "features": (np.zeros((5, 2, 4)), f"input 'x': {SHAPES}, got (5, 2, 4)"),
    "steps": (np.zeros((5, 0, 3)), f"{SHAPES} with at least one step and one feature, got (5, 0, 3); leave out"),
    "no rows and steps": (np.zeros((0, 0, 3)), "with at least one step and one feature, got (0, 0, 3)"),
    "ragged": ([[1, 2], [3]], "input 'x': expected an array of numbers (B, any, 3), got rows of different lengths"),
    "text": (np.array(["a"]), "input 'x': expected real numbers (B, any, 3), got dtype <U1; if its values"),
    "objects": (np.array([None]), "got dtype object"),
    "complex": (np.zeros((5, 2, 3), complex), "got dtype complex128"),
    "dates": (np.zeros((5, 2, 3), "M8[s]"), "datetime64[s]; if its values are meant as numbers, cast it to float32"),
    "none": (None, "got dtype object"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_X)
def test_run_of_a_wrong_array_raises_saying_what_was_expected_and_what_came(what):
    array, words = BAD_X[what]
    with pytest.raises(DataError) as raised:
        Engine(pass_on("float32", -1, 3)).run(array)
    assert words in str(raised.value)


BAD_IDS = {
    "fractions": (np.zeros((2, 3)), "input 'ids': expected integer ids (B, any), got dtype float64; if its values"),
    "text": ([["a"]], "got dtype <U1; if its values are meant as ids, cast it to int32"),
    "one axis": (np.array([1, 2]), "expected shape (B, any), got (2,)"),
    "above": (np.array([[1, V]]), f"input 'ids' holds {V} at [0, 1], but the ids of table run from 0 to {V - 1}"),
    "below": (np.array([[1], [-V - 1]]), f"holds {-V - 1} at [1, 0], but the ids of table run from 0 to {V - 1}, or"),
    "huge": (np.array([[2**40]]), f"holds {2**40} at [0, 0], but the ids of table"),
    "unsigned": (np.array([[2**64 - 1]], np.uint64), f"holds {2**64 - 1} at [0, 0], but the ids of table"),
    "no steps": (np.zeros((2, 0), int), "with at least one step and one feature, got (2, 0)"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_IDS)
def test_run_of_wrong_ids_raises_saying_what_was_expected_and_what_came(what):
    array, words = BAD_IDS[what]
    with pytest.raises(DataError) as raised:
        Engine(text_program()).run(array)
    assert words in str(raised.value)


def test_run_of_ids_without_a_table_that_do_not_fit_int32_raises():
    engine = Engine(pass_on("int32", -1))
    np.testing.assert_array_equal(engine.run([[2**31 - 1, -(2**31)]])["y"], [[2**31 - 1, -(2**31)]])
    for bad in (2**31, -(2**31) - 1):
        with pytest.raises(
            DataError, match=rf"input 'x' holds {bad} at \[0, 0\], but ids must fit int32; encode"
        ):
            engine.run([[bad]])


def test_run_of_ids_for_two_tables_holds_them_against_the_smaller_that_is_needed():
    graph = Graph()
    ids = graph.input("ids", -1, dtype="int32")
    tables = {name: {"embeddings": draw(rows, E)} for name, rows in (("first", 9), ("small", 5), ("last", 7))}
    numbers = {name: graph.add("embedding", name, {"ids": ids}, table) for name, table in tables.items()}
    engine, given = Engine(graph.program(**numbers)), np.array([[4, 6]])
    assert list(engine.run(given, ["first", "last"])) == ["first", "last"]
    with pytest.raises(
        DataError, match=r"input 'ids' holds 6 at \[0, 1\], but the ids of small run from 0 to 4, or"
    ):
        engine.run(given)


def test_run_of_ids_that_an_operation_moved_first_raises_all_the_same():
    graph = Graph()
    ids = graph.add("flip", "reversed", {"x": graph.input("ids", -1, dtype="int32")}, axis=1)
    rows = graph.add("embedding", "table", {"ids": ids}, {"embeddings": draw(V, E)})
    engine = Engine(graph.program(rows=rows, outputs=graph.lstm(rows, "lstm", E, H)))
    for wanted, bad in itertools.product((["rows"], ["outputs"]), (V, -V - 1)):
        for ids in (np.array([[1, bad]]), np.array([[1, bad]] * 20)):
            with pytest.raises(DataError, match=r"(table|lstm): (embedding|lstm) cannot take (ids|x)"):
                engine.run(ids, wanted)


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        (draw(2, 3), None, "inputs must be a dict of arrays by name, since this model has the inputs a, b; got one nd"),
        ([draw(2, 5, 3), draw(2, 3)], None, "got one list"),
        ({"a": draw(2, 5, 3), "z": draw(2, 3)}, None, "inputs holds 'z'; this model's inputs are a, b"),
        ({"a": draw(2, 5, 3)}, None, "inputs lacks 'b'"),
        ({}, ["a"], "inputs lacks 'a'"),
        ({}, ["z"], "outputs holds 'z'; this model's outputs are a, b, both"),
        ({}, [], "outputs must be a list of names among a, b, both, or None for all, not []"),
        ({}, "a", "outputs must be a list of names among a, b, both, or None for all, not 'a'"),
    ],
    ids=str,
)  # fmt: skip
def test_run_with_a_wrong_argument_raises_naming_it(inputs, outputs, words):
    with pytest.raises(ConfigError) as raised:
        Engine(two_inputs()).run(inputs, outputs)
    assert words in str(raised.value)


def test_run_of_inputs_with_unequal_rows_raises():
    with pytest.raises(
        DataError, match="inputs 'a' and 'b' must have the same number of rows, got 2 and 3; give"
    ):
        Engine(two_inputs()).run({"a": draw(2, 5, 3), "b": draw(3, 3)})


def test_run_of_sizes_that_a_layer_cannot_take_raises_naming_the_layer():
    graph = Graph()
    x = graph.add("reshape", "flat", {"x": graph.input("x", -1, 3)}, shape=(-1,))
    engine = Engine(graph.program(y=graph.dense(x, "head", 12, C)))
    assert engine.run(draw(2, 4, 3))["y"].shape == (2, C)
    with pytest.raises(
        DataError, match=r"head: dense cannot take x \(2, 15\): .*12\. Give inputs of the sizes"
    ):
        engine.run(draw(2, 5, 3))


def test_run_with_a_fixed_batch_takes_no_other():
    engine = Engine(Program((Node("input", "x", options={"shape": (2, 3), "dtype": "float32"}),), {"y": 0}))
    assert engine.run(draw(2, 3))["y"].shape == (2, 3)
    with pytest.raises(DataError, match=r"expected shape \(2, 3\), got \(1, 3\)"):
        engine.run(draw(1, 3))


def test_run_with_a_wrong_setting_of_the_core_blames_the_setting():
    code = (
        "import numpy as np\n"
        "from cellerate.errors import ConfigError\n"
        "from cellerate.program import Node, Program\n"
        "from cellerate.runtime.program.engine import Engine\n"
        "x = Node('input', 'x', options={'shape': (-1, 3), 'dtype': 'float32'})\n"
        "y = Node('dense', 'y', {'x': 0}, {'kernel': np.ones((3, 2), np.float32)}, {'activation': 'linear'})\n"
        "try:\n"
        "    Engine(Program((x, y), {'y': 1})).run(np.ones((2, 3)))\n"
        "except ConfigError as error:\n"
        "    print(error)\n"
    )
    for name, value in (("CELLERATE_TARGET", "abacus"), ("CELLERATE_THREADS", "none")):
        done = subprocess.run(
            [sys.executable, "-c", code], env={name: value}, capture_output=True, text=True, check=True
        )
        assert name in done.stdout


def test_engine_of_a_node_that_reads_another_type_raises():
    graph = Graph()
    ids = graph.input("ids", -1, dtype="int32")
    mask = graph.add("ids_mask", "mask", {"ids": ids})
    for op, read, words in (
        ("activation", {"x": ids}, "input 'x' of activation must be float32, not int32"),
        ("activation", {"x": mask}, "input 'x' of activation must be float32, not bool"),
        ("ids_mask", {"ids": mask}, "input 'ids' of ids_mask must be int32, not bool"),
    ):
        options = {"activation": "relu"} if op == "activation" else {}
        with pytest.raises(ModelError, match=f"layer: {words}"):
            Engine(Program((*graph.nodes, Node(op, "layer", read, {}, options)), {"y": 2}))


@pytest.mark.parametrize("count", [2, 8, 9])
def test_refusal_of_shapes_lists_the_first_eight_of_them(count):
    node = Node("concatenate", "joined", {}, {}, {})
    came = {f"x{place}": (2, place + 1) for place in range(count)}
    listed = ", ".join(f"x{place} (2, {place + 1})" for place in range(min(count, 8)))
    found = misfit(node, came, ValueError("they differ."))
    assert str(found).startswith(f"joined: concatenate cannot take {listed}: they differ. Give inputs")
