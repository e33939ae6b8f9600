"""Dense layers of accelerated models against the same layers of Keras."""

import keras
import numpy as np
import pytest

from cellerate.kernels.dense import DENSE
from cellerate.layers import fused
from cellerate.layers.accelerate import accelerate, restore
from support.keras_models.sparse import sparse_tensor

pytestmark = [pytest.mark.keras, pytest.mark.backends]

# Enough rows for the kernel to pay off.
B, T, H, V = 16, 50, 24, 70
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(B, T, 5)).astype(np.float32)
Y = RANDOM.normal(size=(B, T, V)).astype(np.float32)


def model_of(policy="float32", **settings):
    keras.utils.set_random_seed(0)
    x = keras.Input((None, 5))
    h = keras.layers.LSTM(H, return_sequences=True, dtype=policy)(x)
    model = keras.Model(x, keras.layers.Dense(V, dtype=policy, **settings)(h))
    model.compile(keras.optimizers.SGD(0.5), "mse")
    return model


@pytest.fixture
def calls(monkeypatch):
    """The shapes of all kernel calls."""
    seen = []
    bridge = fused.bridge()
    original = bridge.run

    def spy(operation, arrays, *rest, **named):
        if operation is DENSE:
            seen.append(tuple(arrays["kernel"].shape))
        return original(operation, arrays, *rest, **named)

    monkeypatch.setattr(bridge, "run", spy)
    return seen


@pytest.mark.parametrize(
    "settings", [{}, {"use_bias": False}, {"activation": "relu"}], ids=["plain", "no-bias", "relu"]
)
def test_dense_training_step_equals_keras(settings, calls):
    stock, ours = model_of(**settings), accelerate(model_of(**settings))
    np.testing.assert_allclose(ours.predict(X, verbose=0), stock.predict(X, verbose=0), atol=2e-6)
    for model in (stock, ours):
        model.train_on_batch(X, Y)
    assert (H, V) in calls
    for got, expected in zip(ours.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-6)


def test_eager_dense_step_equals_a_compiled_step(calls):
    compiled, eager = accelerate(model_of(use_bias=False)), accelerate(model_of(use_bias=False))
    eager.run_eagerly = True
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(eager(X)), compiled.predict(X, verbose=0), atol=2e-6
    )
    for model in (compiled, eager):
        model.train_on_batch(X, Y)
    assert (H, V) in calls
    for got, expected in zip(eager.get_weights(), compiled.get_weights(), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-6)


def test_dense_training_step_in_bfloat16_stays_near_float32():
    exact, ours = model_of(), accelerate(model_of("mixed_bfloat16"))
    start = exact.get_weights()
    for model in (exact, ours):
        model.train_on_batch(X, Y)
    for before, got, expected in zip(start, ours.get_weights(), exact.get_weights(), strict=True):
        change, wanted = got - before, expected - before
        assert np.sqrt(np.mean((change - wanted) ** 2)) <= 2e-2 * np.sqrt(np.mean(wanted**2))


def test_few_rows_and_other_layers_stay_with_keras(calls):
    model = accelerate(model_of())
    model(X[:1, :2])
    alone = accelerate(keras.Sequential([keras.Input((5,)), keras.layers.Dense(4)]))
    assert calls == []
    assert "call" not in vars(alone.layers[-1])


def test_lora_float16_and_subclasses_stay_with_keras(calls):
    class Doubled(keras.layers.Dense):
        def call(self, inputs, training=None):
            return 2 * super().call(inputs)

    x = keras.Input((None, 5))
    h = keras.layers.LSTM(H, return_sequences=True)(x)
    outputs = [keras.layers.Dense(V), keras.layers.Dense(V, dtype="float16"), Doubled(V)]
    model = keras.Model(x, [layer(h) for layer in outputs])
    outputs[0].enable_lora(2)
    expected = model.predict(X, verbose=0)
    for got, wanted in zip(accelerate(model).predict(X, verbose=0), expected, strict=True):
        np.testing.assert_allclose(got, wanted, atol=2e-6 if got.dtype == np.float32 else 2e-3)
    assert calls == []


def test_restore_leaves_nothing_behind():
    model = accelerate(model_of())

    def replaced():
        return {name for layer in model.layers for name in ("call", "inner_loop") if name in vars(layer)}

    assert replaced() == {"call", "inner_loop"}
    restore(model)
    assert not replaced()


def test_two_dimensional_inputs_and_dynamic_shapes_keep_their_shapes():
    x = keras.Input((None, 5))
    h = keras.layers.LSTM(H)(x)
    model = keras.Model(x, keras.layers.Dense(1500)(h))
    many = RANDOM.normal(size=(64, 3, 5)).astype(np.float32)
    expected = model.predict(many, verbose=0)
    accelerate(model)
    np.testing.assert_allclose(model.predict(many, verbose=0), expected, atol=2e-6)
    assert model.predict(many[:7], verbose=0).shape == (7, 1500)


def test_inputs_of_another_dtype_give_what_keras_gives(calls):
    narrow = keras.ops.convert_to_tensor(RANDOM.normal(size=(B * T, H)), "float16")
    expected = model_of().layers[-1].call(narrow)
    found = accelerate(model_of()).layers[-1].call(narrow)
    assert found.dtype == expected.dtype
    assert calls == []


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="Keras has no sparse tensors on torch")
def test_sparse_inputs_stay_with_keras(calls):
    sparse = sparse_tensor(np.eye(2000, dtype=np.float32)[:B])
    x = keras.Input((2000,), sparse=True)
    steps = keras.layers.RepeatVector(3)(keras.layers.Dense(V)(x))
    model = keras.Model(x, keras.layers.LSTM(4)(steps))
    expected = keras.ops.convert_to_numpy(model(sparse))
    accelerate(model)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(model(sparse)), expected, atol=2e-6)
    assert calls == []
