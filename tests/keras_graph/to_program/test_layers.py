"""A program read from a Keras layer computes what the layer computes, whatever its options."""

import re
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from cellerate.keras_graph.to_program import read_program
from cellerate.program import NORMALIZERS
from support.activation_names import IN_FILES, in_keras
from support.keras_models.keras_programs import (
    B,
    Chain,
    F,
    T,
    V,
    chain_of,
    check,
    ids,
    kinds,
    masked_lstms,
    series,
)

pytestmark = [
    pytest.mark.keras,
    # Keras says so of every layer that drops a mask, which is what some of these tests are about.
    pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask:UserWarning"),
]


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
    "prelu": layers.PReLU("random_normal"),
    "prelu-features": layers.PReLU("random_normal", shared_axes=[1]),
    "prelu-steps": layers.PReLU("random_normal", shared_axes=[2]),
    "prelu-of-2-axes": lambda x: layers.PReLU("random_normal")(x[:, 0]),
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
    "unit-norm": layers.UnitNormalization(),
    "unit-norm-zeros": lambda x: layers.UnitNormalization()(layers.ReLU()(x - 1.0)),
    "unit-norm-axes": layers.UnitNormalization(axis=(1, -1)),
    "rms-norm": layers.RMSNormalization(),
    "rms-norm-of-2-axes": lambda x: layers.RMSNormalization(epsilon=0.1)(x[:, 0]),
    "group-norm": layers.GroupNormalization(F),
    "group-norm-one": layers.GroupNormalization(1, epsilon=0.1, scale=False),
    "group-norm-some": lambda x: layers.GroupNormalization(2)(layers.Dense(6)(x)),
    "group-norm-of-2-axes": lambda x: layers.GroupNormalization(3, center=False)(layers.Dense(6)(x[:, 1])),
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
    "time-distributed-prelu": layers.TimeDistributed(layers.PReLU("random_normal")),
    "time-distributed-dropout": layers.TimeDistributed(layers.Dropout(0.5)),
    "flatten": layers.Flatten(),
    "reshape": layers.Reshape((F, T)),
    "reshape-unknown": layers.Reshape((-1, 5, 1)),
    "permute": layers.Permute((2, 1)),
    "crop": layers.Cropping1D((2, 1)),
    "crop-begin": layers.Cropping1D((T - 1, 0)),
    "zero-padding": layers.ZeroPadding1D((2, 1)),
    "zero-padding-number": layers.ZeroPadding1D(1),
    "up-sampling": layers.UpSampling1D(3),
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
    "ops-roll": lambda x: [ops.roll(x, 2, axis=1), ops.roll(x, -1, axis=-1), ops.roll(x, 99, axis=1)],
    "ops-tile": lambda x: [ops.tile(x, [1, 2, 3]), ops.tile(x, [2]), ops.tile(x[:, 0], [1, 2])],
    "ops-repeat": lambda x: [ops.repeat(x, 2, axis=1), ops.repeat(x, 3, axis=-1)],
    "ops-swapaxes": lambda x: [ops.swapaxes(x, 1, -1), ops.swapaxes(x[:, :, None], 3, 1)],
    "ops-moveaxis": lambda x: [
        ops.moveaxis(x[:, :, None], 1, -1),
        ops.moveaxis(x[:, :, None], (1, 3), (3, 2)),
    ],
    "ops-cumsum": lambda x: ops.cumsum(x, axis=-1),
    "ops-last-step": lambda x: x[:, -1],
    "ops-last-step-dots": lambda x: x[:, -1, ...],
    "ops-range": lambda x: x[:, 2:-1, :],
    "ops-begin": lambda x: x[:, -3:],
    "ops-column": lambda x: x[..., 1],
    "ops-entry": lambda x: x[:, -1, 1:2],
    "ops-ranges": lambda x: [x[:, 1:, :2], x[:, ::2], x[..., -3:-1], x[:, 1:6:2, 3]],
    "ops-new-axes": lambda x: [x[:, None], x[:, :, None, 1:], x[:, 0, ..., None]],
    "ops-squeeze": lambda x: ops.squeeze(x[:, 2:3], axis=1),
    "ops-expand": lambda x: ops.expand_dims(x, axis=-1),
    "ops-concatenate": lambda x: ops.concatenate([x, -x], axis=-1),
    "ops-split": lambda x: [*ops.split(x, [1, 4], axis=-1), *ops.split(x[:, 1:], 3, axis=1)],
    "ops-stack": lambda x: [ops.stack([x, -x, x * 2.0], axis=axis) for axis in (1, 2, -1)],
    "ops-limits": lambda x: [ops.maximum(x, 0.3), ops.minimum(0.3, x), ops.clip(x, -0.5, 0.25), ops.abs(x)],
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
