import hashlib
import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors

from cellerate.errors import ConfigError, ModelError, OutputError
from cellerate.program import OPERATIONS, PRECISIONS, Node, Program
from cellerate.runtime import cell_format
from cellerate.runtime.cell import narrowed, read_cell, write_cell
from support.runtime.plain_cell import plain_read, times_scale

LSTM: dict[str, Any] = {
    "activation": "tanh",
    "recurrent_activation": "sigmoid",
    "masked_output": "previous_output",
    "go_backwards": True,
    "return_sequences": False,
}
FLOAT_MAX = np.finfo(np.float32).max
GRU = LSTM | {"reset_after": True}
RNN = {name: value for name, value in LSTM.items() if name != "recurrent_activation"}
WINDOW = {"size": 3, "strides": 1, "dilation": 2, "padding": "same", "axis": 1}
ATTENTION = {"heads": 1, "scale": 0.5, "causal": True, "zeros": False}
TINY = np.finfo(np.float32).tiny


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def every_operation() -> Program:
    """At least one node of each operation, with and without its optional inputs and arrays."""
    table = weights(7, 4)
    layer = {"kernel": weights(4, 12), "recurrent_kernel": weights(3, 12), "bias": weights(12)}
    gates = {"kernel": weights(4, 9), "recurrent_kernel": weights(3, 9), "bias": weights(9)}
    nodes = [
        Node("input", "ids", options={"shape": (-1, -1), "dtype": "int32"}),
        Node("input", "x", options={"shape": (-1, 6, 4), "dtype": "float32"}),
        Node("embedding", "table", {"ids": 0}, {"embeddings": table}),
        Node("ids_mask", "table", {"ids": 0}),
        Node("features_mask", "masking", {"x": 1}, {}, {"mask_value": -1e30}),
        Node("masked", "masking", {"x": 1, "mask": 4}),
        Node("lstm", "a", {"x": 2, "mask": 3}, layer, LSTM),
        Node("lstm_state", "a", {"lstm": 6}, {}, {"state": "h"}),
        Node("lstm_state", "a", {"lstm": 6}, {}, {"state": "c"}),
        Node("lstm", "b", {"x": 5, "h0": 7, "c0": 8}, {k: layer[k] for k in list(layer)[:2]}, LSTM),
        Node(
            "dense", "d", {"x": 9}, {"kernel": weights(3, 4), "bias": weights(4)}, {"activation": "softmax"}
        ),
        Node("dense", "e", {"x": 9}, {"kernel": weights(3, 4, seed=1)}, {"activation": "linear"}),
        Node("unembedding", "head", {"x": 11}, {"embeddings": table}, {"soft_cap": 30.0}),
        Node("unembedding", "head", {"x": 11}, {"embeddings": table}, {"soft_cap": None}),
        Node("activation", "f", {"x": 11}, {}, {"activation": "gelu"}),
        Node("layer_norm", "g", {"x": 11}, {"gamma": weights(4), "beta": weights(4)}, {"epsilon": 1e-3}),
        Node("layer_norm", "h", {"x": 11}, {}, {"epsilon": 0.0}),
        Node("affine", "i", {"x": 11}, {"scale": weights(4), "offset": weights(4)}),
        Node("subtract", "j", {"0": 11, "1": 11}),
        Node("concatenate", "k", {"0": 11, "1": 11, "2": 15}, {}, {"axis": -1}),
        Node("reshape", "l", {"x": 11}, {}, {"shape": (2, -1)}),
        Node("reshape", "l", {"x": 20}, {}, {"shape": ()}),
        Node("repeat_vector", "m", {"x": 11}, {}, {"n": 5}),
        Node("crop", "n", {"x": 22}, {}, {"begin": 1, "end": None}),
        Node("crop", "n", {"x": 22}, {}, {"begin": 1, "end": 4}),
        Node("take", "o", {"x": 22}, {}, {"indices": (3, 0, -1), "axis": 2}),
        Node("cumsum", "p", {"x": 22}, {}, {"axis": 1}),
        Node("flip", "q", {"x": 22}, {}, {"axis": -1}),
        Node("permute", "r", {"x": 22}, {}, {"axes": (2, 1)}),
        Node("mean_over_time", "s", {"x": 5, "mask": 4}),
        Node("mean_over_time", "s", {"x": 5}),
        Node("max_over_time", "t", {"x": 5}),
        Node("flip_mask", "u", {"mask": 3}),
        Node("gru", "w", {"x": 2, "mask": 3}, gates | {"recurrent_bias": weights(9, seed=1)}, GRU),
        Node("rnn_state", "w", {"rnn": 33}),
        Node(
            "gru",
            "x",
            {"x": 5, "h0": 34},
            {k: gates[k] for k in list(gates)[:2]},
            GRU | {"reset_after": False},
        ),
        Node("simple_rnn", "y", {"x": 5}, {"kernel": weights(4, 3), "recurrent_kernel": weights(3, 3)}, RNN),
        Node("any_mask", "z", {"0": 3, "1": 3}),
        Node("where", "z", {"x": 5, "other": 5, "mask": 3}),
        *(Node(op, "v", {"0": 11, "1": 10}) for op in ("add", "multiply", "average", "maximum", "minimum")),
        Node("divide", "v", {"0": 11, "1": 10}),
        Node("function", "v", {"x": 11}, {}, {"function": "power", "number": 1.5}),
        Node("compare", "v", {"0": 11, "1": 10}, {}, {"relation": "less_equal"}),
        Node("choose", "v", {"0": 11, "1": 10, "2": 11}),
        Node("pad", "n", {"x": 22}, {}, {"before": 1, "after": 2}),
        Node("flatten_steps", "aa", {"x": 22}),
        Node("softmax", "ab", {"x": 22}, {}, {"axis": 1}),
        *(
            Node(op, "ac", {"x": 22}, {}, {"axis": 1, "keepdims": True})
            for op in ("sum", "mean", "max", "min")
        ),
        Node("windows", "ad", {"x": 1}, {}, WINDOW | {"features": 4}),
        *(Node(op, "ae", {"x": 1}, {}, WINDOW) for op in ("max_pool", "average_pool")),
        Node("dot", "af", {"0": 1, "1": 1}, {}, {"axes": (2, 2)}),
        Node("attention", "ag", {"query": 1, "key": 1, "value": 5, "mask": 4}, {}, ATTENTION),
        Node("attention", "ag", {"query": 1, "key": 1, "value": 5}, {"additive": weights(4)}, ATTENTION),
    ]
    assert {node.op for node in nodes} == set(OPERATIONS)
    return Program(tuple(nodes), {"logits": 12, "last": len(nodes) - 1})


def dense(kernel: np.ndarray, name: str = "head", **arrays: np.ndarray) -> Program:
    """A program of one product."""
    given = Node("input", "x", options={"shape": (-1, len(kernel)), "dtype": "float32"})
    node = Node("dense", name, {"x": 0}, {"kernel": kernel, **arrays}, {"activation": "linear"})
    return Program((given, node), {"out": 1})


def assert_equal(a: Program, b: Program) -> None:
    """Equal to the last bit, types and order included."""
    assert list(a.outputs.items()) == list(b.outputs.items())
    assert len(a.nodes) == len(b.nodes)
    for one, other in zip(a.nodes, b.nodes, strict=True):
        assert (one.op, one.name, one.inputs) == (other.op, other.name, other.inputs)
        assert repr(sorted(one.options.items())) == repr(sorted(other.options.items()))
        assert one.arrays.keys() == other.arrays.keys()
        for name, array in one.arrays.items():
            found = other.arrays[name]
            assert (found.dtype, found.shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(found.view(np.uint32), array.view(np.uint32))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_program_of_every_operation_written_and_read_equals_the_narrowed_one(precision, tmp_path):
    program = every_operation()
    write_cell(tmp_path / "a.cell", program, precision=precision)
    cell = read_cell(tmp_path / "a.cell")
    assert (cell.precision, cell.header) == (precision, {})
    assert_equal(cell.program, narrowed(program, precision))
    assert [path.name for path in tmp_path.iterdir()] == ["a.cell"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_program_read_and_written_again_gives_the_same_file(precision, tmp_path):
    header = {"task": "text", "tokenizer": ["é", 3]}
    write_cell(tmp_path / "a.cell", every_operation(), precision=precision, header=header)
    cell = read_cell(str(tmp_path / "a.cell"))
    write_cell(tmp_path / "b.cell", cell.program, precision=cell.precision, header=cell.header)
    assert (tmp_path / "a.cell").read_bytes() == (tmp_path / "b.cell").read_bytes()


def test_float32_keeps_every_bit_and_narrowed_gives_the_same_arrays(tmp_path):
    extremes = [0.0, -0.0, TINY, -TINY / 2**23, FLOAT_MAX, -FLOAT_MAX, 1 / 3]
    program = dense(np.array([extremes], np.float32), bias=weights(7))
    write_cell(tmp_path / "a.cell", program)
    assert_equal(read_cell(tmp_path / "a.cell").program, program)
    assert narrowed(program, "float32").nodes[1].arrays["kernel"] is program.nodes[1].arrays["kernel"]


def test_arrays_in_another_memory_order_are_written_as_they_read(tmp_path):
    backwards = weights(6, 5)[::-1, ::-1]
    for kernel in (np.asfortranarray(weights(5, 6)), weights(6, 5).T, backwards, weights(9, 12)[::2, ::3]):
        for precision in PRECISIONS:
            write_cell(tmp_path / "a.cell", dense(kernel), precision=precision)
            expected = narrowed(dense(kernel.copy("C")), precision)
            assert_equal(read_cell(tmp_path / "a.cell").program, expected)
            found = narrowed(dense(kernel), precision)
            assert_equal(found, expected)
            assert found.nodes[1].arrays["kernel"].flags.c_contiguous


@pytest.mark.parametrize("precision", PRECISIONS)
def test_arrays_of_two_nodes_are_written_once_and_shared_again(precision, tmp_path):
    write_cell(tmp_path / "a.cell", every_operation(), precision=precision)
    metadata, tensors = plain_read(tmp_path / "a.cell")
    assert sum(tensor.shape == (7, 4) for tensor in tensors.values()) == 1
    for program in (
        read_cell(tmp_path / "a.cell").program,
        narrowed(every_operation(), precision),
    ):
        tables = [node.arrays["embeddings"] for node in program.nodes if "embeddings" in node.arrays]
        assert len(tables) == 3
        assert all(table is tables[0] for table in tables)
    named = [
        node["arrays"]["embeddings"]
        for node in json.loads(metadata["program"])["nodes"]
        if "embeddings" in node["arrays"]
    ]
    assert named == ["2.embeddings"] * 3


def test_kernel_that_is_also_an_embedding_is_kept_as_the_embedding_needs(tmp_path):
    table = weights(4, 4)
    nodes = (
        Node("input", "ids", options={"shape": (-1, -1), "dtype": "int32"}),
        Node("dense", "d", {"x": 0}, {"kernel": table}, {"activation": "linear"}),
        Node("embedding", "e", {"ids": 0}, {"embeddings": table}),
    )
    program = Program(nodes, {"out": 1})
    write_cell(tmp_path / "a.cell", program, precision="int8")
    assert_equal(read_cell(tmp_path / "a.cell").program, narrowed(program, "int8"))
    assert_equal(narrowed(program, "int8"), narrowed(program, "bfloat16"))


def test_file_is_plain_safetensors_with_the_digest_of_its_docstring(tmp_path):
    program = every_operation()
    for precision in PRECISIONS:
        path = tmp_path / f"{precision}.cell"
        write_cell(path, program, precision=precision, header={"task": "text"})
        metadata, tensors = plain_read(path)
        own = {
            "format": "cellerate.cell",
            "version": "1",
            "precision": precision,
            "header": '{"task":"text"}',
        }
        assert metadata.items() >= own.items()
        assert set(metadata) == {*own, "sha256", "program"}
        content = path.read_bytes()
        assert content.count(metadata["sha256"].encode()) == 1
        zeros = content.replace(metadata["sha256"].encode(), b"0" * 64)
        assert hashlib.sha256(zeros).hexdigest() == metadata["sha256"]
        assert int.from_bytes(content[:8], "little") % 64 == 56
        described = json.loads(metadata["program"])
        assert described["outputs"] == program.outputs
        for node, expected in zip(described["nodes"], narrowed(program, precision).nodes, strict=True):
            assert (node["op"], node["name"]) == (expected.op, expected.name)
            for name, tensor in node["arrays"].items():
                values = times_scale(tensors[tensor], tensors.get(tensor + ".scale", np.float32(1)))
                np.testing.assert_array_equal(values, expected.arrays[name])


def test_file_opens_with_the_safetensors_package(tmp_path):
    for precision in PRECISIONS:
        write_cell(tmp_path / "a.cell", every_operation(), precision=precision)
        _, tensors = plain_read(tmp_path / "a.cell")
        opened = dict(safetensors.deserialize((tmp_path / "a.cell").read_bytes()))
        assert {name: tuple(entry["shape"]) for name, entry in opened.items()} == {
            name: tensor.shape for name, tensor in tensors.items()
        }
        kernel = {"float32": "F32", "bfloat16": "BF16", "int8": "I8", "int4": "U8"}[precision]
        assert opened["6.kernel"]["dtype"] == opened["10.kernel"]["dtype"] == kernel
        assert opened["2.embeddings"]["dtype"] == ("F32" if precision == "float32" else "BF16")
        assert opened["6.bias"]["dtype"] == opened["17.scale"]["dtype"] == "F32"


def rounded_to_bfloat16(array: np.ndarray) -> np.ndarray:
    """The nearest bfloat16 of each number, the even one at a tie, found by comparing distances in float64."""
    low = array.view(np.uint32) & np.uint32(0xFFFF0000)
    high = low + np.uint32(0x10000)
    high[high & 0x7FFFFFFF == 0x7F800000] -= np.uint32(0x10000)
    exact, below, above = (a.astype(np.float64) for a in (array, low.view(np.float32), high.view(np.float32)))
    to_low, to_high = np.abs(exact - below), np.abs(above - exact)
    even = low >> 16 & 1 == 0
    return np.where((to_low < to_high) | ((to_low == to_high) & even), low, high).view(np.float32)


def test_bfloat16_rounds_to_nearest_even_at_every_exponent_and_stays_finite():
    # Every exponent and sign with the mantissas around ties, and random ones.
    ends = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x18000, 0x17FFF, 0x7F7FFF, 0x7F8000, 0x7FFFFF])
    mantissas = np.r_[ends, np.random.default_rng(1).integers(0, 1 << 23, 200)].astype(np.uint32)
    exponents = np.arange(255, dtype=np.uint32)[:, np.newaxis] << 23
    bits = np.concatenate([exponents | mantissas, exponents | mantissas | np.uint32(1 << 31)])
    kernel = bits.view(np.float32)
    found = narrowed(dense(kernel), "bfloat16").nodes[1].arrays["kernel"]
    expected = rounded_to_bfloat16(kernel)
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_narrow_precisions_leave_vectors_as_they_are():
    bias = weights(5) / 3
    for precision in PRECISIONS[1:]:
        found = narrowed(dense(weights(3, 5), bias=bias), precision).nodes[1].arrays["bias"]
        np.testing.assert_array_equal(found, bias)


def quantised(kernel: np.ndarray, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The integers and the scales that a file holds for a kernel."""
    write_cell(path, dense(kernel), precision="int8")
    _, tensors = plain_read(path)
    assert set(tensors) == {"1.kernel", "1.kernel.scale"}
    return tensors["1.kernel"], tensors["1.kernel.scale"]


def test_int8_rounds_to_nearest_even_of_the_largest_in_its_column(tmp_path):
    kernel = np.array([[127, 254, 0, -127], [0.5, 1, 0, 1.5], [1.5, -3, 0, -2.5], [-126.5, 252.9, 0, 0]])
    integers, scales = quantised(kernel.astype(np.float32), tmp_path / "a.cell")
    assert scales.tolist() == [1, 2, 1, 1]
    assert integers.tolist() == [[127, 127, 0, -127], [0, 0, 0, 2], [2, -2, 0, -2], [-126, 126, 0, 0]]


def adversarial_columns() -> np.ndarray:
    """(3, n) columns: zeros, the smallest and largest numbers, ties, one large among small, and random ones."""
    rng = np.random.default_rng(2)
    least = TINY / 2**23
    columns = [
        [0, 0, 0],
        [0, -0.0, 0],
        [least, 0, -least],
        [TINY, TINY / 2, 0],
        [127 * TINY, 63.5 * TINY, TINY],
        [np.nextafter(np.float32(127 * TINY), np.float32(0)), TINY, 0],
        [FLOAT_MAX, -FLOAT_MAX, FLOAT_MAX / 254],
        [-FLOAT_MAX, 1, 1e-30],
        [np.nextafter(FLOAT_MAX, np.float32(0)), 1, 0],
        [1e30, 1e-30, -1e20],
        [127, 126.5, 125.5],
        [-127, 0.5, -0.5],
        [-1, -1, -1],
    ]
    ties = (rng.integers(-127, 127, 4000) + 0.5) * np.float32(0.013)
    ties = np.stack([np.full(4000, 127 * np.float32(0.013)), ties, -ties])
    powers = rng.normal(size=(3, 4000)) * 2.0 ** rng.integers(-140, 120, 4000)
    mixed = rng.normal(size=(3, 4000)) * 2.0 ** rng.integers(-60, 60, (3, 4000))
    return np.concatenate([np.array(columns).T, ties, powers, mixed], axis=1).astype(np.float32)


def test_int8_of_what_was_dequantised_gives_the_same_integers_and_scales(tmp_path):
    kernel = adversarial_columns()
    integers, scales = quantised(kernel, tmp_path / "a.cell")
    dequantised = read_cell(tmp_path / "a.cell").program.nodes[1].arrays["kernel"]
    assert_equal(narrowed(dense(kernel), "int8"), dense(dequantised))
    again, scales_again = quantised(dequantised, tmp_path / "b.cell")
    np.testing.assert_array_equal(again, integers)
    np.testing.assert_array_equal(scales_again, scales)
    assert_equal(narrowed(dense(dequantised), "int8"), dense(dequantised))


def test_int8_of_adversarial_columns_errs_by_half_a_scale_at_most(tmp_path):
    kernel = adversarial_columns()
    integers, scales = quantised(kernel, tmp_path / "a.cell")
    assert integers.min() == -127
    assert integers.max() == 127
    largest = np.abs(kernel).max(axis=0).astype(np.float64)
    # Columns below 127 times the smallest normal number count as zeros.
    zeros = largest < 127 * float(TINY)
    assert zeros.sum() > 100
    np.testing.assert_array_equal(scales[zeros], 1)
    np.testing.assert_array_equal(integers[:, zeros], 0)
    live, exact = ~zeros, kernel.astype(np.float64)
    np.testing.assert_allclose(scales[live], largest[live] / 127, rtol=2**-23, atol=0)
    np.testing.assert_array_equal(np.abs(integers[:, live].astype(int)).max(axis=0), 127)
    # Half a step, and the roundings of the quotient (at most 127) to float32 and of the scale.
    error = np.abs(integers[:, live] * scales[live].astype(np.float64) - exact[:, live]) / scales[live]
    assert error.max() <= 0.5 + 127 * 2**-23


def test_int8_scale_of_every_mantissa_is_that_of_its_dequantised_column():
    largest = np.arange(1 << 23, 1 << 24, dtype=np.float32)[np.newaxis]
    once = narrowed(dense(largest), "int8").nodes[1].arrays["kernel"]
    twice = narrowed(dense(once), "int8").nodes[1].arrays["kernel"]
    np.testing.assert_array_equal(twice, once)
    # A dequantised number is 127 scales, within one rounding of the scale and one of the product.
    np.testing.assert_allclose(once, largest, rtol=2**-23, atol=0)


def test_header_comes_back_as_it_was_with_any_text(tmp_path):
    header = {
        "task": "text",
        "tokenizer": {"kind": "characters", "characters": 'añ€😀\u2028\x00\x1f"\\\ud7ff\ufeff'},
        "": [None, True, -1, 2**200, 0.1, 1e-300, -0.0, [], {}, [[[1]]]],
        "literal": "\\ud800",
    }
    write_cell(tmp_path / "a.cell", dense(weights(2, 2), name="Schicht/ß 😀"), header=header)
    cell = read_cell(tmp_path / "a.cell")
    assert cell.header == header
    assert math.copysign(1, cell.header[""][6]) == -1
    assert cell.program.nodes[1].name == "Schicht/ß 😀"


def circular() -> dict[str, Any]:
    header: dict[str, Any] = {}
    header["itself"] = [header]
    return header


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return {"deep": value}


@pytest.mark.parametrize(
    "header",
    [
        "text",
        {"a": math.nan},
        {"a": [-math.inf]},
        {"a": (1, 2)},
        {1: "a"},
        {None: "a", "null": "b"},
        {"a": {1, 2}},
        {"a": b"bytes"},
        {"a": np.float32(1)},
        {"a": "\ud800"},
        {"\udfff": 1},
        {"a": 10**5000},
        nested(100_000),
        circular(),
    ],
    ids=[
        *("text", "nan", "infinity", "tuple", "whole-key", "no-key", "set", "bytes", "numpy", "surrogate"),
        *("surrogate-key", "digits", "deep", "circular"),
    ],
)
def test_header_that_is_not_plain_json_is_refused_and_nothing_is_written(header, tmp_path):
    with pytest.raises(ConfigError, match=r"^header "):
        write_cell(tmp_path / "a.cell", dense(weights(2, 2)), header=header)
    assert not list(tmp_path.iterdir())


def test_header_above_the_largest_is_refused_at_writing(tmp_path, monkeypatch):
    monkeypatch.setattr(cell_format, "LARGEST_HEADER", 10_000)
    write_cell(tmp_path / "a.cell", dense(weights(2, 2)), header={"a": "x" * 8_000})
    assert read_cell(tmp_path / "a.cell").header == {"a": "x" * 8_000}
    with pytest.raises(ConfigError, match="smaller tokenizer"):
        write_cell(tmp_path / "b.cell", dense(weights(2, 2)), header={"a": "x" * 10_000})
    assert [path.name for path in tmp_path.iterdir()] == ["a.cell"]


def test_name_that_no_file_can_hold_is_a_model_error(tmp_path):
    with pytest.raises(ModelError, match="cannot be written"):
        write_cell(tmp_path / "a.cell", dense(weights(2, 2), name="\ud800"))


@pytest.mark.parametrize("precision", ["float16", "", "INT8", None])
def test_unknown_precision_is_refused(precision, tmp_path):
    with pytest.raises(ConfigError, match="precision must be one of float32, bfloat16, int8, int4"):
        write_cell(tmp_path / "a.cell", dense(weights(2, 2)), precision=precision)
    with pytest.raises(ConfigError, match="precision must be one of"):
        narrowed(dense(weights(2, 2)), precision)


def test_writing_over_a_file_replaces_it_whole_or_leaves_it(tmp_path):
    path = tmp_path / "new folder" / "a.cell"
    write_cell(path, dense(weights(2, 2)), header={"n": 1})
    with pytest.raises(ConfigError):
        write_cell(path, dense(weights(2, 2)), header={"n": math.nan})
    assert read_cell(path).header == {"n": 1}
    write_cell(path, dense(weights(3, 3)), header={"n": 2})
    assert read_cell(path).header == {"n": 2}
    with pytest.raises(OutputError):
        write_cell(path / "below.cell", dense(weights(2, 2)))


def test_program_without_weights_is_read_back(tmp_path):
    program = Program((Node("input", "x", options={"shape": (-1, 1), "dtype": "float32"}),), {"x": 0})
    write_cell(tmp_path / "a.cell", program)
    assert_equal(read_cell(tmp_path / "a.cell").program, program)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_weights_that_were_read_cannot_be_changed(precision, tmp_path):
    write_cell(tmp_path / "a.cell", every_operation(), precision=precision)
    arrays = [a for node in read_cell(tmp_path / "a.cell").program.nodes for a in node.arrays.values()]
    assert arrays
    assert not any(array.flags.writeable for array in arrays)
    assert all(array.flags.aligned and array.flags.c_contiguous for array in arrays)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_large_file_is_held_in_memory_about_once(precision, tmp_path):
    program = dense(weights(1000, 4000), bias=weights(4000))
    nbytes = sum(array.nbytes for array in program.nodes[1].arrays.values())
    write_cell(tmp_path / "a.cell", program, precision=precision)
    size = (tmp_path / "a.cell").stat().st_size
    assert size < {"float32": 1, "bfloat16": 0.51, "int8": 0.26, "int4": 0.142}[precision] * nbytes + 1000
    tracemalloc.start()
    cell = read_cell(tmp_path / "a.cell")
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert_equal(cell.program, narrowed(program, precision))
    # The weights alone, without the file.
    assert held < nbytes + 200_000
    # While reading: the file, the weights where they are not views of it, and one flag for each weight.
    wide = 0 if precision == "float32" else nbytes
    assert peak < size + wide + nbytes / 4 + 200_000
