"""The nearest known activation is near, and code of others that does not fit is left alone."""

import keras
import numpy as np
import pytest

from cellerate.activations import ACTIVATIONS
from cellerate.keras_graph.activations import nearest_activation

pytestmark = pytest.mark.keras


@pytest.mark.parametrize(
    ("function", "name", "difference"),
    [
        # 1.702 is that of the GELU by a sigmoid.
        (lambda x: x * keras.ops.sigmoid(1.702 * x), "gelu", 0.0203),
        (lambda x: 0.9 * keras.ops.tanh(x), "tanh", 0.1 * np.tanh(4)),
        (lambda x: keras.ops.maximum(x, 0.01 * x), "relu", 0.04),
        (keras.layers.ReLU(max_value=3.9), "relu", 0.1),
        (lambda x: keras.ops.sigmoid(x) + 0.001, "sigmoid", 0.001),
    ],
    ids=["quick-gelu", "scaled-tanh", "leaky", "layer", "shifted"],
)
def test_nearest_activation_is_the_one_of_the_smallest_largest_difference(function, name, difference):
    found, distance = nearest_activation(function)
    assert found == name
    assert distance == pytest.approx(difference, rel=0.02)


@pytest.mark.parametrize("name", ["tanh", "gelu", "sparse_sigmoid"])
def test_known_activation_in_other_words_has_no_distance(name):
    assert name in ACTIVATIONS
    known = keras.activations.get(name)
    assert nearest_activation(lambda x: known(x)) == (name, 0.0)


def _broken(x):
    raise RuntimeError("made for three axes")


@pytest.mark.parametrize(
    "function",
    [
        keras.activations.softmax,
        lambda x: keras.ops.sum(x),
        lambda x: keras.ops.log(x),
        lambda x: keras.random.uniform(keras.ops.shape(x)),
        _broken,
    ],
    ids=["softmax", "sum", "not-finite", "random", "raises"],
)
def test_what_is_not_element_wise_and_finite_has_no_nearest(function):
    assert nearest_activation(function) is None


def test_layer_that_is_not_built_stays_so():
    layer = keras.layers.PReLU()
    assert nearest_activation(layer) is None
    assert not layer.built
