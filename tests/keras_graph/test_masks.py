"""What every layer that can be packed does to a mask, and with it, against Keras itself.

A layer may drop a mask, pass it on, join several, or compute by it. Two probes behind each layer tell which: a mean
over time takes the mask that Keras's graph holds, and a product takes the one that a tensor carries when it runs.
"""

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from cellerate.errors import ModelError
from cellerate.keras_graph.keras_layers import ROWS
from cellerate.keras_graph.to_program import read_program
from cellerate.runtime.program.engine import Engine

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    # Keras says so of every layer that drops a mask.
    pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask:UserWarning"),
    # Of a row masked whole, a mean over time is 0/0.
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]

T, F = 5, 4
TOLERANCE = 1e-5
Join = Callable[[list[Any]], Any]


def patterns() -> np.ndarray:
    """Masks (rows, T): padded on the right, on the left, in the middle, anywhere, everywhere and nowhere."""
    rows = np.array(list(itertools.product([False, True], repeat=T)))
    return np.random.default_rng(0).permutation(rows)


def masked_batch(seed: int) -> np.ndarray:
    """A batch with a row for each pattern, in an order of its own."""
    rng = np.random.default_rng(seed)
    masks = rng.permutation(patterns())
    return (rng.normal(size=(*masks.shape, F)) * masks[..., None]).astype("float32")


def probed(value: Any) -> list[Any]:
    """A tensor, and what shows the masks on it."""
    if len(value.shape) != 3:
        return [value]
    width = value.shape[-1]
    return [
        value,
        layers.GlobalAveragePooling1D()(value),
        layers.Multiply()([value, layers.Dense(width, activation="sigmoid")(ops.flip(value, axis=1))]),
    ]


def check(model: keras.Model, arrays: Sequence[np.ndarray]) -> None:
    """Holds the program of a model with random weights against the model."""
    rng = np.random.default_rng(0)
    for variable in model.variables:
        if "float" in keras.backend.standardize_dtype(variable.dtype):
            variable.assign(rng.uniform(0.2, 0.8, variable.shape).astype("float32"))
    expected = keras.tree.flatten(model(list(arrays), training=False))
    program = read_program(model)
    found = Engine(program).run(dict(zip(program.inputs, arrays, strict=True)))
    for name, value in zip(found, expected, strict=True):
        right = np.asarray(ops.convert_to_numpy(value))
        np.testing.assert_allclose(
            found[name],
            right,
            rtol=0,
            atol=TOLERANCE * (1 + np.nanmax(np.abs(right), initial=0)),
            err_msg=name,
        )


def model_of(join: Join, masked: Sequence[bool], steps: Sequence[int | None] = (T, T)) -> keras.Model:
    """A model of an input for each of `masked`, a Masking behind those that are, and a join with its probes."""
    inputs = [
        keras.Input((length, F), name=f"x{n}") for n, length in zip(range(len(masked)), steps, strict=False)
    ]
    values = [layers.Masking()(x) if mask else x for x, mask in zip(inputs, masked, strict=True)]
    return keras.Model(
        inputs, [probe for value in keras.tree.flatten(join(values)) for probe in probed(value)]
    )


def of_one(make: Callable[[], keras.Layer]) -> Join:
    return lambda values: make()(values[0])


def of_images(make: Callable[[], keras.Layer]) -> Join:
    """Makes an image of the features of each step, and features of what a layer makes of it."""
    each = layers.TimeDistributed
    return lambda values: each(layers.Flatten())(each(make())(each(layers.Reshape((2, 2, 1)))(values[0])))


# The layers that join several tensors are in JOINS.
SINGLE: dict[str, tuple[type, Join]] = {
    "rnn": (layers.RNN, of_one(lambda: layers.RNN(layers.LSTMCell(3), return_sequences=True))),
    "lstm": (layers.LSTM, of_one(lambda: layers.LSTM(3, return_sequences=True))),
    "lstm-last": (layers.LSTM, of_one(lambda: layers.LSTM(3))),
    "gru": (layers.GRU, of_one(lambda: layers.GRU(3, return_sequences=True))),
    "simple-rnn": (layers.SimpleRNN, of_one(lambda: layers.SimpleRNN(3, return_sequences=True))),
    "bidirectional": (
        layers.Bidirectional,
        of_one(lambda: layers.Bidirectional(layers.LSTM(3, return_sequences=True), merge_mode="mul")),
    ),
    "bidirectional-apart": (
        layers.Bidirectional,
        of_one(lambda: layers.Bidirectional(layers.GRU(3, return_sequences=True), merge_mode=None)),
    ),
    "time-distributed": (layers.TimeDistributed, of_one(lambda: layers.TimeDistributed(layers.Dense(3)))),
    "time-distributed-norm": (
        layers.TimeDistributed,
        of_one(lambda: layers.TimeDistributed(layers.BatchNormalization())),
    ),
    "dense": (layers.Dense, of_one(lambda: layers.Dense(3))),
    "einsum-dense": (layers.EinsumDense, of_one(lambda: layers.EinsumDense("abc,cd->abd", (None, 3)))),
    "identity": (layers.Identity, of_one(layers.Identity)),
    "masking": (layers.Masking, of_one(layers.Masking)),
    "rescaling": (layers.Rescaling, of_one(lambda: layers.Rescaling(2.0, 1.0))),
    "dropout": (layers.Dropout, of_one(lambda: layers.Dropout(0.5))),
    "gaussian-dropout": (layers.GaussianDropout, of_one(lambda: layers.GaussianDropout(0.5))),
    "alpha-dropout": (layers.AlphaDropout, of_one(lambda: layers.AlphaDropout(0.5))),
    "spatial-dropout": (layers.SpatialDropout1D, of_one(lambda: layers.SpatialDropout1D(0.5))),
    "gaussian-noise": (layers.GaussianNoise, of_one(lambda: layers.GaussianNoise(0.5))),
    "activity": (layers.ActivityRegularization, of_one(lambda: layers.ActivityRegularization(0.1))),
    "activation": (layers.Activation, of_one(lambda: layers.Activation("tanh"))),
    "activation-softmax": (layers.Activation, of_one(lambda: layers.Activation("softmax"))),
    "relu": (layers.ReLU, of_one(layers.ReLU)),
    "leaky-relu": (layers.LeakyReLU, of_one(layers.LeakyReLU)),
    "elu": (layers.ELU, of_one(layers.ELU)),
    "prelu": (layers.PReLU, of_one(layers.PReLU)),
    "batch-norm": (layers.BatchNormalization, of_one(layers.BatchNormalization)),
    "layer-norm": (layers.LayerNormalization, of_one(layers.LayerNormalization)),
    "rms-norm": (layers.RMSNormalization, of_one(layers.RMSNormalization)),
    "group-norm": (layers.GroupNormalization, of_one(lambda: layers.GroupNormalization(2))),
    "unit-norm": (layers.UnitNormalization, of_one(layers.UnitNormalization)),
    "normalization": (layers.Normalization, of_one(lambda: layers.Normalization(mean=0.5, variance=2.0))),
    "flatten": (layers.Flatten, of_one(layers.Flatten)),
    "reshape": (layers.Reshape, of_one(lambda: layers.Reshape((F, T)))),
    "permute": (layers.Permute, of_one(lambda: layers.Permute((2, 1)))),
    "repeat-vector": (
        layers.RepeatVector,
        lambda values: layers.RepeatVector(3)(layers.GlobalMaxPooling1D()(values[0])),
    ),
    "cropping": (layers.Cropping1D, of_one(lambda: layers.Cropping1D((1, 1)))),
    "padding": (layers.ZeroPadding1D, of_one(lambda: layers.ZeroPadding1D((1, 2)))),
    "up-sampling": (layers.UpSampling1D, of_one(lambda: layers.UpSampling1D(2))),
    "average-pooling": (layers.GlobalAveragePooling1D, of_one(layers.GlobalAveragePooling1D)),
    "average-pooling-kept": (
        layers.GlobalAveragePooling1D,
        of_one(lambda: layers.GlobalAveragePooling1D(keepdims=True)),
    ),
    "max-pooling": (layers.GlobalMaxPooling1D, of_one(layers.GlobalMaxPooling1D)),
    "convolution": (layers.Conv1D, of_one(lambda: layers.Conv1D(3, 2, padding="same"))),
    "depthwise": (layers.DepthwiseConv1D, of_one(lambda: layers.DepthwiseConv1D(2, padding="same"))),
    "separable": (layers.SeparableConv1D, of_one(lambda: layers.SeparableConv1D(3, 2, padding="same"))),
    "max-pooling-of-windows": (layers.MaxPooling1D, of_one(lambda: layers.MaxPooling1D(2, strides=1))),
    "average-pooling-of-windows": (layers.AveragePooling1D, of_one(lambda: layers.AveragePooling1D(2))),
    "image-convolution": (layers.Conv2D, of_images(lambda: layers.Conv2D(3, 2))),
    "image-depthwise": (layers.DepthwiseConv2D, of_images(lambda: layers.DepthwiseConv2D(2))),
    "image-separable": (layers.SeparableConv2D, of_images(lambda: layers.SeparableConv2D(3, 2))),
    "image-max-pooling": (layers.MaxPooling2D, of_images(layers.MaxPooling2D)),
    "image-average-pooling": (layers.AveragePooling2D, of_images(lambda: layers.AveragePooling2D(2))),
    "image-max": (layers.GlobalMaxPooling2D, of_images(layers.GlobalMaxPooling2D)),
    "image-mean": (layers.GlobalAveragePooling2D, of_images(layers.GlobalAveragePooling2D)),
    "image-dropout": (layers.SpatialDropout2D, of_images(lambda: layers.SpatialDropout2D(0.5))),
    "heads": (
        layers.MultiHeadAttention,
        lambda values: layers.MultiHeadAttention(2, 3)(values[0], values[0]),
    ),
    "dot": (layers.Dot, lambda values: layers.Dot(axes=2)([values[0], values[0]])),
}

JOINS: dict[str, type] = {
    "concatenate": layers.Concatenate,
    "add": layers.Add,
    "subtract": layers.Subtract,
    "multiply": layers.Multiply,
    "average": layers.Average,
    "maximum": layers.Maximum,
    "minimum": layers.Minimum,
    "attention": layers.Attention,
    "additive-attention": layers.AdditiveAttention,
}

# Those that take ids, and the one that Keras refuses a mask, or computes by it features and not steps.
OTHERS = {layers.Embedding, layers.ReversibleEmbedding, layers.Softmax}


def test_every_layer_that_can_be_packed_is_tried_with_masks() -> None:
    tried = {kind for kind, _ in SINGLE.values()} | set(JOINS.values()) | OTHERS
    assert tried == {kind for kind, row in ROWS.items() if row.program is not None}


@pytest.mark.parametrize("masked", [True, False], ids=["masked", "plain"])
@pytest.mark.parametrize("name", SINGLE)
def test_masks_of_a_layer_are_those_of_keras(name: str, masked: bool) -> None:
    check(model_of(SINGLE[name][1], [masked]), [masked_batch(1)])


@pytest.mark.parametrize("masked", list(itertools.product([True, False], repeat=2)), ids=str)
@pytest.mark.parametrize("name", JOINS)
def test_masks_of_a_join_are_those_of_keras(name: str, masked: tuple[bool, bool]) -> None:
    check(model_of(JOINS[name](), masked), [masked_batch(1), masked_batch(2)])


@pytest.mark.parametrize("masked", list(itertools.product([True, False], repeat=3)), ids=str)
@pytest.mark.parametrize("name", ["multiply", "maximum"])
def test_masks_of_a_join_of_three_are_those_of_keras(name: str, masked: tuple[bool, ...]) -> None:
    check(model_of(JOINS[name](), masked, (T, T, T)), [masked_batch(seed) for seed in (1, 2, 3)])


@pytest.mark.parametrize("name", ["multiply", "maximum", "minimum", "add"])
def test_join_of_one_tensor_keeps_the_rules_of_its_mask(name: str) -> None:
    check(model_of(lambda values: JOINS[name]()(values), [True]), [masked_batch(1)])


@pytest.mark.parametrize("name", ["multiply", "maximum", "minimum"])
@pytest.mark.parametrize("last", [True, False], ids=["vector-last", "vector-first"])
def test_join_of_a_masked_sequence_and_a_vector_computes_what_keras_does(name: str, last: bool) -> None:
    def join(values: list[Any]) -> Any:
        vector = layers.Dense(F)(layers.LSTM(3)(values[0]))
        return JOINS[name]()([values[0], vector] if last else [vector, values[0]])

    check(model_of(join, [True]), [masked_batch(1)])


@pytest.mark.parametrize("name", ["multiply", "maximum", "add"])
def test_join_of_a_masked_sequence_and_one_step_stretches_the_mask(name: str) -> None:
    batch = masked_batch(2)
    check(model_of(JOINS[name](), [True, True], (T, 1)), [masked_batch(1), batch[:, :1]])


def test_attention_by_repeat_permute_and_multiply_computes_what_keras_does() -> None:
    def attention(values: list[Any]) -> Any:
        h = layers.LSTM(F, return_sequences=True)(values[0])
        weights = layers.Activation("softmax")(layers.Flatten()(layers.Dense(1, activation="tanh")(h)))
        return layers.Multiply()([h, layers.Permute([2, 1])(layers.RepeatVector(F)(weights))])

    check(model_of(attention, [True]), [masked_batch(1)])


@pytest.mark.parametrize(
    "make",
    [lambda: layers.Reshape((T, F)), lambda: layers.Permute((1, 2)), lambda: layers.Cropping1D((0, 0))],
    ids=["reshape", "permute", "crop"],
)
def test_layer_that_leaves_a_masked_tensor_as_it_is_is_refused(make: Callable[[], keras.Layer]) -> None:
    check(model_of(of_one(make), [False]), [masked_batch(1)])
    with pytest.raises(ModelError, match=r"backends differ in what becomes of its mask\. Leave it out"):
        read_program(model_of(of_one(make), [True]))


def test_masks_of_ids_are_those_of_keras() -> None:
    ids = patterns() * np.random.default_rng(1).integers(1, 7, (2**T, T))
    x = keras.Input((None,), dtype="int32", name="x")
    rows = layers.Embedding(7, F, mask_zero=True)(x)
    other = layers.ReversibleEmbedding(7, F, mask_zero=True)(x)
    joined = layers.Multiply()([rows, layers.LSTM(F, return_sequences=True)(other)])
    outputs = [*probed(rows), *probed(other), *probed(joined)]
    check(keras.Model([x], outputs), [ids.astype("int32")])


STEPWISE: dict[str, Callable[[], keras.Layer]] = {
    "dense": lambda: layers.Dense(F),
    "lstm": lambda: layers.LSTM(F, return_sequences=True),
    "gru": lambda: layers.GRU(F, return_sequences=True, go_backwards=True),
    "both": lambda: layers.Bidirectional(layers.SimpleRNN(F, return_sequences=True), merge_mode="ave"),
    "norm": layers.LayerNormalization,
    "dropout": lambda: layers.Dropout(0.2),
    "elu": layers.ELU,
    "each": lambda: layers.TimeDistributed(layers.Dense(F)),
    "masking": layers.Masking,
}


def grown(seed: int) -> keras.Model:
    """A model of layers drawn at random, which all give (B, T, F), joined at random."""
    draw = random.Random(seed)
    inputs = [keras.Input((T, F), name=f"x{n}") for n in range(2)]
    values = [*inputs, layers.Masking()(inputs[0]), layers.Masking()(inputs[1])]
    for _ in range(8):
        if draw.random() < 0.5:
            # Attention mixes steps, and what rounding leaves of two that nearly cancel a normalisation magnifies.
            mixing = ("concatenate", "attention", "additive-attention")
            join = draw.choice([name for name in JOINS if name not in mixing])
            count = 2 if join == "subtract" else draw.randint(2, 3)
            values.append(JOINS[join]()(draw.choices(values, k=count)))
        elif draw.random() < 0.15:
            values.append(ops.tanh(draw.choice(values)))
        else:
            values.append(draw.choice(list(STEPWISE.values()))()(draw.choice(values)))
    return keras.Model(inputs, probed(layers.LayerNormalization()(values[-1])) + probed(values[-2]))


@pytest.mark.parametrize("seed", range(20))
def test_masks_of_a_random_graph_are_those_of_keras(seed: int) -> None:
    check(grown(seed), [masked_batch(seed), masked_batch(seed + 100)])


def functional(kind: str, values: Any) -> keras.Model:
    """A model of an LSTM, or of one for each of two inputs."""
    tensors = values if isinstance(values, list) else [values]
    inputs = [keras.Input(value.shape[1:]) for value in tensors]
    made = [layers.LSTM(F, return_sequences=True)(x) for x in inputs]
    if kind == "sequential":
        return keras.Sequential([inputs[0], layers.LSTM(F, return_sequences=True)])
    return keras.Model(inputs if isinstance(values, list) else inputs[0], made[0] if len(made) == 1 else made)


@pytest.mark.backends
@pytest.mark.parametrize("kind", ["functional", "sequential", "two"])
@pytest.mark.parametrize("order", ["heads-first", "heads-last", "heads-between"])
@pytest.mark.parametrize("join", ["multiply", "maximum", "attention"])
def test_nested_model_keeps_a_mask_that_attention_heads_remove(kind: str, order: str, join: str) -> None:
    def made(values: list[Any]) -> list[Any]:
        x, found = values[0], []
        given = values if kind == "two" else x
        steps = ["nested", "heads"] if order == "heads-last" else ["heads", "nested"]
        for step in [*steps, "nested"] if order == "heads-between" else steps:
            if step == "heads":
                found.append(layers.MultiHeadAttention(2, 3)(x, x))
            else:
                found += keras.tree.flatten(functional(kind, given)(given))
        # Whether the mask is still on the tensor for what reads it afterwards.
        return [*found, JOINS[join]()([x, found[0]])]

    check(model_of(made, [True, True]), [masked_batch(1), masked_batch(2)])
