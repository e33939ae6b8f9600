"""An accelerated LSTM with any activation has the outputs and gradients of Keras, even at kinks and ends."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from cellerate.layers.accelerate import accelerate
from support.activation_names import IN_FILES, in_keras
from support.keras_models.fused_layers import (
    BACKEND,
    MASK,
    B,
    F,
    H,
    T,
    assert_accelerated_equals,
    data,
    model_of,
    quick,
)

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    # Keras's own convert_to_numpy calls np.array on a framework's tensor, which NumPy 2 warns about.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]
FEW_ACTIVATIONS = ("tanh", "relu", "gelu", "exponential", "hard_sigmoid")


# torch compiles nothing, so it tests all of them; on other backends most run in `make test-slow`.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if BACKEND == "torch" or name in FEW_ACTIVATIONS else pytest.mark.slow)
        for name in IN_FILES
    ],
)
def test_lstm_with_each_activation_equals_keras(name: str) -> None:
    # Small weights keep unbounded activations from overflowing.
    random, grows = keras.initializers, name == "exponential"
    options = {
        "kernel_initializer": random.RandomNormal(stddev=0.05 if grows else 0.3, seed=1),
        "recurrent_initializer": random.RandomNormal(stddev=0.1, seed=2),
        "bias_initializer": random.RandomUniform(-1.5, -1.0 if grows else 1.5, seed=3),
        "unit_forget_bias": False,
    }

    def build() -> keras.Model:
        function = in_keras(name)
        gates = layers.LSTM(H, recurrent_activation=function, **options)
        return model_of(layers.LSTM(H, function, **options), gates)

    assert_accelerated_equals(build, data())


ACTIVATION_LAYERS: dict[str, Callable[[], Any]] = {
    "relu": lambda: layers.ReLU(negative_slope=0.05),
    "relu-of-all": lambda: layers.ReLU(max_value=1.5, negative_slope=0.1, threshold=0.25),
    "leaky": lambda: layers.LeakyReLU(),
    "elu": lambda: layers.ELU(alpha=0.5),
    "activation": lambda: layers.Activation("softsign"),
    "partial": lambda: functools.partial(keras.activations.relu, negative_slope=0.1),
    "lambda": lambda: lambda x: ops.gelu(x),  # approximate by default
}


@pytest.mark.parametrize("name", quick(ACTIVATION_LAYERS, "relu"))
def test_lstm_whose_activation_is_a_layer_or_a_function_equals_keras(
    name: str, calls: list[list[str]]
) -> None:
    def build() -> keras.Model:
        activation = ACTIVATION_LAYERS[name]()
        first = layers.LSTM(H, activation, return_sequences=True)
        # Bidirectional copies its layer through the configuration, which cannot hold a function.
        copied = isinstance(activation, keras.Layer)
        model = model_of(layers.Bidirectional(first) if copied else first, layers.LSTM(H, activation))
        # With these weights nothing comes within 2e-4 of a kink, where rounding alone would choose the slope.
        rng = np.random.default_rng(84)
        model.set_weights([rng.normal(scale=0.4, size=weight.shape) for weight in model.get_weights()])
        return model

    assert_accelerated_equals(build, data())
    assert calls


AT_KINKS = ["selu", "leaky_relu", "celu", "elu", "relu6", "hard_tanh", "sparse_sigmoid", "hard_shrink"]
AT_KINKS += ["leaky_relu(negative_slope=0.05)", "relu(negative_slope=0.1, max_value=2.0)", "celu(alpha=0.4)"]


@pytest.mark.parametrize("name", quick(AT_KINKS, "leaky_relu"))
def test_lstm_of_zero_rows_has_the_gradient_of_the_backend_at_a_kink(name: str) -> None:
    """Zero padding and zero biases give the activation exactly 0, and the bias still trains."""
    options = {"unit_forget_bias": False, "return_state": True}

    def build() -> keras.Model:
        x, s = keras.Input((T, F), name="x"), keras.Input((H,), name="s")
        # A gate of 0 passes only the gradient of the last c, and the forget gate's gradient needs an earlier c.
        function = in_keras(name)
        gates = layers.LSTM(H, recurrent_activation=function, **options)(x, initial_state=[s, s])
        return keras.Model([x, s], [layers.LSTM(H, function, **options)(x), gates])

    assert_accelerated_equals(build, [data()[0] * MASK[..., None], np.ones((B, H), "float32")])


@pytest.mark.parametrize("name", ["hard_tanh", "sparse_sigmoid"])
def test_lstm_at_the_ends_of_an_activation_has_the_gradient_of_the_backend(name: str) -> None:
    def build() -> keras.Model:
        x = keras.Input((T, F), name="x")
        options = {"kernel_initializer": "zeros", "recurrent_initializer": "zeros", "unit_forget_bias": False}
        outputs = [
            layers.LSTM(H, name, bias_initializer=keras.initializers.Constant(end), **options)(x)
            for end in (-1, 1)
        ]
        return keras.Model(x, outputs)

    assert_accelerated_equals(build, data()[0])


@pytest.mark.parametrize("name", ["hard_shrink", "soft_shrink"])
def test_lstm_with_a_shrink_activation_keeps_nan_and_infinity_where_keras_does(name: str) -> None:
    layer = layers.LSTM(H, name, return_sequences=True)
    layer.build((B, T, F))
    # Only the candidate is NaN: a NaN gate would hide the result of the activation.
    bias = np.zeros((4, H), "float32")
    bias[2, :3] = np.nan, np.inf, -np.inf
    layer.cell.bias.assign(bias.ravel())
    layer.cell.recurrent_kernel.assign(np.zeros((H, 4 * H)))
    before = ops.convert_to_numpy(layer(data()[0]))
    after = ops.convert_to_numpy(accelerate(layer)(data()[0]))
    np.testing.assert_allclose(after, before, atol=1e-6)
