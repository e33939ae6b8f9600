import keras
import numpy as np
import pytest
from keras import layers

from cellerate.errors import ModelError
from cellerate.models.forecast import build_forecast_model
from cellerate.models.text import build_text_model
from cellerate.models.trunk import trunk_of

pytestmark = pytest.mark.keras


def lstm(**options):
    return layers.LSTM(3, return_sequences=True, **options)


def stack(*between):
    return keras.Sequential([keras.Input((6, 2)), *between])


def test_trunk_of_a_text_model_is_all_of_it():
    trunk = trunk_of(build_text_model(9, units=4, layers=2, embedding=3, dropout=0.1, layer_norm=True))
    names = "embedding lstm_1 norm_1 dropout_1 lstm_2 norm_2 dropout_2 head logits"
    assert [layer.name for layer in trunk.layers] == names.split()
    assert (trunk.before, trunk.after) == (None, None)


def test_parts_around_the_trunk_and_the_trunk_give_what_the_model_gives():
    model = build_forecast_model(8, 2, 3, 1, target_columns=(0,), units=4, layers=2, seed=1)
    trunk = trunk_of(model)
    assert [layer.name for layer in trunk.layers] == ["lstm_1", "lstm_2"]
    assert (trunk.before_inputs, trunk.after_inputs) == ((0,), (0,))
    x = np.random.default_rng(0).normal(size=(5, 8, 2)).astype(np.float32)
    x = keras.ops.convert_to_tensor(x)
    y = trunk.before(x)
    for layer in trunk.layers:
        y = layer(y)
    found = keras.ops.convert_to_numpy(trunk.after([y, x]))
    np.testing.assert_allclose(found, keras.ops.convert_to_numpy(model(x)), atol=1e-6)
    # The model can be saved as before.
    assert keras.saving.serialize_keras_object(model)["config"]["name"] == "forecast"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: stack(layers.Bidirectional(lstm(), name="both")), "'both' is Bidirectional: it reads"),
        (lambda: stack(lstm(go_backwards=True, name="back")), "'back' has go_backwards=True"),
        (lambda: stack(lstm(recurrent_dropout=0.2, name="a")), "'a' has recurrent_dropout=0.2"),
        (lambda: stack(lstm(dropout=0.2, name="a")), "'a' has dropout=0.2"),
        (lambda: stack(layers.Masking(name="m"), lstm()), "'m' makes a mask"),
        (lambda: stack(layers.Dense(3)), "has no recurrent layer"),
        (lambda: stack(layers.RNN(layers.LSTMCell(3), name="r")), "'r' is a RNN, whose states are not known"),
        (lambda: stack(stack(lstm())), "inside a nested model"),
        (lambda: stack(stack(layers.Bidirectional(lstm(), name="both"))), "'both' is Bidirectional"),
        (
            lambda: stack(lstm(name="a"), layers.BatchNormalization(name="n"), lstm(name="b")),
            "'n' .* between 'a' and 'b'",
        ),
        (lambda: stack(layers.LSTM(3), layers.RepeatVector(2, name="v"), lstm()), "'v' .RepeatVector."),
        (
            lambda: build_text_model(9, units=4, layers=2, embedding=4, tie_weights=True),
            "'embedding' is used in several",
        ),
    ],
)
def test_model_that_cannot_be_cut_is_refused_with_its_reason(model, said):
    with pytest.raises(ModelError, match=said) as error:
        trunk_of(model())
    assert "processes" in str(error.value)


def test_subclassed_model_is_refused():
    class Own(keras.Model):
        def call(self, x):
            return x

    with pytest.raises(ModelError, match="has no order of layers"):
        trunk_of(Own())
