"""What a caller gives to be trained and judged on: kinds of data that work, and clear errors for the others."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest
from keras import layers

from cellerate.compress.distill import distill
from cellerate.compress.prune import prune
from cellerate.compress.quantize import quantize
from cellerate.compress.record import QualityGate
from cellerate.compress.sparsify import sparsify
from cellerate.errors import ConfigError, DataError, TrainingError

pytestmark = pytest.mark.keras

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 5, 3)).astype("float32")
Y = X[:, -1, :1].copy()


def forecaster() -> keras.Model:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((5, 3)), layers.LSTM(16), layers.Dense(1)])
    model.compile("adam", "mse")
    return model


COMPRESSING: dict[str, Callable[..., Any]] = {
    "quantize": lambda data, **given: quantize(forecaster(), data, gate=QualityGate(0), **given),
    "prune": lambda data, **given: prune(forecaster(), data, **given),
    "sparsify": lambda data, **given: sparsify(forecaster(), data, **given),
    "distill": lambda data, **given: distill(forecaster(), forecaster(), data, **given),
}


@pytest.mark.parametrize("name", ["prune", "distill"])
def test_data_frames_and_tensors_are_trained_on_like_arrays(name: str) -> None:
    run = COMPRESSING[name]
    (_, right), *others = (
        run((x, y), steps=2, batch_size=8)
        for x, y in (
            (X, Y),
            # Labels of rows that are not their numbers.
            (X, pd.DataFrame(Y, index=range(100, 124))),
            (keras.ops.convert_to_tensor(X), keras.ops.convert_to_tensor(Y)),
        )
    )
    for _, record in others:
        assert record.quality_after == pytest.approx(right.quality_after, rel=1e-4)


WRONG = {
    "a generator": ((each for each in [(X, Y)]), "is a generator; expected a tuple"),
    "a list": ([X, Y], "is a list; expected a tuple"),
    "one array": (X, "is a ndarray; expected a tuple"),
    "a path": ("book.txt", "is a str; expected a tuple"),
    "x alone": ((X,), "is a tuple of 1; expected"),
    "numbers in lists": ((X, Y.tolist()), "where an array is expected: give NumPy arrays"),
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("argument", ["data", "validation"])
@pytest.mark.parametrize("name", COMPRESSING)
def test_other_data_are_refused_by_the_name_of_their_argument(name: str, argument: str, kind: str) -> None:
    wrong, message = WRONG[kind]
    given = {"data": (X, Y), "validation": None, argument: wrong}
    with pytest.raises(ConfigError, match=f"^{argument} .*{message}"):
        COMPRESSING[name](given["data"], validation=given["validation"], steps=2)


@pytest.mark.parametrize("name", COMPRESSING)
def test_arrays_to_judge_on_need_rows_and_as_many_in_each(name: str) -> None:
    for wrong, rows in ((X[:0], Y[:0]), r"\[0\]"), ((X[:9], Y), r"\[9, 24\]"):
        with pytest.raises(DataError, match=f"arrays of validation have {rows} rows"):
            COMPRESSING[name]((X, Y), validation=wrong, steps=2)


class Endless(keras.utils.PyDataset):
    """Batches without an end, as Keras allows for `fit` with `steps_per_epoch`."""

    num_batches: int | None = None

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return X, Y


class Three(Endless):
    """A dataset that says its length in the other way that Keras knows."""

    num_batches = 3


class Repeated:
    """As `tf.data.Dataset.repeat` makes one."""

    def __iter__(self) -> Any:
        raise AssertionError("an endless walk has begun")

    def cardinality(self) -> int:
        return -1


@pytest.mark.parametrize("name", COMPRESSING)
def test_data_that_never_end_are_refused_before_judging_on_them_forever(name: str) -> None:
    with pytest.raises(ConfigError, match="data never ends: give the PyDataset a __len__"):
        COMPRESSING[name](Endless(), steps=2)
    COMPRESSING[name](Three(), steps=2)
    with pytest.raises(ConfigError, match=r"never ends: leave out repeat\(\)"):
        COMPRESSING[name]((X, Y), validation=Repeated(), steps=2)


@pytest.mark.parametrize("name", ["quantize", "sparsify", "distill"])
def test_nan_in_data_is_not_blamed_on_the_learning_rate(name: str) -> None:
    holed = X.copy()
    holed[3, 2, 1] = np.nan
    with pytest.raises(TrainingError, match="data has NaN or infinity in a batch"):
        COMPRESSING[name]((holed, Y), steps=2)


def test_nan_in_weights_is_not_blamed_on_the_learning_rate():
    model = forecaster()
    model.layers[-1].bias.assign([np.nan])
    with pytest.raises(TrainingError, match="before any training: look for NaN in the weights"):
        sparsify(model, (X, Y), steps=2)


def steep(truth: Any, found: Any) -> Any:
    """A loss that overflows once the outputs have moved away from 0."""
    return keras.ops.exp(40 * keras.ops.abs(found))


def test_a_rate_that_is_too_high_is_named():
    model = forecaster()
    model.compile("adam", steep)
    with pytest.raises(TrainingError, match="give a lower learning_rate"):
        sparsify(model, (X, Y), steps=20, rounds=1, learning_rate=100.0, judge=lambda model: 0.0)


@pytest.mark.parametrize("name", COMPRESSING)
def test_seed_and_loss_are_checked_by_every_way(name: str) -> None:
    for seed in (-1, "x"):
        with pytest.raises(ConfigError, match="seed must be a whole number at least 0"):
            COMPRESSING[name]((X, Y), seed=seed, steps=2)
    with pytest.raises(ConfigError, match="loss is 'nope'; expected a loss that Keras knows"):
        COMPRESSING[name]((X, Y), loss="nope", steps=2)
