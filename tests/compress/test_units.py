"""A model without some units computes what the whole would with those units unread."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from cellerate.compress.prune import without
from cellerate.keras_graph.ties import LayerUnits, units_of
from cellerate.layers.accelerate import accelerate
from cellerate.models.autoencoder import build_autoencoder
from cellerate.models.forecast import build_forecast_model
from cellerate.models.text import build_text_model
from support.keras_models.prunable import (
    BATCH,
    STEPS,
    UNITS,
    WIDTH,
    dense,
    lstm,
    relative_error,
    sequence,
    with_random_weights,
)

pytestmark = pytest.mark.keras


def text() -> keras.Model:
    return build_text_model(11, embedding=5, units=(6, 7), layers=2, dropout=0.1, tie_weights=True)


def forecast() -> keras.Model:
    return build_forecast_model(
        STEPS,
        WIDTH,
        2,
        1,
        target_columns=[1],
        units=6,
        layers=2,
        bidirectional=True,
        quantiles=[0.1, 0.5, 0.9],
    )


def autoencoder() -> keras.Model:
    return build_autoencoder(9, embedding=4, units=6, latent=5, dropout=0.1)


def chain() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((STEPS, WIDTH)),
            lstm(return_sequences=True),
            layers.BatchNormalization(),
            layers.SpatialDropout1D(0.2),
            layers.Activation("tanh"),
            lstm(5, return_sequences=True, go_backwards=True),
            layers.TimeDistributed(dense(4, "relu")),
            layers.TimeDistributed(layers.Dropout(0.2)),
            lstm(5, use_bias=False),
            dense(),
        ]
    )


def repeated() -> keras.Model:
    inner = keras.Sequential(
        [keras.Input((STEPS, WIDTH)), lstm(), layers.RepeatVector(3), lstm(return_sequences=True)]
    )
    outer = sequence(STEPS, WIDTH)
    return keras.Model(outer, layers.TimeDistributed(dense())(inner(outer)))


def nested() -> keras.Model:
    """A nested model that takes pruned features in, is called twice, and is nested in another."""
    part_in = keras.Input((None, UNITS))
    part = keras.Model(part_in, layers.BatchNormalization()(lstm(return_sequences=True)(part_in)))
    middle = keras.Sequential([keras.Input((None, UNITS)), part, layers.ReLU()])
    x = sequence()
    y = middle(lstm(return_sequences=True)(x))
    y = layers.GlobalAveragePooling1D()(middle(y))
    return keras.Model(x, dense()(y))


def branches() -> keras.Model:
    x = sequence()
    one, other = lstm(return_sequences=True)(x), lstm(5, return_sequences=True)(x)
    both = layers.Concatenate()([one, x, other])
    later = layers.Concatenate(axis=1)([lstm(return_sequences=True)(both), one])
    pooled = layers.Concatenate()(
        [layers.GlobalMaxPooling1D()(later), keras.ops.mean(both, axis=1), one[:, -1]]
    )
    return keras.Model(x, dense()(pooled))


def residual() -> keras.Model:
    x = sequence()
    first = lstm(return_sequences=True)(x)
    second = lstm(return_sequences=True)(first)
    gate = dense(UNITS, "sigmoid")(first)
    summed = keras.ops.multiply(layers.Add()([first, second]) * 0.5, gate)
    return keras.Model(x, dense()(summed))


def encoder_decoder() -> keras.Model:
    source, target = sequence(), sequence()
    _, h, c = lstm(return_state=True)(source)
    decoded = lstm(return_sequences=True)(target, initial_state=[h, c])
    return keras.Model([source, target], dense()(decoded))


def bidirectional_states() -> keras.Model:
    """The states of two directions, side by side, start a layer of twice the width; those of a third, one like it."""
    source, target = sequence(), sequence()
    _, *states = layers.Bidirectional(lstm(return_state=True))(source)
    both = [layers.Concatenate()(states[place::2]) for place in (0, 1)]
    decoded = lstm(2 * UNITS, return_sequences=True)(target, initial_state=both)
    like = layers.Bidirectional(lstm(return_sequences=True))(decoded, initial_state=states)
    return keras.Model([source, target], dense()(like))


def bidirectional(mode: str | None) -> Callable[[], keras.Model]:
    def build() -> keras.Model:
        x = sequence()
        y = layers.Bidirectional(lstm(return_sequences=True), merge_mode=mode)(x)
        if mode is None:
            y = layers.Concatenate()(list(y))
        y = layers.Bidirectional(lstm(5), merge_mode=mode or "concat")(y)
        return keras.Model(x, dense()(y))

    return build


def stateful() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input(batch_shape=(BATCH, STEPS, WIDTH)),
            lstm(return_sequences=True, stateful=True),
            layers.Bidirectional(lstm(stateful=True)),
            dense(),
        ]
    )


def masked_ids() -> keras.Model:
    ids = keras.Input((None,), dtype="int32")
    x = layers.Embedding(9, WIDTH, mask_zero=True)(ids)
    x = lstm(return_sequences=True)(x)
    y = layers.Bidirectional(lstm(return_sequences=True))(x)
    unmasked = sequence()
    x = layers.Concatenate()([x, y, lstm(5, return_sequences=True)(unmasked)])
    x = lstm(return_sequences=True, zero_output_for_mask=True)(x)
    both = layers.Concatenate()([layers.GlobalAveragePooling1D()(x), lstm(5)(layers.Add()([y, y]))])
    return keras.Model([ids, unmasked], dense()(both))


def masked_features() -> keras.Model:
    x = sequence()
    y = lstm(return_sequences=True)(layers.Masking()(x))
    return keras.Model(x, dense()(lstm(5)(layers.Dropout(0.1)(y))))


CASES: dict[str, Callable[[], keras.Model]] = {
    "text": text,
    "forecast": forecast,
    "autoencoder": autoencoder,
    "chain": chain,
    "repeated": repeated,
    "nested": nested,
    "branches": branches,
    "residual": residual,
    "encoder-decoder": encoder_decoder,
    "bidirectional-states": bidirectional_states,
    "bidirectional-concat": bidirectional("concat"),
    "bidirectional-sum": bidirectional("sum"),
    "bidirectional-two": bidirectional(None),
    "stateful": stateful,
    "masked-ids": masked_ids,
    "masked-features": masked_features,
}


def inputs_of(model: keras.Model) -> Any:
    """Ids and features of which some are masked, in the middle and at the ends."""
    return keras.tree.map_structure(
        _input_of, model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    )


def _input_of(tensor: Any) -> np.ndarray:
    rng = np.random.default_rng(4)
    shape = [BATCH, *(STEPS if size is None else size for size in tensor.shape[1:])]
    if tensor.dtype == "int32":
        ids = rng.integers(1, 9, shape)
        ids[0, 3:], ids[1, :2] = 0, 0
        return ids.astype("int32")
    features = rng.standard_normal(shape)
    features[0, 3:], features[1, 1] = 0, 0
    return features.astype("float32")


def outputs_of(model: keras.Model) -> np.ndarray:
    """On the native kernels, which compile nothing."""
    return keras.ops.convert_to_numpy(accelerate(model)(inputs_of(model)))


def half(units: LayerUnits, seed: int = 5) -> np.ndarray:
    """About half of the features of the layers, chosen at random; of each group some stay."""
    rng = np.random.default_rng(seed)
    groups = units.groups().values()
    return np.concatenate([rng.permutation(features)[: len(features) // 2] for features in groups])


def without_reading(model: keras.Model, units: LayerUnits, removed: np.ndarray) -> keras.Model:
    """The whole model, in which no weight reads the features."""
    values = {id(w): v for w, v in zip(model.weights, model.get_weights(), strict=True)}
    for axis in units.axes:
        if axis.reads:
            rows = np.moveaxis(values[id(axis.variable)], axis.axis, 0)
            rows[np.isin(axis.features, removed)] = 0
    model.set_weights([values[id(w)] for w in model.weights])
    return model


@pytest.mark.parametrize("case", CASES)
def test_model_without_units_equals_the_one_that_does_not_read_them(case):
    model = with_random_weights(CASES[case]())
    units = units_of(model)
    assert not units.kept_whole
    removed = half(units)

    smaller = without(model, units, removed)

    whole, found = outputs_of(without(model, units, np.array([]))), outputs_of(smaller)
    expected = outputs_of(without_reading(model, units, removed))
    assert smaller.count_params() < model.count_params()
    assert [w.name for w in smaller.weights] == [w.name for w in model.weights]
    assert relative_error(found, expected) < 1e-6
    # Else the test could not fail.
    assert relative_error(whole, expected) > 1e-2


def test_layer_norm_of_pruned_units_is_that_of_the_units_left():
    model = keras.Sequential([sequence(), lstm(return_sequences=True), layers.LayerNormalization(), dense()])
    with_random_weights(model)
    units = units_of(model)
    (features,) = units.layers.values()
    removed, kept = features[[1, 4]], [0, 2, 3, 5]

    found = outputs_of(without(model, units, removed))

    recurrent = model.layers[0].cell.recurrent_kernel
    rows = keras.ops.convert_to_numpy(recurrent).copy()
    rows[[1, 4]] = 0
    recurrent.assign(rows)
    h = keras.ops.convert_to_numpy(model.layers[0](inputs_of(model)))[..., kept]
    norm, head = model.layers[1:]
    gamma, beta = (keras.ops.convert_to_numpy(w)[kept] for w in norm.weights)
    kernel, bias = (keras.ops.convert_to_numpy(w) for w in head.weights)
    deviation = np.sqrt(h.var(-1, keepdims=True) + norm.epsilon)
    expected = ((h - h.mean(-1, keepdims=True)) / deviation * gamma + beta) @ kernel[kept] + bias
    assert relative_error(found, expected) < 1e-6
