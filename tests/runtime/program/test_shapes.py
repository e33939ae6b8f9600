"""The inferred shape is the result's shape, and inputs that an operation cannot take are refused before it runs."""

import math

import numpy as np
import pytest

from cellerate.program import LAST_STATES, OPERATIONS, RECURRENT, Node
from cellerate.runtime.program import operations, shapes

B, T, F = 5, 7, 3


def draw(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def node(op, arrays=None, **options):
    return operations.prepared(Node(op, f"the {op}", {}, arrays or {}, options), {})


def lstm(units=4, **options):
    defaults = {"activation": "tanh", "recurrent_activation": "sigmoid", "masked_output": "zero"}
    defaults |= {"go_backwards": False, "return_sequences": True}
    arrays = {"kernel": draw(F, 4 * units), "recurrent_kernel": draw(units, 4 * units)}
    return node("lstm", arrays, **(defaults | options))


def rows_of(given):
    return {name: array.shape[1:] for name, array in given.items()}


XS = {"x": draw(B, T, F)}
IDS = {"ids": np.random.default_rng(0).integers(0, 6, (B, T)).astype(np.int32)}
MASK = {"mask": np.random.default_rng(1).random((B, T)) < 0.5}
TWO = {"0": draw(B, T, F), "1": draw(B, T, F, seed=1)}
# One input has fewer axes, and axes of size 1 are broadcast: the result has more elements than any input.
GROWN = {"0": draw(B, T, 1), "1": draw(B, F), "2": draw(B, 1, 1)}
MASK_OF_2 = {"mask": np.ones((B, 2), bool), "mask_of_queries": MASK["mask"]}


SELF = dict.fromkeys(("query", "key", "value"), (T, F))


def window(op, **options):
    return node(op, **({"size": 2, "strides": 1, "dilation": 1, "padding": "valid", "axis": 1} | options))


def attention(arrays=None, **options):
    return node(
        "attention", arrays, **({"heads": 1, "scale": 1.0, "causal": False, "zeros": False} | options)
    )


CASES = [
    (node("embedding", {"embeddings": draw(6, 4)}), IDS),
    (node("unembedding", {"embeddings": draw(6, F)}, soft_cap=None), XS),
    (node("ids_mask"), IDS),
    (node("features_mask", mask_value=0.0), XS),
    (node("features_mask", mask_value=0.0), {"x": draw(B, F)}),
    (node("masked"), XS | MASK),
    (node("where"), XS | MASK | {"other": draw(B, T, F, seed=1)}),
    (node("where"), {"x": draw(B, F), "other": draw(B, 1, 1), "mask": MASK["mask"]}),
    (node("where"), XS | {"other": draw(B, F), "mask": MASK["mask"][:, :1]}),
    (node("dense", {"kernel": draw(F, 70)}, activation="softmax"), XS),
    (node("dense", {"kernel": draw(F, 2)}, activation="relu"), {"x": draw(B, 2, 2, 2, F)}),
    (node("activation", activation="relu"), {"x": draw(B)}),
    (node("activation", activation="softmax"), XS),
    (node("layer_norm", {"beta": draw(F)}, epsilon=1e-3), XS),
    (node("affine", {"scale": draw(F), "offset": draw(F)}), {"x": draw(B, F)}),
    *((node(op), TWO) for op in ("add", "subtract", "multiply", "average", "maximum", "minimum")),
    *((node(op), GROWN) for op in ("add", "multiply", "average", "maximum", "minimum")),
    (node("subtract"), {"0": draw(B, F), "1": draw(B, T, 1)}),
    (node("concatenate", axis=-1), TWO),
    (node("concatenate", axis=1), {"0": draw(B, 2, F), "1": draw(B, 3, F), "2": draw(B, 1, F)}),
    (node("concatenate", axis=-1), {"0": draw(B, 3)}),
    (node("reshape", shape=(F, -1)), XS),
    (node("reshape", shape=(-1,)), {"x": draw(B)}),
    (node("reshape", shape=()), {"x": draw(B, 1, 1)}),
    (node("reshape", shape=(F, 1, T)), XS),
    (node("repeat_vector", n=3), {"x": draw(B, F)}),
    (node("repeat_vector", n=2), XS),
    (node("repeat_vector", n=2), {"x": draw(B)}),
    (node("crop", begin=1, end=3), XS),
    (node("crop", begin=-2, end=None), XS),
    (node("crop", begin=2, end=-1), {"x": draw(B, T)}),
    (node("crop", begin=-(2**31) + 1, end=2**31 - 1), XS),
    (node("take", indices=(1, 0, -F) * 9, axis=-1), XS),
    (node("take", indices=(T - 1,), axis=1), XS),
    (node("function", function="power", number=2.0), XS),
    (node("function", function="sign", number=0.0), {"x": draw(B)}),
    (node("compare", relation="less"), {"0": draw(B, F), "1": draw(B, T, 1)}),
    (node("choose"), GROWN),
    (node("pad", before=2, after=0), XS),
    (node("pad", before=0, after=3), {"x": draw(B, 2, 3, 4)}),
    (node("cumsum", axis=1), XS),
    (node("flip", axis=-2), XS),
    (node("permute", axes=(2, 3, 1)), {"x": draw(B, 2, 3, 4)}),
    (node("permute", axes=()), {"x": draw(B)}),
    (node("mean_over_time"), XS),
    (node("mean_over_time"), XS | {"mask": np.ones((B, T), bool)}),
    (node("max_over_time"), XS),
    (node("max_over_time"), {"x": draw(B, T)}),
    (node("flip_mask"), MASK),
    (node("any_mask"), {"0": MASK["mask"]}),
    (node("any_mask"), {"0": MASK["mask"], "1": MASK["mask"][:, :1]}),
    (node("divide"), TWO),
    (node("flatten_steps"), {"x": draw(B, 2, 3, 4)}),
    (node("flatten_steps"), {"x": draw(B, 2)}),
    (node("softmax", axis=1), XS),
    *((node(op, axis=2, keepdims=False), XS) for op in ("sum", "mean", "max", "min")),
    (node("sum", axis=1, keepdims=True), {"x": draw(B, 2, 3, 4)}),
    (node("sum", axis=1, keepdims=False), {"x": draw(B, F)}),
    (window("windows", size=3, dilation=2, padding="causal", features=F), XS),
    (window("windows", size=20, padding="same", strides=3, features=4, axis=2), {"x": draw(B, 2, 3, 4)}),
    (window("max_pool", size=2, strides=3), XS),
    (window("average_pool", size=2, padding="same", axis=2), {"x": draw(B, 2, 3, 4)}),
    (node("dot", axes=(2, 2)), TWO),
    (node("dot", axes=(1, 2)), {"0": draw(B, F), "1": draw(B, T, F)}),
    (node("dot", axes=(1, 1)), {"0": draw(B, F), "1": draw(B, F)}),
    (attention(heads=3), {"query": draw(B, T, F), "key": draw(B, 2, F), "value": draw(B, 2, 6)} | MASK_OF_2),
]  # fmt: skip


def test_cases_name_every_operation():
    assert {each.op for each, _ in CASES} == OPERATIONS.keys() - {"input", *RECURRENT, *LAST_STATES}


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: CASES[number][0].op)
def test_predicted_shape_equals_the_shape_of_the_result(number):
    each, given = CASES[number]
    assert (B, *shapes.row_shape(each, rows_of(given))) == operations.run(each, given).shape


@pytest.mark.parametrize("sequences", [True, False], ids=["sequences", "last"])
@pytest.mark.parametrize("more", [{}, MASK, {"h0": draw(B, 4), "c0": draw(B, 4)}], ids="-".join)
def test_shape_of_an_lstm_and_its_states_is_that_of_the_results(sequences, more):
    layer = lstm(return_sequences=sequences)
    found = shapes.row_shape(layer, rows_of(XS | more))
    outputs, h, c = operations.lstm(layer, XS | more, sequences=sequences)
    assert (B, *found) == outputs.shape
    for state in (h, c):
        assert (B, *shapes.row_shape(node("lstm_state", state="h"), {"lstm": found})) == state.shape


WRONG = {
    "dense of other features": (node("dense", {"kernel": draw(4, 2)}, activation="linear"), {"x": (T, F)}),
    "dense of one axis": (node("dense", {"kernel": draw(B, 2)}, activation="linear"), {"x": ()}),
    "unembedding of other features": (node("unembedding", {"embeddings": draw(6, 4)}, soft_cap=None), {"x": (T, F)}),
    "affine that would broadcast": (node("affine", {"scale": draw(4), "offset": draw(4)}), {"x": (T, 1)}),
    "layer_norm that would broadcast": (node("layer_norm", {"gamma": draw(4)}, epsilon=1e-3), {"x": (T, 1)}),
    "layer_norm of one axis": (node("layer_norm", epsilon=1e-3), {"x": ()}),
    "softmax over the batch": (node("activation", activation="softmax"), {"x": ()}),
    "log_softmax over the batch": (node("activation", activation="log_softmax"), {"x": ()}),
    "features_mask over the batch": (node("features_mask", mask_value=0.0), {"x": ()}),
    "flip_mask of the batch": (node("flip_mask"), {"mask": ()}),
    "mask that would broadcast": (node("masked"), {"x": (T, F), "mask": (1,)}),
    "mask of four axes": (node("masked"), {"x": (T, F, 1), "mask": (T,)}),
    "where of other features": (node("where"), {"x": (T, 2), "other": (T, F), "mask": (T,)}),
    "where of another mask": (node("where"), {"x": (T, F), "other": (T, F), "mask": (T + 1,)}),
    "where of four axes": (node("where"), {"x": (T, F, 2), "other": (T, F, 2), "mask": (T,)}),
    "where of a mask of features": (node("where"), {"x": (T, F), "other": (T, F), "mask": (T, F)}),
    "masks of other steps": (node("any_mask"), {"0": (T,), "1": (T + 1,)}),
    "mean with another mask": (node("mean_over_time"), {"x": (T, F), "mask": (T + 1,)}),
    "mean over the batch": (node("mean_over_time"), {"x": ()}),
    "max over the batch": (node("max_over_time"), {"x": ()}),
    "add of other steps": (node("add"), {"0": (T, F), "1": (T + 1, F)}),
    "multiply of other features": (node("multiply"), {"0": (T, 2), "1": (F,)}),
    "concatenate of other steps": (node("concatenate", axis=-1), {"0": (2, 3), "1": (3, 3)}),
    "concatenate of other axes": (node("concatenate", axis=1), {"0": (3,), "1": (3, 3)}),
    "concatenate of the batch": (node("concatenate", axis=-2), {"0": (3,), "1": (3,)}),
    "reshape to another size": (node("reshape", shape=(T, F + 1)), {"x": (T, F)}),
    "reshape to fewer": (node("reshape", shape=(F,)), {"x": (T, F)}),
    "reshape that leaves a rest": (node("reshape", shape=(2, -1)), {"x": (T, F)}),
    "permute of other axes": (node("permute", axes=(2, 1)), {"x": (T, F, 1)}),
    "crop to nothing": (node("crop", begin=T, end=None), {"x": (T, F)}),
    "crop backwards": (node("crop", begin=3, end=2), {"x": (T, F)}),
    "crop of the batch": (node("crop", begin=0, end=1), {"x": ()}),
    "take beyond the end": (node("take", indices=(F,), axis=-1), {"x": (T, F)}),
    "take beyond the beginning": (node("take", indices=(-F - 1,), axis=-1), {"x": (T, F)}),
    "flip of the batch": (node("flip", axis=-3), {"x": (T, F)}),
    "cumsum of an axis that is not there": (node("cumsum", axis=3), {"x": (T, F)}),
    "repeat to 33 axes": (node("repeat_vector", n=1), {"x": (1,) * 31}),
    "flatten_steps of the batch": (node("flatten_steps"), {"x": ()}),
    "softmax of an axis that is not there": (node("softmax", axis=3), {"x": (T, F)}),
    "sum of an axis that is not there": (node("sum", axis=3, keepdims=False), {"x": (T, F)}),
    "windows of other features": (window("windows", features=F + 1), {"x": (T, F)}),
    "windows of too few steps": (window("windows", size=4, dilation=3, features=F), {"x": (T, F)}),
    "windows of other axes": (window("windows", features=F, axis=2), {"x": (T, F)}),
    "pool of too few steps": (window("max_pool", size=T + 1), {"x": (T, F)}),
    "pool of two axes": (window("average_pool"), {"x": (F,)}),
    "dot of other sizes": (node("dot", axes=(1, 2)), {"0": (T, F), "1": (T, F)}),
    "dot of four axes": (node("dot", axes=(1, 1)), {"0": (T, F), "1": (T, F, 2)}),
    "dot of an axis that is not there": (node("dot", axes=(2, 1)), {"0": (F,), "1": (F,)}),
    "attention of other features": (attention(), {"query": (T, F), "key": (T, 2), "value": (T, F)}),
    "attention of other steps": (attention(), {"query": (T, F), "key": (2, F), "value": (T, F)}),
    "attention in uneven heads": (attention(heads=2), {"query": (T, F), "key": (T, F), "value": (T, 4)}),
    "attention of two axes": (attention(), {"query": (F,), "key": (T, F), "value": (T, F)}),
    "attention with another mask": (attention(), SELF | {"mask": (T + 1,)}),
    "attention with other weights": (attention({"additive": draw(2)}), SELF),
    "lstm of other features": (lstm(), {"x": (T, F + 1)}),
    "lstm of two axes": (lstm(), {"x": (F,)}),
    "lstm of another mask": (lstm(), {"x": (T, F), "mask": (1,)}),
    "lstm of another state": (lstm(), {"x": (T, F), "h0": (1,), "c0": (4,)}),
    "lstm of a state with time": (lstm(), {"x": (T, F), "h0": (4,), "c0": (T, 4)}),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_inputs_that_do_not_fit_are_refused(what):
    with pytest.raises(ValueError, match=r"\w"):
        shapes.row_shape(*WRONG[what])


def test_shape_of_enormous_results_is_exact_and_takes_no_memory():
    huge = 2**62
    assert shapes.row_shape(node("concatenate", axis=1), {"0": (huge,), "1": (huge,)}) == (2**63,)
    assert shapes.row_shape(node("add"), {"0": (huge, 1), "1": (1, huge)}) == (huge, huge)
    assert shapes.row_shape(node("reshape", shape=(2, -1)), {"x": (huge, huge)}) == (2, 2**123)
    assert shapes.row_shape(node("crop", begin=1, end=None), {"x": (huge, 2)}) == (huge - 1, 2)


def test_work_counts_the_multiplications_of_products():
    dense = node("dense", {"kernel": draw(300, 5000)}, activation="linear")
    layer = lstm(256)
    for each, shape, products in (
        (dense, (9, 300), 9 * 300 * 5000),
        (layer, (9, F), 9 * (F + 256) * 1024),
    ):
        read = {"x": shape}
        found = shapes.work(each, read, shapes.row_shape(each, read))
        assert products < found < 2 * products


def test_work_of_data_movement_is_above_its_element_count():
    for each, given in CASES:
        read = rows_of(given)
        result = shapes.row_shape(each, read)
        assert shapes.work(each, read, result) > sum(map(math.prod, read.values())) + math.prod(result)
