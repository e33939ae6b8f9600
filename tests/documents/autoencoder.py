"""A layer as an activation, `ReLU` with a slope: a model with batches of one, and an autoencoder."""

import dataclasses
import functools
from pathlib import Path

import keras
import numpy as np
from keras import layers

from documents.program import STEPS_PER_EPOCH, Program, fit, records

LENGTH, FEATURES, BATCH = 8, 6, 8


class Pieces(keras.utils.PyDataset):
    """Batches of pieces of a long series, in their order; with the record after each, or the piece again.

    Args:
        count: The number of batches.
        batch: The number of pieces in a batch.
        itself: Whether a piece is its own target.
    """

    def __init__(self, count: int, batch: int, *, itself: bool) -> None:
        super().__init__()
        self.count, self.batch, self.itself = count, batch, itself

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        starts = number * self.batch + np.arange(self.batch)
        values = records(STEPS_PER_EPOCH * BATCH + LENGTH, FEATURES)
        pieces = values[starts[:, None] + np.arange(LENGTH)]
        return pieces, pieces if self.itself else values[starts + LENGTH]


def build_plain(rate: float = 0.2) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input(batch_shape=(1, LENGTH, FEATURES)),
            layers.LSTM(
                64, activation=layers.ReLU(negative_slope=0.05), stateful=False, return_sequences=True
            ),
            layers.Dropout(rate),
            layers.LSTM(32),
            layers.Dropout(rate),
            layers.Dense(FEATURES),
        ]
    )
    model.compile(
        loss="mean_squared_error", optimizer=keras.optimizers.Adam(learning_rate=0.001), metrics=["accuracy"]
    )
    return model


def train_plain(model: keras.Model, folder: Path) -> dict[str, list[float]]:
    return fit(model, Pieces(STEPS_PER_EPOCH, 1, itself=False))


def build_autoencoder() -> keras.Model:
    """The pieces of a series through a small vector, and back; both directions at once in the encoder."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((LENGTH, FEATURES)),
            layers.Bidirectional(layers.LSTM(24, activation=layers.ReLU(negative_slope=0.05))),
            layers.RepeatVector(LENGTH),
            layers.LSTM(32, return_sequences=True),
            layers.TimeDistributed(layers.Dense(FEATURES)),
        ]
    )
    model.compile(optimizer="adam", loss="mse")
    return model


def train_autoencoder(model: keras.Model, folder: Path) -> dict[str, list[float]]:
    return fit(model, Pieces(STEPS_PER_EPOCH, BATCH, itself=True))


BATCH_OF_ONE = Program(
    "batch of one",
    build_plain,
    train_plain,
    lambda: Pieces(1, 1, itself=False)[0][0],
    slow=True,
)
BATCH_OF_ONE_WITHOUT_DROPOUT = dataclasses.replace(
    BATCH_OF_ONE, name="batch of one without dropout", build=functools.partial(build_plain, rate=0.0)
)
AUTOENCODER = Program(
    "autoencoder",
    build_autoencoder,
    train_autoencoder,
    lambda: Pieces(1, BATCH, itself=True)[0][0],
    slow=True,
)
