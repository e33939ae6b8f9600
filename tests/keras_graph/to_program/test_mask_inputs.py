"""Masks that are given, made by a layer, or computed reach the layers that Keras gives them to."""

from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers, ops

from cellerate.keras_graph.to_program import read_program
from cellerate.runtime.program.engine import Engine
from support.keras_models.keras_programs import (
    MASK,
    B,
    Chain,
    F,
    T,
    V,
    agree,
    chain_of,
    check,
    ids,
    masked_lstms,
    masked_series,
    randomize,
    series,
)

pytestmark = [
    pytest.mark.keras,
    # Keras says so of every layer that drops a mask, which is what some of these tests are about.
    pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask:UserWarning"),
]


# What a user gives as a mask, from a mask of booleans, and how the layer then takes it.
EXPLICIT: dict[str, tuple[str, Chain]] = {
    "booleans": ("bool", lambda mask: mask),
    "whole": ("int32", lambda mask: mask),
    "bytes": ("uint8", lambda mask: mask),
    "numbers": ("float32", lambda mask: mask),
    "cast-whole": ("int32", lambda mask: ops.cast(mask, "bool")),
    "cast-numbers": ("float32", lambda mask: ops.cast(mask, "bool")),
    "compared-whole": ("int32", lambda mask: ops.not_equal(mask, 0)),
    "compared-numbers": ("float32", lambda mask: ops.not_equal(mask, 0)),
}


@pytest.mark.backends
@pytest.mark.parametrize("name", EXPLICIT)
def test_program_of_an_explicit_mask_computes_what_keras_does(name: str) -> None:
    dtype, made = EXPLICIT[name]
    x, mask = keras.Input((T, F), name="x"), keras.Input((T,), dtype=dtype, name="valid")
    y = layers.LSTM(4, return_sequences=True)(x, mask=made(mask))
    model = keras.Model([x, mask], [layers.LSTM(3)(y), layers.GRU(3)(y)])
    program = check(model, {"x": series(), "valid": MASK.astype(dtype)})
    assert list(program.inputs) == ["x", "valid"]
    assert sorted(node.op for node in program.nodes if "mask" in node.inputs) == ["gru", "lstm", "lstm"]


@pytest.mark.parametrize("read", ["mask", "numbers", "features"])
def test_program_of_a_boolean_input_takes_booleans_and_whole_numbers_as_keras_does(read: str) -> None:
    x, flags = keras.Input((T, F), name="x"), keras.Input((T,), dtype="bool", name="flags")
    if read == "mask":
        y = layers.LSTM(4)(x, mask=flags)
    elif read == "numbers":
        y = layers.Dense(4)(ops.cast(flags, "float32"))
        y = layers.Add()([y, layers.LSTM(4)(x)])
    else:
        weights = layers.Reshape((T, 1))(ops.cast(flags, "float32"))
        y = layers.GlobalAveragePooling1D()(layers.Multiply()([x, weights]))
    model = keras.Model([x, flags], y)
    randomize(model)
    expected = model({"x": series(), "flags": MASK}, training=False)
    program = read_program(model)
    for dtype in ("bool", "int8", "int64", "uint8"):
        agree(Engine(program).run({"x": series(), "flags": MASK.astype(dtype)}), [expected])
    node = program.nodes[program.inputs["flags"]]
    assert node.options["dtype"] == ("int32" if read == "mask" else "float32")


EMBEDDED: dict[str, tuple[list[bool], Chain]] = {
    "straight": ([True, True], lambda x: x),
    "through-layers": (
        [True, True],
        lambda x: layers.LayerNormalization()(
            layers.Dropout(0.5)(layers.Dense(4)(layers.Activation("relu")(x)))
        ),
    ),
    "through-time-distributed": ([True, True], layers.TimeDistributed(layers.Dense(4))),
    "added": ([True, True], lambda x: layers.Add()([x, layers.Dense(4)(x)])),
    "added-to-unmasked": ([False, False], lambda x: layers.Add()([x, ops.flip(x, axis=1)])),
    "concatenated": ([True, True], lambda x: layers.Concatenate()([x, layers.Dense(2)(x)])),
    "concatenated-with-unmasked": ([False, False], lambda x: layers.Concatenate()([x, ops.flip(x, axis=1)])),
    "dropped-by-crop": ([False, False], layers.Cropping1D((1, 2))),
    "dropped-by-op": ([False, False], lambda x: x * 2.0),
    "of-backward": ([True, True, True], layers.LSTM(4, return_sequences=True, go_backwards=True)),
    "of-bidirectional": ([True] * 4, layers.Bidirectional(layers.LSTM(4, return_sequences=True))),
    "nested": ([True, True], lambda x: chain_of(layers.Dense(3), layers.ELU(), shape=(None, 4))(x)),
    "made-in-nested": (
        [True, True],
        lambda x: chain_of(layers.Dense(3), layers.Masking(), shape=(None, 4))(ops.flip(x, axis=1)),
    ),
    "masked-again": ([True, True], layers.Masking()),
}


@pytest.mark.parametrize("saved", [False, True], ids=["built", "loaded"])
@pytest.mark.parametrize("name", EMBEDDED)
def test_mask_reaches_the_layers_that_keras_gives_it(name: str, saved: bool, tmp_path: Path) -> None:
    """Loaded, a graph has the masks written into it as operations that no tensor carries."""
    masked, chain = EMBEDDED[name]
    table, first = layers.Embedding(V, 4, mask_zero=True), layers.LSTM(3, return_sequences=True)
    model = chain_of(table, chain, first, layers.LSTM(2), shape=(None,), dtype="int32")
    if saved:
        model.save(tmp_path / "model.keras")
        model = keras.saving.load_model(tmp_path / "model.keras")
    assert masked_lstms(check(model, ids())) == masked


def test_mask_is_not_given_to_an_lstm_with_an_initial_state_as_keras_has_it() -> None:
    """Keras fills in the mask where the sequences are the only tensors, but passes it on."""
    x, state = keras.Input((T, F), name="x"), [keras.Input((4,), name=name) for name in "hc"]
    y = layers.LSTM(4, return_sequences=True)(layers.Masking()(x), initial_state=state)
    model = keras.Model([x, *state], layers.LSTM(3)(y))
    program = check(model, {"x": masked_series(), "h": series(B, 4), "c": series(B, 4)})
    assert masked_lstms(program) == [False, True]


@pytest.mark.backends
def test_mask_of_the_user_is_read_from_operations_and_values() -> None:
    x = keras.Input((T, F), name="x")
    mask = ops.any(ops.not_equal(x, 0.25), axis=-1)
    y = layers.LSTM(4)(layers.Dense(3)(x), mask=mask)
    array = np.where(MASK[..., None], series(), np.float32(0.25))
    assert masked_lstms(check(keras.Model(x, y), array)) == [True]
    masked = chain_of(layers.Masking(mask_value=0.25), layers.LSTM(4), shape=(None, F))
    assert masked_lstms(check(masked, array)) == [True]


def test_mean_over_time_uses_the_mask() -> None:
    model = chain_of(
        layers.Embedding(V, 4, mask_zero=True), layers.GlobalAveragePooling1D(), shape=(None,), dtype="int32"
    )
    rows = MASK.any(axis=1)  # of a row masked whole the mean is 0/0, in Keras and here
    assert "mask" in check(model, ids()[rows]).nodes[-1].inputs
    assert np.isnan(next(iter(Engine(read_program(model)).run(ids()).values()))[~rows]).all()
