"""Which features are the units of LSTM layers: what has them, what ties them together, and what keeps them."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from cellerate.keras_graph.ties import LayerUnits, units_of

pytestmark = pytest.mark.keras


def lstm(units: int, **arguments: Any) -> layers.LSTM:
    return layers.LSTM(units, kernel_initializer="zeros", recurrent_initializer="zeros", **arguments)


def sequence(width: int = 4) -> Any:
    return keras.Input((5, width))


def on(units: LayerUnits, variable: Any) -> list[tuple[list[int], bool]]:
    """What is on each axis of a weight."""
    found = sorted(
        (axis for axis in units.axes if axis.variable is variable), key=lambda labelled: labelled.axis
    )
    return [(axis.features.tolist(), axis.reads) for axis in found]


def test_units_of_a_chain_are_the_gates_of_the_layer_and_the_rows_of_the_next():
    x = sequence()
    first, norm, second, head = (
        lstm(2, return_sequences=True),
        layers.LayerNormalization(),
        lstm(3),
        layers.Dense(1),
    )
    model = keras.Model(x, head(second(layers.Dropout(0.1)(norm(first(x))))))

    units = units_of(model)

    a, b = (found.tolist() for found in units.layers.values())
    assert [len({*a, *b}), list(units.layers)] == [5, [first.name, second.name]]
    assert on(units, first.cell.recurrent_kernel) == [(a, True), (a * 4, False)]
    assert on(units, first.cell.kernel)[1] == (a * 4, False)
    assert on(units, first.cell.bias) == [(a * 4, False)]
    assert on(units, norm.gamma) == on(units, norm.beta) == [(a, False)]
    assert on(units, second.cell.kernel) == [(a, True), (b * 4, False)]
    assert on(units, head.kernel)[0] == (b, True)
    assert {path: units.widths[path].tolist() for path in units.layers} == {first.name: a, second.name: b}
    assert not units.kept_whole


def test_rows_of_a_reader_follow_what_is_put_side_by_side():
    x = sequence(3)
    one, other, head = lstm(2, return_sequences=True), lstm(3, return_sequences=True), layers.Dense(1)
    model = keras.Model(x, head(layers.Concatenate()([other(x), x, one(x)])))
    units = units_of(model)
    (rows, _), _ = on(units, head.kernel)
    assert rows[:3] == units.layers[other.name].tolist()
    assert rows[6:] == units.layers[one.name].tolist()


def test_layers_that_are_added_share_their_units():
    x = sequence()
    first, second = lstm(3, return_sequences=True), lstm(3, return_sequences=True)
    y = first(x)
    units = units_of(keras.Model(x, layers.Dense(1)(layers.Add()([y, second(y)]))))
    np.testing.assert_array_equal(units.layers[first.name], units.layers[second.name])


def test_decoder_that_starts_from_states_shares_their_units():
    x = sequence()
    encoder, decoder = lstm(3, return_state=True, name="encoder"), lstm(3, name="decoder")
    _, h, c = encoder(x)
    start = layers.Dense(3, name="start")
    units = units_of(keras.Model(x, layers.Dense(1)(decoder(x, initial_state=[start(h), c]))))
    np.testing.assert_array_equal(units.layers["encoder"], units.layers["decoder"])
    np.testing.assert_array_equal(units.widths["start"], units.layers["decoder"])
    assert on(units, start.kernel)[1] == (units.layers["decoder"].tolist(), False)


def test_paths_of_inner_layers_name_models_and_wrappers():
    inner_x = sequence()
    inner = keras.Model(
        inner_x, layers.Bidirectional(lstm(2, name="lstm"), name="both")(inner_x), name="inner"
    )
    x = sequence()
    units = units_of(keras.Model(x, layers.Dense(1)(inner(lstm(4, return_sequences=True, name="outer")(x)))))
    assert list(units.layers) == ["outer", "inner/both/forward_lstm", "inner/both/backward_lstm"]
    (path,) = (path for path in units.widths if path == f"inner/{inner_x._keras_history.operation.name}")
    np.testing.assert_array_equal(units.widths[path], units.layers["outer"])


class Own(layers.Layer):
    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.inner = lstm(2, name="inner")

    def call(self, x: Any) -> Any:
        return self.inner(x)


class OwnLSTM(layers.LSTM):
    pass


def through(make: Callable[[Any], Any]) -> Callable[[], keras.Model]:
    """A model in which the units of an LSTM named "kept" go through something to a Dense."""

    def build() -> keras.Model:
        x = sequence()
        y = make(lstm(4, return_sequences=True, name="kept")(x))
        return keras.Model(x, layers.Dense(1)(y))

    return build


def as_output() -> keras.Model:
    x = sequence()
    return keras.Model(x, lstm(4, name="kept")(x))


def added_to_input() -> keras.Model:
    x = sequence()
    return keras.Model(x, layers.Dense(1)(layers.Add()([x, lstm(4, return_sequences=True, name="kept")(x)])))


def with_softmax() -> keras.Model:
    x = sequence()
    return keras.Model(x, layers.Dense(1)(lstm(4, activation="softmax", name="kept")(x)))


def of_own_class() -> keras.Model:
    x = sequence()
    return keras.Model(x, layers.Dense(1)(OwnLSTM(4, name="kept")(x)))


REACHES = "which is not known to keep features apart"
KEPT = {
    "flatten": (through(layers.Flatten(name="f")), f"its units reach 'f' (Flatten), {REACHES}"),
    "reshape": (through(layers.Reshape((20, 1), name="r")), f"its units reach 'r' (Reshape), {REACHES}"),
    "permute": (through(layers.Permute((2, 1), name="p")), f"its units reach 'p' (Permute), {REACHES}"),
    "softmax": (
        through(layers.Activation("softmax", name="s")),
        f"its units reach 's' (Activation), {REACHES}",
    ),
    "masking": (through(layers.Masking(name="m")), f"its units reach 'm' (Masking), {REACHES}"),
    "norm-over-time": (
        through(layers.LayerNormalization(axis=1, name="n")),
        f"its units reach 'n' (LayerNormalization), {REACHES}",
    ),
    "channels-first": (
        through(layers.GlobalAveragePooling1D(data_format="channels_first", name="g")),
        f"its units reach 'g' (GlobalAveragePooling1D), {REACHES}",
    ),
    "some-features": (through(lambda x: x[:, :, 1:]), "its units reach 'get_item"),
    "mean-of-features": (
        through(lambda x: keras.ops.mean(x, axis=-1, keepdims=True)),
        "its units reach 'mean",
    ),
    "constant-a-feature": (through(lambda x: x * np.ones(4, "float32")), "its units reach 'multiply"),
    "dropped-together": (
        through(layers.Dropout(0.1, (None, 1, 4), name="d")),
        f"its units reach 'd' (Dropout), {REACHES}",
    ),
    "own-layer": (through(Own(name="own")), f"its units reach 'own' (Own), {REACHES}"),
    "gru": (through(layers.GRU(2, name="gru")), f"its units reach 'gru' (GRU), {REACHES}"),
    "output": (as_output, "its units are an output of the model"),
    "added-to-input": (added_to_input, "its units are tied to an input of the model"),
    "softmax-inside": (
        with_softmax,
        "it has the activation 'softmax', by which a unit may depend on the others",
    ),
    "own-class": (of_own_class, "the computation of 'kept' (OwnLSTM) is not known"),
}


@pytest.mark.parametrize("case", KEPT)
def test_units_that_cannot_go_are_kept_whole_with_the_reason(case):
    build, reason = KEPT[case]
    units = units_of(build())
    assert units.kept_whole["kept"].startswith(reason)
    assert "kept" not in units.layers


def test_lstm_inside_a_layer_of_ones_own_is_kept_whole():
    x = sequence()
    units = units_of(keras.Model(x, layers.Dense(1)(Own(name="own")(x))))
    assert units.kept_whole == {"own/inner": "the computation of 'own' (Own) is not known"}


def test_layer_tied_to_one_that_stays_stays_for_its_reason():
    x = sequence()
    _, h, c = lstm(4, return_state=True, name="encoder")(x)
    decoded = lstm(4, name="decoder", return_sequences=True)(x, initial_state=[h, c])
    units = units_of(keras.Model(x, layers.Dense(1)(layers.Flatten(name="flat")(decoded))))
    assert units.kept_whole["encoder"] == units.kept_whole["decoder"]
    assert "'flat' (Flatten)" in units.kept_whole["encoder"]


def test_one_direction_that_stays_keeps_the_wide_layer_and_the_other_direction():
    """Half of the wide layer's units are tied to each direction; a layer stays whole or not at all."""
    x = sequence()
    y, *states = layers.Bidirectional(lstm(2, return_state=True, name="lstm"), merge_mode=None, name="both")(
        x
    )
    forward_h, forward_c, backward_h, backward_c = states[-4:]
    both = [layers.Concatenate()([forward_h, backward_h]), layers.Concatenate()([forward_c, backward_c])]
    wide = lstm(4, name="wide")(x, initial_state=both)
    units = units_of(keras.Model(x, [layers.Dense(1)(wide), y]))
    assert set(units.kept_whole) == {"both/forward_lstm", "both/backward_lstm", "wide"}
