"""Timed trials of a few training steps."""

import math

import keras
import numpy as np
import pytest

from cellerate.training.settings import TrainingSettings
from cellerate.training.trial import Trainer, try_training

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
    # By hand: one epoch and two steps of the next, from the weights before the warm-up.
    weights, bias, losses = np.zeros((3, 1)), 0.0, []
    walked = [(1, k) for k in range(5)] + [(2, k) for k in range(2)]
    for place in walked:
        x, y = Rows(5).batch(*place)
        error = x @ weights + bias - y
        losses.append(float(np.square(error).mean()))
        weights -= 0.01 * 2 * x.T @ error / len(x)
        bias -= 0.01 * 2 * float(error.mean())
    assert found.loss == pytest.approx(np.mean(losses), rel=1e-4)
    np.testing.assert_allclose(trained.get_weights()[0], weights, rtol=1e-4)


def test_try_training_without_time_takes_the_fewest_steps():
    assert len(tried(Rows(50), seconds=0.0)[0].steps.seconds) == 4


def test_try_training_for_some_time_takes_what_fits_and_no_more_than_the_most():
    found, _ = tried(Rows(50), seconds=1e6)
    assert len(found.steps.seconds) == 200
    assert math.isfinite(found.loss)


def test_try_training_that_diverges_has_a_nan_loss():
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


def regularised() -> keras.Model:
    """A model with other training state than weights: dropout seeds and normalisation averages."""
    inputs = keras.Input((3,))
    x = keras.layers.BatchNormalization()(keras.layers.Dense(8, activation="tanh")(inputs))
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dropout(0.5, seed=4)(x)))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_trainer_restarts_with_its_original_weights_seeds_and_optimizer(optimizer):
    trained = regularised()
    before = [np.array(weight) for weight in trained.get_weights()]
    settings = TrainingSettings(learning_rate=0.05, optimizer=optimizer, momentum=0.9)
    trainer = Trainer(
        trained, Rows(4), loss=keras.losses.MeanSquaredError(), settings=settings, policy="float32"
    )
    # The warm-up left no state.
    for weight, value in zip(trained.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, value)
    first = trainer.turn(6)
    further = trainer.turn(6)
    after = [np.array(weight) for weight in trained.get_weights()]
    trainer.restart()
    for weight, value in zip(trained.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, value)
    assert trainer.turn(6).loss == pytest.approx(first.loss, rel=1e-6)
    assert trainer.turn(6).loss == pytest.approx(further.loss, rel=1e-6)
    for weight, value in zip(trained.get_weights(), after, strict=True):
        np.testing.assert_allclose(weight, value, rtol=1e-5, atol=1e-6)
    # It does train: a continued turn has another loss.
    assert abs(further.loss - first.loss) > 1e-3 * first.loss


def test_trainer_resumed_from_a_file_equals_an_uninterrupted_one(tmp_path):
    settings = TrainingSettings(learning_rate=0.01)

    def trainer():
        return Trainer(
            model(), Rows(4), loss=keras.losses.MeanSquaredError(), settings=settings, policy="float32"
        )

    whole = trainer()
    whole.turn(8)
    expected = whole.turn(3).loss
    first = trainer()
    first.turn(8)
    first.save(tmp_path / "state.npz", steps=8, seconds=0.5)
    second = trainer()
    assert second.load(tmp_path / "state.npz") == {"steps": 8, "seconds": 0.5}
    assert second.turn(3).loss == pytest.approx(expected, rel=1e-5)
    second.restart()
    whole.restart()
    assert second.turn(1).loss == pytest.approx(whole.turn(1).loss, rel=1e-5)
