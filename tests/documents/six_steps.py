"""Two layers on sequences that are padded to one length: the model that six steps take into production."""

import functools
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

from documents.program import STEPS_PER_EPOCH, Program, fit, records

LENGTH, FEATURES, CLASSES, BATCH = 12, 6, 3, 16


def build(units: tuple[int, int] = (48, 32), **optimizer: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((LENGTH, FEATURES)),
            layers.Masking(),
            layers.LSTM(units[0], return_sequences=True),
            layers.LSTM(units[1]),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    adam = keras.optimizers.Adam(**optimizer)
    model.compile(optimizer=adam, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@functools.cache
def samples() -> tuple[np.ndarray, np.ndarray]:
    """(N, LENGTH, FEATURES) float32 and (N,) int32: pieces of unlike length, and which of three features is largest."""
    count = STEPS_PER_EPOCH * BATCH
    values = records(count + LENGTH, FEATURES)
    lengths = np.random.default_rng(1).integers(LENGTH // 2, LENGTH + 1, count)
    pieces = [values[n : n + length] for n, length in enumerate(lengths)]
    classes = np.array([piece[:, :CLASSES].sum(axis=0).argmax() for piece in pieces], np.int32)
    order = np.random.default_rng(2).permutation(count)
    padded = keras.utils.pad_sequences(pieces, LENGTH, dtype="float32", padding="post")
    return padded[order], classes[order]


def dataset() -> Any:
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices(samples())
    return data.cache().batch(BATCH).prefetch(tf.data.AUTOTUNE)


def train(model: keras.Model, folder: Path) -> dict[str, list[float]]:
    return fit(model, dataset())


def inputs() -> np.ndarray:
    """(16, LENGTH, FEATURES) float32."""
    return samples()[0][:16]


SIX_STEPS = Program("six steps", build, train, inputs)
