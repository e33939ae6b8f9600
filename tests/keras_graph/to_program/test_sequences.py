"""Convolutions, pooling and attention, and the models that are built of them, compute as programs what Keras does."""

import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from cellerate.errors import ModelError
from cellerate.keras_graph.to_program import read_program, read_weights, why_not_packed
from support.keras_models.keras_programs import (
    MASK,
    B,
    Chain,
    F,
    T,
    V,
    chain_of,
    check,
    ids,
    kinds,
    masked_series,
    series,
)

pytestmark = [
    pytest.mark.keras,
    # Keras says so of every layer that drops a mask, as convolutions do.
    pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask:UserWarning"),
]
TD = layers.TimeDistributed


def lstm(x: Any) -> Any:
    return layers.LSTM(6, return_sequences=True)(x)


def crossed(attend: Callable[[Any, Any], Any]) -> Chain:
    """Two sequences of different lengths."""
    return lambda x: attend(lstm(x), layers.Dense(6)(layers.Cropping1D((0, 3))(x)))


def own(attend: Callable[[Any], Any]) -> Chain:
    return lambda x: attend(lstm(x))


def bahdanau(x: Any) -> Any:
    """The attention of many a tutorial: a score a step, a softmax over time, a weighted sum."""
    h = lstm(x)
    weights = layers.Softmax(axis=1)(layers.Dense(1)(layers.Dense(5, activation="tanh")(h)))
    return ops.sum(layers.Multiply()([h, weights]), axis=1)


def repeated_weights(x: Any) -> Any:
    """The same as older tutorials write it."""
    h = lstm(x)
    weights = layers.Activation("softmax")(layers.Flatten()(layers.Dense(1, activation="tanh")(h)))
    return ops.sum(layers.Multiply()([h, layers.Permute((2, 1))(layers.RepeatVector(6)(weights))]), axis=-2)


def luong(x: Any) -> Any:
    encoded, decoded = lstm(x), layers.LSTM(6, return_sequences=True)(x)
    weights = layers.Activation("softmax")(layers.Dot(axes=[2, 2])([decoded, encoded]))
    context = layers.Dot(axes=[2, 1])([weights, encoded])
    return TD(layers.Dense(3))(layers.Concatenate()([context, decoded]))


ATTENTION: dict[str, Chain] = {
    "attention": own(lambda h: layers.Attention()([h, h])),
    "attention-scaled": crossed(lambda h, s: layers.Attention(use_scale=True)([h, s])),
    "attention-key": crossed(lambda h, s: layers.Attention()([h, s, layers.Dense(6)(s)])),
    "attention-causal": crossed(lambda h, s: layers.Attention()([s, h], use_causal_mask=True)),
    "attention-concat": crossed(lambda h, s: layers.Attention(score_mode="concat")([h, s])),
    "attention-concat-scaled": crossed(
        lambda h, s: layers.Attention(use_scale=True, score_mode="concat", dropout=0.2)([h, s])
    ),
    "attention-scores": crossed(lambda h, s: layers.Attention()([h, s], return_attention_scores=True)),
    "additive": crossed(lambda h, s: layers.AdditiveAttention()([h, s])),
    "additive-unscaled": crossed(lambda h, s: layers.AdditiveAttention(use_scale=False)([h, s])),
    "heads": own(lambda h: layers.MultiHeadAttention(3, 4)(h, h)),
    # Without dropout, JAX takes no values of another width than the keys.
    "heads-crossed": crossed(
        lambda h, s: layers.MultiHeadAttention(2, 4, value_dim=5, output_shape=7, dropout=0.1)(h, s)
    ),
    "heads-key": crossed(
        lambda h, s: layers.MultiHeadAttention(2, 4, use_bias=False)(h, s, key=layers.Dense(5)(s))
    ),
    "heads-causal": own(lambda h: layers.MultiHeadAttention(2, 4)(h, h, use_causal_mask=True)),
    "heads-dropout": own(lambda h: layers.MultiHeadAttention(2, 4, dropout=0.3)(h, h, use_causal_mask=True)),
    "dot": crossed(lambda h, s: layers.Dot(axes=(2, 2))([h, s])),
    "dot-last": crossed(lambda h, s: layers.Dot(axes=-1)([h, s])),
    "dot-over-time": lambda x: layers.Dot(axes=1)([lstm(x), x]),
    "dot-of-a-vector": lambda x: layers.Dot(axes=(2, 1))([lstm(x), layers.LSTM(6)(x)]),
    "dot-normalized": lambda x: layers.Dot(axes=(2, 1), normalize=True)([lstm(x), layers.LSTM(6)(x)]),
    "cosine-similarity": lambda x: layers.Dot(axes=-1, normalize=True)(
        [layers.LSTM(6)(x), layers.Dense(6, "relu", kernel_initializer="zeros")(layers.LSTM(6)(x))]
    ),
    "dot-of-vectors": lambda x: layers.Dot(axes=1)([layers.LSTM(6)(x), layers.LSTM(6)(x)]),
    "softmax-over-time": layers.Softmax(axis=1),
    "softmax-axes": layers.Softmax(axis=[-2]),
    "ops-of-products": lambda x: ops.matmul(ops.softmax(ops.matmul(x, ops.transpose(x, (0, 2, 1)))), x),
    "ops-einsum": lambda x: ops.einsum("bts,bsf->btf", ops.softmax(ops.einsum("btf,bsf->bts", x, x)), x),
    "ops-einsum-others": lambda x: [
        ops.einsum("btf,bt->bf", x, x[:, :, 0]),
        ops.einsum("btf,bsf->bst", lstm(x), x[:, 2:] @ layers.Reshape((F, 6))(layers.Dense(F * 6)(x[:, 0]))),
        ops.einsum("bf,bf->b", x[:, 0], x[:, 1]),
    ],
    "ops-reduce": lambda x: [
        *(getattr(ops, name)(x, axis=1) for name in ("sum", "mean", "max", "min")),
        ops.max(x, axis=(1, 2)),
        ops.min(x, axis=-1, keepdims=True),
    ],
    "ops-elementwise": lambda x: [ops.maximum(x, -x), ops.minimum(x, -x), x / ops.exp(x), ops.square(x)],
    "ops-reshape": lambda x: [ops.reshape(x, (-1, F, T)), ops.softmax(x, axis=1)],
    "bahdanau": bahdanau,
    "repeated-weights": repeated_weights,
    "luong": luong,
}


@pytest.mark.backends
@pytest.mark.parametrize("name", ATTENTION)
def test_program_of_attention_computes_what_keras_does(name: str) -> None:
    check(chain_of(ATTENTION[name]), series())


MASKED: dict[str, Callable[[Any], Any]] = {
    "attention": lambda h: layers.Attention()([h, h]),
    "attention-causal": lambda h: layers.Attention()([h, h], use_causal_mask=True),
    "additive-behind": lambda h: layers.LSTM(3)(layers.AdditiveAttention()([h, h])),
    "heads": lambda h: layers.MultiHeadAttention(2, 3)(h, h),
    "heads-behind": lambda h: layers.LSTM(3)(layers.MultiHeadAttention(2, 3)(h, h)),
    "heads-dropout": lambda h: layers.MultiHeadAttention(2, 3, dropout=0.1)(h, h, use_causal_mask=True),
    "heads-pooled": lambda h: layers.GlobalAveragePooling1D()(
        layers.LayerNormalization()(layers.MultiHeadAttention(2, 3)(layers.Dense(4)(h), h))
    ),
    "convolution": lambda h: layers.LSTM(3)(layers.Conv1D(4, 3, padding="same")(h)),
    # Keras takes the masks off what heads read, so later heads find none.
    "heads-twice": lambda h: layers.Add()([layers.MultiHeadAttention(2, 3)(h, h) for _ in range(2)]),
}


@pytest.mark.backends
@pytest.mark.parametrize("name", MASKED)
def test_program_of_masked_attention_computes_what_keras_does(name: str) -> None:
    # A row of MASK is masked whole, where backends give an empty mean, NaN.
    model = chain_of(layers.Masking(), lstm, MASKED[name])
    check(model, masked_series()[MASK.any(axis=1)] if "pooled" in name else masked_series())


@pytest.mark.backends
@pytest.mark.parametrize("padding", ["valid", "same", "causal"])
def test_program_of_any_convolution_computes_what_keras_does(padding: str) -> None:
    for size, strides, dilation in itertools.product((1, 2, 3), (1, 2), (1, 2)):
        if strides > 1 and dilation > 1:
            continue
        options: dict[str, Any] = {"strides": strides, "dilation_rate": dilation, "padding": padding}
        program = check(chain_of(layers.Conv1D(10, size, activation="relu", **options)), series())
        windows = ["windows"] if (size, strides) != (1, 1) else []
        assert kinds(program) == ["input", *windows, "dense"]
    check(chain_of(layers.Conv1D(10, 3, padding=padding, groups=5, use_bias=False)), series())


@pytest.mark.backends
@pytest.mark.parametrize("padding", ["valid", "same"])
def test_program_of_any_depthwise_convolution_computes_what_keras_does(padding: str) -> None:
    for size, strides, dilation, multiplier in ((1, 1, 1, 2), (3, 1, 1, 1), (3, 1, 2, 2), (2, 2, 1, 1)):
        options: dict[str, Any] = {
            **{"strides": strides, "dilation_rate": dilation, "padding": padding},
            **{"depth_multiplier": multiplier, "activation": "relu"},
        }
        check(chain_of(layers.DepthwiseConv1D(size, **options)), series())
        check(chain_of(layers.SeparableConv1D(4, size, **options), shape=(None, F)), series())
    check(chain_of(layers.Reshape((T * F, 1)), layers.SeparableConv1D(4, 3, use_bias=False)), series())
    check(chain_of(lambda x: TD(layers.DepthwiseConv1D(2))(layers.Reshape((T, F, 1))(x))), series())


@pytest.mark.backends
@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize("kind", [layers.MaxPooling1D, layers.AveragePooling1D])
def test_program_of_any_pooling_computes_what_keras_does(kind: Any, padding: str) -> None:
    for size, strides in itertools.product((1, 2, 3), (None, 1, 2, 3)):
        check(chain_of(kind(size, strides=strides, padding=padding)), series())


def test_mean_that_torch_alone_computes_is_refused_on_it() -> None:
    model = chain_of(layers.AveragePooling1D(3, strides=2, padding="same", name="pool"), shape=(8, F))
    if keras.backend.backend() == "torch":
        assert "by which torch counts the last step twice" in why_not_packed(model)[0]
    else:
        check(model, series(B, 8, F))


def encoder(**options: Any) -> keras.Sequential:
    return keras.Sequential(
        [
            keras.Input((8, F)),
            layers.Conv1D(6, 3, padding="same", **options),
            layers.MaxPooling1D(2),
            layers.Flatten(),
            layers.Dense(4),
        ]
    )


def shared(x: Any) -> Any:
    """One model on two inputs, inside another one."""
    one = keras.Sequential([keras.Input((None, F)), layers.Conv1D(4, 2, padding="causal"), layers.LSTM(3)])
    return layers.Concatenate()([one(x), one(layers.Cropping1D((1, 0))(x))])


FRAMES: dict[str, tuple[Chain, ...]] = {
    "cnn-lstm": (
        TD(layers.Conv1D(6, 3, activation="relu")),
        TD(layers.MaxPooling1D(2)),
        TD(layers.Flatten()),
    ),
    "model": (TD(encoder()),),
    "pooled": (TD(layers.Conv1D(6, 3)), TD(layers.GlobalMaxPooling1D())),
    "averaged": (TD(layers.AveragePooling1D(3)), TD(layers.GlobalAveragePooling1D())),
    "dropped": (TD(layers.SpatialDropout1D(0.2)), TD(layers.Reshape((4, 10))), TD(layers.Flatten())),
}


@pytest.mark.backends
@pytest.mark.parametrize("frames", [4, None])
@pytest.mark.parametrize("name", FRAMES)
def test_program_of_layers_within_each_step_computes_what_keras_does(name: str, frames: int | None) -> None:
    x = np.random.default_rng(0).normal(size=(3, 4, 8, F)).astype("float32")
    check(chain_of(*FRAMES[name], layers.LSTM(7), layers.Dense(2), shape=(frames, 8, F)), x)


@pytest.mark.backends
def test_program_of_a_convolution_before_an_lstm_computes_what_keras_does() -> None:
    cnn = [layers.Conv1D(8, 3, activation="relu"), layers.MaxPooling1D(2), layers.LSTM(5), layers.Dense(1)]
    check(chain_of(*cnn, shape=(None, F)), series())
    check(chain_of(shared), series())
    text = [
        layers.Embedding(V, 4),
        layers.Conv1D(6, 3, padding="same"),
        layers.MaxPooling1D(2),
        layers.LSTM(5),
    ]
    check(chain_of(*text, shape=(T,), dtype="int32"), ids())


def test_kernel_of_a_convolution_can_be_given_back_to_its_layer() -> None:
    conv, heads = layers.Conv1D(4, 3), layers.MultiHeadAttention(2, 3)
    program, weights = read_weights(chain_of(conv, lambda h: heads(h, h)))
    number = kinds(program).index("dense")
    kernel = program.nodes[number].arrays["kernel"]
    weights[number, "kernel"].assign(kernel * 2)
    np.testing.assert_array_equal(
        ops.convert_to_numpy(conv.kernel).reshape(kernel.shape), kernel * np.float32(2)
    )
    assert sum(name == "kernel" for _, name in weights) == 5


REFUSED: dict[str, tuple[Chain, str]] = {
    "channels-first": (layers.MaxPooling1D(2, data_format="channels_first"), "data_format='channels_first'"),
    "sliding": (own(lambda h: layers.MultiHeadAttention(2, 3, sliding_window=2)(h, h)), "sliding_window"),
    "scores": (
        own(lambda h: layers.MultiHeadAttention(2, 3)(h, h, return_attention_scores=True)[0]),
        "return_attention_scores",
    ),
    "mask": (
        own(lambda h: layers.MultiHeadAttention(2, 3)(h, h, attention_mask=ops.matmul(h, h[:, :6]) > 0)),
        "attention_mask",
    ),
    "output-shape": (
        own(lambda h: layers.MultiHeadAttention(2, 3, output_shape=(2, 3))(h, h)),
        "output_shape",
    ),
    "causal-scores": (
        own(lambda h: layers.Attention()([h, h], return_attention_scores=True, use_causal_mask=True)[0]),
        "gives its scores and has a mask",
    ),
    "all-axes": (lambda x: layers.Dense(2)(x) + ops.sum(x), "the batch included"),
    "softmax-of-two": (layers.Softmax(axis=(1, 2)), r"the axes \(1, 2\) at once"),
    "in-each-step": (
        lambda x: TD(layers.Permute((2, 1), name="turn"))(ops.expand_dims(x, -1)),
        r"turn \(Permute\) is not a layer that can be packed inside a TimeDistributed",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_programs_cannot_compute_is_refused_by_its_name(name: str) -> None:
    chain, words = REFUSED[name]
    with pytest.raises(ModelError, match=words):
        read_program(chain_of(chain))
