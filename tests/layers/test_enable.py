"""Models that Keras loads while `enable` is in force."""

from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import pytest

from cellerate.layers.accelerate import disable, enable
from cellerate.layers.explain import explain

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]
X, Y = np.zeros((2, 8, 4)), np.zeros((2, 3))


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    disable()


def test_compiled_model_loads_compiled_and_trains_in_whole_steps(tmp_path: Path) -> None:
    plain = keras.Sequential([keras.Input((8, 4)), keras.layers.LSTM(6), keras.layers.Dense(3)])
    plain.compile(keras.optimizers.Adam(0.02), "mse")
    plain.fit(X, Y, verbose=0)
    plain.save(tmp_path / "a.keras")
    enable()
    loaded = keras.saving.load_model(tmp_path / "a.keras")
    assert loaded.compiled and float(loaded.optimizer.learning_rate) == pytest.approx(0.02)
    loaded.fit(X, Y, verbose=0)
    assert int(loaded.optimizer.iterations) == 2
    assert explain(loaded).training_step == "whole steps in one native call"
