import keras
import numpy as np
import pytest
from keras import layers

from cellerate.errors import ConfigError, ModelError
from cellerate.models.autoencoder import build_autoencoder, encoder_and_decoder
from cellerate.models.forecast import build_forecast_model
from cellerate.models.rewrite import (
    is_functional,
    reinitialized,
    with_dtype_policy,
)
from cellerate.models.text import build_text_model
from support.rounding import allowed

pytestmark = [
    pytest.mark.keras,
    # Keras 3.15 variables have the __array__ of NumPy 1; saving and reading weights meets it.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

IDS = np.random.default_rng(0).integers(1, 9, (2, 6)).astype("int32")


class Doubled(layers.Layer):
    """A custom layer nobody registered."""

    def call(self, inputs):
        return inputs * 2


class Subclassed(keras.Model):
    def call(self, inputs):
        return inputs


def users_model() -> keras.Model:
    """What people build: nested Sequential, Bidirectional GRU, TimeDistributed, RNN of a cell, operations."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    inner = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            layers.Embedding(9, 4, name="table"),
            layers.LSTM(3, return_sequences=True, name="inner_lstm"),
        ],
        name="inner",
    )
    x = layers.Bidirectional(layers.GRU(4, return_sequences=True), name="both")(inner(ids))
    x = layers.TimeDistributed(layers.Dense(3, name="each_dense"), name="each")(x)
    x = Doubled(name="doubled")(x)
    x = layers.RNN(layers.LSTMCell(4), return_sequences=True, name="rnn")(x)
    x = keras.ops.cast(keras.ops.tanh(x), "float32")
    x = layers.Dense(5, name="middle")(x)
    return keras.Model(ids, layers.Dense(2, activation="softmax", name="out")(x), name="users")


def call(model: keras.Model, inputs: object) -> np.ndarray:
    return np.array(keras.ops.convert_to_numpy(model(inputs)))


def run(model: keras.Model, inputs: object) -> np.ndarray:
    return np.asarray(model.predict(inputs, verbose=0))


def policies(model: keras.Model) -> dict[str, str]:
    found = {}
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            found |= policies(layer)
        elif not isinstance(layer, layers.InputLayer) and isinstance(layer, layers.Layer):
            found[layer.name] = layer.dtype_policy.name
            for part in ("forward_layer", "backward_layer", "layer", "cell"):
                if isinstance(inner := getattr(layer, part, None), layers.Layer):
                    found[f"{layer.name}.{part}"] = inner.dtype_policy.name
    return found


def same_weights(first: keras.Model, second: keras.Model) -> None:
    for a, b in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.backends
def test_with_dtype_policy_of_a_users_model_changes_all_but_the_output_layer():
    model = users_model()
    model.compile("adam", "mse")
    copy = with_dtype_policy(model, "mixed_bfloat16")

    found = policies(copy)
    assert found.pop("out") == "float32"
    assert {"inner_lstm", "inner_lstm.cell", "both.backward_layer", "each.layer", "rnn.cell"} <= found.keys()
    assert set(found.values()) == {"mixed_bfloat16"}
    assert set(policies(model).values()) == {"float32"}
    same_weights(model, copy)
    assert not copy.compiled
    assert copy.output.dtype == "float32"
    difference = np.abs(run(copy, IDS) - run(model, IDS)).max()
    assert 0 < difference < 0.02


def test_with_dtype_policy_there_and_back_gives_the_same_model():
    model = users_model()
    back = with_dtype_policy(with_dtype_policy(model, "mixed_float16"), "float32")
    assert set(policies(back).values()) == {"float32"}
    same_weights(model, back)


def test_with_dtype_policy_keeps_float32_layers_of_a_mixed_model_in_float32():
    tensor = keras.Input((3,))
    x = layers.Dense(4, dtype="mixed_bfloat16", name="first")(tensor)
    x = layers.Dense(4, dtype="float32", name="chosen")(x)
    model = keras.Model(tensor, layers.Dense(2, dtype="mixed_bfloat16", name="out")(x))
    narrow = policies(with_dtype_policy(model, "mixed_float16"))
    assert narrow == {"first": "mixed_float16", "chosen": "float32", "out": "float32"}
    assert set(policies(with_dtype_policy(model, "float32")).values()) == {"float32"}


def test_with_dtype_policy_of_a_text_model_keeps_only_the_logits_in_float32():
    model = with_dtype_policy(build_text_model(9, embedding=4, units=3), "mixed_bfloat16")
    found = policies(model)
    assert found.pop("logits") == "float32"
    assert set(found.values()) == {"mixed_bfloat16"}


def test_with_dtype_policy_of_an_autoencoder_keeps_vector_and_logits_in_float32():
    model = build_autoencoder(9, embedding=4, units=3, latent=2)
    copy = with_dtype_policy(model, "mixed_bfloat16")
    found = policies(copy)
    kept = {name for name, policy in found.items() if policy == "float32"}
    assert kept == {"vector", "logits"}
    assert encoder_and_decoder(copy)[0].output.dtype == copy.output.dtype == "float32"
    same_weights(model, copy)


def test_with_dtype_policy_of_a_forecast_model_keeps_its_operations():
    model = build_forecast_model(5, 3, 2, 1, target_columns=[2], units=3, quantiles=(0.1, 0.5, 0.9), seed=0)
    copy = with_dtype_policy(model, "mixed_bfloat16")
    x = np.random.default_rng(1).normal(size=(2, 5, 3)).astype("float32")
    expected = run(model, x)
    # Each step rounds the factors of two products, these, their sum, the gates and the states: 4 + 2 + 1 + 4 + 4. The
    # head rounds its two factors.
    limit = allowed("bfloat16", roundings=17, terms=3) * np.sqrt((expected**2).mean())
    assert np.sqrt(((run(copy, x) - expected) ** 2).mean()) <= limit
    assert copy.output.dtype == "float32"


@pytest.mark.backends
def test_with_dtype_policy_copy_trained_leaves_the_original_alone():
    model = users_model()
    before = model.get_weights()
    copy = with_dtype_policy(model, "float32")
    copy.compile("sgd", "mse")
    copy.fit(IDS, np.ones((2, 6, 2)), verbose=0)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(copy.get_weights()[0], before[0])


def test_with_dtype_policy_keeps_frozen_layers_frozen():
    model = users_model()
    model.get_layer("both").trainable = False
    assert not with_dtype_policy(model, "mixed_bfloat16").get_layer("both").trainable


@pytest.mark.parametrize("policy", ["float99", None, "int8_from_float32", "bfloat16"])
def test_with_dtype_policy_of_an_unknown_policy_raises_config_error(policy):
    with pytest.raises(ConfigError, match="policy"):
        with_dtype_policy(users_model(), policy)


def test_rewrites_of_a_subclassed_model_raise_model_error():
    model = Subclassed(name="mine")
    with pytest.raises(ModelError, match="Subclassed"):
        with_dtype_policy(model, "float32")
    assert not is_functional(model)


def test_rewrites_of_an_unbuilt_model_raise_model_error():
    with pytest.raises(ModelError, match="not built"):
        with_dtype_policy(keras.Sequential([layers.Dense(2)]), "float32")


def test_rewrites_of_a_layer_shared_between_nested_models_raise_model_error():
    table = layers.Embedding(9, 4)
    nested = []
    for name in ("one", "two"):
        tensor = keras.Input((None,), dtype="int32")
        nested.append(keras.Model(tensor, table(tensor), name=name))
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, layers.Add()([part(ids) for part in nested]))
    with pytest.raises(ModelError, match="share a layer"):
        with_dtype_policy(model, "mixed_bfloat16")


def adapted_model() -> keras.Model:
    """A layer that has seen data in a nested model, and one behind it."""
    scaling = [layers.Normalization(name=name) for name in ("first", "second")]
    for layer, mean in zip(scaling, (40, 1), strict=True):
        layer.adapt(np.random.default_rng(1).normal(mean, 9, (20, 3)).astype("float32"))
    inner = keras.Sequential([keras.Input((None, 3)), scaling[0]], name="inner")
    return keras.Sequential(
        [keras.Input((None, 3)), inner, scaling[1], layers.LSTM(4, name="lstm"), layers.Dense(2)]
    )


@pytest.mark.backends
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_copy_of_a_model_with_adapted_scaling_scales_as_it_does(policy):
    model, x = adapted_model(), np.full((2, 5, 3), 45, "float32")
    copy = with_dtype_policy(model, policy)
    assert np.abs(call(copy, x) - call(model, x)).max() < (0.02 if policy != "float32" else 1e-6)


@pytest.mark.backends
def test_reinitialized_keeps_what_a_layer_was_adapted_to():
    model, x = adapted_model(), np.full((2, 5, 3), 45, "float32")
    fresh = reinitialized(model, seed=0)
    assert np.array_equal(call(fresh.get_layer("inner"), x), call(model.get_layer("inner"), x))
    assert not np.array_equal(fresh.get_weights()[-2], model.get_weights()[-2])


def test_reinitialized_has_the_same_layers_and_other_weights():
    model = users_model()
    for weight in model.weights:
        weight.assign(keras.ops.full(weight.shape, 7.0))
    fresh = reinitialized(model, seed=0)
    assert [type(layer) for layer in fresh.layers] == [type(layer) for layer in model.layers]
    assert [w.shape for w in fresh.get_weights()] == [w.shape for w in model.get_weights()]
    assert not any((w == 7.0).any() for w in fresh.get_weights())
    assert all((w == 7.0).all() for w in model.get_weights())
    drawn = [w for w in fresh.weights if "bias" not in w.path]
    assert all(np.std(keras.ops.convert_to_numpy(w)) > 0 for w in drawn)


def test_reinitialized_draws_the_same_weights_for_a_seed_and_others_for_another():
    model = users_model()
    first, again, other = (reinitialized(model, seed=seed).get_weights() for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    # No two layers of equal shapes begin alike.
    drawn = [w for w in first if np.std(w) > 0]
    assert not any(
        a.shape == b.shape and np.array_equal(a, b) for n, a in enumerate(drawn) for b in drawn[n + 1 :]
    )
