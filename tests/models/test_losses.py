import keras
import numpy as np
import pytest

from cellerate.errors import ConfigError
from cellerate.models.losses import QuantileLoss

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
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
    # Each epoch takes away a third of the distance, down to that of two neighbours in the data.
    np.testing.assert_allclose(model.predict(x[:1], verbose=0).ravel(), quantiles, atol=1 / 499)


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
