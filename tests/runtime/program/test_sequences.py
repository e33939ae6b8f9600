"""Operations that look across steps are compared with plain loops in float64, on the native core and without it."""

import itertools
from typing import Any

import numpy as np
import pytest

from cellerate.program import Node, window_steps
from support.runtime.one_operation import draw, run

B, F = 3, 4
POOLS = {"max_pool": np.max, "average_pool": np.mean}
REDUCED = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}


def in_loops(x: np.ndarray, size: int, strides: int, dilation: int, padding: str) -> list[list[int | None]]:
    """The steps of each window, None for padding, as TensorFlow's documentation of padding says."""
    steps, reach = x.shape[1], (size - 1) * dilation + 1
    before, behind = {"valid": (0, 0), "causal": (reach - 1, 0)}.get(padding, (None, None))
    if before is None:
        missing = reach - strides if steps % strides == 0 else reach - steps % strides
        before, behind = max(missing, 0) // 2, max(missing, 0) - max(missing, 0) // 2
    places: list[int | None] = [None] * before + list(range(steps)) + [None] * behind
    return [
        [places[first + tap * dilation] for tap in range(size)]
        for first in range(0, len(places) - reach + 1, strides)
    ]


SIZES = [
    (steps, size, strides, dilation)
    for steps, size, strides, dilation in itertools.product((1, 2, 7, 12), (1, 2, 3, 5), (1, 2, 4), (1, 3))
    if strides == 1 or dilation == 1
]


@pytest.mark.parametrize("padding", ["valid", "same", "causal"])
def test_windows_hold_the_steps_that_the_loops_find(where: Any, padding: str) -> None:
    for steps, size, strides, dilation in SIZES:
        x, reach = draw(B, steps, F), (size - 1) * dilation + 1
        chosen = {"size": size, "strides": strides, "dilation": dilation, "padding": padding}
        if padding == "valid" and steps < reach:
            with pytest.raises(ValueError, match=f"{reach} steps is longer than the {steps}"):
                run("windows", given={"x": x}, axis=1, features=F, **chosen)
            continue
        places = in_loops(x, size, strides, dilation, padding)
        expected = [
            np.concatenate([np.zeros((B, F)) if at is None else x[:, at] for at in window], axis=1)
            for window in places
        ]
        found = run("windows", given={"x": x}, axis=1, features=F, **chosen)
        np.testing.assert_array_equal(found, np.stack(expected, axis=1).astype(np.float32))
        again = run("windows", given={"x": np.stack([x, x], axis=1)}, axis=2, features=F, **chosen)
        np.testing.assert_array_equal(again, np.stack([found, found], axis=1))
        node = Node("windows", "w", {}, {}, chosen)
        assert window_steps(node, steps)[0] == len(places)


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize("op", POOLS)
def test_pooling_ignores_padding_steps(where: Any, op: str, padding: str) -> None:
    for steps, size, strides, _ in SIZES:
        if padding == "valid" and steps < size:
            continue
        x = draw(B, steps, F)
        expected = [
            POOLS[op](np.stack([x[:, at] for at in window if at is not None]), axis=0, dtype=np.float64)
            if op == "average_pool"
            else POOLS[op](np.stack([x[:, at] for at in window if at is not None]), axis=0)
            for window in in_loops(x, size, strides, 1, padding)
        ]
        chosen: dict[str, Any] = {"size": size, "strides": strides, "dilation": 1, "padding": padding}
        found = run(op, given={"x": x}, axis=1, **chosen)
        np.testing.assert_allclose(found, np.stack(expected, axis=1), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("op", REDUCED)
def test_one_number_of_those_along_an_axis_equals_float64(where: Any, op: str, keepdims: bool) -> None:
    for shape, axis in (((B, F), 1), ((B, 7, F), 1), ((B, 7, F), 2), ((B, 2, 5, F), 2), ((B, 2, 5, F), 3)):
        x = draw(*shape)
        expected = REDUCED[op](x.astype(np.float64), axis=axis, keepdims=keepdims)
        found = run(op, given={"x": x}, axis=axis, keepdims=keepdims)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_one_number_of_many_keeps_a_nan(where: Any) -> None:
    x = draw(2, 5, F)
    x[0, 3, 1] = np.nan
    for op in REDUCED:
        found = run(op, given={"x": x}, axis=1, keepdims=False)
        assert np.argwhere(np.isnan(found)).tolist() == [[0, 1]]


def test_division_rounds_once_and_stretches(where: Any) -> None:
    x, y = draw(B, 7, F), draw(B, 7, 1, seed=1)
    assert run("divide", given={"0": x, "1": y}).tobytes() == (x / y).tobytes()


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_softmax_along_an_axis_equals_float64(where: Any, axis: int) -> None:
    x = draw(B, 3, 7, F) * np.float32(30)
    weights = np.exp(x - x.max(axis=axis, keepdims=True).astype(np.float64))
    expected = weights / weights.sum(axis=axis, keepdims=True)
    np.testing.assert_allclose(run("softmax", given={"x": x}, axis=axis), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("axes", [(1, 1), (1, 2), (2, 1), (2, 2)], ids=str)
def test_dot_equals_float64(where: Any, axes: tuple[int, int]) -> None:
    shapes = [(B, 5, 4), (B, 6, 4)]
    for place, axis in enumerate(axes):
        shapes[place] = (B, 9, shapes[place][1]) if axis == 1 else (B, shapes[place][1], 9)
    x, y = draw(*shapes[0]), draw(*shapes[1], seed=1)
    letters = "bkm" if axes[0] == 1 else "bmk", "bkn" if axes[1] == 1 else "bnk"
    expected = np.einsum(f"{letters[0]},{letters[1]}->bmn", x.astype(np.float64), y)
    np.testing.assert_allclose(run("dot", given={"0": x, "1": y}, axes=axes), expected, atol=1e-5)
    flat = y[:, :, 0] if axes[1] == 1 else y[:, 0]
    found = run("dot", given={"0": x, "1": flat}, axes=(axes[0], 1))
    np.testing.assert_allclose(found, expected[:, :, 0], atol=1e-5)
    alone = run("dot", given={"0": flat, "1": flat}, axes=(1, 1))
    np.testing.assert_allclose(
        alone, np.square(flat.astype(np.float64)).sum(axis=1, keepdims=True), atol=1e-5
    )


def attended(given: dict[str, np.ndarray], additive: np.ndarray | None, **options: Any) -> np.ndarray:
    """Attention one query, one head and one row at a time, in float64."""
    query, key, value = (given[name].astype(np.float64) for name in ("query", "key", "value"))
    heads = options["heads"]
    found = np.zeros((*query.shape[:2], value.shape[2]))
    for row, step, head in itertools.product(range(len(query)), range(query.shape[1]), range(heads)):
        q, k, v = (np.split(x[row], heads, axis=1)[head] for x in (query, key, value))
        scores = k @ q[step] if additive is None else np.tanh(q[step] + k) @ additive
        counts = np.ones(len(k), bool)
        if "mask" in given:
            counts &= given["mask"][row]
        if "mask_of_queries" in given:
            counts &= given["mask_of_queries"][row, step]
        if options["causal"]:
            counts &= np.arange(len(k)) <= step
        if not counts.any():
            weights = np.full(len(k), 0.0 if options["zeros"] else 1 / len(k))
        else:
            weights = np.exp(scores * options["scale"] - (scores * options["scale"])[counts].max()) * counts
            weights /= weights.sum()
        width = v.shape[1]
        found[row, step, head * width : (head + 1) * width] = weights @ v
    return found


@pytest.mark.parametrize("steps", [(1, 1), (5, 7), (7, 5), (1, 33), (40, 3)], ids=str)
@pytest.mark.parametrize("kind", ["dot", "heads", "additive"])
def test_attention_equals_float64(where: Any, kind: str, steps: tuple[int, int]) -> None:
    queries, keys = steps
    three = {"query": draw(B, queries, 12), "key": draw(B, keys, 12), "value": draw(B, keys, 6)}
    masks = {
        "mask": np.random.default_rng(0).random((B, keys)) < 0.6,
        "mask_of_queries": np.random.default_rng(1).random((B, queries)) < 0.7,
    }
    masks["mask"][1] = False
    heads, additive = (3 if kind == "heads" else 1), draw(12, seed=4) if kind == "additive" else None
    arrays = {} if additive is None else {"additive": additive}
    for causal, zeros, given in itertools.product((False, True), (False, True), ({}, masks)):
        options = {"heads": heads, "scale": 0.4, "causal": causal, "zeros": zeros}
        found = run("attention", arrays, three | given, **options)
        np.testing.assert_allclose(found, attended(three | given, additive, **options), atol=1e-5)
