import dataclasses
import re

import numpy as np
import pytest

from cellerate.errors import ConfigError
from cellerate.kernels import native
from cellerate.kernels.lstm.spec import (
    ACTIVATIONS,
    MASKED_OUTPUTS,
    Arguments,
    LstmOptions,
    LstmShape,
    check_shapes,
    validate,
)

B, T, D, H, V = 2, 7, 3, 5, 11
WEIGHTS = {
    "kernel": ((D, 4 * H), "float32"),
    "recurrent_kernel": ((H, 4 * H), "float32"),
    "bias": ((4 * H,), "float32"),
    "h0": ((B, H), "float32"),
    "c0": ((B, H), "float32"),
    "mask": ((B, T), "bool"),
    "recurrent_dropout": ((4, B, H), "float32"),
}
DENSE = {"x": ((B, T, D), "float32"), "dropout": ((4, B, D), "float32")} | WEIGHTS
LOOKUP = {"ids": ((B, T), "int32"), "embeddings": ((V, D), "float32")} | WEIGHTS


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An array of a framework: a shape, and a dtype that NumPy may not know."""

    shape: tuple[int, ...]
    dtype: str


def arrays(of=DENSE, **changes):
    """Arguments that fit, but for `changes`: a shape, a dtype, or None to leave one out."""
    made = {}
    for name, (shape, dtype) in of.items():
        change = changes.pop(name, ())
        if change is not None:
            shape, dtype = (shape, change) if isinstance(change, str) else (change or shape, dtype)
            made[name] = Tensor(shape, dtype)
    assert not changes, changes
    return made


def refusal(function, arguments) -> str:
    with pytest.raises(ConfigError) as caught:
        function(**arguments) if function is LstmOptions else function(Arguments(**arguments))
    return str(caught.value)


def test_codes_of_activations_and_masked_outputs_never_move():
    # Programs that JAX has compiled and keeps on disk hold these numbers.
    core = native.core()
    assert set(core.ACTIVATIONS) == set(ACTIVATIONS)
    assert {name: core.ACTIVATIONS.index(name) for name in ACTIVATIONS} == {
        "linear": 0,
        "tanh": 1,
        "sigmoid": 2,
        "relu": 3,
        "hard_sigmoid": 4,
        "softplus": 5,
        "softsign": 6,
        "elu": 7,
        "selu": 8,
        "exponential": 9,
        "relu6": 10,
        "leaky_relu": 11,
        "silu": 12,
        "gelu": 13,
        "hard_silu": 14,
        "hard_tanh": 15,
        "mish": 16,
        "celu": 17,
        "log_sigmoid": 18,
        "hard_shrink": 19,
        "soft_shrink": 20,
        "tanh_shrink": 21,
        "squareplus": 22,
        "sparse_plus": 23,
        "sparse_sigmoid": 24,
        "threshold": 25,
        "selu_from_above": 26,
        "leaky_relu_from_above": 27,
        "celu_of_both_sides": 28,
        "hard_tanh_open": 29,
        "sparse_sigmoid_between": 30,
        "hard_shrink_of_numbers": 31,
        "soft_shrink_of_numbers": 32,
        "relu_between": 33,
    }
    assert core.MASKED_OUTPUTS == MASKED_OUTPUTS == ("previous_output", "previous_state", "zero")


def test_options_left_out_are_the_defaults_of_keras():
    assert LstmOptions() == LstmOptions("tanh", "sigmoid", False, "previous_output")
    # A framework keys what it has traced by the options.
    assert hash(LstmOptions()) == hash(LstmOptions("tanh"))


@pytest.mark.parametrize("option", ["activation", "recurrent_activation"])
@pytest.mark.parametrize("value", ["softmax", "threshold", "glu", "Tanh", None, np.tanh])
def test_options_with_an_activation_no_kernel_knows_are_refused(option, value):
    said = refusal(LstmOptions, {option: value})
    assert said.startswith(f"{option}: ") and str(value) in said
    assert "expected one of linear, tanh," in said or "expected threshold with numbers" in said
    assert "leave the layer to Keras" in said


@pytest.mark.parametrize("value", ["zeros", 0, None])
def test_options_with_another_masked_output_are_refused(value):
    said = refusal(LstmOptions, {"masked_output": value})
    assert said == f"masked_output is {value!r}; expected one of previous_output, previous_state, zero."


@pytest.mark.parametrize("value", [1, "yes", None])
def test_options_with_a_direction_that_is_no_bool_are_refused(value):
    assert (
        refusal(LstmOptions, {"go_backwards": value}) == f"go_backwards is {value!r}; expected True or False."
    )


@pytest.mark.parametrize("left_out", [(), ("bias",), ("h0",), ("h0", "c0", "mask", "recurrent_dropout")])
def test_validate_arguments_that_fit_returns_their_sizes(left_out):
    for also in ({}, {"dropout": None}):
        arguments = arrays(**dict.fromkeys(left_out), **also)
        assert validate(Arguments(**arguments)) == LstmShape(batch=B, steps=T, inputs=D, units=H)
        assert check_shapes(Arguments(**arguments)) == LstmShape(batch=B, steps=T, inputs=D, units=H)
    arguments = arrays(LOOKUP, **dict.fromkeys(left_out))
    assert validate(Arguments(**arguments)) == LstmShape(batch=B, steps=T, inputs=D, units=H)


def test_validate_numpy_arrays_of_size_one_returns_their_sizes():
    x, kernel, recurrent_kernel = (np.ones(shape, np.float32) for shape in ((1, 1, 1), (1, 4), (1, 4)))
    mask = np.ones((1, 1), bool)
    assert validate(Arguments(kernel, recurrent_kernel, x=x, mask=mask)) == LstmShape(1, 1, 1, 1)


@pytest.mark.parametrize("dtype", ["bfloat16", "torch.bfloat16"])
def test_validate_bfloat16_states_are_taken_where_all_are(dtype):
    assert validate(Arguments(**arrays(x=dtype, h0=dtype, c0=dtype))).units == H
    assert validate(Arguments(**arrays(LOOKUP, h0=dtype, c0=dtype))).units == H


NOT_THESE_SHAPES = [
    ("x", (B, T), "(B, T, D)"),
    ("x", (B, T, D, 1), "(B, T, D)"),
    ("kernel", (D + 1, 4 * H), "(D, 4H) = (3, 20)"),
    ("kernel", (D, 3 * H), "(D, 4H) = (3, 20)"),
    ("kernel", (D, 4, H), "(D, 4H) = (3, 20)"),
    ("kernel", (4 * H, D), "(D, 4H) = (3, 20)"),
    ("recurrent_kernel", (H, 3 * H), "(H, 4H) = (5, 20)"),
    ("recurrent_kernel", (4 * H, H), "(H, 4H) = (20, 80)"),
    ("recurrent_kernel", (H,), "(H, 4H)"),
    ("bias", (H,), "(4H,) = (20,)"),
    ("bias", (2, 4 * H), "(4H,) = (20,)"),
    ("h0", (1, H), "(B, H) = (2, 5)"),
    ("h0", (H,), "(B, H) = (2, 5)"),
    ("c0", (B, H + 1), "(B, H) = (2, 5)"),
    ("mask", (B, 1), "(B, T) = (2, 7)"),
    ("mask", (B, T, 1), "(B, T) = (2, 7)"),
    ("mask", (T, B), "(B, T) = (2, 7)"),
    ("dropout", (B, D), "(4, B, D) = (4, 2, 3)"),
    ("dropout", (1, B, D), "(4, B, D) = (4, 2, 3)"),
    ("dropout", (4, B, H), "(4, B, D) = (4, 2, 3)"),
    ("recurrent_dropout", (B, H), "(4, B, H) = (4, 2, 5)"),
    ("recurrent_dropout", (1, B, H), "(4, B, H) = (4, 2, 5)"),
    ("recurrent_dropout", (4, B, D), "(4, B, H) = (4, 2, 5)"),
]


@pytest.mark.parametrize("function", [validate, check_shapes])
@pytest.mark.parametrize(("name", "shape", "expected"), NOT_THESE_SHAPES)
def test_validate_another_shape_is_refused_with_both_and_a_way_out(function, name, shape, expected):
    said = refusal(function, arrays(**{name: shape}))
    assert said.startswith(f"{name} has shape {shape}; expected {expected}. ")
    assert re.search(r"[Gg]ive ", said)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("ids", (B, T, 1), "(B, T)"),
        ("embeddings", (V,), "(V, D)"),
        ("kernel", (D + 1, 4 * H), "(D, 4H) = (3, 20)"),
        ("mask", (B, T + 1), "(B, T) = (2, 7)"),
        ("recurrent_dropout", (3, B, H), "(4, B, H) = (4, 2, 5)"),
    ],
)
def test_validate_lookup_another_shape_is_refused_with_both_and_a_way_out(name, shape, expected):
    said = refusal(validate, arrays(LOOKUP, **{name: shape}))
    assert said.startswith(f"{name} has shape {shape}; expected {expected}. ")
    assert "Give " in said or "give " in said


@pytest.mark.parametrize(
    ("of", "name", "shape", "expected"),
    [
        (DENSE, "x", (0, T, D), "(B, T, D)"),
        (DENSE, "x", (B, 0, D), "(B, T, D)"),
        (DENSE, "x", (B, T, 0), "(B, T, D)"),
        (DENSE, "recurrent_kernel", (0, 0), "(H, 4H)"),
        (LOOKUP, "ids", (B, 0), "(B, T)"),
        (LOOKUP, "embeddings", (0, D), "(V, D)"),
    ],
)
def test_validate_a_size_of_zero_is_refused(of, name, shape, expected):
    said = refusal(validate, arrays(of, **{name: shape}))
    assert said.startswith(f"{name} has shape {shape}; expected {expected} with every size at least 1. ")


@pytest.mark.parametrize(
    ("of", "name", "dtype", "expected"),
    [
        (DENSE, "x", "float64", "float32 or bfloat16"),
        (DENSE, "x", "float16", "float32 or bfloat16"),
        (DENSE, "x", "int32", "float32 or bfloat16"),
        (DENSE, "c0", "float64", "float32 or bfloat16"),
        (DENSE, "kernel", "bfloat16", "float32"),
        (DENSE, "recurrent_kernel", "float64", "float32"),
        (DENSE, "bias", "float16", "float32"),
        (DENSE, "mask", "float32", "bool"),
        (DENSE, "mask", "uint8", "bool"),
        (DENSE, "dropout", "bfloat16", "float32"),
        (DENSE, "recurrent_dropout", "bool", "float32"),
        (LOOKUP, "ids", "int64", "int32"),
        (LOOKUP, "ids", "float32", "int32"),
        (LOOKUP, "embeddings", "bfloat16", "float32"),
        (LOOKUP, "h0", "float64", "float32 or bfloat16"),
        (LOOKUP, "kernel", "bfloat16", "float32"),
    ],
)
def test_validate_another_dtype_is_refused_with_both_and_a_way_out(of, name, dtype, expected):
    said = refusal(validate, arrays(of, **{name: dtype}))
    assert said == f"{name} has dtype {dtype}; expected {expected}. Cast it to {expected.split()[0]}."


def test_validate_states_of_two_dtypes_are_refused():
    said = refusal(validate, arrays(h0="bfloat16"))
    assert said.startswith("h0 has dtype bfloat16; expected float32, the dtype of x. Cast ")
    said = refusal(validate, arrays(x="bfloat16", h0=None))
    assert said.startswith("c0 has dtype float32; expected bfloat16, the dtype of x. Cast ")
    said = refusal(validate, arrays(LOOKUP, c0="bfloat16"))
    assert said.startswith("c0 has dtype bfloat16; expected float32, the dtype of h0. Cast ")


@pytest.mark.parametrize("function", [validate, check_shapes])
def test_validate_inputs_that_are_looked_up_have_no_dropout(function):
    said = refusal(function, arrays(LOOKUP) | {"dropout": Tensor((4, B, D), "float32")})
    assert said.startswith("dropout: expected none with ids")


@pytest.mark.parametrize("left", [(), ("ids",), ("embeddings",)])
def test_validate_asks_for_x_or_for_ids_with_their_table(left):
    given = {name: array for name, array in arrays(LOOKUP).items() if name in left or name in WEIGHTS}
    assert refusal(validate, given).startswith("expected x, or ids and embeddings")


def test_check_shapes_looks_at_no_dtype():
    assert check_shapes(Arguments(**arrays(x="float64", kernel="int8", mask="uint8"))).units == H


@pytest.mark.parametrize(
    ("name", "value", "expected"), [("x", [[0.0]], "(B, T, D)"), ("kernel", None, "(D, 4H)")]
)
def test_validate_a_value_that_is_not_an_array_is_refused(name, value, expected):
    said = refusal(validate, arrays() | {name: value})
    assert said.startswith(f"{name} is a {type(value).__name__}; expected an array of shape {expected}")
