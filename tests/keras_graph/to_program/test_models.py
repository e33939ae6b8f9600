"""Programs of whole models: nested, shared, of several inputs, and their weights."""

import dataclasses
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from cellerate.keras_graph.to_program import read_program, read_weights
from cellerate.kernels import native
from cellerate.layers.accelerate import accelerate, is_accelerated
from cellerate.models.autoencoder import build_autoencoder, encoder_and_decoder
from cellerate.models.forecast import build_forecast_model
from cellerate.models.text import build_text_model
from cellerate.runtime.program.engine import Engine
from support.keras_models.keras_programs import (
    MASK,
    B,
    F,
    T,
    V,
    agree,
    chain_of,
    check,
    ids,
    kinds,
    masked_lstms,
    numpy,
    randomize,
    series,
)

pytestmark = [
    pytest.mark.keras,
    # Keras says so of every layer that drops a mask, which is what some of these tests are about.
    pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask:UserWarning"),
]


@pytest.mark.backends
@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict:UserWarning")
def test_program_of_a_dict_of_inputs_has_the_names_of_its_keys() -> None:
    x, mask = keras.Input((T, F), name="a"), keras.Input((T,), dtype="bool", name="b")
    states = [keras.Input((4,), name="c"), keras.Input((4,), name="d")]
    y, h, c = layers.LSTM(4, return_state=True)(x, mask=mask, initial_state=states)
    model = keras.Model(
        {"sequence": x, "valid": mask, "h": states[0], "c": states[1]}, {"y": y, "h": h, "c": c}
    )
    inputs = {"sequence": series(), "valid": MASK, "h": series(B, 4), "c": series(B, 4, seed=4)}
    program = check(model, inputs)
    assert sorted(program.inputs) == ["c", "h", "sequence", "valid"]
    assert sorted(program.outputs) == ["c", "h", "y"]


TEXT: dict[str, dict[str, Any]] = {
    "plain": {"units": 9},
    "stacked": {"units": [8, 6], "layer_norm": True, "dropout": 0.3},
    "tied": {"units": 5, "embedding": 5, "tie_weights": True},
    "tied-projected": {"units": 7, "embedding": 5, "tie_weights": True, "recurrent_dropout": 0.2},
}


@pytest.mark.parametrize("name", TEXT)
def test_program_of_a_text_model_computes_what_keras_does(name: str) -> None:
    program = check(build_text_model(V, **TEXT[name]), ids())
    assert (list(program.inputs), list(program.outputs)) == (["ids"], ["logits"])
    assert program.nodes[0].options == {"shape": (-1, -1), "dtype": "int32"}
    tables = [node.arrays["embeddings"] for node in program.nodes if "embeddings" in node.arrays]
    assert len(tables) == (2 if "tied" in name else 1)
    assert all(table is tables[0] for table in tables)


FORECAST: dict[str, dict[str, Any]] = {
    "plain": {},
    "bare": {"residual": False, "layers": 2},
    "quantiles": {"quantiles": [0.1, 0.25, 0.5, 0.9], "bidirectional": True},
    "one-quantile": {"quantiles": [0.5], "residual": False},
    "above": {"quantiles": [0.5, 0.9], "units": [4, 3], "bidirectional": True, "dropout": 0.5},
    "all-columns": {"targets": F, "target_columns": list(range(F))},
}


@pytest.mark.parametrize("name", FORECAST)
def test_program_of_a_forecast_model_computes_what_keras_does(name: str) -> None:
    options = {"units": 4, "targets": 2, "target_columns": [3, 0]} | FORECAST[name]
    check(build_forecast_model(T, F, 3, **options), series())


def test_program_of_an_autoencoder_and_its_parts_computes_what_keras_does() -> None:
    model = build_autoencoder(V, embedding=3, units=4, latent=5, dropout=0.3, decoder_dropout=0.3)
    program = check(model, {"source": ids(), "target_in": ids(4)})
    assert list(program.inputs) == ["source", "target_in"]
    assert masked_lstms(program) == [True, True, False]
    assert "encode/encoder/forward_lstm" in {node.name for node in program.nodes}
    encode, decode = encoder_and_decoder(model)
    check(encode, ids())
    check(decode, {"vector_in": series(B, 5), "target_in": ids(4)})


def test_program_of_a_sequential_model_built_by_a_call_computes_what_keras_does() -> None:
    model = keras.Sequential(
        [layers.Embedding(V, 4, mask_zero=True), layers.LSTM(5, return_sequences=True), layers.Dense(V)]
    )
    model(ids())  # its input is float32, as Keras takes it for
    program = check(model, ids())
    assert program.nodes[0].options["dtype"] == "int32"


def test_program_of_nested_and_shared_models_holds_each_array_once() -> None:
    lstm, shared = layers.LSTM(F, return_sequences=True, name="lstm"), layers.Dense(F, name="shared")
    norm = layers.BatchNormalization(name="norm")
    inner = keras.Sequential([keras.Input((None, F)), lstm, norm], name="inner")
    middle_in = keras.Input((None, F), name="middle_in")
    middle = keras.Model(middle_in, inner(shared(middle_in)), name="middle")
    x, y = keras.Input((T, F), name="x"), keras.Input((T, F), name="y")
    model = keras.Model({"x": x, "y": y}, {"b": middle(x), "a": shared(middle(y))})
    program = check(model, {"x": series(), "y": series(seed=5)})
    assert list(program.outputs) == ["a", "b"]
    for op, array, names in (
        ("lstm", "kernel", ["middle/inner/lstm"] * 2),
        ("affine", "offset", ["middle/inner/norm"] * 2),
        ("dense", "kernel", ["middle/shared", "middle/shared", "shared"]),
    ):
        nodes = [node for node in program.nodes if node.op == op]
        assert sorted(node.name for node in nodes) == names
        assert len({id(node.arrays[array]) for node in nodes}) == 1


def test_program_of_a_nested_model_takes_a_dict_and_a_mask() -> None:
    p, q, ends = keras.Input((T, F), name="p"), keras.Input((T, F), name="q"), keras.Input((T,), dtype="bool")
    difference = keras.Model({"p": p, "q": q}, {"d": layers.Subtract()([p, q]), "s": layers.Add()([p, q])})
    listed = keras.Model([p, q], layers.Subtract()([p, q]))
    recurrent = keras.Model(p, layers.LSTM(3, return_sequences=True)(p))
    x, y = keras.Input((T, F), name="x"), keras.Input((T, F), name="y")
    both = difference({"q": x, "p": y})
    outputs = [both["d"], both["s"], listed({"q": x, "p": y}), layers.LSTM(2)(recurrent(x, mask=ends))]
    model = keras.Model([x, y, ends], outputs)
    randomize(model)
    expected = model([series(), series(seed=5), MASK], training=False)
    program = read_program(model)
    arrays = [series(), series(seed=5), MASK]
    agree(Engine(program).run(dict(zip(program.inputs, arrays, strict=True))), expected)
    assert masked_lstms(program) == [True, True]


def test_program_leaves_out_what_no_output_needs() -> None:
    x, unused = keras.Input((T, F), name="x"), keras.Input((3,), name="unused")
    model = keras.Model([x, unused], layers.Dense(2)(layers.Masking()(x)))
    program = read_program(model)
    assert kinds(program) == ["input", "input", "features_mask", "masked", "dense"]
    plain = chain_of(layers.Embedding(V, 4, mask_zero=True), layers.Dense(2), shape=(None,), dtype="int32")
    assert kinds(read_program(plain)) == ["input", "embedding", "dense"]


@pytest.mark.parametrize(
    ("declared", "packed"), [("int32", "int32"), ("bool", "int32"), ("float16", "float32")]
)
def test_an_input_that_no_output_needs_keeps_its_kind(declared: str, packed: str) -> None:
    x, unused = keras.Input((T, F), name="x"), keras.Input((T,), name="unused", dtype=declared)
    model = keras.Model([x, unused], layers.LSTM(2, return_sequences=True)(x))
    found = {node.name: node.options["dtype"] for node in read_program(model).nodes if node.op == "input"}
    assert found == {"x": "float32", "unused": packed}


def test_each_kernel_of_several_can_be_given_back_to_the_model() -> None:
    layer = layers.EinsumDense("btf,tfh->bth", (T, 4), bias_axes="th")
    model = chain_of(layer)
    program, weights = read_weights(model)
    number = [place for place, node in enumerate(program.nodes) if node.op == "dense"][1]
    before = [np.array(one) for one in layer.get_weights()]
    weights[number, "kernel"].assign(np.full_like(before[0][1], 7.0))
    after = layer.get_weights()
    assert (after[0][1] == 7.0).all()
    np.testing.assert_array_equal(np.delete(after[0], 1, axis=0), np.delete(before[0], 1, axis=0))
    np.testing.assert_array_equal(after[1], before[1])


def test_weights_are_read_in_float32_whatever_the_policy() -> None:
    mixed = build_text_model(V, units=5, layer_norm=True, dtype_policy="mixed_bfloat16")
    plain = build_text_model(V, units=5, layer_norm=True)
    randomize(mixed)
    plain.set_weights(mixed.get_weights())
    agree(Engine(read_program(mixed)).run(ids()), plain(ids(), training=False))


def test_reading_changes_neither_the_model_nor_its_program_when_it_learns_on() -> None:
    model = build_text_model(V, units=5)
    randomize(model)
    plain = read_program(model)
    expected = numpy(model(ids(), training=False))
    accelerate(model)
    accelerated = is_accelerated(model.get_layer("lstm_1"))
    assert accelerated == (native.why_unavailable() is None)
    program = read_program(model)
    assert is_accelerated(model.get_layer("lstm_1")) == accelerated
    for node, other in zip(plain.nodes, program.nodes, strict=True):
        assert dataclasses.replace(node, arrays={}) == dataclasses.replace(other, arrays={})
        assert all(np.array_equal(node.arrays[name], other.arrays[name]) for name in node.arrays)
    for variable in model.trainable_variables:
        variable.assign(variable * 0.0)
    agree(Engine(program).run(ids()), [expected])
