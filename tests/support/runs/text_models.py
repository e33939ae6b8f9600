"""Untrained text models of every form, the same on every backend."""

import keras
import numpy as np

from cellerate.data.tokenizers.tokenizer import CharacterTokenizer
from cellerate.models.storage import TaskRecord
from cellerate.models.text import build_text_model

CHARACTERS = "abcdefghijklm .\n"
V = len(CHARACTERS)
TOKENIZER = CharacterTokenizer(CHARACTERS)
IN_ORDER = sorted(CHARACTERS)
RECORD = TaskRecord("text", {"tokenizer": TOKENIZER.to_config()})


def made(vocabulary=V, seed=1, **options):
    """An untrained model with the same weights on every backend, large enough for confident predictions."""
    given = {"embedding": 6, "units": 19, "layers": 2, "layer_norm": True} | options
    return filled(build_text_model(vocabulary, **given), seed)


def filled(model, seed):
    random = np.random.default_rng(seed)
    model.set_weights([2 / len(w) ** 0.5 * random.normal(size=w.shape) for w in model.get_weights()])
    return model


def chain(*layers, mask=False, activation=None):
    table = keras.layers.Embedding(V, 5, mask_zero=mask, name="table")
    head = keras.layers.Dense(V, activation=activation)
    return keras.Sequential([keras.Input((None,), dtype="int32"), table, *layers, head])


def many_to_one():
    return chain(keras.layers.LSTM(9))


def softmax():
    return chain(keras.layers.LSTM(9, return_sequences=True), activation="softmax")


def masked():
    return chain(*[keras.layers.LSTM(9, return_sequences=True) for _ in range(2)], mask=True)


def gru():
    return chain(keras.layers.GRU(9, return_sequences=True))


def of_vectors(*layers, activation=None):
    """A model that reads one-hot vectors."""
    return keras.Sequential([keras.Input((None, V)), *layers, keras.layers.Dense(V, activation=activation)])


def of_gru():
    return of_vectors(keras.layers.GRU(9, return_sequences=True))


def one_hot():
    return of_vectors(keras.layers.LSTM(9, return_sequences=True), activation="softmax")


def one_hot_to_last():
    """A text generator as in tutorials; the kernel of the first layer has more rows than columns."""
    stack = [
        keras.layers.LSTM(3, return_sequences=True),
        keras.layers.LayerNormalization(),
        keras.layers.LSTM(9),
    ]
    return of_vectors(*stack)


def one_hot_through_dense():
    return of_vectors(keras.layers.Dense(5), keras.layers.LSTM(9), activation="softmax")


def one_hot_through_relu():
    return of_vectors(keras.layers.Dense(5, activation="relu"), keras.layers.LSTM(9))


def one_hot_masked():
    return of_vectors(
        keras.layers.Masking(), keras.layers.LSTM(9, return_sequences=True), keras.layers.LSTM(9)
    )


def last_softmax():
    return chain(keras.layers.LSTM(9), activation="softmax")


ONE_HOT = [one_hot, one_hot_to_last, one_hot_through_dense, one_hot_through_relu, one_hot_masked]


def stateful():
    ids = keras.Input((None,), 1, dtype="int32")
    x = keras.layers.Embedding(V, 5)(ids)
    x = keras.layers.LSTM(9, return_sequences=True, stateful=True)(x)
    return keras.Model(ids, keras.layers.Dense(V)(x))


def tied():
    return build_text_model(V, embedding=9, units=9, tie_weights=True)


def convolved(kernel_size=3, dilation_rate=1, *, one_hot=False, sequences=True, **options):
    """A causal convolution before an LSTM."""
    options = {"padding": "causal", "activation": "relu"} | options
    layers = [
        keras.layers.Conv1D(7, kernel_size, dilation_rate=dilation_rate, **options),
        keras.layers.LSTM(9, return_sequences=sequences),
    ]
    return filled(of_vectors(*layers) if one_hot else chain(*layers), 2)
