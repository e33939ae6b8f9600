"""The descriptions of the core's algorithms against what the core itself says, and calls that do not fit."""

import numpy as np
import pytest

from cellerate.errors import ConfigError
from cellerate.kernels import native, operation
from cellerate.kernels.dense import DENSE
from cellerate.kernels.lstm.cpu import LSTM, codes
from cellerate.kernels.lstm.spec import LstmOptions

X, KERNEL = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)


@pytest.mark.parametrize("described", [LSTM, DENSE], ids=lambda one: one.name)
def test_description_has_the_names_of_the_core_in_its_order(described):
    calls = native.core().CALLS
    _, arguments, results, _ = calls[f"{described.name}_forward"]
    assert (arguments, results) == (described.arguments, described.forward_results)
    _, arguments, results, _ = calls[f"{described.name}_backward"]
    gradients = tuple(f"d_{name}" for name in described.differentiable)
    assert (arguments, results) == (described.backward_arguments, gradients)


def test_every_call_of_the_core_is_described():
    names = {f"{one.name}_{direction}" for one in (LSTM, DENSE) for direction in ("forward", "backward")}
    assert names == set(native.core().CALLS)


def test_core_takes_float32_and_bfloat16():
    assert native.storage_types() == ("float32", "bfloat16")


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("gru_forward", (), 'there is no call "gru_forward"'),
        ("dense_forward", (1,), "options: expected 0, got 1"),
        ("lstm_forward", (1, 0, 0, 0, 2, 0, 0, 0, 0, 0), "options: expected 11, got 10"),
        ("lstm_forward", (99, 0, 0, 0, 2, 0, 0, 0, 0, 0, 1), "activation: expected a code below 34, got 99"),
        ("lstm_forward", (1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 1), "masked_output: expected a code below 3, got 3"),
        ("lstm_forward", (1, 0, 0, 0, 2, 0, 0, 0, 0, -1, 1), "go_backwards: expected a code below 2, got -1"),
    ],
)
def test_wrong_name_or_option_is_refused_with_what_was_expected(name, options, said):
    _, arguments, results, _ = native.core().CALLS.get(name, ((), (), (), ()))
    with pytest.raises(ConfigError) as raised:
        native.call(name, (None,) * len(arguments), (None,) * len(results), options)
    assert str(raised.value) == said


def test_wrong_number_of_arrays_is_refused():
    with pytest.raises(ConfigError, match=r"^expected 3 arrays, got 2$"):
        native.call("dense_forward", (X, KERNEL), (X,))


def test_reserve_is_asked_for_only_where_there_is_one():
    core, options = native.core(), codes(LstmOptions(), True)
    assert DENSE.reserve_bytes({"x": X}, (), "float32") == 0
    with pytest.raises(ValueError, match="dense_forward keeps nothing"):
        core.reserve_bytes("dense_forward", "float32", (), ())
    with pytest.raises(ValueError, match="sizes: expected 4, got 3"):
        core.reserve_bytes("lstm_forward", "float32", options, (1, 1, 1))
    for dtype in ("int32", "float64"):
        with pytest.raises(ValueError, match=f"dtype: expected a type of states, got {dtype}"):
            core.reserve_bytes("lstm_forward", dtype, options, (1, 1, 1, 0))


def test_gradients_are_those_of_the_arguments_that_are_there():
    given = {"x": X, "kernel": KERNEL}
    y = operation.forward(DENSE, given)["y"]
    gradients = operation.backward(DENSE, given, {}, {"y": y})
    assert list(gradients) == ["x", "kernel"]
    np.testing.assert_array_equal(gradients["kernel"], X.T @ y)
