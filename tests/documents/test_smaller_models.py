"""The model of the six steps made smaller: what comes back is used as the model that was given."""

from collections.abc import Callable

import keras
import numpy as np
import pytest

import cellerate
from documents import six_steps
from documents.pairs import accelerated

pytestmark = [pytest.mark.keras, pytest.mark.few_steps]

Shrink = Callable[[keras.Model, tuple[np.ndarray, np.ndarray]], tuple[keras.Model, object]]
WAYS: dict[str, Shrink] = {
    "prune": lambda model, data: cellerate.prune(model, data, keep=0.5, steps=2),
    "quantize": lambda model, data: cellerate.quantize(model, data, steps=2),
    "distill": lambda model, data: cellerate.distill(model, six_steps.build((16, 8)), data, steps=2),
}


@pytest.mark.parametrize("way", WAYS)
def test_smaller_model_is_judged_and_trained_as_the_one_it_came_from(way: str) -> None:
    model, (x, y) = accelerated(six_steps.SIX_STEPS), six_steps.samples()
    smaller, _ = WAYS[way](model, (x[:320], y[:320]))
    judged = smaller.evaluate(x[:64], y[:64], verbose=0, return_dict=True)
    assert judged.keys() == model.evaluate(x[:64], y[:64], verbose=0, return_dict=True).keys()
    history = smaller.fit(x[:64], y[:64], verbose=0).history
    assert history.keys() == judged.keys()
    assert np.isfinite(history["loss"]).all()
