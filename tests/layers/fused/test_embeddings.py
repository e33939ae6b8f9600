"""An LSTM that looks up its inputs in an Embedding gives the outputs and gradients of Keras."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from cellerate.layers.accelerate import accelerate
from support.keras_models.fused_layers import (
    BACKEND,
    IDS,
    B,
    Build,
    D,
    H,
    Measured,
    T,
    V,
    assert_accelerated_equals,
    assert_close,
    measure,
    quick,
    text_model,
)

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    # Keras's own convert_to_numpy calls np.array on a framework's tensor, which NumPy 2 warns about.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]


def two_lstms_on_one_table() -> keras.Model:
    ids = keras.Input((T,), dtype="int32")
    x = layers.Embedding(V, D)(ids)
    return keras.Model(ids, [layers.LSTM(H)(x), layers.LSTM(3)(x), layers.Dense(2)(x)])


LOOKUPS: dict[str, tuple[bool, Build]] = {
    "plain": (True, lambda: text_model(layers.LSTM(H, return_sequences=True))),
    "mask-zero": (True, lambda: text_model(layers.LSTM(H, return_sequences=True), mask_zero=True)),
    "bidirectional": (True, lambda: text_model(layers.Bidirectional(layers.LSTM(H)), mask_zero=True)),
    "two-lstms": (True, two_lstms_on_one_table),
    "recurrent-dropout": (True, lambda: text_model(layers.LSTM(H, recurrent_dropout=0.3, seed=1))),
    "dropout-between": (False, lambda: text_model(layers.Dropout(0.3, seed=1), layers.LSTM(H))),
    "dropout": (False, lambda: text_model(layers.LSTM(H, dropout=0.3, seed=1))),
    "normalized": (False, lambda: text_model(layers.LayerNormalization(), layers.LSTM(H))),
    "more-rows-than-half-the-steps": (False, lambda: text_model(layers.LSTM(H), rows=B * T // 2 + 1)),
    "ids-from-the-end": (True, lambda: text_model(layers.LSTM(H))),
}


@pytest.mark.parametrize("name", quick(LOOKUPS, "mask-zero"))
def test_embedding_before_lstm_becomes_a_lookup_only_where_it_saves_time(
    name: str, calls: list[list[str]]
) -> None:
    expected, build = LOOKUPS[name]
    assert_accelerated_equals(build, IDS - 3 if name == "ids-from-the-end" else IDS, training=True)
    assert calls and all(("ids" in given) is expected for given in calls)


@pytest.mark.parametrize("change", ["frozen", "lora", "bfloat16"])
def test_embedding_not_stored_as_a_float32_variable_equals_keras(change: str) -> None:
    def build() -> keras.Model:
        # Keras rounds the table to bfloat16 and the lookup does not, so the table holds only values exact in bfloat16.
        start = keras.initializers.Constant(np.random.default_rng(0).integers(-9, 9, (V, D)) / 8)
        model = text_model(
            layers.LSTM(H, dtype="float32"),
            embeddings_initializer=start,
            dtype="bfloat16" if change == "bfloat16" else None,
        )
        table = model.layers[1]
        if change == "frozen":
            table.trainable = False
        elif change == "lora":
            table.enable_lora(2, b_initializer=keras.initializers.RandomNormal(seed=1))
        return model

    model = build()
    stock = measure(model, IDS)
    assert_close(
        measure(accelerate(model), IDS), stock, dtype="bfloat16" if change == "bfloat16" else "float32"
    )


@pytest.mark.parametrize("when", ["added-in-place", "detached", "assigned-between", "ids-changed"])
def test_lstm_after_a_changed_embedding_equals_keras(when: str) -> None:
    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.lstm = layers.Embedding(V, D), layers.LSTM(H)

        def call(self, ids: Any, training: bool | None = None) -> Any:
            x = self.table(ids)
            if when == "added-in-place":
                x += 1.0  # in place on torch, where the tensor stays the same object
            elif when == "detached":
                x = ops.stop_gradient(x)
            elif when == "assigned-between":
                self.table.embeddings.assign(self.table.embeddings + 1.0)
            elif BACKEND == "torch":
                ids -= 1
            return self.lstm(x)

    model = Model()
    model(ops.convert_to_tensor(IDS))
    weights = model.get_weights()

    def outputs() -> Measured:
        model.set_weights(weights)
        if when == "assigned-between":
            return {"output": ops.convert_to_numpy(model(ops.convert_to_tensor(IDS)))}
        found = measure(model, IDS.copy())
        return {name: a for name, a in found.items() if "embeddings" not in name or when != "detached"}

    stock = outputs()
    accelerate(model)
    assert_close(outputs(), stock)


@pytest.mark.parametrize("readers", [1, 2])
def test_model_with_an_embedding_trains_like_stock_keras(readers: int) -> None:
    """TensorFlow hands the optimizer unsummed embedding rows, and Adam and clipnorm then treat each row separately."""

    def trained(change: Callable[[keras.Model], Any]) -> list[np.ndarray]:
        keras.utils.set_random_seed(5)
        lstm = layers.LSTM(H, return_sequences=True)
        reader = lstm if readers == 1 else layers.Bidirectional(lstm)
        ids = keras.Input((T,), dtype="int32", batch_size=B)
        model = keras.Model(ids, layers.Dense(V)(reader(layers.Embedding(V, D)(ids))))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01, clipnorm=0.5), loss)
        change(model)
        model.fit(np.tile(IDS, (20, 1)), np.tile(IDS, (20, 1)), batch_size=B, shuffle=False, verbose=0)
        return [ops.convert_to_numpy(weight) for weight in model.weights]

    stock = trained(lambda model: None)
    for found, wanted in zip(trained(accelerate), stock, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)
    summed = trained(lambda model: accelerate(model, sum_embedding_gradients=True))
    equal = np.allclose(summed[0], stock[0], rtol=1e-3, atol=1e-5)
    assert equal is (BACKEND != "tensorflow")


@pytest.mark.skipif(BACKEND == "jax", reason="JAX has no gradient of a tensor within a function")
@pytest.mark.parametrize("way", ["kept", "hook", "sought", "with-the-table"])
def test_gradient_of_an_embedding_output_equals_keras(way: str) -> None:
    """Saliency maps and adversarial training need this gradient."""
    model = text_model(layers.LSTM(H))
    table, lstm = model.layers[1], model.layers[2]
    ids = ops.convert_to_tensor(IDS)

    def gradients() -> list[np.ndarray]:
        if BACKEND == "tensorflow":
            import tensorflow as tf

            with tf.GradientTape() as tape:
                x = table(ids)
                loss = ops.sum(lstm(x) ** 2)
            found = tape.gradient(loss, [x, table.embeddings.value] if way == "with-the-table" else [x])
        else:
            import torch

            x, found = table(ids), []
            if way == "kept":
                x.retain_grad()
            elif way == "hook":
                x.register_hook(found.append)
            loss = ops.sum(lstm(x) ** 2)
            sought = [x, table.embeddings.value] if way == "with-the-table" else [x]
            if way in ("kept", "hook"):
                loss.backward()
                found = found or [x.grad]
            else:
                found = list(torch.autograd.grad(loss, sought))
        return [ops.convert_to_numpy(ops.convert_to_tensor(gradient)) for gradient in found]

    stock = gradients()
    accelerate(model)
    for found, wanted in zip(gradients(), stock, strict=True):
        assert found.any()
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
