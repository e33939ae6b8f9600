"""A profile of a training names what is wrong with it first, and its parts add up."""

import mmap
import os
import time

import keras
import numpy as np
import pytest

import cellerate
from cellerate.errors import ConfigError, ModelError
from cellerate.machine.doctor import load
from cellerate.machine.doctor.load import Others
from cellerate.observe.profiling.changes import _Tries
from cellerate.observe.profiling.feeding import Feed, KeptBatches, keep, rows_of

pytestmark = [pytest.mark.keras, pytest.mark.backends]
VOCABULARY, ROWS, STEPS, UNITS = 20, 32, 12, 16
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def text_model(units=UNITS, **options):
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = keras.layers.Embedding(VOCABULARY, 8, name="table")(ids)
    x = keras.layers.LSTM(units, return_sequences=True, name="first", **options)(x)
    x = keras.layers.Bidirectional(keras.layers.LSTM(units, return_sequences=True, name="both"), name="two")(
        x
    )
    return keras.Model(ids, keras.layers.Dense(VOCABULARY, name="head")(x), name="tiny")


def small_model():
    """A third of `text_model`, of which TensorFlow traces each loop anew for each measurement."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = keras.layers.Embedding(VOCABULARY, 8, name="table")(ids)
    x = keras.layers.LSTM(UNITS, return_sequences=True, name="first")(x)
    return keras.Model(ids, keras.layers.Dense(VOCABULARY, name="head")(x), name="tiny")


def compiled(model, **options):
    model.compile(keras.optimizers.Adam(1e-3), LOSS, **options)
    return model


def ids(rows=8 * ROWS, steps=STEPS):
    return np.random.default_rng(0).integers(0, VOCABULARY, (rows, steps)).astype(np.int32)


class Slow(keras.utils.PyDataset):
    """Makes each batch slowly."""

    def __init__(self, seconds):
        super().__init__(workers=1)
        self.seconds, self.ids = seconds, ids(ROWS)

    def __len__(self):
        return 50

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return self.ids, self.ids


def test_slow_loader_is_named_first_and_parts_add_up_to_the_step():
    model = compiled(cellerate.accelerate(text_model()))
    weights = [array.copy() for array in model.get_weights()]
    optimizer = model.optimizer
    # Slow beside a step on a machine that does other things as well: loading and computing overlap on TensorFlow.
    found = cellerate.profile(model, Slow(0.15), seconds=0.2)
    assert "waits for batches" in found.changes[0].title
    assert found.bottleneck.startswith(found.changes[0].title)
    assert found.changes[0].gain > 0.5
    # Of the three steps timed, the first may find its batch ready; the other two wait for theirs.
    assert found.step_ms > 2 / 3 * 150
    assert sum(part.ms for part in found.parts) == pytest.approx(found.step_ms, rel=0.1)
    assert sum(part.share for part in found.parts) == pytest.approx(1, rel=0.1)
    names = {part.name: part for part in found.parts}
    assert names["waiting for batches"].ms > 30
    for name in ("first", "two/forward_both", "two/backward_both", "head"):
        assert names[name].forward_ms >= 0 <= names[name].backward_ms, name
        assert names[name].ms > 0
    assert names["loss and metrics"].kind == "loss" and names["loss and metrics"].ms > 0
    assert any(part.kind == "optimizer" and part.ms > 0 for part in found.parts)
    assert names["first"].backward_ms > 0
    assert all(part.kind == "host" or part.ms >= 0 for part in found.parts)
    assert "forward: time steps" in names["first"].phases
    assert found.memory.peak_bytes == sum(found.memory.owners.values())
    # The model is as it was.
    assert model.optimizer is optimizer and not optimizer.built
    assert all(np.array_equal(now, before) for now, before in zip(model.get_weights(), weights, strict=True))
    assert "accelerated" not in str(cellerate.explain(model))
    assert model.fit(ids(), ids(), verbose=0).history["loss"]


def test_model_that_was_trained_before_is_profiled_by_layer_and_kept():
    model = compiled(text_model(), steps_per_execution=1 if keras.config.backend() == "torch" else 3)
    x = ids(4 * ROWS)
    model.fit(x, x, batch_size=ROWS, verbose=0)
    kept = [model.optimizer, model.history, model.run_eagerly, model.jit_compile, model.steps_per_execution]
    state = [np.array(keras.ops.convert_to_numpy(one)) for one in model.optimizer.variables]
    found = cellerate.profile(
        model, x, x, batch_size=ROWS, seconds=0.05, validation_data=(x, x), changes=False
    )
    assert {"first", "two/forward_both", "two/backward_both"} <= {part.name for part in found.parts}
    assert found.steps_per_epoch == 4 and found.validation_ms > 0
    assert "No change was tried" in found.bottleneck
    assert kept == [
        model.optimizer, model.history, model.run_eagerly, model.jit_compile, model.steps_per_execution
    ]  # fmt: skip
    for variable, before in zip(model.optimizer.variables, state, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), before)


def test_interrupted_profile_leaves_the_model_and_the_profiler_usable():
    model = compiled(small_model())
    weights = [array.copy() for array in model.get_weights()]

    def stop(text):
        if "profiler" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cellerate.profile(model, ids(), ids(), seconds=0.05, notify=stop)
    assert all(np.array_equal(now, before) for now, before in zip(model.get_weights(), weights, strict=True))
    found = cellerate.profile(model, ids(), ids(), seconds=0.05, changes=False)
    assert any(part.name == "first" for part in found.parts)


@pytest.mark.backends
def test_batches_with_lists_of_inputs_and_targets_are_kept_for_every_backend():
    one, other = keras.Input((5, 3)), keras.Input((2,))
    joined = keras.layers.Concatenate()([keras.layers.LSTM(4)(one), other])
    model = keras.Model([one, other], [keras.layers.Dense(1)(joined), keras.layers.Dense(2)(joined)])
    model.compile("sgd", ["mse", "mae"])
    shapes = [(8, 5, 3), (8, 2)], [(8, 1), (8, 2)]
    x, y = ([np.ones(shape, np.float32) for shape in some] for some in shapes)
    kept, _ = keep(Feed(KeptBatches([(x, y)])))
    history = model.fit(KeptBatches(kept), steps_per_epoch=2, verbose=0).history
    assert np.isfinite(history["loss"]).all()


def test_uncompiled_model_and_too_few_batches_are_refused():
    with pytest.raises(ModelError, match="compile"):
        cellerate.profile(small_model(), ids(), ids())
    two = ((ids(ROWS), ids(ROWS)) for _ in range(2))
    with (
        pytest.warns(UserWarning, match="ran out of data"),
        pytest.raises(ConfigError, match="too few batches"),
    ):
        cellerate.profile(compiled(small_model()), two)


class Subclassed(keras.Model):
    """A model without weights before its first call, whose graph cannot be read."""

    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(VOCABULARY, 8)
        self.memory = keras.layers.LSTM(UNITS, return_sequences=True, name="memory")
        self.head = keras.layers.Dense(VOCABULARY)

    def call(self, inputs):
        return self.head(self.memory(self.table(inputs)))


def test_unbuilt_subclassed_model_is_profiled_on_a_generator_that_goes_on():
    taken = []

    def batches():
        for number in range(100_000):
            taken.append(number)
            yield ids(ROWS), ids(ROWS)

    endless = batches()
    model = compiled(Subclassed(), metrics=["sparse_categorical_accuracy"])
    found = cellerate.profile(model, endless, seconds=0.05, changes=False)
    assert "memory" in {part.name for part in found.parts}
    assert found.steps_per_epoch is None and found.changes == ()
    next(endless)
    assert taken[-1] < 99_999


def as_ever(tries, model, batches=None):
    """As if no change made any difference: nothing is compiled to measure it."""
    return tries._now * (1 if batches is None else rows_of(batches[0]) / tries._rows)


def test_layers_that_cannot_be_accelerated_are_named_with_the_reason(monkeypatch):
    # The reasons are there before a change is measured.
    monkeypatch.setattr(_Tries, "_step_s", as_ever)
    ids_in = keras.Input((STEPS,), dtype="int32")
    x = keras.layers.Embedding(VOCABULARY, 8)(ids_in)
    x = keras.layers.GRU(UNITS, return_sequences=True, name="gated")(x)
    for name in ("one", "two"):
        x = keras.layers.LSTM(UNITS, activation="softmax", return_sequences=True, name=name)(x)
    x = keras.layers.LSTM(UNITS, return_sequences=True, name="fit")(x)
    model = compiled(keras.Model(ids_in, keras.layers.Dense(VOCABULARY)(x)))
    found = cellerate.profile(model, ids(), ids(), seconds=0.02)
    reasons = [note for note in found.notes if "cannot be accelerated" in note]
    assert reasons[0] == (
        "gated cannot be accelerated: Cellerate has no kernels for GRU: it stays with Keras -> keras.layers.LSTM"
    )
    assert reasons[1].startswith("one, two cannot be accelerated: activation: softmax -> one of ")
    assert len(reasons) == 2


def test_what_gains_nothing_is_named_with_its_times(monkeypatch):
    model = compiled(small_model())
    monkeypatch.setattr(_Tries, "_step_s", as_ever)
    notes = []
    found = cellerate.profile(model, ids(), ids(), seconds=0.02, notify=notes.append)
    assert all("waits" in change.title for change in found.changes)
    (said,) = [note for note in found.notes if note.startswith("tried without gain: ")]
    tried = notes[notes.index("the same under the backend's profiler") + 1 :]
    assert tried[0] == "Cellerate's kernels"
    for what in tried:
        assert f"{what} (" in said and " -> " in said
    assert f"note: {said}" in str(found)


def test_load_of_the_machine_is_named_and_noted_where_it_spoils_the_figures(monkeypatch):
    model = compiled(cellerate.accelerate(small_model()))
    monkeypatch.setattr(Others, "processors", lambda self: 1.5)
    monkeypatch.setattr(load, "allowed_processors", lambda: range(2))
    found = cellerate.profile(model, ids(), ids(), seconds=0.02, changes=False)
    assert found.environment["load"] == "other processes used 1.5 of 2 processors"
    assert found.notes[0].startswith(
        "While this was measured, other processes used 1.5 of 2 processors: times are"
    )
    monkeypatch.setattr(Others, "processors", lambda self: 0.1)
    found = cellerate.profile(model, ids(), ids(), seconds=0.02, changes=False)
    assert found.environment["load"] == "other processes used 0.1 of 2 processors"
    assert not any("While this was measured" in note for note in found.notes)


def planted(name, tmp_path):
    """A model and the arguments of `profile`, with one thing wrong; and what its title must say."""
    x = ids(64 * ROWS)
    fast = compiled(cellerate.accelerate(text_model(64)))
    if name == "loader":
        return fast, {"x": Slow(0.1)}, "waits for batches"
    if name == "recurrent_dropout":
        # Of a size at which the kernels are faster: XLA's own loop over a few steps of few units is as fast.
        model, long = compiled(text_model(128, recurrent_dropout=0.2)), ids(16 * ROWS, 50)
        return model, {"x": long, "y": long, "batch_size": 64}, "own code"
    if name == "batch":
        return fast, {"x": x, "y": x, "batch_size": 1}, "only 1 row"
    if name == "eager":
        if keras.config.backend() == "torch":
            # There nothing else is eager but what Keras runs step by step.
            return compiled(text_model(64)), {"x": x, "y": x, "batch_size": 64}, "own code"
        return (
            compiled(text_model(64), run_eagerly=True),
            {"x": x, "y": x, "batch_size": 64},
            "called from Python",
        )
    if name == "validation":
        held = ids(64 * ROWS)
        # As long as the training: evaluation takes about a third of the time of as many rows.
        held = np.concatenate([held] * 4)
        return (
            fast,
            {"x": x, "y": x, "batch_size": 64, "validation_data": (held, held), "validation_batch_size": 64},
            "Validation",
        )
    return compiled(cellerate.accelerate(text_model())), {"x": Cold(tmp_path / "ids.bin")}, "page cache"


class Cold(keras.utils.PyDataset):
    """Rows from all over a file that is not in memory."""

    def __init__(self, path):
        super().__init__(workers=1)
        np.random.default_rng(0).integers(0, VOCABULARY, 256 << 20, dtype=np.uint8).tofile(path)
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        self.map = mmap.mmap(file, 0, prot=mmap.PROT_READ)
        self.map.madvise(mmap.MADV_RANDOM)
        self.ids = np.frombuffer(self.map, np.uint8)

    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        starts = np.random.default_rng(index).integers(0, len(self.ids) - STEPS, 512)
        rows = np.stack([self.ids[start : start + STEPS] for start in starts]).astype(np.int32)
        return rows, rows


@pytest.mark.slow
@pytest.mark.parametrize("name", ["loader", "recurrent_dropout", "batch", "eager", "validation", "cold"])
def test_planted_bottleneck_is_named_first(name, tmp_path):
    model, arguments, words = planted(name, tmp_path)
    found = cellerate.profile(model, **arguments, seconds=0.5)
    print(found)
    assert words in found.bottleneck
    assert sum(part.ms for part in found.parts) == pytest.approx(found.step_ms, rel=0.1)
