"""A character model for a CPU: an embedding, one LSTM, Adam with clipped gradients, and the best weights kept."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

from documents.program import STEPS_PER_EPOCH, Program, characters, fit, text_ids

LENGTH, WIDTH, UNITS, BATCH = 16, 32, 64, 16


def build() -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            layers.Embedding(len(characters()), WIDTH),
            layers.LSTM(UNITS, return_sequences=True),
            layers.Dense(len(characters()), activation="softmax"),
        ]
    )
    optimizer = keras.optimizers.Adam(learning_rate=0.002, clipnorm=1.0)
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy")
    return model


def dataset(ids: np.ndarray) -> Any:
    """Pieces of the text in random order, each with the same piece one character on."""
    import tensorflow as tf

    pieces = tf.data.Dataset.from_tensor_slices(ids).batch(LENGTH + 1, drop_remainder=True).cache()
    pairs = pieces.map(lambda piece: (piece[:-1], piece[1:])).shuffle(10_000, seed=1)
    return pairs.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def train(model: keras.Model, folder: Path) -> dict[str, list[float]]:
    split = STEPS_PER_EPOCH * BATCH * (LENGTH + 1)
    callbacks = [
        keras.callbacks.ModelCheckpoint(folder / "best.keras", save_best_only=True),
        keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True),
    ]
    ids = text_ids()
    return fit(
        model,
        dataset(ids[:split]),
        validation_data=dataset(ids[split : split + split // 5]),
        callbacks=callbacks,
    )


def inputs() -> np.ndarray:
    """(16, LENGTH) int32."""
    return text_ids()[: 16 * LENGTH].reshape(16, LENGTH)


CHARACTER_MODEL = Program("character model", build, train, inputs, characters())
