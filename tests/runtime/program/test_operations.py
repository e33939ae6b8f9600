"""Each operation is compared with float64, on the native core and on NumPy alone.

A rounding is half an epsilon of float32 relative to the number rounded. Bounds count the roundings on the way to
a result and give the size of the rounded numbers, as in Higham, Accuracy and Stability of Numerical Algorithms, 3.1.
"""

import math

import numpy as np
import pytest

from cellerate.errors import ModelError
from cellerate.kernels.lstm.reference_activations import activation_of
from cellerate.program import LAST_STATES, NORMALIZERS, OPERATIONS, RECURRENT, Node
from cellerate.runtime.program import operations
from support.activation_names import IN_FILES
from support.runtime.one_operation import B, F, T, draw, node, run, scattered

ROUNDING = 2.0**-24
TINY = float(np.finfo(np.float32).tiny)


def assert_within(found, expected, size, roundings):
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    bound = roundings * ROUNDING * size + TINY
    worst = np.max(np.abs(found - expected) / bound)
    assert worst <= 1, worst


def wide(array):
    return None if array is None else array.astype(np.float64)


def product_and_size(x, kernel, bias):
    bias = np.zeros(1) if bias is None else bias
    return wide(x) @ wide(kernel) + bias, np.abs(wide(x)) @ np.abs(wide(kernel)) + np.abs(bias)


SHAPES = [((1, 1), 1), ((1, 7), 3), ((5, 33), 65), ((101, 64), 48), ((3, 4, 9), 5), ((2, 1, 3, 130), 17)]


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize(("shape", "outputs"), SHAPES, ids=str)
def test_dense_equals_float64(where, shape, outputs, bias):
    x, kernel = draw(*shape), draw(shape[-1], outputs, seed=1)
    arrays = {"kernel": kernel} | ({"bias": draw(outputs, seed=2)} if bias else {})
    expected, size = product_and_size(x, kernel, arrays.get("bias"))
    assert_within(run("dense", arrays, {"x": x}, activation="linear"), expected, size, shape[-1] + 1)


@pytest.mark.parametrize("name", [*IN_FILES, *NORMALIZERS])
def test_dense_applies_its_activation_to_the_sums(where, name):
    arrays, given = {"kernel": draw(4, 6), "bias": draw(6)}, {"x": draw(B, 4)}
    sums = run("dense", arrays, given, activation="linear")
    found = run("dense", arrays, given, activation=name)
    assert found.tobytes() == run("activation", given={"x": sums}, activation=name).tobytes()
    assert (found.tobytes() == sums.tobytes()) == (name == "linear")


@pytest.mark.parametrize("soft_cap", [None, 0.5, 30.0])
def test_unembedding_equals_float64(where, soft_cap):
    x, table = draw(B, T, 9), draw(11, 9, seed=1)
    expected, size = product_and_size(x, table.T, None)
    if soft_cap is not None:
        # tanh does not magnify the error of its argument, and adds 8 roundings.
        expected, size = np.tanh(expected / soft_cap) * soft_cap, size + np.abs(expected)
    assert_within(
        run("unembedding", {"embeddings": table}, {"x": x}, soft_cap=soft_cap), expected, size, 9 + 12
    )


def test_embedding_gives_rows_and_counts_negative_ids_from_the_end(where):
    table, ids = draw(6, 4), np.array([[0, 5, 2], [-1, -6, -2]], np.int32)
    found = run("embedding", {"embeddings": table}, {"ids": ids})
    assert found.tobytes() == table[np.array([[0, 5, 2], [5, 0, 4]])].tobytes()


@pytest.mark.parametrize("bad", [6, -7])
def test_embedding_of_an_id_outside_the_table_raises(where, bad):
    with pytest.raises(IndexError):
        run("embedding", {"embeddings": draw(6, 4)}, {"ids": np.array([[0, bad]], np.int32)})


# These subtract a close number from their argument, so the error is relative to the argument, not to the result.
DIFFERENCES = ("squareplus", "tanh_shrink")


@pytest.mark.parametrize("name", IN_FILES)
def test_activation_equals_float64(where, name):
    small = np.geomspace(1e-6, 0.9, 500)
    x = np.concatenate([np.linspace(-12.0003, 11.9998, 4001), small, -small]).astype(np.float32)
    expected = activation_of(name).value(wide(x))
    # 16: libraries state an error of up to 4 units in the last place, 8 roundings, for one function, and no activation
    # needs more than two functions.
    of_difference = name.partition("(")[0] in DIFFERENCES
    size = np.maximum(np.abs(x), np.abs(expected)) if of_difference else np.abs(expected)
    if name.startswith("gelu("):
        # An exponential multiplies the relative rounding error of its argument by the argument.
        size = size * (1 + np.abs(1.6 * x + 0.072 * wide(x) ** 3))
    assert_within(run("activation", given={"x": x[:, np.newaxis]}, activation=name)[:, 0], expected, size, 16)


def test_gelu_equals_the_error_function_of_the_standard_library(where):
    x = np.linspace(-9, 9, 2001, dtype=np.float32)
    expected = np.array([v * math.erfc(-v / math.sqrt(2)) / 2 for v in x.tolist()])
    assert_within(
        run("activation", given={"x": x[:, np.newaxis]}, activation="gelu")[:, 0],
        expected,
        np.abs(expected),
        4,
    )


@pytest.mark.parametrize("scale", [1, 1e4, 3e37])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_equals_float64_and_never_overflows(where, name, scale):
    x = draw(B, T, 33) * np.float32(scale)
    below = wide(x) - wide(x).max(axis=-1, keepdims=True)
    logs = below - np.log(np.exp(below).sum(axis=-1, keepdims=True))
    found = run("activation", given={"x": x}, activation=name)
    # The rounding of the difference, the sum of 33 numbers, and 8 each for exp, log and the last operation.
    size = np.abs(below) + 1
    if name == "softmax":
        assert_within(found, np.exp(logs), np.exp(logs) * size, 33 + 24)
    else:
        assert_within(found, logs, size, 33 + 24)


# A threshold's default replaces a NaN, in Keras as well.
@pytest.mark.parametrize("name", [n for n in (*IN_FILES, *NORMALIZERS) if "default_value" not in n])
def test_activation_of_nan_and_infinity_stays_in_its_row(where, name):
    x = draw(4, 6)
    right = run("activation", given={"x": x}, activation=name)
    x[1, 2], x[2, 3] = np.nan, np.inf
    with np.errstate(all="ignore"):
        found = run("activation", given={"x": x}, activation=name)
    assert np.isnan(found[1, 2])
    assert found[[0, 3]].tobytes() == right[[0, 3]].tobytes()


@pytest.mark.parametrize("given", [(), ("gamma",), ("beta",), ("gamma", "beta")], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (B, 33), (B, T, 20)], ids=str)
def test_layer_norm_equals_float64(where, shape, given):
    x = draw(*shape) * 3 + 2
    arrays = {name: draw(shape[-1], seed=n + 1) for n, name in enumerate(given)}
    epsilon = 1e-3
    centred = wide(x) - wide(x).mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon)
    normal = centred / deviation
    gamma, beta = wide(arrays.get("gamma", np.ones(1))), wide(arrays.get("beta", np.zeros(1)))
    # The error of the mean is its roundings of the largest number; the deviation has the same relative error.
    off = np.abs(x).max(axis=-1, keepdims=True) / deviation * (1 + np.abs(normal))
    found = run("layer_norm", arrays, {"x": x}, epsilon=epsilon)
    assert_within(found, normal * gamma + beta, off * np.abs(gamma) + np.abs(beta), 2 * shape[-1] + 8)


def test_affine_equals_float64(where):
    x, scale, offset = draw(B, T, F), draw(F, seed=1), draw(F, seed=2)
    found = run("affine", {"scale": scale, "offset": offset}, {"x": x})
    assert_within(found, wide(x) * scale + offset, np.abs(wide(x) * scale) + np.abs(offset), 2)


MERGED = {
    "add": sum,
    "subtract": lambda arrays: arrays[0] - arrays[1],
    "multiply": math.prod,
    "average": lambda arrays: sum(arrays) / len(arrays),
    "maximum": lambda arrays: np.maximum.reduce(arrays),
    "minimum": lambda arrays: np.minimum.reduce(arrays),
}


@pytest.mark.parametrize("count", [1, 2, 3, 11])
@pytest.mark.parametrize("op", MERGED)
def test_merging_equals_float64(where, op, count):
    count = 2 if op == "subtract" else count
    arrays = [draw(B, T, F, seed=n) for n in range(count)]
    found = run(op, given={str(n): array for n, array in enumerate(arrays)})
    expected = MERGED[op]([wide(array) for array in arrays])
    size = math.prod(np.abs(arrays)) if op == "multiply" else sum(np.abs(arrays))
    assert_within(found, expected, size, count + 1)


def test_merging_takes_arrays_of_fewer_axes_for_each_row_as_keras_does(where):
    # B equals T, so that an axis put in front would pass unnoticed.
    many, few = draw(4, 4, F), draw(4, F, seed=1)
    found = run("multiply", given={"0": few, "1": many})
    assert found.tobytes() == (few[:, np.newaxis] * many).tobytes()


X = np.arange(2 * 4 * 3, dtype=np.float32).reshape(2, 4, 3)
MOVED = [
    ("reshape", {"shape": (-1,)}, X.reshape(2, 12)),
    ("reshape", {"shape": (6, -1)}, X.reshape(2, 6, 2)),
    ("reshape", {"shape": (2, 2, 3)}, X.reshape(2, 2, 2, 3)),
    ("crop", {"begin": 1, "end": 3}, X[:, 1:3]),
    ("crop", {"begin": 1, "end": None}, X[:, 1:]),
    ("crop", {"begin": 0, "end": -1}, X[:, :3]),
    ("crop", {"begin": -1, "end": None}, X[:, 3:]),
    ("take", {"indices": (3, 0, 0), "axis": 1}, X[:, [3, 0, 0]]),
    ("take", {"indices": (-1,), "axis": -1}, X[:, :, 2:]),
    ("cumsum", {"axis": 1}, np.cumsum(X, axis=1)),
    ("cumsum", {"axis": -1}, np.cumsum(X, axis=2)),
    ("flip", {"axis": 1}, X[:, ::-1]),
    ("flip", {"axis": -1}, X[:, :, ::-1]),
    ("permute", {"axes": (2, 1)}, X.transpose(0, 2, 1)),
    ("max_over_time", {}, X[:, 3]),
]


@pytest.mark.parametrize(("op", "options", "expected"), MOVED, ids=lambda v: v if isinstance(v, str) else "")
def test_moving_gives_exactly_these_elements(where, op, options, expected):
    np.testing.assert_array_equal(run(op, given={"x": X}, **options), expected, strict=True)


@pytest.mark.parametrize("type_name", ["float32", "int32", "bool"])
@pytest.mark.parametrize("axis", [1, -1])
def test_concatenate_keeps_order_and_type(where, axis, type_name):
    arrays = [draw(B, T, F, seed=n).astype(type_name) for n in range(11)]
    found = run("concatenate", given={str(n): array for n, array in enumerate(arrays)}, axis=axis)
    np.testing.assert_array_equal(found, np.concatenate(arrays, axis=axis), strict=True)


def test_repeat_vector_repeats_each_row(where):
    x = draw(B, F)
    np.testing.assert_array_equal(
        run("repeat_vector", given={"x": x}, n=4), np.stack([x] * 4, axis=1), strict=True
    )


def test_ids_mask_is_false_at_zero_only(where):
    ids = np.array([[0, 1, -1], [3, 0, 0]], np.int32)
    assert run("ids_mask", given={"ids": ids}).tolist() == [[False, True, True], [True, False, False]]


@pytest.mark.parametrize("value", [0.0, 0.1])
def test_features_mask_is_false_where_all_features_are_the_value(where, value):
    x = np.array([[[value, value], [value, 2], [np.nan, value]]], np.float32)
    assert run("features_mask", given={"x": x}, mask_value=value).tolist() == [[False, True, True]]


def test_masked_gives_zeros_even_for_nan(where):
    x, mask = draw(B, T, F), scattered(B, T)
    right = x * mask[..., np.newaxis]
    x[~mask] = np.nan
    np.testing.assert_array_equal(run("masked", given={"x": x, "mask": mask}), right, strict=True)


def test_where_chooses_by_step_even_beside_nan(where):
    x, other, mask = draw(B, T, F), draw(B, T, F, seed=1), scattered(B, T)
    right = np.where(mask[..., np.newaxis], x, other)
    x[~mask], other[mask] = np.nan, np.nan
    found = run("where", given={"x": x, "other": other, "mask": mask})
    np.testing.assert_array_equal(found, right, strict=True)


def test_where_stretches_values_and_masks_of_one_step(where):
    x, other, mask = draw(B, T, F), draw(B, F), scattered(B, 1)
    found = run("where", given={"x": x, "other": other, "mask": mask})
    np.testing.assert_array_equal(found, np.where(mask[..., None], x, other[:, None]), strict=True)


def test_any_mask_is_true_where_any_is(where):
    masks = [scattered(B, T), scattered(B, T)[:, ::-1], scattered(B, 1)]
    found = run("any_mask", given={str(number): mask for number, mask in enumerate(masks)})
    np.testing.assert_array_equal(found, masks[0] | masks[1] | masks[2], strict=True)


def test_flip_mask_reverses_time(where):
    mask = scattered(B, T)
    np.testing.assert_array_equal(run("flip_mask", given={"mask": mask}), mask[:, ::-1], strict=True)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1), (B, T, F), (2, 3000, 1), (1, 1001, 5)], ids=str)
def test_mean_over_time_equals_float64_and_knows_no_masked_step(where, shape, masked):
    x, given = draw(*shape) + 5, {}
    live = np.ones(shape[:2], bool)
    if masked:
        live = given["mask"] = scattered(*shape[:2])
        live[:, 0] = True
    expected = np.stack([wide(row)[on].mean(axis=0) for row, on in zip(x, live, strict=True)])
    x[~live] = np.nan
    # Summed in float64, so that one rounding is left.
    assert_within(run("mean_over_time", given={"x": x, **given}), expected, np.abs(expected), 1.001)


def test_mean_over_time_of_a_fully_masked_row_is_nan_as_in_keras(where):
    with np.errstate(all="ignore"):
        found = run("mean_over_time", given={"x": draw(2, T, F), "mask": np.array([[True] * T, [False] * T])})
    assert np.isnan(found).tolist() == [[False] * F, [True] * F]


def test_max_over_time_passes_nan_on(where):
    x = draw(B, T, F)
    x[1, 2, 0] = np.nan
    found = run("max_over_time", given={"x": x})
    assert np.isnan(found[1, 0])
    assert np.isnan(found).sum() == 1


MASK = {"mask": scattered(B, T)}
IDS = np.random.default_rng(0).integers(-6, 6, (B, T)).astype(np.int32)
XS = {"x": draw(B, T, F)}
TWO = {"0": draw(B, T, F), "1": draw(B, T, F, seed=1)}
WINDOW = {"size": 3, "strides": 1, "dilation": 2, "padding": "same", "axis": 1}
CASES = {
    "embedding": (node("embedding", {"embeddings": draw(6, 4)}), {"ids": IDS}),
    "unembedding": (node("unembedding", {"embeddings": draw(6, F)}, soft_cap=2.0), XS),
    "ids_mask": (node("ids_mask"), {"ids": IDS}),
    "features_mask": (node("features_mask", mask_value=0.0), XS),
    "masked": (node("masked"), XS | MASK),
    "where": (node("where"), XS | MASK | {"other": draw(B, T, F, seed=1)}),
    "dense": (node("dense", {"kernel": draw(F, 70), "bias": draw(70)}, activation="softmax"), XS),
    "activation": (node("activation", activation="gelu"), XS),
    "layer_norm": (node("layer_norm", {"gamma": draw(F), "beta": draw(F)}, epsilon=1e-3), XS),
    "affine": (node("affine", {"scale": draw(F), "offset": draw(F)}), XS),
    **{name: (node(name), TWO) for name in MERGED},
    "concatenate": (node("concatenate", axis=-1), TWO),
    "function": (node("function", function="expm1", number=0.0), XS),
    "compare": (node("compare", relation="greater"), TWO),
    "choose": (node("choose"), TWO | {"2": draw(B, T, 1, seed=2)}),
    "pad": (node("pad", before=2, after=1), XS),
    "reshape": (node("reshape", shape=(F, -1)), XS),
    "repeat_vector": (node("repeat_vector", n=3), {"x": draw(B, F)}),
    "crop": (node("crop", begin=1, end=3), XS),
    "take": (node("take", indices=(1, 0), axis=-1), XS),
    "cumsum": (node("cumsum", axis=1), XS),
    "flip": (node("flip", axis=1), XS),
    "permute": (node("permute", axes=(2, 1)), XS),
    "mean_over_time": (node("mean_over_time"), XS | {"mask": np.ones((B, T), bool) & (np.arange(T) < 5)}),
    "max_over_time": (node("max_over_time"), XS),
    "flip_mask": (node("flip_mask"), MASK),
    "any_mask": (node("any_mask"), {"0": MASK["mask"], "1": MASK["mask"][:, ::-1].copy()}),
    "divide": (node("divide"), TWO),
    "flatten_steps": (node("flatten_steps"), XS),
    "softmax": (node("softmax", axis=1), XS),
    **{name: (node(name, axis=1, keepdims=False), XS) for name in ("sum", "mean", "max", "min")},
    "windows": (node("windows", **WINDOW, features=F), XS),
    **{name: (node(name, **WINDOW), XS) for name in ("max_pool", "average_pool")},
    "dot": (node("dot", axes=(2, 2)), TWO),
    "attention": (
        node("attention", heads=F, scale=0.5, causal=True, zeros=True),
        {"query": TWO["0"], "key": TWO["1"], "value": TWO["1"]} | MASK,
    ),
}


def test_cases_name_every_operation():
    assert CASES.keys() == OPERATIONS.keys() - {"input", *RECURRENT, *LAST_STATES}


@pytest.mark.parametrize("op", CASES)
def test_operation_leaves_what_it_reads_as_it_is(where, op):
    each, given = CASES[op]
    before = {name: array.copy() for name, array in given.items()}
    for array in given.values():
        array.flags.writeable = False
    try:
        operations.run(each, given)
    finally:
        for array in given.values():
            array.flags.writeable = True
    for name, array in given.items():
        assert array.tobytes() == before[name].tobytes()


@pytest.mark.parametrize("op", CASES)
def test_operation_on_the_core_gives_a_row_the_same_bits_whatever_its_batch(op):
    each, given = CASES[op]
    whole = operations.run(each, given)
    for begin, end in ((0, 1), (1, B), (2, 4)):
        part = operations.run(each, {name: array[begin:end] for name, array in given.items()})
        assert part.tobytes() == whole[begin:end].tobytes()


@pytest.mark.parametrize("rows", [1, 5, 193, 1000])
def test_dense_on_the_core_gives_a_row_the_same_bits_whatever_its_batch(target, rows):
    arrays, x = {"kernel": draw(700, 65), "bias": draw(65)}, draw(1001, 700)
    whole = run("dense", arrays, {"x": x}, activation="linear")
    assert run("dense", arrays, {"x": x[:rows]}, activation="linear").tobytes() == whole[:rows].tobytes()


@pytest.mark.parametrize(
    ("op", "types", "options", "words"),
    [
        ("dense", {"x": "int32"}, {}, "input 'x' of dense must be float32, not int32"),
        ("embedding", {"ids": "float32"}, {}, "input 'ids' of embedding must be int32, not float32"),
        (
            "masked",
            {"x": "float32", "mask": "float32"},
            {},
            "input 'mask' of masked must be bool, not float32",
        ),
        (
            "concatenate",
            {"0": "float32", "1": "bool"},
            {"axis": 1},
            "input '1' of concatenate must be float32",
        ),
        ("flip", {"x": "float32"}, {"axis": 0}, "flip must work along an axis after the batch, not axis 0"),
    ],
)
def test_result_type_of_a_wrong_node_raises(op, types, options, words):
    with pytest.raises(ModelError, match=words):
        operations.result_type(Node(op, "layer", {}, {}, options), types)


@pytest.mark.parametrize("op", CASES)
def test_result_type_is_that_of_the_result(op):
    each, given = CASES[op]
    types = {name: array.dtype.name for name, array in given.items()}
    assert operations.result_type(each, types) == operations.run(each, given).dtype.name
