import math

import keras
import numpy as np
import pytest

from cellerate.errors import ConfigError
from cellerate.models.losses import BitsPerItem, QuantileLoss, check_quantiles

pytestmark = [
    pytest.mark.keras,
    # Keras 3.15 variables have the __array__ of NumPy 1; saving and reading weights meets it.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

RANDOM = np.random.default_rng(0)


def pinball(y: np.ndarray, p: np.ndarray, quantiles: tuple[float, ...]) -> np.ndarray:
    """(B, H, t), (B, H, t, Q) → (B, H), written out."""
    total = np.zeros(y.shape[:2])
    for index, q in enumerate(quantiles):
        for target in range(y.shape[2]):
            error = y[:, :, target] - p[:, :, target, index]
            total += np.where(error >= 0, q * error, (q - 1) * error)
    return total / (len(quantiles) * y.shape[2])


@pytest.mark.parametrize(
    ("targets", "quantiles"), [(3, (0.1, 0.5, 0.9)), (1, (0.2, 0.8)), (1, (0.5,)), (2, (0.3,))]
)
@pytest.mark.parametrize("weights", [None, (4, 1), (4, 5)], ids=["unweighted", "rows", "steps"])
def test_quantile_loss_equals_the_pinball_loss_written_out(targets, quantiles, weights):
    y = RANDOM.normal(size=(4, 5, targets)).astype("float32")
    p = RANDOM.normal(size=(4, 5, targets, len(quantiles))).astype("float32")
    weight = None if weights is None else RANDOM.random(weights).astype("float32")
    expected = pinball(y, p, quantiles)
    if weight is not None:
        expected = expected * weight
    found = float(keras.ops.convert_to_numpy(QuantileLoss(quantiles)(y, p, sample_weight=weight)))
    assert found == pytest.approx(expected.mean(), rel=1e-5)


def test_quantile_loss_trains_a_model_to_the_quantiles_of_its_data():
    quantiles = (0.1, 0.5, 0.9)
    tensor = keras.Input((1,))
    model = keras.Model(tensor, keras.layers.Reshape((1, 1, 3))(keras.layers.Dense(3)(tensor)))
    model.compile(keras.optimizers.SGD(1.0), QuantileLoss(quantiles))
    x = np.zeros((500, 1), "float32")
    y = np.linspace(0, 1, 500, dtype="float32").reshape(500, 1, 1)
    model.fit(x, y, batch_size=500, epochs=60, verbose=0)
    np.testing.assert_allclose(model.predict(x[:1], verbose=0).ravel(), quantiles, atol=0.05)


def test_quantile_loss_after_serialisation_has_its_quantiles_and_package():
    loss = QuantileLoss((0.1, 0.9))
    config = keras.saving.serialize_keras_object(loss)
    assert config["registered_name"] == "cellerate>QuantileLoss"
    again = keras.saving.deserialize_keras_object(config)
    assert isinstance(again, QuantileLoss)
    assert again.quantiles == (0.1, 0.9)


def test_quantile_loss_of_a_model_with_other_quantiles_raises_config_error():
    y, p = np.zeros((2, 3, 1), "float32"), np.zeros((2, 3, 1, 2), "float32")
    with pytest.raises(ConfigError, match="3 quantiles"):
        QuantileLoss((0.1, 0.5, 0.9))(y, p)
    with pytest.raises(ConfigError, match="2 quantiles"):
        QuantileLoss((0.1, 0.5))(y, y)


@pytest.mark.parametrize(
    "bad", [(), (0.5, 0.5), (0.9, 0.1), (0.0, 0.5), (0.5, 1.0), ("a",), 3, (float("nan"),)]
)
def test_check_quantiles_of_anything_but_ascending_fractions_raises_config_error(bad):
    with pytest.raises(ConfigError, match="quantiles"):
        check_quantiles(bad)


def bits(y: np.ndarray, logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return -np.take_along_axis(log_p, y[..., None], -1)[..., 0] / math.log(2)


def value(metric: keras.metrics.Metric) -> float:
    return float(keras.ops.convert_to_numpy(metric.result()))


def test_bits_per_item_over_batches_of_different_length_weights_every_item_alike():
    metric, total, count = BitsPerItem(), 0.0, 0.0
    for length, rows in ((3, 2), (9, 4)):
        y = RANDOM.integers(0, 5, (rows, length))
        logits = RANDOM.normal(size=(rows, length, 5)).astype("float32") * length
        weight = RANDOM.integers(0, 2, (rows, length)).astype("float32")
        metric.update_state(y, logits, sample_weight=weight)
        total += (bits(y, logits) * weight).sum()
        count += weight.sum()
    assert value(metric) == pytest.approx(total / count, rel=1e-5)


@pytest.mark.parametrize("shape", [None, (3,), (3, 4)])
def test_bits_per_item_with_each_kind_of_weight_equals_the_weighted_mean(shape):
    y = RANDOM.integers(0, 5, (3, 4))
    logits = RANDOM.normal(size=(3, 4, 5)).astype("float32")
    weight = None if shape is None else RANDOM.random(shape).astype("float32")
    metric = BitsPerItem()
    metric.update_state(y, logits, sample_weight=weight)
    full = np.ones((3, 4)) if weight is None else weight.reshape(weight.shape + (1,) * (2 - weight.ndim))
    full = np.broadcast_to(full, (3, 4))
    assert value(metric) == pytest.approx(np.average(bits(y, logits), weights=full), rel=1e-5)


def test_bits_per_item_of_uniform_predictions_is_the_logarithm_of_the_vocabulary():
    metric = BitsPerItem()
    metric.update_state(np.zeros((2, 3), "int32"), np.zeros((2, 3, 8), "float32"))
    assert value(metric) == pytest.approx(3.0, rel=1e-6)
    metric.reset_state()
    assert value(metric) == 0.0


def test_bits_per_item_from_probabilities_equals_that_from_logits():
    y = RANDOM.integers(0, 5, (3, 4))
    logits = RANDOM.normal(size=(3, 4, 5)).astype("float32")
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    one, other = BitsPerItem(), BitsPerItem(from_logits=False)
    one.update_state(y, logits)
    other.update_state(y, probabilities)
    assert value(one) == pytest.approx(value(other), rel=1e-4)


def test_bits_per_item_in_fit_and_evaluate_is_the_loss_in_bits():
    tensor = keras.Input((4, 3))
    model = keras.Model(tensor, keras.layers.Dense(5)(tensor))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, weighted_metrics=[BitsPerItem()])
    x, y = RANDOM.normal(size=(6, 4, 3)).astype("float32"), RANDOM.integers(0, 5, (6, 4))
    model.fit(x, y, batch_size=2, verbose=0)
    found = model.evaluate(x, y, batch_size=2, verbose=0, return_dict=True)
    assert found["bits_per_item"] == pytest.approx(found["loss"] / math.log(2), rel=1e-5)


def test_bits_per_item_after_serialisation_is_the_same_metric():
    metric = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(BitsPerItem(name="bpc", from_logits=False))
    )
    assert (metric.name, metric.from_logits) == ("bpc", False)
