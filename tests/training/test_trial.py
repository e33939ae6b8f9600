"""A few steps of training, timed."""

import math

import keras
import numpy as np
import pytest

from cellerate.training.settings import TrainingSettings
from cellerate.training.trial import try_training

pytestmark = [pytest.mark.keras, pytest.mark.backends]


class Rows:
    """Batches of a plane."""

    item, items_per_batch, batch_size = "rows", 4, 4

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def batch(self, epoch: int, index: int) -> tuple[np.ndarray, np.ndarray]:
        x = np.random.default_rng(100 * epoch + index).normal(size=(4, 3)).astype("float32")
        return x, x.sum(1, keepdims=True)

    def fingerprint(self) -> str:
        return "rows"


def model() -> keras.Model:
    inputs = keras.Input((3,))
    return keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="zeros")(inputs))


def tried(source, **options):
    trained = model()
    settings = TrainingSettings(learning_rate=0.01, optimizer="sgd", momentum=0.0)
    found = try_training(
        trained, source, loss=keras.losses.MeanSquaredError(), settings=settings, policy="float32", **options
    )
    return found, trained


@pytest.mark.parametrize("batches", [1, 3, 50])
def test_try_training_times_as_many_steps_as_are_asked_for(batches):
    source = Rows(batches)
    found, _ = tried(source, steps=7)
    assert len(found.steps.seconds) == 7
    assert all(0 < seconds < 60 for seconds in found.steps.seconds)


def test_try_training_gives_the_mean_loss_of_the_timed_steps_and_trains():
    source = Rows(5)
    found, trained = tried(source, steps=7)
    # By hand: four batches to warm up, then one epoch and two steps of the next.
    weights, bias, losses = np.zeros((3, 1)), 0.0, []
    walked = [(0, k) for k in range(4)] + [(1, k) for k in range(5)] + [(2, k) for k in range(2)]
    for place in walked:
        x, y = Rows(5).batch(*place)
        error = x @ weights + bias - y
        losses.append(float(np.square(error).mean()))
        weights -= 0.01 * 2 * x.T @ error / len(x)
        bias -= 0.01 * 2 * float(error.mean())
    assert found.loss == pytest.approx(np.mean(losses[4:]), rel=1e-4)
    np.testing.assert_allclose(trained.get_weights()[0], weights, rtol=1e-4)


def test_try_training_for_no_time_takes_the_fewest_steps():
    assert len(tried(Rows(50), seconds=0.0)[0].steps.seconds) == 8


def test_try_training_for_some_time_takes_what_fits_and_no_more_than_the_most():
    found, _ = tried(Rows(50), seconds=1e6)
    assert len(found.steps.seconds) == 200
    assert math.isfinite(found.loss)


def test_try_training_that_diverges_has_a_loss_that_is_no_number():
    class Broken(Rows):
        def batch(self, epoch, index):
            x, y = super().batch(epoch, index)
            return x, y * np.float32(np.nan)

    assert math.isnan(tried(Broken(3), steps=4)[0].loss)


def test_try_training_leaves_no_thread_behind():
    import threading

    before = set(threading.enumerate())
    tried(Rows(40), steps=3)
    assert [t for t in threading.enumerate() if t not in before and "cellerate" in t.name] == []
