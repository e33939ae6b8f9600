"""Text generation with layer normalization, on one-hot characters that `tf.data` prepares."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

from documents.program import STEPS_PER_EPOCH, Program, characters, fit, text_ids

LENGTH, UNITS, BATCH = 10, 48, 16


def build() -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((LENGTH, len(characters()))),
            layers.LSTM(UNITS, return_sequences=True, kernel_initializer="glorot_uniform"),
            layers.LayerNormalization(),
            layers.LSTM(UNITS),
            layers.LayerNormalization(),
            layers.Dense(len(characters()), activation="softmax"),
        ]
    )
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
    return model


def dataset(batches: int) -> Any:
    """Windows of the text, each with the character after it."""
    import tensorflow as tf

    starts = 5 * np.arange(batches * BATCH)
    windows = text_ids()[starts[:, None] + np.arange(LENGTH + 1)]
    data = tf.data.Dataset.from_tensor_slices((windows[:, :-1], windows[:, -1]))
    data = data.map(lambda ids, after: (tf.one_hot(ids, len(characters())), after), tf.data.AUTOTUNE)
    return data.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def train(model: keras.Model, folder: Path) -> dict[str, list[float]]:
    return fit(model, dataset(STEPS_PER_EPOCH))


def inputs() -> np.ndarray:
    """(16, LENGTH, V) float32."""
    windows = text_ids()[: 16 * LENGTH].reshape(16, LENGTH)
    return np.eye(len(characters()), dtype=np.float32)[windows]


TEXT_GENERATION = Program("text generation", build, train, inputs, characters(), slow=True)
