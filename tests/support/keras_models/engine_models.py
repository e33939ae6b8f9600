"""Small models that the engine takes, with data, and helpers that compare them with stock Keras."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import layers, ops

import cellerate
from cellerate.models.autoencoder import build_autoencoder
from cellerate.models.forecast import build_forecast_model
from cellerate.models.losses import QuantileLoss
from cellerate.training.stretches import ErrorByStretch
from support.keras_models.engine_sequences import OUT, SEQUENCES, D, T, V

WORDS = 900
"""Words of a vocabulary of which a batch reads little."""


class Case(NamedTuple):
    """A model with its training data and settings.

    Attributes:
        model: Builds the model.
        data: A key of `DATA`.
        loss: The loss for `compile`.
        metrics: Builds the metrics.
        options: Builds the other arguments of `compile`.
    """

    model: Callable[[], keras.Model]
    data: str
    loss: Any
    metrics: Callable[[], Any] = list
    options: Callable[[], dict[str, Any]] = dict


def _sequential(*rows: Any) -> Callable[[], keras.Model]:
    """A function that builds a model of layers; each of `rows` is a function that makes one layer."""
    return lambda: keras.Sequential([row() for row in rows])


def _series() -> Any:
    return keras.Input((T, D))


def _ids() -> Any:
    return keras.Input((T,), dtype="int32")


def _free() -> Any:
    return keras.Input((None, D))


def _branches() -> keras.Model:
    """Shared layers, several readers of one value, and all the merges."""
    inputs = keras.Input((T, D))
    first, second = (layers.LSTM(6, return_sequences=True)(inputs) for _ in range(2))
    summed = layers.Add()([first, second])
    joined = layers.Concatenate()([layers.Multiply()([first, summed]), second, summed])
    shared = layers.Dense(5)
    difference = layers.Subtract()([shared(joined), shared(layers.Average()([joined, joined]))])
    pooled = layers.GlobalMaxPooling1D()(layers.Concatenate()([difference, joined]))
    return keras.Model(inputs, layers.Dense(OUT)(pooled))


def _shared_embedding() -> keras.Model:
    """One table that two layers read."""
    inputs = keras.Input((T,), dtype="int32")
    table = layers.Embedding(V, 8)
    forward = layers.LSTM(6, return_sequences=True)(table(inputs))
    both = layers.Concatenate()([forward, table(inputs)])
    return keras.Model(inputs, layers.Dense(V)(both))


def _two_inputs() -> keras.Model:
    series, other = keras.Input((T, D), name="series"), keras.Input((4,), name="other")
    joined = layers.Concatenate()([layers.LSTM(6)(series), layers.Dense(3, activation="elu")(other)])
    return keras.Model({"other": other, "series": series}, layers.Dense(OUT)(joined))


def _translator() -> keras.Model:
    """An encoder whose last states begin a decoder, which reads the targets one step late."""
    source, target = keras.Input((None,), dtype="int32"), keras.Input((T,), dtype="int32")
    _, *states = layers.LSTM(6, return_state=True)(layers.Embedding(V, 5, mask_zero=True)(source))
    decoded = layers.LSTM(6, return_sequences=True)(layers.Embedding(V, 5)(target), initial_state=states)
    return keras.Model([source, target], layers.Dense(V)(decoded))


def _lines() -> keras.Model:
    return build_autoencoder(V, embedding=6, units=7, latent=5, seed=3)


def _states() -> keras.Model:
    """States that layers read, and that begin another, backward layer."""
    inputs = keras.Input((T, D))
    outputs, h, c = layers.LSTM(6, return_sequences=True, return_state=True)(inputs)
    again = layers.LSTM(6, go_backwards=True)(outputs, initial_state=[layers.Dense(6)(h), c])
    return keras.Model(inputs, layers.Dense(OUT)(layers.Concatenate()([again, h, c])))


def _tagger() -> keras.Model:
    """Two outputs for each step of padded texts."""
    ids = keras.Input((T,), dtype="int32")
    hidden = layers.LSTM(6, return_sequences=True)(layers.Embedding(V, 5, mask_zero=True)(ids))
    return keras.Model(ids, [layers.Dense(V, name="tag")(hidden), layers.Dense(OUT, name="level")(hidden)])


def _heads(shared: bool) -> keras.Model:
    """Two outputs, of one value or of two."""
    inputs = keras.Input((T, D))
    hidden = layers.LSTM(6)(inputs)
    other = hidden if shared else layers.Dense(5, activation="tanh")(hidden)
    outputs = [
        layers.Dense(OUT, name="level")(hidden),
        layers.Dense(4, activation="softmax", name="kind")(other),
    ]
    return keras.Model(inputs, outputs)


def _quantiles() -> keras.Model:
    """Three quantiles of two targets at each of four steps."""
    inputs = keras.Input((T, D))
    flat = layers.Dense(4 * OUT * 3)(layers.LSTM(6)(inputs))
    center = layers.Reshape((1, OUT, 3))(layers.Dense(OUT * 3)(layers.LSTM(5)(inputs)))
    return keras.Model(inputs, layers.Add()([layers.Reshape((4, OUT, 3))(flat), center]))


def _forecaster(**options: Any) -> Callable[[], keras.Model]:
    """The model that `train series` trains."""
    return lambda: build_forecast_model(T, D, 4, OUT, target_columns=(0, 2), units=6, seed=3, **options)


def _moved() -> keras.Model:
    """Numbers moved along every axis, and layers that compute with constants."""
    inputs = keras.Input((T, D))
    scaled = layers.Normalization(mean=[0.1, 0.2, 0.3], variance=[1.0, 2.0, 3.0])(
        layers.Rescaling(0.5)(inputs)
    )
    steps = layers.LSTM(4, return_sequences=True)(scaled)
    frozen = layers.BatchNormalization(trainable=False)(steps)
    turned = layers.Permute((2, 1))(ops.flip(ops.cumsum(frozen, axis=-1), axis=-1))
    joined = layers.Concatenate(axis=1)([turned, layers.Cropping1D((1, 2))(turned)])
    picked = ops.take(ops.take(joined, [0, 4, 4], axis=1), [8, 1, 1], axis=2)
    return keras.Model(inputs, layers.Dense(OUT)(layers.Flatten()(picked)))


def _merged() -> keras.Model:
    """Sequences merged in each way with a value of one step, and joined masks."""
    inputs = keras.Input((T, D))
    steps = layers.LSTM(6, return_sequences=True)(layers.Masking()(inputs))
    one = layers.Reshape((1, 6))(layers.LSTM(6)(inputs))
    parts = [layers.Add()([steps, one]), layers.Multiply()([one, steps, one]), layers.Average()([one, steps])]
    parts.append(layers.Subtract()([steps, one]))
    return keras.Model(inputs, layers.Dense(OUT)(layers.GlobalMaxPooling1D()(layers.Concatenate()(parts))))


def _observed() -> list[Any]:
    """Metrics that are not plain means, beside one that is."""
    return ["accuracy", keras.metrics.AUC(name="auc"), keras.metrics.Precision(name="precision")]


L = layers
CASES: dict[str, Case] = {
    "plain": Case(_sequential(_series, lambda: L.LSTM(5), lambda: L.Dense(OUT)), "series", "mse"),
    "any length": Case(_sequential(_free, lambda: L.LSTM(5), lambda: L.Dense(OUT)), "series", "mse"),
    "stack": Case(
        _sequential(
            _series,
            lambda: L.LSTM(20, return_sequences=True),
            lambda: L.LSTM(7, activation=L.ReLU(negative_slope=0.05), use_bias=False),
            lambda: L.Dense(6, activation="gelu"),
            lambda: L.Dense(OUT),
        ),
        "series",
        "mae",
        lambda: ["mse", keras.metrics.RootMeanSquaredError()],
    ),
    "bidirectional": Case(
        _sequential(
            _series,
            lambda: L.Bidirectional(L.LSTM(6, return_sequences=True)),
            lambda: L.LayerNormalization(),
            lambda: L.Bidirectional(L.LSTM(4), merge_mode="sum"),
            lambda: L.Dense(OUT),
        ),
        "series",
        "huber",
        lambda: ["mae"],
    ),
    "every step": Case(
        _sequential(
            _series,
            lambda: L.LSTM(6, return_sequences=True),
            lambda: L.TimeDistributed(L.Dense(OUT, activation="tanh")),
        ),
        "steps",
        "log_cosh",
    ),
    "autoencoder": Case(
        _sequential(
            _series,
            lambda: L.LSTM(6),
            lambda: L.RepeatVector(T),
            lambda: L.LSTM(6, return_sequences=True, go_backwards=True),
            lambda: L.Dense(OUT),
        ),
        "steps",
        "mse",
    ),
    "pooled": Case(
        _sequential(
            _series,
            lambda: L.LSTM(6, return_sequences=True),
            lambda: L.GlobalAveragePooling1D(),
            lambda: L.Activation("softplus"),
            lambda: L.Dense(OUT),
        ),
        "series",
        keras.losses.Huber(0.3, reduction="sum"),
    ),
    "flat": Case(
        _sequential(
            _series, lambda: L.LSTM(6, return_sequences=True), lambda: L.Flatten(), lambda: L.Dense(OUT)
        ),
        "series",
        "mse",
    ),
    "branches": Case(_branches, "series", "mse"),
    "two inputs": Case(_two_inputs, "two inputs", "mse"),
    "characters": Case(
        _sequential(
            _ids, lambda: L.Embedding(V, 8), lambda: L.LSTM(16, return_sequences=True), lambda: L.Dense(V)
        ),
        "next ids",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        lambda: ["accuracy"],
    ),
    "wide vocabulary": Case(
        _sequential(
            _ids,
            lambda: L.Embedding(WORDS, 8),
            lambda: L.LSTM(16, return_sequences=True),
            lambda: L.Dense(V, activation="softmax"),
        ),
        "next ids",
        "sparse_categorical_crossentropy",
        lambda: ["accuracy"],
    ),
    "rare words": Case(
        _sequential(_ids, lambda: L.Embedding(WORDS, 8), lambda: L.LSTM(6), lambda: L.Dense(OUT)),
        "rare words",
        "mse",
    ),
    "words both ways": Case(
        _sequential(
            _ids,
            lambda: L.Embedding(WORDS, 8, mask_zero=True),
            lambda: L.Bidirectional(L.LSTM(6)),
            lambda: L.Dense(OUT),
        ),
        "common words",
        "mse",
    ),
    "frozen words": Case(
        _sequential(
            _ids,
            lambda: L.Embedding(WORDS, 8, trainable=False),
            lambda: L.LSTM(6, go_backwards=True),
            lambda: L.Dense(OUT),
        ),
        "common words",
        "mse",
    ),
    "shared embedding": Case(
        _shared_embedding, "next ids", keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    ),
    "masked": Case(
        _sequential(
            _ids,
            lambda: L.Embedding(V, 8, mask_zero=True),
            lambda: L.LSTM(16, return_sequences=True),
            lambda: L.LSTM(5, return_sequences=True),
            lambda: L.Dense(V),
        ),
        "next ids",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        lambda: ["accuracy"],
    ),
    "sentiment": Case(
        _sequential(
            _ids,
            lambda: L.Embedding(V, 8, mask_zero=True),
            lambda: L.Bidirectional(L.LSTM(6, return_sequences=True)),
            lambda: L.Bidirectional(L.LSTM(6)),
            lambda: L.Dense(1, activation="sigmoid"),
        ),
        "yes or no",
        "binary_crossentropy",
        lambda: ["accuracy"],
    ),
    "sentiment, logits": Case(
        _sequential(_ids, lambda: L.Embedding(V, 8), lambda: L.LSTM(6), lambda: L.Dense(1)),
        "yes or no",
        keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.1),
        lambda: [keras.metrics.BinaryAccuracy(threshold=0.0)],
    ),
    "classes": Case(
        _sequential(
            _series, lambda: L.Masking(), lambda: L.LSTM(6), lambda: L.Dense(4, activation="softmax")
        ),
        "classes",
        keras.losses.CategoricalCrossentropy(label_smoothing=0.1),
        lambda: ["accuracy"],
    ),
    "classes, logits": Case(
        _sequential(_series, lambda: L.LSTM(6), lambda: L.Dense(4)),
        "classes",
        keras.losses.CategoricalCrossentropy(from_logits=True),
    ),
    "translator": Case(
        _translator,
        "two texts",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        lambda: ["accuracy"],
    ),
    "tagger": Case(
        _tagger,
        "tags",
        [keras.losses.SparseCategoricalCrossentropy(from_logits=True), "mse"],
        lambda: [["accuracy"], ["mae"]],
        lambda: {"loss_weights": [0.3, 2.0]},
    ),
    "lines": Case(
        _lines, "lines", keras.losses.SparseCategoricalCrossentropy(from_logits=True), lambda: ["accuracy"]
    ),
    "lines by weight": Case(
        _lines,
        "lines",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight"),
        list,
        lambda: {"weighted_metrics": ["accuracy"]},
    ),
    "masked by weight": Case(
        _sequential(
            _ids,
            lambda: L.Embedding(V, 8, mask_zero=True),
            lambda: L.LSTM(6, return_sequences=True),
            lambda: L.Dense(V),
        ),
        "next ids",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight"),
    ),
    "states": Case(_states, "series", "mse"),
    "merged": Case(_merged, "series", "mse"),
    "two outputs": Case(
        lambda: _heads(shared=True),
        "two targets",
        ["mse", "categorical_crossentropy"],
        lambda: [["mae"], ["accuracy"]],
        lambda: {"loss_weights": [0.3, 2.0]},
    ),
    "two outputs by name": Case(
        lambda: _heads(shared=False),
        "two targets by name",
        {"kind": "categorical_crossentropy", "level": "huber"},
        lambda: {"kind": ["accuracy", keras.metrics.AUC(name="auc")]},
        lambda: {"weighted_metrics": {"level": ["mae", "mse"]}},
    ),
    "quantiles": Case(
        _quantiles,
        "grid",
        QuantileLoss((0.1, 0.5, 0.9)),
        list,
        lambda: {"weighted_metrics": [ErrorByStretch(3, place=1)]},
    ),
    "forecast": Case(_forecaster(dropout=0.0), "grid", "mse", list, lambda: {"weighted_metrics": ["mae"]}),
    "forecast of quantiles": Case(
        _forecaster(quantiles=(0.1, 0.5, 0.9), absolute=(1,), shared_linear=True),
        "grid",
        QuantileLoss((0.1, 0.5, 0.9)),
    ),
    "batch normalization": Case(
        _sequential(
            _series,
            lambda: L.BatchNormalization(),
            lambda: L.LSTM(6, return_sequences=True),
            lambda: L.BatchNormalization(momentum=0.8, scale=False),
            lambda: L.LSTM(5),
            lambda: L.BatchNormalization(center=False),
            lambda: L.Dense(OUT),
        ),
        "series",
        "mse",
    ),
    "moved": Case(_moved, "series", "mse"),
    "regularized": Case(
        _sequential(
            _ids,
            lambda: L.Embedding(V, 8, embeddings_regularizer="l2"),
            lambda: L.LSTM(
                6, kernel_regularizer="l1", recurrent_regularizer=keras.regularizers.L1L2(0.01, 0.02)
            ),
            lambda: L.Dense(1, activation="sigmoid", kernel_regularizer=keras.regularizers.L2(0.03)),
        ),
        "yes or no",
        "binary_crossentropy",
    ),
    "observed": Case(
        _sequential(
            _ids, lambda: L.Embedding(V, 8), lambda: L.LSTM(6), lambda: L.Dense(1, activation="sigmoid")
        ),
        "yes or no",
        "binary_crossentropy",
        _observed,
        lambda: {"weighted_metrics": ["accuracy", keras.metrics.Recall(name="recall"), "mse"]},
    ),
    **{name: Case(*row) for name, row in SEQUENCES.items()},
}
"""What people build, and what the operations of the engine need to be tried."""


def data_of(kind: str, rows: int, seed: int = 0) -> tuple[Any, Any]:
    """Inputs and targets with the given number of rows."""
    random = np.random.default_rng(seed)
    if kind in ("two texts", "lines"):
        texts = random.integers(0, V, (2, rows, T)).astype("int32")
        texts[0, :, :2] = 0
        next_ids = random.integers(0, V, (rows, T)).astype("int32")
        if kind == "two texts":
            return list(texts), next_ids
        return {"source": texts[0], "target_in": texts[1]}, next_ids
    if kind in ("next ids", "tags", "yes or no"):
        ids = random.integers(0, V, (rows, T)).astype("int32")
        if kind == "yes or no":
            return ids, random.integers(0, 2, (rows, 1)).astype("float32")
        next_ids = random.integers(0, V, (rows, T)).astype("int32")
        if kind == "next ids":
            return ids, next_ids
        return ids, [next_ids, random.standard_normal((rows, T, OUT), np.float32)]
    if kind.endswith("words"):
        words = WORDS // 2 if kind == "rare words" else V
        ids = (random.integers(0, words, (rows, T)) * 2).astype("int32")
        return ids, random.standard_normal((rows, OUT), np.float32)
    x = random.standard_normal((rows, T, D), np.float32)
    x[::3, -2:] = 0  # masked steps, where there is a Masking
    if kind == "classes":
        return x, keras.utils.to_categorical(random.integers(0, 4, rows), 4)
    if kind == "steps":
        return x, random.standard_normal((rows, T, OUT), np.float32)
    if kind == "grid":
        return x, random.standard_normal((rows, 4, OUT), np.float32)
    y = random.standard_normal((rows, OUT), np.float32)
    if kind.startswith("two targets"):
        kinds = keras.utils.to_categorical(random.integers(0, 4, rows), 4)
        return x, [y, kinds] if kind == "two targets" else {"kind": kinds, "level": y}
    if kind == "two inputs":
        return {"series": x, "other": random.standard_normal((rows, 4), np.float32)}, y
    return x, y


def copy_of(model: keras.Model) -> keras.Model:
    """A new model with the same weights."""
    made = keras.models.clone_model(model)
    made.set_weights(model.get_weights())
    return made


def compiled(model: keras.Model, engine: str | None, **options: Any) -> keras.Model:
    """A copy of a model, compiled with the options; stock Keras without an engine."""
    made = copy_of(model)
    # For a few steps TensorFlow is quicker without a graph, but there Keras averages several losses differently.
    eager = engine is None and keras.backend.backend() == "tensorflow" and len(made.outputs) == 1
    made.compile(**options, run_eagerly=eager)
    if engine is not None:
        cellerate.accelerate(made, engine=engine)
    return made


def trained(
    model: keras.Model,
    case: Case,
    optimizer: Callable[[], keras.optimizers.Optimizer],
    engine: str | None,
    **fit: Any,
) -> tuple[keras.Model, dict[str, list[float]]]:
    """A copy of a model after `fit`, and its history; stock Keras without an engine."""
    given = {"optimizer": optimizer(), "loss": case.loss, "metrics": case.metrics(), **case.options()}
    made = compiled(model, engine, **given)
    return made, made.fit(shuffle=False, verbose=0, **fit).history


def numbers(variables: list[Any]) -> list[np.ndarray]:
    """The values of variables."""
    return [np.asarray(keras.ops.convert_to_numpy(variable)) for variable in variables]
