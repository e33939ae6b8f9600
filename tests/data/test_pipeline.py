import gc
import threading
import time

import keras
import numpy as np
import pytest
from keras import ops

from cellerate.data.pipeline import KerasBatches
from cellerate.data.windows.text_windows import TextBatches
from cellerate.data.windows.windows import WindowSettings, WindowSource
from cellerate.errors import ConfigError, DataError

pytestmark = [pytest.mark.keras, pytest.mark.backends]

needs_tensorflow = pytest.mark.skipif(
    keras.config.backend() != "tensorflow", reason="runs when TensorFlow is the backend"
)
needs_torch = pytest.mark.skipif(keras.config.backend() != "torch", reason="runs when torch is the backend")


class Numbered:
    """Batch i of epoch e has the target 100 e + i, so that a metric can tell what a model was given."""

    batch_size = 4
    item = "rows"
    items_per_batch = 4

    def __init__(self, batches: int, broken: int | None = None) -> None:
        self.batches_per_epoch, self.broken = batches, broken
        self.made: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return self.batches_per_epoch

    def batch(self, epoch: int, index: int):
        if index == self.broken:
            raise DataError("broken on purpose")
        self.made.append((epoch, index))
        return np.zeros((4, 1), np.float32), np.full((4, 1), epoch * 100 + index, np.float32)

    def fingerprint(self) -> str:
        return ""


class Seen(keras.metrics.Metric):
    """Counts each target it is given, over all epochs."""

    def __init__(self) -> None:
        super().__init__(name="seen")
        self.counts = self.add_weight(shape=(1000,), initializer="zeros", name="counts")

    def update_state(self, y_true, y_pred, sample_weight=None) -> None:
        self.counts.assign(self.counts + ops.one_hot(ops.cast(y_true[0, 0], "int32"), 1000))

    def result(self):
        return ops.sum(self.counts)

    def reset_state(self) -> None:
        """Keras calls this each epoch; here all epochs count."""

    def found(self) -> dict[int, int]:
        value = self.counts.value
        counts = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        return {int(number): int(counts[number]) for number in np.flatnonzero(counts)}


class Unbuilt(keras.Model):
    """Keras takes a batch before the first epoch to build a model like this."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)


def compiled(kind: str) -> tuple[keras.Model, Seen]:
    model = Unbuilt() if kind == "unbuilt" else keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    seen = Seen()
    model.compile("sgd", "mse", metrics=[seen])
    return model, seen


def once(*numbers: range) -> dict[int, int]:
    return {number: 1 for part in numbers for number in part}


def threads() -> int:
    return sum(thread.name == "cellerate-batches" for thread in threading.enumerate())


def wait_until(condition) -> bool:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    return condition()


@pytest.mark.parametrize("kind", ["built", "unbuilt"])
@pytest.mark.parametrize("batches", [1, 2, 5])
def test_fit_is_given_each_batch_of_each_epoch_once(kind, batches):
    model, seen = compiled(kind)
    dataset = KerasBatches(Numbered(batches))
    model.fit(dataset, epochs=3, shuffle=False, verbose=0)
    assert seen.found() == once(range(batches), range(100, 100 + batches), range(200, 200 + batches))
    assert dataset.epoch == 3


@pytest.mark.parametrize("kind", ["built", "unbuilt"])
def test_fit_with_validation_is_given_each_batch_of_both_once(kind):
    model, seen = compiled(kind)
    validation = KerasBatches(Numbered(2), epoch=5)
    model.fit(KerasBatches(Numbered(3)), epochs=2, shuffle=False, verbose=0, validation_data=validation)
    assert seen.found() == once(range(3), range(100, 103), range(500, 502), range(600, 602))


def test_fit_that_goes_on_in_an_epoch_loses_and_repeats_nothing():
    model, seen = compiled("built")
    source = Numbered(5)
    model.fit(KerasBatches(source, epoch=0, stop=3), epochs=1, shuffle=False, verbose=0)
    model.fit(KerasBatches(source, epoch=0, start=3), epochs=1, shuffle=False, verbose=0)
    model.fit(KerasBatches(source, epoch=1), initial_epoch=1, epochs=3, shuffle=False, verbose=0)
    assert seen.found() == once(range(5), range(100, 105), range(200, 205))


def test_fit_twice_with_the_same_object_goes_on_with_the_next_epoch():
    model, seen = compiled("built")
    dataset = KerasBatches(Numbered(4))
    for _ in range(2):
        model.fit(dataset, epochs=1, shuffle=False, verbose=0)
    assert seen.found() == once(range(4), range(100, 104))


def test_fit_that_was_interrupted_serves_the_epoch_again():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                raise InterruptedError

    model, _ = compiled("built")
    dataset = KerasBatches(Numbered(6))
    with pytest.raises(InterruptedError):
        model.fit(dataset, epochs=3, shuffle=False, verbose=0, callbacks=[Stop()])
    assert dataset.epoch == 0
    fresh, seen = compiled("built")
    fresh.fit(dataset, epochs=2, shuffle=False, verbose=0)
    assert seen.found() == once(range(6), range(100, 106))


def test_predict_is_given_the_windows_in_order():
    model = keras.Sequential([keras.Input((3, 1)), keras.layers.Lambda(lambda x: x[:, 0])])
    values = np.arange(40, dtype=np.float32)[:, None]
    source = WindowSource(values, WindowSettings(window=3, batch_size=5))
    out = model.predict(KerasBatches(source), verbose=0)
    assert np.asarray(out).ravel().tolist() == list(range(35))


def test_training_on_text_with_weights_runs_and_its_loss_is_right():
    ids = np.arange(100) % 7
    source = TextBatches(ids, length=8, batch_size=5, drop_last=False)
    model = keras.Sequential(
        [keras.Input((8,), dtype="int32"), keras.layers.Embedding(7, 7, embeddings_initializer="zeros")]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, weighted_metrics=["sparse_categorical_accuracy"])
    found = model.evaluate(KerasBatches(source), verbose=0)
    # Equal logits: every id costs ln 7; the first id is taken for all, right where the target is 0.
    accuracy = (ids[1:] == 0).mean()
    assert found[1] == pytest.approx(accuracy, abs=1e-6)


def test_batches_are_made_ahead_but_not_further_than_asked():
    source = Numbered(50)
    dataset = KerasBatches(source, prefetch=4)
    dataset.on_epoch_end()
    dataset.on_epoch_begin()
    dataset[0]
    # One taken, four ready, one in the thread's hand.
    assert wait_until(lambda: len(source.made) >= 6)
    time.sleep(0.05)
    assert source.made == [(0, index) for index in range(6)]


def test_batch_out_of_turn_is_right_and_does_not_disturb_the_order():
    dataset = KerasBatches(Numbered(9), start=2, stop=8, epoch=1)
    assert len(dataset) == dataset.num_batches == 6
    assert dataset[5][1][0, 0] == 107
    dataset.on_epoch_begin()
    found = [dataset[index][1][0, 0] for index in (0, 4, 1, 1, 2, 3, 4, 5)]
    assert found == [102, 106, 103, 103, 104, 105, 106, 107]
    with pytest.raises(IndexError):
        dataset[6]


def test_error_in_the_thread_is_raised_where_the_batch_is_asked_for():
    dataset = KerasBatches(Numbered(9, broken=3))
    dataset.on_epoch_begin()
    assert [dataset[index][1][0, 0] for index in range(3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(DataError, match="broken on purpose"):
            dataset[3]


def test_error_in_the_thread_ends_fit():
    model, _ = compiled("built")
    # TensorFlow wraps it in an error of its own.
    with pytest.raises(Exception, match="broken on purpose"):
        model.fit(KerasBatches(Numbered(9, broken=5)), shuffle=False, verbose=0)


def test_thread_ends_with_its_epoch_and_with_its_object():
    assert wait_until(lambda: threads() == 0)
    dataset = KerasBatches(Numbered(1000), prefetch=2)
    dataset.on_epoch_begin()
    dataset[0]
    assert threads() == 1
    dataset.on_epoch_end()
    assert wait_until(lambda: threads() == 0)
    dataset.on_epoch_begin()
    dataset[0]
    del dataset
    assert wait_until(lambda: threads() == 0)


def test_no_thread_is_left_after_fit():
    model, _ = compiled("built")
    model.fit(KerasBatches(Numbered(20)), epochs=2, shuffle=False, verbose=0)
    assert wait_until(lambda: threads() == 0)


@pytest.mark.parametrize(
    "arguments",
    [{"start": 5}, {"start": -1}, {"stop": 6}, {"start": 3, "stop": 3}, {"epoch": -1}, {"prefetch": 0}],
)
def test_keras_batches_out_of_range_raise_config_error(arguments):
    with pytest.raises(ConfigError, match="expected"):
        KerasBatches(Numbered(5), **arguments)


def real_sources() -> list:
    ids = np.arange(3000) % 251
    values = np.arange(6000, dtype=np.float32).reshape(2000, 3)
    return [
        TextBatches(ids, length=16, batch_size=8, seed=1),
        TextBatches(ids, length=16, batch_size=8, drop_last=False),
        WindowSource(values, WindowSettings(window=10, horizon=2, batch_size=16, seed=1)),
    ]


class Words(Numbered):
    """Two named inputs, and lengths that differ from batch to batch."""

    def batch(self, epoch: int, index: int):
        ids = np.full((4, index + 1), epoch, np.int32)
        return {"source": ids, "target_in": ids + 1}, ids + 2, np.ones((4, index + 1), np.float32)


@needs_tensorflow
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("cache", [False, True])
def test_tf_dataset_equals_the_source(number, cache):
    source = real_sources()[number]
    dataset = KerasBatches(source).as_tf_dataset(epoch=2, cache=cache)
    assert int(dataset.cardinality()) == len(source)
    assert tuple(spec.shape for spec in dataset.element_spec) == tuple(a.shape for a in source.batch(2, 0))
    for _ in range(2):
        batches = list(dataset.as_numpy_iterator())
        assert len(batches) == len(source)
        for index, batch in enumerate(batches):
            for found, wanted in zip(batch, source.batch(2, index), strict=True):
                assert found.dtype == wanted.dtype
                assert np.array_equal(found, wanted)


@needs_tensorflow
def test_tf_dataset_of_named_inputs_and_changing_lengths_equals_the_source():
    source = Words(4)
    dataset = KerasBatches(source).as_tf_dataset(epoch=3)
    assert dataset.element_spec[0]["source"].shape.as_list() == [4, None]
    for index, (x, y, weight) in enumerate(dataset.as_numpy_iterator()):
        wanted = source.batch(3, index)
        assert np.array_equal(x["source"], wanted[0]["source"])
        assert np.array_equal(x["target_in"], wanted[0]["target_in"])
        assert np.array_equal(y, wanted[1])
        assert np.array_equal(weight, wanted[2])


@needs_torch
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("workers", [0, 1, 2])
# Python 3.12 warns of any fork while there are threads; torch's loader forks by default.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_torch_dataset_equals_the_source_with_any_number_of_workers(number, workers):
    import torch

    source = real_sources()[number]
    dataset = KerasBatches(source).as_torch_dataset()
    dataset.epoch = 2
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers)
    batches = list(loader)
    assert len(batches) == len(loader) == len(source)
    for index, batch in enumerate(batches):
        for found, wanted in zip(batch, source.batch(2, index), strict=True):
            assert found.numpy().dtype == wanted.dtype
            assert np.array_equal(found.numpy(), wanted)


@needs_torch
def test_torch_dataset_of_named_inputs_equals_the_source():
    x, y, weight = list(KerasBatches(Words(4)).as_torch_dataset(epoch=3))[2]
    assert x["target_in"].tolist() == [[4, 4, 4]] * 4
    assert y.tolist() == [[5, 5, 5]] * 4
    assert weight.shape == (4, 3)


@pytest.mark.parametrize(
    "order", [["a" * 3] * 6 + ["b" * 30] * 6, ["b" * 30] * 6 + ["a" * 3] * 6], ids=["short", "long"]
)
def test_fit_on_lines_whose_first_batches_are_alike_takes_every_length(order):
    from cellerate.data.text.lines import LineBatches, LineVocabulary

    vocabulary = LineVocabulary.from_lines(order)
    source = LineBatches(order, vocabulary, batch_size=2, max_length=40)
    assert len({source.batch(0, n)[1].shape for n in range(len(source))}) > 1
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in ("source", "target_in")}
    x = keras.layers.Embedding(vocabulary.size, 4)(inputs["target_in"])
    model = keras.Model(inputs, keras.layers.Dense(vocabulary.size)(x))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(KerasBatches(source), epochs=2, shuffle=False, verbose=0, validation_data=KerasBatches(source))


def test_fit_on_a_single_batch_of_lines_takes_its_length():
    from cellerate.data.text.lines import LineBatches, LineVocabulary

    lines = ["a" * 3] * 6 + ["b" * 30] * 6
    vocabulary = LineVocabulary.from_lines(lines)
    source = LineBatches(lines, vocabulary, batch_size=2, max_length=40)
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in ("source", "target_in")}
    x = keras.layers.Embedding(vocabulary.size, 4)(inputs["target_in"])
    model = keras.Model(inputs, keras.layers.Dense(vocabulary.size)(x))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for number in source.extremes(0):
        model.fit(KerasBatches(source, start=number, stop=number + 1), shuffle=False, verbose=0)
