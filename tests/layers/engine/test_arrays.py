"""On TensorFlow, a model on the engine reads the batches of arrays itself, as Keras's data set would give them."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

import cellerate
from cellerate.layers.engine import arrays, seam

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the data sets are TensorFlow's"),
]
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(37, 3)).astype(np.float32)
Y = RANDOM.normal(size=(37, 2)).astype(np.float32)
CLASSES = RANDOM.integers(0, 2, 37)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The batches that were read from arrays."""
    found: list[Any] = []
    own = arrays.ArrayDataset.batches

    def batches(self: arrays.ArrayDataset) -> Iterator[Any]:
        for batch in own(self):
            found.append(batch)
            yield batch

    monkeypatch.setattr(arrays.ArrayDataset, "batches", batches)
    return found


def model_of(loss: str = "mse", named: bool = False, **compiled: Any) -> keras.Model:
    keras.utils.set_random_seed(3)
    x = keras.Input((3,), name="x")
    outputs = keras.layers.Dense(2, "softmax" if loss.startswith("sparse") else None)(x)
    model = keras.Model({"x": x} if named else x, outputs)
    model.compile(keras.optimizers.Adam(0.05), loss, **compiled)
    return cellerate.accelerate(model, engine="require")


def trained(model: keras.Model, *data: Any, **settings: Any) -> list[np.ndarray]:
    """The losses and the weights of a model after four epochs."""
    history = model.fit(*data, **{"epochs": 4, "verbose": 0, "batch_size": 8} | settings).history
    return [*map(np.asarray, history.values()), *model.get_weights()]


CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]] = {
    "shuffled": ((X, Y), {}, {}),
    "in order": ((X, Y), {"shuffle": False}, {}),
    "named, float64": (({"x": X.astype(float)}, Y.astype(float)), {}, {"named": True}),
    "weighted": ((X, Y), {"sample_weight": np.arange(37)}, {}),
    "classes": (
        (X, CLASSES),
        {"class_weight": {0: 0.5, 1: 2.0}},
        {"loss": "sparse_categorical_crossentropy"},
    ),
    "validated": ((X, Y), {"validation_split": 0.3}, {"weighted_metrics": ["mae"]}),
    "several steps at once": ((X, Y), {}, {"steps_per_execution": 3}),
    "one batch": ((X, Y), {"batch_size": 64}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_training_equals_that_from_the_data_set_bit_for_bit(
    case: str, read: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, settings, compiled = CASES[case]
    from_arrays = trained(model_of(**compiled), *data, **settings)
    assert len(read) >= 3
    monkeypatch.setattr(seam, "take_over", lambda *_: None)
    read.clear()
    for one, other in zip(from_arrays, trained(model_of(**compiled), *data, **settings), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not read


def test_second_fit_and_evaluation_read_arrays_from_their_start(read: list[Any]) -> None:
    model = model_of()
    model.fit(X, Y, verbose=0)
    assert not read
    expected = model.evaluate(X, Y, verbose=0)
    model.fit(X, Y, verbose=0)
    assert read
    read.clear()
    model = model_of()
    model.fit(X, Y, verbose=0)
    assert [model.evaluate(X, Y, verbose=0) for _ in range(2)] == [expected] * 2
    assert read


@pytest.mark.parametrize(
    "settings",
    [
        {"x": np.zeros((37, 3)), "shuffle": "batch"},
        {"x": np.zeros((37, 3)), "steps_per_epoch": 2},
        {"x": keras.ops.zeros((37, 3))},
        {"x": np.zeros((37, 1 << 17), np.float32)},
    ],
    ids=["batches", "steps", "tensor", "large"],
)
def test_other_data_are_left_to_the_data_set(settings: Any, read: list[Any]) -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input(settings["x"].shape[1:]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    cellerate.accelerate(model, engine="require")
    model.fit(**{"y": np.ones((37, 1)), "epochs": 2, "batch_size": 8, "verbose": 0} | settings)
    assert not read


def test_batch_that_the_engine_cannot_take_is_trained_by_keras(
    misfits: None, read: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = CLASSES.astype(np.float32)
    model = model_of("sparse_categorical_crossentropy")
    found = trained(model, X, targets)
    targets[[5, 14]] += 0.25
    found += trained(model, X, targets, shuffle=False)
    assert read
    monkeypatch.setattr(seam, "take_over", lambda *_: None)
    model = model_of("sparse_categorical_crossentropy")
    expected = trained(model, X, CLASSES.astype(np.float32)) + trained(model, X, targets, shuffle=False)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_restored_model_reads_the_data_set(read: list[Any]) -> None:
    model = model_of()
    model.fit(X, Y, verbose=0)
    cellerate.restore(model)
    assert "_maybe_symbolic_build" not in vars(model)
    model.fit(X, Y, epochs=3, verbose=0)
    assert not read


def test_restore_in_the_middle_of_an_epoch_leaves_the_rest_to_keras(read: list[Any]) -> None:
    class Restoring(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 2 and read:
                cellerate.restore(self.model)

    found = trained(model_of(), X, Y, callbacks=[Restoring()])
    assert read
    for one, other in zip(found, trained(model_of(), X, Y), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
