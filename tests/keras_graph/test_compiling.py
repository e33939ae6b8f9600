"""What a model that is compiled as another one shares with it, and what not."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from cellerate.compress.distill import distill
from cellerate.compress.prune import prune
from cellerate.compress.quantize import quantize
from cellerate.compress.sparsify import sparsify
from cellerate.keras_graph.compiling import compile_as

pytestmark = [
    pytest.mark.keras,
    # Keras's own convert_to_numpy calls np.array on a framework's tensor, which NumPy 2 warns about.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]
DATA = np.ones((8, 4, 3), "float32"), np.ones((8, 2), "float32")


def build(units: int = 8) -> keras.Model:
    return keras.Sequential([keras.Input((4, 3)), layers.LSTM(units), layers.Dense(2)])


def own_loss(y: Any, found: Any) -> Any:
    return keras.ops.mean(keras.ops.abs(y - found), axis=-1)


def test_model_is_compiled_with_what_the_other_one_was_and_states_of_its_own() -> None:
    source, model = build(), build()
    source.compile(
        keras.optimizers.Adam(0.03, clipnorm=1.0),
        loss=lambda y, found: 2 * own_loss(y, found),
        metrics=["mae", keras.metrics.MeanSquaredError(name="squares")],
        loss_weights=0.5,
    )
    source.fit(*DATA, batch_size=4, verbose=0)
    assert compile_as(model, source) is model
    assert model.optimizer.get_config() == source.optimizer.get_config()
    assert int(model.optimizer.iterations) == 0 < int(source.optimizer.iterations)
    model.set_weights(source.get_weights())
    expected = source.evaluate(*DATA, verbose=0, return_dict=True)
    assert expected.keys() == {"loss", "mae", "squares"}
    assert model.evaluate(*DATA, verbose=0, return_dict=True) == pytest.approx(expected)
    mine, its = ({id(v) for v in one.metrics_variables} for one in (model, source))
    assert mine and not mine & its


def test_model_stays_uncompiled_if_the_other_one_is() -> None:
    assert not compile_as(build(), build()).compiled


def test_what_cannot_be_copied_leaves_the_model_uncompiled_and_says_so() -> None:
    class Own(keras.metrics.Mean):
        def __init__(self, needed: int) -> None:
            super().__init__(name="own")

    source = build()
    source.compile("adam", "mse", metrics=[Own(3)])
    with pytest.warns(UserWarning, match=r"returned uncompiled.*compile\(\).*unexpected keyword"):
        assert not compile_as(build(), source).compiled


@pytest.mark.parametrize("by", ["prune", "quantize", "sparsify", "distill", "distill into an uncompiled one"])
def test_compressed_model_is_compiled_as_the_given_one(by: str) -> None:
    model, student = build(), build(4)
    model.compile(keras.optimizers.SGD(0.02, momentum=0.5, name="own"), own_loss, metrics=["mse"])
    if by == "distill":
        student.compile(keras.optimizers.SGD(0.02, momentum=0.5, name="own"), own_loss, metrics=["mse"])
    found, _ = {
        "prune": lambda: prune(model, DATA, steps=2, multiple_of=1),
        "quantize": lambda: quantize(model),
        "sparsify": lambda: sparsify(model, DATA, steps=2),
    }.get(by, lambda: distill(model, student, DATA, steps=2))()
    assert found.optimizer.get_config() == model.optimizer.get_config()
    assert found.loss is own_loss
    assert found.evaluate(*DATA, verbose=0, return_dict=True).keys() == {"loss", "mse"}
    found.fit(*DATA, verbose=0)
