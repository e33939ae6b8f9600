import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from cellerate.errors import ModelError
from cellerate.program import OPERATIONS, Node, Program

SEQUENCES = Node("input", "sequences", options={"shape": (-1, -1, 4), "dtype": "float32"})
IDS = Node("input", "ids", options={"shape": (-1, -1), "dtype": "int32"})
LSTM_OPTIONS: dict[str, Any] = {
    "activation": "tanh",
    "recurrent_activation": "sigmoid",
    "masked_output": "zero",
    "go_backwards": False,
    "return_sequences": True,
}


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def lstm(units: int = 2, **changes: Any) -> Node:
    arrays = {
        "kernel": ones(4, 4 * units),
        "recurrent_kernel": ones(units, 4 * units),
        "bias": ones(4 * units),
    }
    fields: dict[str, Any] = {"inputs": {"x": 0}, "arrays": arrays, "options": LSTM_OPTIONS}
    return Node("lstm", "layer", **(fields | changes))


def simple_rnn() -> Node:
    arrays = {"kernel": ones(4, 2), "recurrent_kernel": ones(2, 2)}
    options = {name: value for name, value in LSTM_OPTIONS.items() if name != "recurrent_activation"}
    return Node("simple_rnn", "layer", {"x": 0}, arrays, options)


def program(*nodes: Node, outputs: dict[str, Any] | None = None) -> Program:
    return Program(nodes, {"out": len(nodes) - 1} if outputs is None else outputs)


def test_program_of_valid_nodes_names_its_inputs_in_order():
    built = program(IDS, SEQUENCES, Node("concatenate", "both", {"0": 1, "1": 1}, {}, {"axis": -1}))
    assert built.inputs == {"ids": 0, "sequences": 1}
    assert built.outputs == {"out": 2}


SIZES = {"V": 5, "E": 4, "D": 4, "H": 2, "G": 8, "K": 4, "N": 3, "F": 4}
VALID: dict[str, Any] = LSTM_OPTIONS | {
    "shape": (2, 2),
    "dtype": "float32",
    "soft_cap": 1.0,
    "mask_value": 0.0,
    "state": "h",
    "reset_after": True,
    "epsilon": 1.0,
    "axis": 1,
    "n": 2,
    "begin": 0,
    "end": 1,
    "indices": (1,),
    "axes": (1, 2),
    "keepdims": True,
    "size": 2,
    "strides": 1,
    "dilation": 1,
    "padding": "same",
    "features": 4,
    "heads": 1,
    "scale": 0.5,
    "causal": True,
    "zeros": False,
    "function": "sqrt",
    "number": 0.0,
    "relation": "equal",
    "before": 1,
    "after": 0,
}


def valid(op: str, **changes: Any) -> Program:
    """A program whose last node is one of `op`, with everything it may have."""
    operation = OPERATIONS[op]
    inputs = {name.removesuffix("?").replace("*", "0"): 1 for name in operation.inputs}
    sizes = SIZES | ({"G": 6} if op == "gru" else {})
    arrays = {
        name.removesuffix("?"): ones(*(sizes[axis] for axis in axes))
        for name, axes in operation.arrays.items()
    }
    options = {name: VALID[name] for name in operation.options} | changes
    before = simple_rnn() if op == "rnn_state" else lstm()
    return program(SEQUENCES, before, Node(op, "node", inputs, arrays, options))


@pytest.mark.parametrize("op", OPERATIONS)
def test_every_option_of_another_type_is_refused(op):
    valid(op)
    for name, kinds in OPERATIONS[op].options.items():
        for value in (None, True, 1, 1.0, "text", (1,), [1], {}):
            if type(value) not in (kinds if isinstance(kinds, tuple) else (kinds,)):
                with pytest.raises(ModelError, match=f"node: option '{name}' cannot be"):
                    valid(op, **{name: value})


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([Node("exec", "evil")], "there is no operation 'exec'"),
        ([SEQUENCES, lstm(inputs={})], "lstm has the inputs"),
        ([SEQUENCES, lstm(inputs={"x": 0, "y": 0})], "lstm has the inputs"),
        ([SEQUENCES, lstm(inputs={"x": 1})], "input 'x' must be an earlier node, not 1"),
        ([SEQUENCES, lstm(inputs={"x": 2}), SEQUENCES], "must be an earlier node"),
        ([SEQUENCES, lstm(inputs={"x": -1})], "must be an earlier node"),
        ([SEQUENCES, lstm(inputs={"x": False})], "must be an earlier node"),
        ([SEQUENCES, lstm(inputs={"x": 0.0})], "must be an earlier node"),
        ([SEQUENCES, lstm(inputs={"x": 0, "h0": 0})], "h0 and c0 must be given together"),
        ([SEQUENCES, lstm(arrays={})], "lstm has the arrays"),
        ([SEQUENCES, lstm(options={})], "lstm has the options"),
        ([SEQUENCES, lstm(options=LSTM_OPTIONS | {"activation": "softmax"})], "activation: expected one of"),
        ([SEQUENCES, lstm(options=LSTM_OPTIONS | {"masked_output": "one"})], "masked_output must be one of"),
        (
            [SEQUENCES, Node("lstm_state", "state", {"lstm": 0}, {}, {"state": "h"})],
            "must read a node of lstm",
        ),
        ([SEQUENCES, lstm(), Node("lstm_state", "state", {"lstm": 1}, {}, {"state": "x"})], "one of h, c"),
        (
            [SEQUENCES, lstm(), Node("rnn_state", "state", {"rnn": 1})],
            "must read a node of gru or simple_rnn, not lstm",
        ),
        ([SEQUENCES, Node("add", "merge", {"0": 0, "2": 0})], "add has the inputs"),
        ([SEQUENCES, Node("add", "merge")], "add has the inputs"),
        ([SEQUENCES, SEQUENCES], "two of one name"),
    ],
)
def test_node_that_is_not_as_its_operation_says_is_refused(nodes, message):
    with pytest.raises(ModelError, match=message):
        program(*nodes)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"kernel": ones(4, 9), "recurrent_kernel": ones(2, 8)}, "its other weights say"),
        ({"kernel": ones(4, 12), "recurrent_kernel": ones(2, 12)}, "4 columns a row"),
        ({"kernel": ones(8), "recurrent_kernel": ones(2, 8)}, "2 axes"),
        ({"kernel": ones(0, 8), "recurrent_kernel": ones(2, 8)}, "and elements"),
        ({"kernel": ones(4, 8).astype(np.float64), "recurrent_kernel": ones(2, 8)}, "must be float32"),
        ({"kernel": ones(4, 8).astype(">f4"), "recurrent_kernel": ones(2, 8)}, "must be float32"),
        ({"kernel": ones(4, 8), "recurrent_kernel": ones(2, 8) * np.float32(np.nan)}, "NaN or an infinity"),
        ({"kernel": ones(4, 8), "recurrent_kernel": ones(2, 8) * -np.float32(np.inf)}, "NaN or an infinity"),
        ({"kernel": ones(4, 8), "recurrent_kernel": ones(2, 8), "bias": ones(4)}, "its other weights say"),
    ],
)
def test_weights_that_do_not_fit_are_refused(arrays, message):
    with pytest.raises(ModelError, match=message):
        program(SEQUENCES, lstm(arrays=arrays))


def test_array_that_nodes_share_is_searched_for_nan_once(monkeypatch):
    searched = []
    isfinite = np.isfinite

    def counting(array):
        searched.append(array)
        return isfinite(array)

    monkeypatch.setattr(np, "isfinite", counting)
    kernel = ones(4, 4)
    nodes = (Node("dense", "layer", {"x": 0}, {"kernel": kernel}, {"activation": "relu"}) for _ in range(50))
    program(SEQUENCES, *nodes)
    assert len(searched) == 1


@pytest.mark.parametrize(
    ("op", "options"),
    [
        ("input", {"shape": (), "dtype": "float32"}),
        ("input", {"shape": (-1, 0), "dtype": "float32"}),
        ("input", {"shape": (-1, -2), "dtype": "float32"}),
        ("input", {"shape": (-1, 2**31), "dtype": "float32"}),
        ("input", {"shape": (-1,) * 33, "dtype": "float32"}),
        ("input", {"shape": (-1, 4.0), "dtype": "float32"}),
        ("input", {"shape": (-1, True), "dtype": "float32"}),
        ("input", {"shape": (-1, 4), "dtype": "object"}),
        ("reshape", {"shape": (-1, -1)}),
        ("reshape", {"shape": (0,)}),
        ("reshape", {"shape": (10**400,)}),
        ("reshape", {"shape": (1,) * 33}),
        ("reshape", {"shape": ((1,),)}),
        ("reshape", {"shape": ("1",)}),
        ("permute", {"axes": (0, 1)}),
        ("permute", {"axes": (1, 1)}),
        ("permute", {"axes": (1, 3)}),
        ("permute", {"axes": tuple(range(1, 40))}),
        ("take", {"indices": (), "axis": 1}),
        ("take", {"indices": (2**31,), "axis": 1}),
        ("take", {"indices": (0,), "axis": 2**40}),
        ("crop", {"begin": -(2**31), "end": None}),
        ("crop", {"begin": 0, "end": 2**63}),
        ("repeat_vector", {"n": 0}),
        ("repeat_vector", {"n": -1}),
        ("repeat_vector", {"n": 2**20 + 1}),
        ("cumsum", {"axis": 2**31}),
        ("sum", {"axis": -1}),
        ("softmax", {"axis": 0}),
        *(("windows", {name: 0}) for name in ("size", "strides", "dilation", "features", "axis")),
        *(("max_pool", {name: 2**20 + 1}) for name in ("size", "strides", "dilation")),
        ("windows", {"padding": "reflect"}),
        ("windows", {"axis": 32}),
        ("average_pool", {"padding": "causal"}),
        ("dot", {"axes": (1,)}),
        ("dot", {"axes": (0, 1)}),
        ("dot", {"axes": (1, 2, 1)}),
        ("dot", {"axes": (1, True)}),
        ("attention", {"heads": 0}),
        ("attention", {"heads": 2}),
        ("attention", {"heads": 2**17}),
        ("attention", {"scale": math.inf}),
        ("flip", {"axis": -(10**20)}),
        ("layer_norm", {"epsilon": math.nan}),
        ("layer_norm", {"epsilon": math.inf}),
        ("layer_norm", {"epsilon": -1e-3}),
        ("layer_norm", {"epsilon": 1e300}),
        ("features_mask", {"mask_value": math.nan}),
        ("features_mask", {"mask_value": -math.inf}),
        ("unembedding", {"soft_cap": 0.0}),
        ("unembedding", {"soft_cap": -1.0}),
        ("unembedding", {"soft_cap": math.nan}),
    ],
)
def test_option_that_no_model_has_is_refused(op, options):
    with pytest.raises(ModelError, match=r"must be|cannot have the"):
        valid(op, **options)


def test_more_heads_than_any_model_has_are_refused_by_their_limit():
    with pytest.raises(ModelError, match="heads must be from 1 to 65536, not 65537"):
        valid("attention", heads=2**16 + 1)


@pytest.mark.parametrize(
    ("op", "options"),
    [
        ("input", {"shape": (-1,), "dtype": "int32"}),
        ("input", {"shape": (8, 2**31 - 1), "dtype": "float32"}),
        ("reshape", {"shape": ()}),
        ("reshape", {"shape": (2, -1, 3)}),
        ("permute", {"axes": (2, 1)}),
        ("take", {"indices": (-1, 5, 5), "axis": -1}),
        ("crop", {"begin": 1, "end": -2}),
        ("crop", {"begin": 0, "end": None}),
        ("repeat_vector", {"n": 2**20}),
        ("layer_norm", {"epsilon": 0.0}),
        ("features_mask", {"mask_value": -1e30}),
        ("unembedding", {"soft_cap": None}),
    ],
)
def test_option_at_its_limit_is_accepted(op, options):
    valid(op, **options)


@pytest.mark.parametrize("outputs", [{}, {"out": 1}, {"out": -1}, {"out": True}, {"out": None}, {"out": "0"}])
def test_outputs_that_name_no_node_are_refused(outputs):
    with pytest.raises(ModelError, match="output"):
        program(SEQUENCES, outputs=outputs)


def test_nodes_outputs_and_names_at_their_limits_are_accepted_and_above_refused():
    node = Node("activation", "a" * 1024, {"x": 0}, {}, {"activation": "relu"})
    program(SEQUENCES, *[node] * (2**14 - 1), outputs={f"{n}": n for n in range(1024)})
    with pytest.raises(ModelError, match="at most 16,384 nodes and 1,024 outputs, got 16,385 and 1"):
        program(SEQUENCES, *[node] * 2**14)
    with pytest.raises(ModelError, match="got 1 and 1,025"):
        program(SEQUENCES, outputs={f"{n}": 0 for n in range(1025)})
    for name in ("a" * 1025, "a\nb", "\x1b[2J", "\x7f", "\x9b2J", "\0"):
        with pytest.raises(ModelError, match="the name of a node must have at most 1,024 characters"):
            program(SEQUENCES, dataclasses.replace(node, name=name))
        with pytest.raises(ModelError, match="the name of an output"):
            program(SEQUENCES, outputs={name: 0})
