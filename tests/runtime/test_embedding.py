"""Lines to vectors by a packed model. Its program is made by hand, so that no Keras is needed."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cellerate.data.text.lines import LineVocabulary
from cellerate.errors import ConfigError, DataError, ModelError, OutputError
from cellerate.program import Program
from cellerate.runtime.cell import Cell, write_cell
from cellerate.runtime.embedding import save_vectors
from cellerate.runtime.packed import PackedModel
from support.runtime.packed_lines import CHARACTERS, LATENT, LINES, LONGEST, E, V, header, packed, program

# Runs the program on words, in a process in which no package that a packed model does not need can be imported.
ALONE = """
import sys
class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name in ("keras", "jax", "torch", "tensorflow"):
            raise ImportError(name + " must not be imported")
sys.meta_path.insert(0, Refusing())
from cellerate.cli.main import main
sys.argv = ["cellerate", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("batch_size", [1, 3, 256])
def test_each_line_gets_the_vector_it_gets_alone_in_order(padding, batch_size):
    model = packed(padding=padding)
    vectors = model.embed(LINES, batch_size=batch_size)
    assert vectors.shape == (len(LINES), LATENT)
    assert vectors.dtype == np.float32
    vocabulary = LineVocabulary(CHARACTERS)
    for line, vector in zip(LINES, vectors, strict=True):
        ids = vocabulary.encode(line, LONGEST) if line else np.zeros(1, np.int32)
        alone = model.predict({"source": ids[None]}, ["vector"])[0]
        np.testing.assert_allclose(vector, alone, atol=1e-6 * np.ptp(vectors), rtol=0)
    assert np.abs(vectors[0] - vectors[2]).max() > 0.1 * np.ptp(vectors)


def test_progress_is_reported_after_each_batch():
    told = []
    packed().embed(LINES, batch_size=3, progress=lambda done, total: told.append((done, total)))
    assert [total for _, total in told] == [len(LINES)] * len(told)
    steps = np.diff([0, *(done for done, _ in told)])
    assert steps.sum() == len(LINES)
    assert (steps >= 1).all()
    assert (steps <= 3).all()


def test_unknown_characters_are_refused_or_replaced():
    model = packed()
    with pytest.raises(DataError, match=r"line 2: .*'Z'"):
        model.embed(["red", "Zed"])
    vectors = model.embed(["red", "Zed", "Yed"], errors="replace")
    np.testing.assert_array_equal(vectors[1], vectors[2])
    np.testing.assert_array_equal(vectors[0], model.embed(["red"])[0])


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"lines": []}, DataError, "no line"),
        ({"lines": "red hat"}, ConfigError, "list of texts, not 'red hat'"),
        ({"lines": ["red", 7]}, ConfigError, "list of texts"),
        ({"batch_size": 0}, ConfigError, "batch_size"),
        ({"errors": "ignore"}, ConfigError, "errors"),
    ],
)
def test_wrong_arguments_of_embed_are_refused(arguments, kind, message):
    with pytest.raises(kind, match=message):
        packed().embed(**({"lines": ["red"]} | arguments))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocabulary": None}, "vocabulary"),
        ({"vocabulary": {"characters": "ba"}}, "vocabulary"),
        ({"vocabulary": {"characters": ["a", "b"]}}, "vocabulary"),
        ({"vocabulary": {"characters": ""}}, "vocabulary"),
        ({"vocabulary": {"characters": "ab"}}, f"reads {V} different ids, its vocabulary has 6"),
        ({"max_length": None}, "max_length"),
        ({"max_length": 0}, "max_length"),
        ({"max_length": True}, "max_length"),
        ({"max_length": 8.0}, "max_length"),
        ({"max_length": 10**400}, "max_length"),
        ({"padding": "up"}, "padding"),
        ({"padding": ["right"]}, "padding"),
    ],
)
def test_damaged_record_is_refused(changes, message):
    with pytest.raises(ModelError, match=message):
        packed(**changes).embed(["red"])


@pytest.mark.parametrize("found", [{}, {"payload": None}, {"payload": []}, {"payload": "x"}])
def test_missing_or_malformed_record_is_refused(found):
    model = PackedModel(Cell(program(), "float32", {"task": "embed"} | found))
    with pytest.raises(ModelError, match="damaged"):
        model.embed(["red"])


def without_mask(nodes):
    """The vector of every step, not of the line."""
    return (
        *nodes[:7],
        dataclasses.replace(nodes[7], inputs={"x": 2}, arrays={"kernel": np.ones((E, 3), "f4")}),
        nodes[8],
    )


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (program(output="decode"), "does not make vectors"),
        (program(table_rows=V + 1), f"reads {V + 1} different ids, its vocabulary has {V}"),
        (Program(without_mask(program().nodes), {"vector": 7}), "where a vector a line was expected"),
        (Program(program().nodes, {"vector": 0}), "where a vector a line was expected"),
    ],
)
def test_program_that_is_no_encoder_of_the_record_is_refused(what, message):
    # Batches of two lengths: a program that returns its ids would give vectors of two sizes.
    with pytest.raises(ModelError, match=message):
        packed(what=what).embed(["a"] * 4 + ["old cow a"], batch_size=1)


@pytest.mark.parametrize("task", ["text", "series", None, "x" * 10**6])
def test_model_of_another_task_is_refused(task):
    with pytest.raises(ModelError, match="embed needs a model of the task 'embed'") as caught:
        PackedModel(Cell(program(), "float32", header() | {"task": task})).embed(["red"])
    assert len(str(caught.value)) < 300
    assert "None" not in str(caught.value)


def shaken(what, precision, random):
    """The program with its weights moved at random by up to half a step of the precision, as rounding moves them."""

    def move(node, weights):
        if weights.ndim != 2:
            return weights
        if precision == "int8" and node.op != "embedding":
            half = np.abs(weights).max(axis=0) / 254
        else:
            # A bfloat16 has 8 significant bits.
            half = np.ldexp(0.5, np.frexp(weights)[1] - 8)
        return (weights + random.uniform(-half, half, weights.shape)).astype(np.float32)

    nodes = (
        dataclasses.replace(node, arrays={name: move(node, array) for name, array in node.arrays.items()})
        for node in what.nodes
    )
    return Program(tuple(nodes), what.outputs)


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_narrow_weights_change_vectors_as_much_as_random_rounding_would(precision):
    exact = packed().embed(LINES)

    def error(vectors):
        return np.sqrt(np.mean((vectors - exact) ** 2))

    random = np.random.default_rng(1)
    draws = [error(packed(what=shaken(program(), precision, random)).embed(LINES)) for _ in range(8)]
    assert min(draws) / 2 < error(packed(precision).embed(LINES)) < 2 * max(draws)


@pytest.mark.parametrize("suffix", ["npy", "parquet"])
def test_program_embeds_from_a_file_without_keras_or_a_framework(tmp_path, suffix):
    write_cell(tmp_path / "m.cell", program(), header=header())
    (tmp_path / "lines.txt").write_text("\n".join(LINES) + "\n")
    output = tmp_path / f"v.{suffix}"
    words = ["embed", tmp_path / "m.cell", tmp_path / "lines.txt", "-o", output, "--json"]
    done = subprocess.run([sys.executable, "-c", ALONE, *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"output": str(output), "lines": len(LINES), "dimensions": LATENT}
    found = (
        np.load(output)
        if suffix == "npy"
        else np.array(pq.read_table(output).column("vector").to_pylist(), "f4")
    )
    np.testing.assert_array_equal(found, packed().embed(LINES))


def test_vectors_in_npy_and_parquet_are_equal(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    save_vectors(vectors, tmp_path / "v.npy")
    save_vectors(vectors, tmp_path / "v.parquet", ["one", "", "drei ü"])
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), vectors)
    table = pq.read_table(tmp_path / "v.parquet")
    assert table.column("line").to_pylist() == ["one", "", "drei ü"]
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 4)
    np.testing.assert_array_equal(np.array(table.column("vector").to_pylist(), np.float32), vectors)


def test_vectors_in_another_format_or_below_a_file_raise_and_leave_nothing(tmp_path):
    with pytest.raises(ConfigError, match=r"v\.csv"):
        save_vectors(np.zeros((1, 2), np.float32), tmp_path / "v.csv")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        save_vectors(np.zeros((1, 2), np.float32), tmp_path / "file" / "v.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
