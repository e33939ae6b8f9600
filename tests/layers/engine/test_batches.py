"""The structures in which a batch may hold the inputs, targets and sample weights of a model."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from cellerate.layers.engine.batches import Misfit, Outputs, for_each_input, for_each_output, weights_for_each
from cellerate.layers.engine.seam import reasons_of
from support.keras_models.engine_models import compiled
from support.keras_models.sparse import sparse_tensor

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]
RANDOM = np.random.default_rng(5)
SERIES = RANDOM.standard_normal((12, 5, 3), np.float32)
STATIC = RANDOM.standard_normal((12, 2), np.float32)
Y = RANDOM.standard_normal((12, 1), np.float32)


@pytest.mark.parametrize(
    ("structure", "batch"),
    [
        (lambda a, b: [a, b], {"static": STATIC, "series": SERIES, "unused": Y}),
        (lambda a, b: {"static": b, "series": a}, {"static": STATIC, "series": SERIES}),
        (lambda a, b: {"y": [a], "x": {"static": b}}, {"x": {"static": STATIC}, "y": [SERIES]}),
        (lambda a, b: [{"series": a}, b], [{"series": SERIES}, STATIC]),
    ],
    ids=["names among others", "dictionary", "nested dictionary", "nested list"],
)
def test_inputs_in_any_structure_train_like_keras(structure: Any, batch: Any) -> None:
    a, b = keras.Input((5, 3), name="series"), keras.Input((2,), name="static")
    outputs = layers.Dense(1)(layers.Concatenate()([layers.LSTM(4)(a), b]))
    source = keras.Model(structure(a, b), outputs)
    found = []
    for engine in (None, "require"):
        model = compiled(source, engine, optimizer=keras.optimizers.SGD(0.1), loss="mse")
        model.fit(batch, Y, 4, shuffle=False, verbose=0)
        found.append(model)
    assert reasons_of(found[1]) == ()
    for one, our in zip(found[0].get_weights(), found[1].get_weights(), strict=True):
        np.testing.assert_allclose(our, one, atol=2e-6)


@pytest.mark.parametrize("declared", ["int32", "uint8", "bool", "float16", "bfloat16"])
@pytest.mark.parametrize("found", ["float32", "int64", "bool"])
def test_inputs_take_the_dtype_of_the_model_first(declared: str, found: str) -> None:
    source = keras.Sequential([keras.Input((5, 3), dtype=declared), layers.LSTM(4), layers.Dense(1)])
    x = np.abs(3 * SERIES).astype(found)
    results = []
    for engine in (None, "require"):
        model = compiled(source, engine, optimizer=keras.optimizers.SGD(0.1), loss="mse")
        results.append([model.train_on_batch(x, Y), model.evaluate(x, Y, verbose=0)])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5)


@pytest.mark.usefixtures("misfits")
def test_sparse_inputs_are_left_to_keras() -> None:
    x = np.where(STATIC > 0, STATIC, 0)
    source = keras.Sequential([keras.Input((2,)), layers.Dense(3), layers.Reshape((3, 1)), layers.LSTM(4)])
    y = np.ones((12, 4), np.float32)
    results = []
    for values, engine in ((x, None), (sparse_tensor(x), "require")):
        model = compiled(source, engine, optimizer=keras.optimizers.SGD(0.1), loss="mse")
        results.append([model.train_on_batch(values, y) for _ in range(3)])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4)


@pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="only there does Keras pass on tensors of torch"
)
def test_bfloat16_batches_of_torch_train_like_float32() -> None:
    import torch

    tensors = [torch.from_numpy(each).to(torch.bfloat16) for each in (SERIES, Y)]
    model = keras.Sequential([keras.Input((5, 3)), layers.LSTM(4), layers.Dense(1)])
    found = []
    for x, y in (tensors, [each.float() for each in tensors]):
        made = compiled(model, "require", optimizer=keras.optimizers.SGD(0.1), loss="mse")
        found.append([made.train_on_batch(x, y) for _ in range(3)])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("structure", "values"),
    [
        ([0, 0], {"a": 1}),
        ({"a": 0, "b": 0}, {"a": 1, "b": 2, "c": 3}),
        ({"a": [0], "b": 0}, {"a": 1, "b": 2}),
        ({"b": 0, "a": 0}, [1, 2]),
    ],
)
def test_inputs_in_another_structure_are_left_to_keras(structure: Any, values: Any) -> None:
    with pytest.raises(Misfit, match="expected inputs named"):
        for_each_input(values, structure, ("a", "b"))


def two_outputs(structure: Any) -> keras.Model:
    series = keras.Input((5, 3))
    state = layers.LSTM(4)(series)
    return keras.Model(series, structure(*(layers.Dense(1, name=name)(state) for name in "uv")))


DICTIONARY, LIST = (lambda u, v: {"u": u, "v": v}), (lambda u, v: [u, v])
NESTED, ONLY = (lambda u, v: {"u": [u], "v": v}), (lambda u, v: u)


@pytest.mark.parametrize(
    ("structure", "targets"),
    [
        (DICTIONARY, {"a": 1, "b": 2}),
        (DICTIONARY, {"u": [1], "v": 2}),
        (LIST, {"a": 1, "b": 2}),
        (LIST, [{"u": 1}, 2]),
        (LIST, 1),
        (NESTED, {"v": 1, "u": 2}),
    ],
)
def test_targets_in_another_structure_are_left_to_keras(structure: Any, targets: Any) -> None:
    with pytest.raises(Misfit):
        for_each_output(targets, Outputs(two_outputs(structure)))


@pytest.mark.parametrize(
    ("structure", "weights"),
    [
        (DICTIONARY, {"u": 1}),
        (DICTIONARY, {"a": 1, "b": 2}),
        (DICTIONARY, [1, 2]),
        (LIST, {"u": 1, "v": 2}),
        (LIST, [1]),
        (ONLY, {"u": 1}),
        (ONLY, [None]),
    ],
)
def test_sample_weights_in_another_structure_are_left_to_keras(structure: Any, weights: Any) -> None:
    with pytest.raises(Misfit):
        weights_for_each(weights, Outputs(two_outputs(structure)))


@pytest.mark.parametrize(
    ("structure", "values"),
    [(DICTIONARY, {"v": 2, "u": 1}), (LIST, (1, 2)), (NESTED, {"v": 2, "u": [1]})],
)
def test_targets_and_weights_in_the_structure_of_the_outputs_reach_their_outputs(
    structure: Any, values: Any
) -> None:
    outputs = Outputs(two_outputs(structure))
    assert for_each_output(values, outputs) == weights_for_each(values, outputs) == [1, 2]
    assert for_each_output([1, 2], outputs) == [1, 2]
    assert weights_for_each(3, outputs) == [3, 3]


@pytest.mark.usefixtures("misfits")
@pytest.mark.parametrize("name", ["u", "v"])
def test_weights_of_one_output_alone_are_refused_as_in_keras(name: str) -> None:
    model = compiled(two_outputs(DICTIONARY), "require", optimizer="sgd", loss="mse")
    with pytest.raises(KeyError):
        model.train_on_batch(SERIES, {"u": Y, "v": Y}, {name: np.ones(12)})


@pytest.mark.usefixtures("misfits")
def test_named_weights_of_a_sequential_model_get_the_error_of_keras() -> None:
    model = keras.Sequential([keras.Input((5, 3)), layers.LSTM(4), layers.Dense(1, name="u")])
    made = compiled(model, "require", optimizer="sgd", loss="mse")
    with pytest.raises((ValueError, TypeError)):
        made.fit(SERIES, Y, sample_weight={"u": np.ones(12)}, verbose=0)


@pytest.mark.usefixtures("misfits")
def test_list_for_inputs_that_are_not_in_the_order_of_their_keys_is_refused_as_in_keras() -> None:
    second, first = keras.Input((5, 3), name="second"), keras.Input((5, 3), name="first")
    states = [layers.LSTM(units)(series) for units, series in ((2, second), (3, first))]
    outputs = layers.Dense(1)(layers.Concatenate()(states))
    source = keras.Model({"second": second, "first": first}, outputs)
    model = compiled(source, "require", optimizer="sgd", loss="mse")
    model.train_on_batch({"second": SERIES, "first": SERIES}, Y)
    with pytest.raises(ValueError, match="structure of `inputs` doesn't match"):
        model.train_on_batch([SERIES, -SERIES], Y)
