"""An LSTM calibrated on a long series of records, in windows that `tf.data` cuts."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

from documents.program import STEPS_PER_EPOCH, Program, fit, records

LENGTH, FEATURES, UNITS, BATCH = 12, 5, 64, 16


def build() -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((LENGTH, FEATURES)), layers.LSTM(UNITS), layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(clipnorm=1.0), loss=keras.losses.MeanSquaredError())
    return model


def windows() -> tuple[np.ndarray, np.ndarray]:
    """(N, LENGTH, FEATURES) and (N, 1) float32: all windows, and the first feature of the record after each."""
    values = records(STEPS_PER_EPOCH * BATCH + LENGTH, FEATURES)
    cut = np.lib.stride_tricks.sliding_window_view(values, LENGTH, axis=0)[:-1]
    return np.ascontiguousarray(cut.transpose(0, 2, 1)), values[LENGTH:, :1]


def dataset(values: np.ndarray) -> Any:
    """Windows of the records in random order, each with the first feature of the record after it."""
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices(values).window(LENGTH + 1, shift=1, drop_remainder=True)
    data = data.flat_map(lambda window: window.batch(LENGTH + 1)).cache().shuffle(1000, seed=1)
    data = data.map(lambda window: (window[:-1], window[-1, :1])).batch(BATCH, drop_remainder=True)
    # `flat_map` hides how many there are, and Keras warns at the end of data that it did not foresee.
    data = data.apply(tf.data.experimental.assert_cardinality((len(values) - LENGTH) // BATCH))
    return data.prefetch(tf.data.AUTOTUNE)


def train(model: keras.Model, folder: Path) -> dict[str, list[float]]:
    return fit(model, dataset(records(STEPS_PER_EPOCH * BATCH + LENGTH, FEATURES)))


def inputs() -> np.ndarray:
    """(16, LENGTH, FEATURES) float32."""
    return windows()[0][:16]


LONG_RECORDS = Program("long records", build, train, inputs, slow=True)
