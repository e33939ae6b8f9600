"""Models drawn at random train on the engine as stock Keras does, also with last batches that are smaller."""

from typing import Any

import keras
import numpy as np
import pytest

from support.keras_models.engine_models import compiled
from support.keras_models.random_models import RandomModel

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
    # Pooling and cropping lose the masks of some models.
    pytest.mark.filterwarnings("ignore:.*was passed an input with a mask attached to it"),
]
# The other backends compile stock Keras for every model.
SEEDS = range(30) if keras.backend.backend() == "torch" else range(3)


def trained(drawn: RandomModel, settings: Any, batches: list[Any], engine: str | None) -> dict[str, Any]:
    """The losses of training a copy, its weights after each batch, and the losses of evaluating the first."""
    model = compiled(drawn.model, engine, **settings())
    losses, weights = [], []
    for x, y in batches:
        losses.append(model.train_on_batch(x, y))
        weights.append(model.get_weights())
    return {"losses": losses, "weights": weights, "evaluated": model.test_on_batch(*batches[0])}


@pytest.mark.parametrize("seed", SEEDS)
def test_any_model_trains_like_keras(seed: int) -> None:
    drawn = RandomModel(seed)
    settings = drawn.settings()
    batches = [drawn.batch(5), drawn.batch(5)]
    if keras.backend.backend() == "torch":
        # Several pieces, and another length if the model takes any.
        batches += [drawn.batch(19, steps=4), drawn.batch(1)]
    stock, ours = (trained(drawn, settings, batches, engine) for engine in (None, "require"))
    words = "\n".join(drawn.words)
    np.testing.assert_allclose(ours["losses"], stock["losses"], rtol=3e-5, atol=1e-6, err_msg=words)
    np.testing.assert_allclose(ours["evaluated"], stock["evaluated"], rtol=1e-4, err_msg=words)
    first = drawn.model.get_weights()
    for our, one in zip(ours["weights"], stock["weights"], strict=True):
        moved = [float(np.abs(now - before).max()) for now, before in zip(one, first, strict=True)]
        for variable, mine, theirs, far in zip(drawn.model.weights, our, one, moved, strict=True):
            most = 2e-4 * far + 2e-6 * max(moved) + 2e-7
            np.testing.assert_allclose(
                mine, theirs, rtol=2e-5, atol=most, err_msg=f"{variable.path}\n{words}"
            )
