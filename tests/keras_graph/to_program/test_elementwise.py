"""Functions, comparisons and choices of keras.ops compute as programs what Keras does, where there is a NaN, too."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from cellerate.errors import ModelError
from cellerate.keras_graph.to_program import read_program
from cellerate.runtime.program.engine import Engine
from support.keras_models.keras_programs import B, F, T, chain_of, check, kinds, masked_series, series

pytestmark = [pytest.mark.keras]

f32 = "float32"


def positive(x: Any) -> Any:
    return ops.abs(x) + 0.5


def shifted(x: Any) -> Any:
    """Far from zero for the outputs of an LSTM, whose last bits an inverse would multiply by a thousand there."""
    return x + 1.5


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "roots": lambda x: [ops.sqrt(positive(x)), ops.rsqrt(positive(x)), ops.reciprocal(shifted(x)), 2.0 / shifted(x)],
    "logarithms": lambda x: [ops.log(positive(x)), ops.log1p(positive(x)), ops.expm1(x), ops.exp(-x)],
    "waves": lambda x: [ops.sin(x * 20.0), ops.cos(x * 20.0)],
    "steps": lambda x: [
        *(of(x * 3.0) for of in (ops.sign, ops.floor, ops.ceil, ops.abs)),
        ops.round(ops.floor(x * 4.0) / 2.0),
    ],
    "powers": lambda x: [
        x**3, x**2, shifted(x) ** -1.0, positive(x) ** 0.5, positive(x) ** -1.5, ops.square(x), x**0,
    ],
    "relations": lambda x: [
        ops.cast(relation(left, right), f32)
        for relation in (ops.greater, ops.greater_equal, ops.less, ops.less_equal, ops.equal, ops.not_equal)
        for left, right in ((ops.round(x), 0.0), (1.0, ops.round(x)), (ops.round(x), ops.round(ops.flip(x, axis=2))))
    ],
    "logic": lambda x: [
        ops.cast(ops.logical_and(x > 0.0, x < 1.0), f32),
        ops.cast(ops.logical_or(x > 1.0, ops.round(x)), f32),
        ops.cast(ops.logical_not(ops.isnan(ops.round(x))), f32) + ops.cast(~(x > 0.5), f32),
        ops.cast(ops.any(x > 1.0, axis=-1), f32),
        ops.cast(ops.all(x > -1.0, axis=1), f32),
        ops.cast(ops.cast(ops.round(x), "bool"), f32),
        ops.sum(x > 0.0, axis=1) * 0.5,
    ],
    "choices": lambda x: [
        ops.where(x > 0.0, x, 0.0),
        ops.where(x[:, :, :1] > 0.0, x, ops.exp(x)),
        ops.where(ops.round(x), 1.0, -1.0) * x,
        ops.where(ops.where(x > 0.0, x > 1.0, x < -1.0), x, 2.0),
        ops.where(ops.flip(x > 0.0, axis=1), x, -x),
    ],
}  # fmt: skip


@pytest.mark.backends
@pytest.mark.parametrize("name", FUNCTIONS)
def test_program_of_functions_computes_what_keras_does(name: str) -> None:
    x = series()
    check(chain_of(FUNCTIONS[name]), x)
    check(chain_of(layers.LSTM(F, return_sequences=True), FUNCTIONS[name], shape=(None, F)), x)


def test_program_of_limits_keeps_what_is_not_a_number() -> None:
    x = series()
    x[0, 0], x[0, 1], x[0, 2] = np.nan, np.inf, -np.inf
    model = chain_of(
        lambda x: [
            ops.where(ops.isnan(x), 0.0, x),
            ops.where(x > 0.5, x, -1.0),
            ops.cast(ops.logical_or(ops.isnan(x), x >= 0.0), f32),
            ops.abs(x),
            ops.sqrt(x),
            ops.log(x),
            1.0 / (ops.abs(x) * 0.0),
        ]
    )
    found = read_program(model)
    got = Engine(found).run(x)
    for name, value in zip(got, model(x, training=False), strict=True):
        np.testing.assert_allclose(got[name], ops.convert_to_numpy(value), rtol=1e-6, atol=1e-6)


def test_booleans_that_a_model_computes_mask_an_lstm() -> None:
    def chain(x: Any) -> Any:
        counts = ops.logical_not(ops.all(ops.equal(x, 0.0), axis=-1))
        return layers.LSTM(3)(layers.LSTM(4, return_sequences=True)(x, mask=counts))

    check(chain_of(chain), masked_series())
    check(chain_of(lambda x: layers.LSTM(3)(x, mask=ops.sum(x, axis=-1) > 0.5)), series())


def test_boolean_input_chooses() -> None:
    x, chosen = keras.Input((T, F), name="x"), keras.Input((T, F), dtype="bool", name="chosen")
    model = keras.Model([x, chosen], ops.where(ops.logical_and(chosen, x > 0.0), x, -1.0))
    check(model, {"x": series(), "chosen": series(seed=2) > 0})


def test_functions_run_as_one_call_of_the_core() -> None:
    program = check(chain_of(lambda x: ops.where(x > 0.0, ops.log1p(x), ops.sin(x))), series(B, T, F))
    assert kinds(program) == ["input", "function", "function", "function", "choose"]


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "array": (
        lambda x: ops.where(x > np.arange(F, dtype=f32), x, 0.0),
        r"\(Greater\) compares a tensor with",
    ),
    "infinity": (lambda x: ops.cast(x < np.inf, f32), "one finite number"),
    "power": (lambda x: x**x, "raises to a power that is not one finite number"),
    "base": (lambda x: 2.0**x, "raises to a power that is not one finite number"),
    "decimals": (lambda x: ops.round(x, 2), "decimals=2"),
    "ranks": (lambda x: ops.where(x[:, 0] > 0.0, x, 0.0), "joins tensors of the shapes"),
    "axes": (lambda x: x * np.full((1, 1, 1, 1), 2.0, f32), "a constant of more axes than the tensor"),
    "axes of a limit": (lambda x: ops.maximum(x, np.ones((1, 1, 1, 1), f32)), "a constant of more axes"),
    "constant": (lambda x: ops.where(np.ones((T, F), bool), x, 0.0), "chooses by a constant"),
    "output": (lambda x: x > 0, r"output '\w+' is a tensor of booleans"),
    "sum": (lambda x: ops.cast((x > 0) + (x > 1), f32) * x, "not a numeric tensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_function_that_no_program_computes_is_refused_with_the_reason(name: str) -> None:
    chain, words = REFUSED[name]
    with pytest.raises(ModelError, match=words):
        read_program(chain_of(chain))


def test_whole_numbers_to_a_negative_power_are_refused() -> None:
    # Keras rounds them, or refuses them itself.
    model = chain_of(lambda x: ops.abs(x) ** -1, shape=(T,), dtype="int32")
    with pytest.raises(ModelError, match="whole numbers to a negative power"):
        read_program(model)
    check(chain_of(lambda x: ops.abs(x) ** -1.0, shape=(T,), dtype="int32"), np.arange(1, T + 1)[None])
