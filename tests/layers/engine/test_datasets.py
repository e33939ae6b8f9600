"""The engine reads TensorFlow dataset iterators of any content as `next` does."""

import gc
import weakref
from typing import Any

import keras
import numpy as np
import pytest

import cellerate
from cellerate.layers.engine.datasets import reader_of

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="these are TensorFlow's"),
]
ROWS = np.arange(24, dtype=np.float32).reshape(6, 4)


def made_of(values: Any) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(values)


@pytest.mark.parametrize(
    "values",
    [ROWS, (ROWS, ROWS[:, :1]), ({"b": ROWS, "a": (ROWS * 2,)}, ROWS, ROWS[:, 0])],
    ids=["one", "pair", "nested"],
)
def test_dense_batches_equal_next_in_values_and_structure(values: Any) -> None:
    dataset = made_of(values).batch(4)
    found = list(reader_of(iter(dataset)))
    assert [len(keras.tree.flatten(one)[0]) for one in found] == [4, 2]
    keras.tree.map_structure(np.testing.assert_array_equal, found, list(dataset))


def test_second_reader_of_an_iterator_continues_where_the_first_ended() -> None:
    iterator = iter(made_of(ROWS).batch(2))
    first, second = next(reader_of(iterator)), next(iterator)
    third = next(reader_of(iterator))
    np.testing.assert_array_equal(np.concatenate([first, second, third]), ROWS)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(reader_of(iterator))


def test_ragged_batches_and_empty_optionals_are_read_too() -> None:
    import tensorflow as tf

    ragged = iter(made_of(tf.ragged.constant([[1, 2], [3]])).batch(2))
    assert isinstance(next(reader_of(ragged)), tf.RaggedTensor)
    empty = tf.experimental.Optional.empty(tf.TensorSpec(()))
    optional = iter(tf.data.Dataset.from_tensors((ROWS, empty)))
    assert next(reader_of(optional))[1] is None


def test_iterator_is_freed_with_its_last_reference() -> None:
    iterator = iter(made_of(ROWS).batch(2))
    next(reader_of(iterator))
    held = weakref.ref(iterator)
    del iterator
    gc.collect()
    assert held() is None


def test_data_error_is_the_same_as_without_the_engine() -> None:
    def broken() -> Any:
        yield ROWS, ROWS[:, :1]
        raise RuntimeError("the file ends here")

    import tensorflow as tf

    spec = (tf.TensorSpec((None, 4)), tf.TensorSpec((None, 1)))
    messages = []
    for engine in (None, "require"):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        if engine is not None:
            cellerate.accelerate(model, engine=engine)
        with pytest.raises(tf.errors.OpError) as error:
            model.fit(tf.data.Dataset.from_generator(broken, output_signature=spec), shuffle=False, verbose=0)
        messages.append(type(error.value))
    assert messages[0] is messages[1]


class Shifted(keras.layers.Layer):
    """Adds the sum of an input that may be missing; the engine does not know it."""

    def call(self, x: Any, shift: Any = None) -> Any:
        return x if shift is None else x + keras.ops.sum(shift)

    def compute_output_shape(self, x_shape: Any, shift_shape: Any = None) -> Any:
        return x_shape


def test_missing_inputs_of_a_generator_reach_a_model_that_keras_trains() -> None:
    def batches() -> Any:
        for _ in range(3):
            yield {"x": ROWS[..., None] / 24, "shift": None}, ROWS[:, :1] / 24

    found = []
    for accelerated in (False, True):
        keras.utils.set_random_seed(0)
        x, shift = keras.Input((4, 1), name="x"), keras.Input((2,), name="shift", optional=True)
        outputs = keras.layers.Dense(1)(Shifted()(keras.layers.LSTM(2)(x), shift))
        model = keras.Model({"x": x, "shift": shift}, outputs)
        model.compile("sgd", "mse")
        if accelerated:
            cellerate.accelerate(model)
        history = model.fit(batches(), steps_per_epoch=3, shuffle=False, verbose=0).history
        found.append([*history["loss"], model.evaluate(batches(), steps=3, verbose=0)])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
