"""Convolutions and pooling of images, alone and at each step of a video, compute as programs what Keras does."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from cellerate.errors import ModelError
from cellerate.keras_graph.to_program import read_program, read_weights, why_not_packed
from cellerate.kernels.program import cpu
from cellerate.runtime.cell import Cell
from cellerate.runtime.packed import PackedModel
from support.keras_models.keras_programs import agree, call, chain_of, check, kinds, randomize, series

pytestmark = [pytest.mark.keras, pytest.mark.backends]
L, TD = layers, layers.TimeDistributed
H, W, F, T = 9, 8, 3, 4
OPTIONS: list[dict[str, Any]] = [
    {"kernel_size": 3},
    {"kernel_size": (3, 2), "strides": (2, 1)},
    {"kernel_size": (1, 3), "dilation_rate": (1, 2)},
    {"kernel_size": (2, 1), "strides": 2},
    {"kernel_size": 1},
    {"kernel_size": 1, "strides": 2},
]


def check_image(layer: keras.Layer) -> None:
    """Compares a layer on images, and on the images of videos."""
    check(chain_of(layer, shape=(H, W, F)), series(2, H, W, F))
    check(chain_of(TD(layer), shape=(T, H, W, F)), series(2, T, H, W, F))


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_program_of_any_convolution_computes_what_keras_does(options: dict[str, Any], padding: str) -> None:
    check_image(L.Conv2D(6, padding=padding, activation="relu", **options))


@pytest.mark.parametrize("padding", ["valid", "same"])
def test_program_of_a_convolution_of_each_feature_computes_what_keras_does(padding: str) -> None:
    check_image(L.Conv2D(6, (2, 3), groups=3, padding=padding, use_bias=False))
    check_image(L.DepthwiseConv2D((3, 2), depth_multiplier=2, padding=padding, activation="tanh"))
    check_image(L.DepthwiseConv2D(3, strides=2, padding=padding))
    check_image(L.SeparableConv2D(5, (2, 3), depth_multiplier=2, padding=padding))


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize("pool_size", [2, (2, 1), (1, 3), 1], ids=str)
def test_program_of_any_pooling_computes_what_keras_does(pool_size: Any, padding: str) -> None:
    check_image(L.MaxPooling2D(pool_size, padding=padding))
    check_image(L.MaxPooling2D(pool_size, strides=(1, 2), padding=padding))
    check_image(L.AveragePooling2D(pool_size, padding="valid"))
    if keras.backend.backend() != "torch":
        check_image(L.AveragePooling2D(pool_size, padding=padding))


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("kind", [L.GlobalMaxPooling2D, L.GlobalAveragePooling2D])
def test_program_of_pooling_whole_images_computes_what_keras_does(kind: Any, keepdims: bool) -> None:
    check_image(kind(keepdims=keepdims))


def reader(height: int | None, width: int | None) -> keras.Model:
    """The network that reads a line of text in a picture: columns become steps."""
    chain = [
        L.Conv2D(4, 3, padding="same", activation="relu"),
        L.MaxPooling2D(2),
        L.BatchNormalization(),
        L.SpatialDropout2D(0.2),
        L.Permute((2, 1, 3)),
        TD(L.Flatten()),
        L.Bidirectional(L.LSTM(5, return_sequences=True)),
        L.Dense(7, activation="softmax"),
    ]
    return chain_of(*chain, shape=(height, width, 1))


@pytest.mark.parametrize("width", [W, None])
def test_program_of_a_reader_of_pictures_computes_what_keras_does(width: int | None) -> None:
    check(reader(8, width), series(3, 8, 12 if width is None else width, 1))


def video(frames: int | None) -> keras.Model:
    chain = [
        TD(L.Conv2D(4, 3, activation="relu")),
        TD(L.MaxPooling2D(2)),
        TD(L.SeparableConv2D(5, 2)),
        TD(L.GlobalAveragePooling2D()),
        L.LSTM(6),
        L.Dense(2),
    ]
    return chain_of(*chain, shape=(frames, H, W, F))


@pytest.mark.parametrize("frames", [T, None])
def test_video_runs_on_the_core_and_frame_by_frame(frames: int | None) -> None:
    model, x = video(frames), series(2, T, H, W, F)
    program = check(model, x)
    assert "reshape" not in kinds(program)
    assert cpu.takes(program.nodes)
    packed = PackedModel(Cell(program, "float32", {}))
    expected = call(model, x)
    streams = packed.streams(2)
    for frame in range(T):
        found = streams.push(x[:, frame : frame + 1])
    agree({"y": found}, expected)
    agree({"y": packed.prepared(batch=2, steps=T)(x)}, expected)


def test_kernel_in_groups_can_be_given_back_to_its_layer() -> None:
    layer = L.Conv2D(6, (2, 3), groups=3)
    model = chain_of(layer, shape=(H, W, F))
    randomize(model)
    before = ops.convert_to_numpy(layer.kernel)
    program, weights = read_weights(model)
    number = kinds(program).index("dense")
    weights[number, "kernel"].assign(program.nodes[number].arrays["kernel"] * 2)
    np.testing.assert_array_equal(ops.convert_to_numpy(layer.kernel), before * np.float32(2))


def test_image_with_features_first_is_refused_by_name() -> None:
    model = chain_of(L.MaxPooling2D(2, data_format="channels_first", name="pool"), shape=(F, H, W))
    with pytest.raises(ModelError, match=r"pool \(MaxPooling2D\) has data_format='channels_first'"):
        read_program(model)


def test_mean_that_torch_alone_computes_is_refused_on_it() -> None:
    model = chain_of(L.AveragePooling2D((1, 3), strides=2, padding="same"), shape=(H, W, F))
    if keras.backend.backend() == "torch":
        assert "by which torch counts the last step twice" in why_not_packed(model)[0]
    else:
        check(model, series(2, H, W, F))
