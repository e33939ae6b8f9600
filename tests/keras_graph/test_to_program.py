"""A program read from a Keras model must compute what the model computes, whatever its layers, options and masks.

Each test builds a model, gives every variable random values, and holds `model(x, training=False)` against the
engine's results of the program.
"""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from cellerate.errors import ModelError
from cellerate.keras_graph.to_program import read_program, read_weights, why_not_packed
from cellerate.kernels import native
from cellerate.layers.accelerate import accelerate, is_accelerated
from cellerate.models.autoencoder import build_autoencoder, encoder_and_decoder
from cellerate.models.forecast import build_forecast_model
from cellerate.models.text import build_text_model
from cellerate.program import NORMALIZERS, Program
from cellerate.runtime.program.engine import Engine
from support.activation_names import IN_FILES, in_keras

pytestmark = [
    pytest.mark.keras,
    # Keras says so of every layer that drops a mask, which is what some of these tests are about.
    pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask:UserWarning"),
]

BACKEND = keras.backend.backend()
TOLERANCE = 1e-5
B, T, F, V = 6, 7, 5, 11  # batch, steps, features, rows of an Embedding
# A row for each way to pad; the last one counts whole.
MASK = np.array(
    [
        [1, 1, 1, 1, 0, 0, 0],
        [0, 0, 1, 1, 1, 1, 1],
        [1, 1, 0, 0, 0, 1, 1],
        [0, 1, 0, 1, 1, 0, 1],
        [0, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 1],
    ],
    bool,
)
Chain = Callable[[Any], Any]


def series(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape or (B, T, F)).astype("float32")


def ids(steps: int = T) -> np.ndarray:
    return (np.random.default_rng(3).integers(1, V, (B, T)).astype("int32") * MASK)[:, :steps]


def masked_series() -> np.ndarray:
    return series() * MASK[..., None]


def randomize(model: keras.Model) -> None:
    """Gives every variable of numbers other values, none of them Keras's initial ones."""
    rng = np.random.default_rng(0)
    for variable in model.variables:
        if "float" in keras.backend.standardize_dtype(variable.dtype):
            values = rng.normal(scale=0.5, size=variable.shape)
            variable.assign(
                (np.abs(values) + 0.5 if "variance" in variable.name else values).astype("float32")
            )


def numpy(value: Any) -> np.ndarray:
    return np.asarray(ops.convert_to_numpy(value))


def agree(found: Any, expected: Any, tolerance: float = TOLERANCE) -> None:
    flat = [numpy(value) for value in keras.tree.flatten(expected)]
    assert len(found) == len(flat)
    for name, value in zip(found, flat, strict=True):
        largest = np.nanmax(np.abs(value), initial=0)
        np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance * (1 + largest), err_msg=name)


def check(model: keras.Model, inputs: Any) -> Program:
    """Holds the program of a model with random weights against the model."""
    randomize(model)
    expected = model(inputs, training=False)
    program = read_program(model)
    agree(Engine(program).run(inputs), expected)
    return program


def chain_of(*chain: Any, shape: tuple[int | None, ...] = (T, F), dtype: str = "float32") -> keras.Model:
    """A Functional model of one input, and the functions or layers of a chain."""
    value = inputs = keras.Input(shape, dtype=dtype, name="x")
    for link in chain:
        value = link(value)
    return keras.Model(inputs, value)


def kinds(program: Program) -> list[str]:
    return [node.op for node in program.nodes]


def masked_lstms(program: Program) -> list[bool]:
    """Of each LSTM, whether it is given a mask."""
    return ["mask" in node.inputs for node in program.nodes if node.op == "lstm"]


def known_statistics(**options: Any) -> layers.Normalization:
    return layers.Normalization(mean=series(F), variance=np.abs(series(F, seed=2)) + 0.1, **options)


def adapted(layer: layers.Normalization) -> layers.Normalization:
    layer.adapt(series() * 3 + 1)
    return layer


def with_dense(merge: Any, *sizes: int) -> Chain:
    """Merges a tensor with a Dense of it for each size."""
    return lambda x: merge([x, *(layers.Dense(size)(x) for size in sizes)])


def over_last_step(merge: layers.Layer) -> Chain:
    """Merges (B, T, F) with (B, F), which Keras gives a time axis of 1."""
    return lambda x: merge([x, layers.GlobalMaxPooling1D()(x)])


CASES: dict[str, Chain] = {
    "dense": layers.Dense(3),
    "dense-no-bias": layers.Dense(3, use_bias=False),
    "dense-of-2-axes": lambda x: layers.Dense(3, activation="softmax")(layers.Flatten()(x)),
    "einsum-abc": layers.EinsumDense("abc,cd->abd", (None, 4), activation="tanh", bias_axes="d"),
    "einsum-dots": layers.EinsumDense("...x,xy->...y", 4),
    "einsum-each": layers.EinsumDense("btf,tfh->bth", (T, 4), bias_axes="th", activation="relu"),
    "einsum-each-no-bias": layers.EinsumDense("btf,tfh->bth", (T, 4)),
    "relu": layers.ReLU(),
    "relu6": layers.ReLU(max_value=6.0),
    "relu-slope": layers.ReLU(negative_slope=0.1),
    "leaky-relu": layers.LeakyReLU(),
    "leaky-relu-0.2": layers.LeakyReLU(negative_slope=0.2),
    "leaky-relu-2": layers.LeakyReLU(negative_slope=2.0),
    "relu-all": layers.ReLU(max_value=0.5, negative_slope=0.1, threshold=0.25),
    "elu": layers.ELU(),
    "elu-alpha": layers.ELU(alpha=2.0),
    "softmax": layers.Softmax(),
    "softmax-axis-2": layers.Softmax(axis=2),
    "layer-norm": layers.LayerNormalization(),
    "layer-norm-axes": layers.LayerNormalization(axis=[2], epsilon=0.1),
    "layer-norm-bare": layers.LayerNormalization(center=False, scale=False),
    "batch-norm": layers.BatchNormalization(),
    "batch-norm-axis-2": layers.BatchNormalization(axis=2, epsilon=0.1, center=False),
    "batch-norm-bare": layers.BatchNormalization(scale=False, center=False),
    "normalization": known_statistics(),
    "normalization-invert": known_statistics(invert=True),
    "normalization-scalar": layers.Normalization(axis=None, mean=0.5, variance=4.0),
    "normalization-adapted": adapted(layers.Normalization()),
    "rescaling": layers.Rescaling(1 / 3, offset=-2),
    "rescaling-array": layers.Rescaling(series(F), offset=series(F, seed=2)),
    "dropout": layers.Dropout(0.5),
    "spatial-dropout": layers.SpatialDropout1D(0.5),
    "gaussian-noise": layers.GaussianNoise(0.5),
    "gaussian-dropout": layers.GaussianDropout(0.5),
    "activity": layers.ActivityRegularization(0.5),
    "identity": layers.Identity(),
    "time-distributed-dense": layers.TimeDistributed(layers.Dense(3, activation="relu")),
    "time-distributed-norm": layers.TimeDistributed(layers.LayerNormalization(axis=1)),
    "time-distributed-batch-norm": layers.TimeDistributed(layers.BatchNormalization()),
    "time-distributed-activation": layers.TimeDistributed(layers.Activation("softmax")),
    "time-distributed-dropout": layers.TimeDistributed(layers.Dropout(0.5)),
    "flatten": layers.Flatten(),
    "reshape": layers.Reshape((F, T)),
    "reshape-unknown": layers.Reshape((-1, 5, 1)),
    "permute": layers.Permute((2, 1)),
    "crop": layers.Cropping1D((2, 1)),
    "crop-begin": layers.Cropping1D((T - 1, 0)),
    "average-pooling": layers.GlobalAveragePooling1D(),
    "average-pooling-kept": layers.GlobalAveragePooling1D(keepdims=True),
    "max-pooling": layers.GlobalMaxPooling1D(),
    "max-pooling-kept": layers.GlobalMaxPooling1D(keepdims=True),
    "repeat-vector": lambda x: layers.RepeatVector(3)(layers.GlobalMaxPooling1D()(x)),
    "add": with_dense(layers.Add(), F, F),
    "subtract": with_dense(layers.Subtract(), F),
    "multiply": with_dense(layers.Multiply(), F, F),
    "average": with_dense(layers.Average(), F, F),
    "maximum": with_dense(layers.Maximum(), F, F),
    "minimum": with_dense(layers.Minimum(), F, F),
    "add-of-other-axes": over_last_step(layers.Add()),
    "subtract-of-other-axes": over_last_step(layers.Subtract()),
    "concatenate": with_dense(layers.Concatenate(), 3, 1),
    "concatenate-axis-1": lambda x: layers.Concatenate(axis=1)([x, layers.Cropping1D((0, 4))(x)]),
    "ops-take": lambda x: ops.take(x, [3, 0, 3, -1], axis=-1),
    "ops-take-one": lambda x: ops.take(x, 2, axis=1),
    "ops-flip": lambda x: ops.flip(x, axis=1),
    "ops-cumsum": lambda x: ops.cumsum(x, axis=-1),
    "ops-last-step": lambda x: x[:, -1],
    "ops-last-step-dots": lambda x: x[:, -1, ...],
    "ops-range": lambda x: x[:, 2:-1, :],
    "ops-begin": lambda x: x[:, -3:],
    "ops-column": lambda x: x[..., 1],
    "ops-squeeze": lambda x: ops.squeeze(x[:, 2:3], axis=1),
    "ops-expand": lambda x: ops.expand_dims(x, axis=-1),
    "ops-concatenate": lambda x: ops.concatenate([x, -x], axis=-1),
    "ops-cast": lambda x: ops.cast(x, "float32"),
    "ops-constants": lambda x: (1.0 - (x * 3.0 - 0.5) / 7.0) * np.arange(F, dtype="float32") + 2.0,
    "ops-tensors": lambda x: (x + layers.Dense(F)(x)) * x - layers.Dense(F)(x),
    "ops-activations": lambda x: ops.tanh(ops.sigmoid(ops.softplus(ops.relu(x)))),
}


@pytest.mark.backends
@pytest.mark.parametrize("name", CASES)
def test_program_of_a_layer_computes_what_keras_does(name: str) -> None:
    check(chain_of(CASES[name]), series())


@pytest.mark.parametrize("kind", ["dense", "activation"])
def test_program_of_every_activation_computes_what_keras_does(kind: str) -> None:
    make = {
        "dense": lambda function, name: layers.Dense(4, activation=function, name=name),
        "activation": lambda function, name: layers.Activation(function, name=name),
    }[kind]
    x = keras.Input((None, F), name="x")
    names = [*IN_FILES, *NORMALIZERS]
    made = [make(in_keras(name), re.sub(r"\W+", "_", name))(x) for name in names]
    program = check(keras.Model(x, made), series() * 3)
    found = [program.nodes[node].options.get("activation") for node in program.outputs.values()]
    assert found[1:] == names[1:]


def test_program_of_a_prelu_of_one_slope_is_a_leaky_relu() -> None:
    x = keras.Input((T, F), name="x")
    of_lstm, own = (layers.PReLU(keras.initializers.Constant(slope)) for slope in (0.3, 0.5))
    model = keras.Model(x, own(layers.LSTM(3, activation=of_lstm)(x)))
    model(series())  # makes the slopes of the one in the LSTM
    program = read_program(model)
    used = [node.options["activation"] for node in program.nodes if "activation" in node.options]
    assert used == ["leaky_relu(negative_slope=0.3)", "leaky_relu(negative_slope=0.5)"]


@pytest.mark.parametrize("which", ["activation", "recurrent_activation"])
def test_program_of_an_lstm_of_every_activation_computes_what_keras_does(which: str) -> None:
    x = keras.Input((2, F), name="x")
    # Few steps and small numbers: the exponential of an exponential magnifies every rounding.
    check(
        keras.Model(x, [layers.LSTM(3, **{which: in_keras(name)})(x) for name in IN_FILES]),
        series(2, 2, F) / 4,
    )


LSTMS: dict[str, dict[str, Any]] = {
    "last": {},
    "sequences": {"return_sequences": True},
    "states": {"return_state": True, "return_sequences": True, "use_bias": False},
    "zero": {"zero_output_for_mask": True, "return_sequences": True, "return_state": True},
    "zero-last": {"zero_output_for_mask": True},
    "backwards": {"go_backwards": True, "return_sequences": True, "return_state": True},
    "backwards-zero": {"go_backwards": True, "return_sequences": True, "zero_output_for_mask": True},
    "dropouts": {"dropout": 0.5, "recurrent_dropout": 0.5, "unit_forget_bias": False},
}


@pytest.mark.backends
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("name", LSTMS)
def test_program_of_an_lstm_computes_what_keras_does(name: str, masked: bool) -> None:
    chain = [layers.Masking()] if masked else []
    program = check(chain_of(*chain, layers.LSTM(9, **LSTMS[name])), masked_series())
    assert masked_lstms(program) == [masked]


@pytest.mark.parametrize("options", [{}, {"zero_output_for_mask": True}, {"go_backwards": True}], ids=str)
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_program_of_an_unrolled_lstm_computes_what_keras_does(options: dict[str, Any], masked: bool) -> None:
    chain = [layers.Masking()] if masked else []
    model = chain_of(*chain, layers.LSTM(4, unroll=True, return_sequences=True, **options))
    if masked and options.get("go_backwards") and BACKEND != "jax":
        with pytest.raises(ModelError, match="unrolled, goes backwards and is given a mask"):
            read_program(model)
    else:
        check(model, masked_series())


@pytest.mark.parametrize("steps", [1, 4])
def test_program_of_one_row_and_few_steps_computes_what_keras_does(steps: int) -> None:
    bidirectional = layers.Bidirectional(layers.LSTM(1, return_sequences=True))
    check(chain_of(bidirectional, layers.LSTM(1), shape=(None, 1)), series(1, steps, 1))


@pytest.mark.parametrize("unroll", [False, True], ids=["loop", "unrolled"])
@pytest.mark.parametrize("zero", [False, True], ids=["repeat", "zero"])
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_program_of_an_initial_state_computes_what_keras_does(masked: bool, zero: bool, unroll: bool) -> None:
    """Masked steps before the first that counts are where the backends differ."""
    x, h, c = keras.Input((T, F), name="x"), keras.Input((4,), name="h"), keras.Input((4,), name="c")
    mask = keras.Input((T,), dtype="bool", name="mask")
    options = {"return_sequences": True, "return_state": True, "unroll": unroll}
    lstm = layers.LSTM(4, zero_output_for_mask=zero, **options)
    y = lstm(x, initial_state=[h, c], mask=mask) if masked else lstm(x, initial_state=[h, c])
    model = keras.Model([x, h, c, mask], y) if masked else keras.Model([x, h, c], y)
    inputs = {"x": series(), "h": series(B, 4), "c": series(B, 4, seed=4)}
    if masked:
        inputs["mask"] = MASK
    randomize(model)
    expected = model(inputs, training=False)
    program = read_program(model)
    agree(Engine(program).run(inputs), expected)
    assert masked_lstms(program) == [masked]
    assert list(program.outputs) == [lstm.name, f"{lstm.name}_1", f"{lstm.name}_2"]


RNNS: dict[str, Chain] = {
    "gru": lambda options: layers.GRU(4, **options),
    "gru-reset-before": lambda options: layers.GRU(4, reset_after=False, **options),
    "simple": lambda options: layers.SimpleRNN(4, **options),
    "stacked": lambda options: layers.RNN(
        [layers.LSTMCell(4), layers.GRUCell(3), layers.SimpleRNNCell(2)], **options
    ),
}
RNN_OPTIONS: dict[str, dict[str, Any]] = {
    "last": {},
    "states": {"return_state": True, "return_sequences": True},
    "zero": {"zero_output_for_mask": True, "return_sequences": True, "return_state": True},
    "backwards": {"go_backwards": True, "return_sequences": True, "return_state": True},
    "unrolled": {"unroll": True, "return_sequences": True},
    "stateful": {"stateful": True, "return_state": True},
}


# Keras itself cannot reset the states of stacked cells.
RNN_CASES = [(kind, name) for kind in RNNS for name in RNN_OPTIONS if (kind, name) != ("stacked", "stateful")]


@pytest.mark.backends
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize(("kind", "name"), RNN_CASES)
def test_program_of_a_gru_or_simple_rnn_computes_what_keras_does(kind: str, name: str, masked: bool) -> None:
    options = RNN_OPTIONS[name]
    x = keras.Input(batch_shape=(B if "stateful" in options else None, T, F), name="x")
    layer = RNNS[kind](options)
    model = keras.Model(x, layer(layers.Masking()(x) if masked else x))
    randomize(model)
    if "stateful" in options:
        layer.reset_state()
    program = read_program(model)
    expected = model(masked_series(), training=False)
    agree(Engine(program).run(masked_series()), expected)


@pytest.mark.parametrize(
    ("kind", "which"),
    [
        *(
            (kind, which)
            for kind in ("gru", "gru-reset-before")
            for which in ("activation", "recurrent_activation")
        ),
        ("simple", "activation"),
        *((kind, "use_bias") for kind in ("gru", "gru-reset-before", "simple")),
    ],
)
def test_program_of_a_gru_or_simple_rnn_of_every_option_computes_what_keras_does(
    kind: str, which: str
) -> None:
    values = [False] if which == "use_bias" else [in_keras(name) for name in IN_FILES]
    x = keras.Input((2, F), name="x")
    check(keras.Model(x, [RNNS[kind]({which: value})(x) for value in values]), series(2, 2, F) / 4)


@pytest.mark.backends
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("kind", ["gru", "simple"])
def test_program_of_a_bidirectional_gru_with_states_computes_what_keras_does(kind: str, masked: bool) -> None:
    x, mask = keras.Input((T, F), name="x"), keras.Input((T,), dtype="bool", name="mask")
    states = [keras.Input((4,), name=name) for name in ("forward", "backward")]
    both = layers.Bidirectional(RNNS[kind]({"return_sequences": True, "return_state": True}))
    y, *last = both(x, initial_state=states, mask=mask if masked else None)
    model = keras.Model([x, mask, *states], [RNNS[kind]({})(layers.LSTM(3, return_sequences=True)(y)), *last])
    given = {name: series(B, 4, seed=number) for number, name in enumerate(("forward", "backward"))}
    check(model, {"x": series(), "mask": MASK, **given})


def test_gru_that_holds_a_state_is_refused() -> None:
    x = keras.Input(batch_shape=(B, T, F), name="x")
    model = keras.Model(x, layers.GRU(3, stateful=True, name="kept")(x))
    model(series())
    with pytest.raises(
        ModelError, match=r"kept \(GRU\) is stateful and holds the state after other sequences"
    ):
        read_program(model)


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


MERGES = ["concat", "sum", "mul", "ave", None]


@pytest.mark.backends
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("merge_mode", MERGES, ids=str)
def test_program_of_a_bidirectional_computes_what_keras_does(merge_mode: str | None, masked: bool) -> None:
    x = keras.Input((None, F), name="x")
    start = layers.Masking()(x) if masked else x
    outputs = [
        layers.Bidirectional(
            layers.LSTM(4, return_sequences=sequences, return_state=state), merge_mode=merge_mode
        )(start)
        for sequences, state in ((False, False), (True, False), (True, True))
    ]
    program = check(keras.Model(x, outputs), masked_series())
    assert masked_lstms(program) == [masked] * 6


def test_program_of_a_bidirectional_of_two_layers_and_states_computes_what_keras_does() -> None:
    x, state = keras.Input((T, F), name="x"), [keras.Input((4,), name=name) for name in "abcd"]
    forward = layers.LSTM(4, return_sequences=True, go_backwards=True, activation="relu")
    backward = layers.LSTM(4, return_sequences=True)
    y = layers.Bidirectional(forward, backward_layer=backward, name="both")(x, initial_state=state)
    model = keras.Model([x, *state], layers.LSTM(3)(y))
    states = {name: series(B, 4, seed=number) for number, name in enumerate("abcd")}
    program = check(model, {"x": series(), **states})
    paths = [node.name for node in program.nodes if node.op == "lstm"]
    assert paths[:2] == [f"both/forward_{forward.name}", f"both/{backward.name}"]


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


@pytest.mark.parametrize("sequences", [False, True], ids=["last", "sequences"])
def test_program_of_a_masked_bidirectional_with_states_computes_what_keras_does(sequences: bool) -> None:
    x, ends = keras.Input((T, F), name="x"), keras.Input((T,), dtype="bool", name="ends")
    start = layers.Dense(4)(layers.GlobalMaxPooling1D()(x))
    both = layers.Bidirectional(layers.LSTM(4, return_sequences=sequences))
    model = keras.Model([x, ends], both(x, initial_state=[start] * 4, mask=ends))
    randomize(model)
    expected = model({"x": series(), "ends": MASK}, training=False)
    program = read_program(model)
    agree(Engine(program).run({"x": series(), "ends": MASK}), [expected])
    assert masked_lstms(program) == [True, True]


@pytest.mark.backends
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_program_of_an_rnn_of_cells_computes_what_keras_does(masked: bool) -> None:
    x = keras.Input((T, F), name="x")
    start = layers.Masking()(x) if masked else x
    stack = [
        layers.RNN([layers.LSTMCell(4), layers.LSTMCell(3), layers.LSTMCell(2)], **options)
        for options in (
            {},
            {"return_sequences": True, "return_state": True},
            {"return_sequences": True, "go_backwards": True, "zero_output_for_mask": True},
        )
    ]
    outputs = [layer(start) for layer in [layers.RNN(layers.LSTMCell(4), return_sequences=True), *stack]]
    program = check(keras.Model(x, outputs), masked_series())
    assert masked_lstms(program) == [masked] * 10


def test_program_of_stacked_cells_takes_their_initial_states() -> None:
    x, states = keras.Input((T, F), name="x"), [[keras.Input((n,)) for _ in "hc"] for n in (4, 3)]
    y = layers.RNN([layers.LSTMCell(4), layers.LSTMCell(3)])(x, initial_state=states)
    model = keras.Model([x, states], y)
    names = list(read_program(model).inputs)[1:]
    arrays = dict(zip(names, [series(B, n, seed=n + i) for n in (4, 3) for i in (0, 9)], strict=True))
    randomize(model)
    given = [arrays[name] for name in names]
    expected = model([series(), [given[:2], given[2:]]], training=False)
    agree(Engine(read_program(model)).run({"x": series(), **arrays}), expected)


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


def test_integer_input_used_as_numbers_becomes_float32() -> None:
    model = chain_of(layers.Rescaling(0.5), layers.Dense(2), shape=(F,), dtype="int32")
    program = check(model, np.arange(B * F, dtype="int32").reshape(B, F))
    assert program.nodes[0].options["dtype"] == "float32"


@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("tied", [True, False])
def test_program_of_a_reversible_embedding_computes_what_keras_does(tied: bool, cap: float | None) -> None:
    table = layers.ReversibleEmbedding(V, 4, tie_weights=tied, logit_soft_cap=cap, mask_zero=True)
    reverse = lambda x: table(x, reverse=True)  # noqa: E731
    program = check(chain_of(table, layers.LSTM(4, return_sequences=True), reverse, shape=(T,)), ids())
    assert masked_lstms(program) == [True]


@pytest.mark.backends
@pytest.mark.parametrize("name", ["dense", "embedding", "einsum"])
def test_low_rank_update_is_merged_into_the_weights(name: str) -> None:
    layer = {
        "dense": layers.Dense(4),
        "embedding": layers.Embedding(V, 4),
        "einsum": layers.EinsumDense("abc,cd->abd", (None, 4)),
    }[name]
    of_ids = name == "embedding"
    model = chain_of(layer, **({"shape": (T,), "dtype": "int32"} if of_ids else {}))
    before = read_program(model)
    layer.enable_lora(2, lora_alpha=3)
    program = check(model, ids() if of_ids else series())
    assert kinds(program) == kinds(before)


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


def test_stateful_lstm_is_read_as_one_from_zeros_unless_it_holds_a_state() -> None:
    x = keras.Input(batch_shape=(B, T, F), name="x")
    lstm = layers.LSTM(4, stateful=True, name="carrying")
    model = keras.Model(x, lstm(x))
    randomize(model)
    model(series())
    with pytest.raises(ModelError, match=r"carrying \(LSTM\) is stateful and holds .* reset_state\(\)"):
        read_program(model)
    lstm.reset_state()
    program = read_program(model)
    assert program.nodes[0].options["shape"] == (-1, T, F)
    agree(Engine(program).run(series()), model(series(), training=False))


class Doubled(layers.Dense):
    """A Dense with a call of its own."""

    def call(self, inputs: Any, training: Any = None) -> Any:
        return 2 * super().call(inputs)


class Renamed(layers.Dense):
    """A Dense that computes as one."""


class Subclassed(keras.Model):
    """A model with no graph."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.dense = layers.Dense(2)

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)


class Gated(layers.GRUCell):
    """A cell that may compute anything."""


def quantised() -> layers.Dense:
    layer = layers.Dense(4, name="small")
    layer.build((None, T, F))
    layer.quantize("int8")
    return layer


REFUSED: dict[str, tuple[Chain, str]] = {
    "unknown": (layers.Conv1D(3, 2, name="conv"), r"conv \(Conv1D\) is not a layer that can be packed\. Use"),
    "conv-lstm": (
        lambda x: layers.ConvLSTM1D(2, 2, name="conv")(ops.expand_dims(x, -1)),
        r"conv \(ConvLSTM1D\) is not a layer that can be packed\. Use",
    ),
    "lambda": (layers.Lambda(lambda x: x, name="code"), r"code \(Lambda\) .* Python code"),
    "prelu": (layers.PReLU("random_normal", shared_axes=[1], name="learnt"), r"learnt \(PReLU\) "),
    "subclass": (Doubled(3, name="twice"), r"twice \(Doubled\) overrides `call`. Use Dense itself"),
    "subclassed-model": (Subclassed(name="inside"), r"inside \(Subclassed\) is not a layer"),
    "quantised": (lambda x: quantised()(x), r"small \(Dense\) is quantised \(int8\)"),
    "activation": (
        layers.Dense(3, activation=ops.sin, name="wave"),
        r"wave \(Dense\) has the activation 'sin'",
    ),
    "softmax-axis": (layers.Softmax(axis=1), "works along axis 1 of 3"),
    "softmax-mask": (lambda x: layers.Softmax()(x[..., :1], mask=ops.any(x != 0.0, axis=-1)), "given a mask"),
    "norm-axis": (layers.LayerNormalization(axis=1), "works along axis"),
    "rms-norm": (lambda x: layers.LayerNormalization(rms_scaling=True)(x), "rms_scaling=True"),
    "batch-norm-axis": (layers.BatchNormalization(axis=1), "works along axis 1 of 3"),
    "einsum": (layers.EinsumDense("abc,cde->abde", (None, 4, 2)), "not a dense layer. Use Dense"),
    "time-distributed": (
        layers.TimeDistributed(layers.RepeatVector(3, name="repeat"), name="each"),
        r"each/repeat \(RepeatVector\) is not a layer that can be packed inside a TimeDistributed\. Use",
    ),
    "channels-first": (
        layers.GlobalMaxPooling1D(data_format="channels_first"),
        "data_format='channels_first'",
    ),
    "cell": (
        layers.RNN(Gated(3)),
        r"\(RNN\) has a Gated, where programs know LSTMCell, GRUCell, SimpleRNNCell",
    ),
    "lstm-activation": (layers.LSTM(3, activation=ops.sin), "has the activation 'sin'"),
    "lstm-softmax": (layers.LSTM(3, activation="softmax"), "has the activation 'softmax'"),
    "gru-activation": (layers.GRU(3, recurrent_activation=ops.sin), "has the recurrent_activation 'sin'"),
    "bidirectional": (
        layers.Bidirectional(layers.GRU(3, activation="softmax", name="gru"), name="both"),
        r"both/forward_gru \(GRU\) has the activation 'softmax'",
    ),
    "training": (lambda x: layers.Dropout(0.5)(x, training=True), "called with training=True"),
    "op": (lambda x: ops.roll(x, 1, axis=1), r"\(Roll\) is not an operation"),
    "op-axis": (lambda x: ops.flip(x, axis=0), "works along axis 0"),
    "op-batch": (lambda x: x[1:, :], "behind the batch"),
    "op-quotient": (lambda x: 1.0 / x, "divides by a tensor"),
    "boolean": (lambda x: x > 0, r"output '\w+' is a tensor of booleans"),
    "cast-boolean": (lambda x: ops.cast(x > 0, "float32"), "booleans|not a numeric tensor"),
    "computed-mask": (
        lambda x: layers.LSTM(3)(x, mask=ops.logical_not(ops.any(x != 0.0, axis=-1))),
        "a mask that comes from something else",
    ),
    "computed-ids": (lambda x: layers.Embedding(V, 2)(x[..., 0]), "looks up a computed tensor"),
}


@pytest.mark.filterwarnings("ignore:You passed `rms_scaling=True`:UserWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_layer_that_no_program_computes_is_refused_with_the_reason(name: str) -> None:
    chain, message = REFUSED[name]
    with pytest.raises(ModelError, match=message):
        read_program(chain_of(chain))


def test_shape_of_two_unknown_sizes_is_refused() -> None:
    with pytest.raises(ModelError, match="more than one of its sizes is not known"):
        read_program(chain_of(lambda x: ops.expand_dims(x, axis=-1), shape=(None, None)))


def test_subclass_that_computes_as_its_layer_is_read() -> None:
    check(chain_of(Renamed(3)), series())


def test_refusal_names_every_layer_with_its_path() -> None:
    inner = chain_of(layers.Lambda(lambda x: x, name="code"), layers.Dense(F), shape=(None, F))
    nested = keras.Model(inner.inputs[0], inner.outputs[0], name="nested")
    model = chain_of(
        nested,
        layers.PReLU("random_normal", name="learnt"),
        layers.Conv1D(2, 2, name="conv"),
        layers.Dense(2, name="last"),
    )
    with pytest.raises(ModelError) as caught:
        read_program(model)
    lines = str(caught.value).splitlines()[1:]
    assert [line.split(" ")[1] for line in lines] == ["nested/code", "learnt", "conv"]
    assert [f"- {reason}" for reason in why_not_packed(model)] == lines


def test_refusal_gives_every_reason_of_a_layer() -> None:
    lstm = layers.LSTM(
        3, activation=ops.sin, recurrent_activation="softmax", return_sequences=True, name="one"
    )
    both = layers.Bidirectional(layers.GRU(3, activation="softmax", recurrent_activation="glu"), name="both")
    found = why_not_packed(chain_of(layers.LayerNormalization(axis=1, name="norm"), lstm, both))
    assert [" ".join(reason.split(" ")[:6]).rstrip(",") for reason in found] == [
        "norm (LayerNormalization) works along axis [1]",
        "one (LSTM) has the activation 'sin'",
        "one (LSTM) has the recurrent_activation 'softmax'",
        *(
            f"both/{direction}_{both.forward_layer.name.removeprefix('forward_')} (GRU) has the {which}"
            for direction in ("forward", "backward")
            for which in ("activation 'softmax'", "recurrent_activation 'glu'")
        ),
    ]


def test_refusal_of_weights_names_every_one_that_diverged() -> None:
    model = chain_of(layers.LSTM(3, return_sequences=True, name="one"), layers.Dense(2, name="two"))
    for variable in model.trainable_variables:
        variable.assign(variable + np.nan)
    assert [reason.split(",")[0].split(".")[0] for reason in why_not_packed(model)] == [
        f"{layer} holds a NaN or an infinity in its {name}"
        for layer, name in (
            ("one", "kernel"),
            ("one", "recurrent_kernel"),
            ("one", "bias"),
            ("two", "kernel"),
            ("two", "bias"),
        )
    ]


def test_nothing_keeps_a_model_from_being_packed_that_can_be() -> None:
    assert why_not_packed(chain_of(layers.LSTM(3))) == ()
    assert "is not built" in why_not_packed(keras.Sequential([layers.Dense(2)]))[0]


def test_input_of_ids_and_numbers_is_refused() -> None:
    x = keras.Input((T,), name="both")
    model = keras.Model(x, [layers.Embedding(V, 2)(x), layers.Dense(2)(x)])
    with pytest.raises(ModelError, match="input 'both' is read both as ids and as numbers"):
        read_program(model)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (3, "expected a Keras model, got int"),
        (layers.Dense(2), "expected a Keras model, got Dense"),
        (keras.Sequential([layers.Dense(2)]), "is not built"),
        (Subclassed(), r"class with a `call` of its own \(Subclassed\)"),
    ],
    ids=["number", "layer", "unbuilt", "subclassed"],
)
def test_what_is_no_readable_model_is_refused(model: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_program(model)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weight_that_is_not_finite_is_refused_with_its_layer(value: float) -> None:
    model = build_autoencoder(V, embedding=3, units=4, latent=5)
    kernel = encoder_and_decoder(model)[0].get_layer("encoder").backward_layer.cell.recurrent_kernel
    values = numpy(kernel).copy()
    values[2, 3] = value
    kernel.assign(values)
    with pytest.raises(
        ModelError, match="encode/encoder/backward_lstm holds a NaN or an infinity in its recurrent_kernel"
    ):
        read_program(model)
