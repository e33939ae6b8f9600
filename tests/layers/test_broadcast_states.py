"""An initial state of one row, such as a learned one, which Keras broadcasts over the batch."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from cellerate.layers.accelerate import accelerate

pytestmark = [pytest.mark.keras, pytest.mark.backends]

B, T, F, H = 5, 6, 3, 4
X = np.random.default_rng(0).normal(size=(B, T, F)).astype("float32")
Y = np.random.default_rng(1).normal(size=(B, 1)).astype("float32")


class LearnedState(keras.Model):
    """An LSTM whose first state is a weight, given as one row or repeated for the batch."""

    def __init__(self, *, repeated: bool, **options: Any) -> None:
        super().__init__()
        self.h, self.c = (self.add_weight(shape=(1, H), initializer="random_normal") for _ in "hc")
        self.lstm, self.head, self.repeated = layers.LSTM(H, **options), layers.Dense(1), repeated

    def call(self, x: Any, training: bool | None = None) -> Any:
        rows = ops.shape(x)[0]
        states = [ops.convert_to_tensor(state) for state in (self.h, self.c)]
        if self.repeated:
            states = [ops.broadcast_to(state, (rows, H)) for state in states]
        return self.head(self.lstm(x, initial_state=states, training=training))


def trained(*, accelerated: bool, repeated: bool) -> tuple[np.ndarray, list[np.ndarray]]:
    """The outputs of a model, and its weights after a step of training."""
    keras.utils.set_random_seed(3)
    model = LearnedState(repeated=repeated)
    model(X[:1])
    if accelerated:
        accelerate(model, "cellerate-cpu")
    before = np.asarray(ops.convert_to_numpy(model(X)))
    model.compile(keras.optimizers.SGD(0.5), "mse")
    model.train_on_batch(X, Y)
    return before, [np.asarray(value) for value in model.get_weights()]


@pytest.mark.parametrize("repeated", [False, True], ids=["one-row", "repeated"])
def test_initial_state_of_one_row_is_broadcast_and_trained(repeated: bool) -> None:
    outputs, weights = trained(accelerated=True, repeated=repeated)
    right_outputs, right_weights = trained(accelerated=False, repeated=True)
    np.testing.assert_allclose(outputs, right_outputs, atol=1e-6)
    for found, right in zip(weights, right_weights, strict=True):
        np.testing.assert_allclose(found, right, atol=2e-6)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX's own loop refuses such a state")
def test_recurrent_dropout_with_a_one_row_state_shares_one_mask() -> None:
    found = []
    for accelerated in (False, True):
        keras.utils.set_random_seed(3)
        model = LearnedState(repeated=False, recurrent_dropout=0.5, seed=1)
        model(X[:1])
        if accelerated:
            accelerate(model, "cellerate-cpu")
        found.append(np.asarray(ops.convert_to_numpy(model(X, training=True))))
    np.testing.assert_allclose(found[1], found[0], atol=1e-6)
