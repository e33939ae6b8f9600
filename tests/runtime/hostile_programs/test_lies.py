"""Programs whose options, shapes or references are made to do harm."""

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellerate.errors import CellerateError, ConfigError, DataError, ModelError
from cellerate.program import Node
from cellerate.runtime.cell import write_cell
from cellerate.runtime.packed import load
from support.runtime.unchecked_programs import array, given, lstm, ones, packed, unchecked


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
    "state of a dense": (lambda n: n.append(state(4)), "must read a node of lstm"),
    "node that reads itself": (reads(3, x=3), "must be an earlier node, not 3"),
    "nodes that read each other": (reads(2, x=3), "must be an earlier node, not 3"),
    "node that reads none": (reads(3, x=99), "must be an earlier node, not 99"),
    "node from the end": (reads(3, x=-1), "must be an earlier node, not -1"),
    "node true": (reads(3, x=True), "must be an earlier node, not True"),
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
