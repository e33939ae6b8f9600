"""The loop around `fit`: its results, limits, precision, samples and callbacks."""

import itertools
import os
import signal
import threading
import time

import keras
import numpy as np
import pytest

from cellerate.data.pipeline import KerasBatches
from cellerate.data.windows.text_windows import StreamBatches, TextBatches
from cellerate.errors import ConfigError, TrainingError
from cellerate.models.storage import load_model
from cellerate.models.text import build_text_model
from cellerate.training.callbacks import stop_signals
from cellerate.training.checkpoint_folder import CheckpointFolder
from cellerate.training.loop import train
from cellerate.training.run import RunOptions, TrainingRun
from cellerate.training.settings import TrainingSettings
from cellerate.training.start import run_folder
from cellerate.training.telemetry.display import Display
from cellerate.training.telemetry.records import Sample
from support.runs.training_runs import IDS, LOSS, Heard, StopAt, curve, held_out, losses, run

pytestmark = [pytest.mark.keras, pytest.mark.backends]


class Slow:
    """Slow batches."""

    def __init__(self, seconds):
        self._source, self._seconds = TextBatches(IDS[:2000], length=10, batch_size=8, seed=1), seconds

    def __getattr__(self, name):
        return getattr(self._source, name)

    def __len__(self):
        return len(self._source)

    def batch(self, epoch, index):
        time.sleep(self._seconds)
        return self._source.batch(epoch, index)

    batches = None


class Changed:
    """The usual batches, changed by a function of the epoch."""

    def __init__(self, change):
        self._source, self._change = TextBatches(IDS[:1000], length=10, batch_size=8, seed=1), change
        self.batch_size, self.item, self.items_per_batch = 8, "characters", 80

    def __len__(self):
        return len(self._source)

    def batch(self, epoch, index):
        return self._change(epoch, *self._source.batch(epoch, index))

    def fingerprint(self):
        return "changed"


def test_completed_train_writes_model_history_and_checkpoint(tmp_path):
    result = run(tmp_path / "m.keras", validation=held_out())
    assert result.status == "finished"
    assert [r["epoch"] for r in result.history] == [1, 2, 3]
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    model, _ = load_model(tmp_path / "m.keras")
    assert not model.compiled
    assert CheckpointFolder(result.folder).newest().progress["finished"] == "finished"
    rows = curve(tmp_path / "m.keras").splitlines()
    assert rows[0] == "epoch,step,loss"
    assert len(rows) == 1 + 3 * result.history[0]["steps"]


def test_train_left_by_an_exception_leaves_no_thread_behind(tmp_path):
    def threads():
        return [
            thread
            for thread in threading.enumerate()
            if thread.name == "cellerate-batches" and thread.is_alive()
        ]

    before = threads()
    source = TextBatches(np.tile(IDS, 50), length=10, batch_size=8, seed=1)
    assert run(tmp_path / "m.keras", source=source, display=StopAt(0, 3)).status == "interrupted"
    deadline = time.monotonic() + 10
    while len(threads()) > len(before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads() == before


def test_train_with_a_time_limit_ends_cleanly_and_can_resume(tmp_path):
    result = run(tmp_path / "m.keras", max_seconds=0.001, validation=held_out())
    assert result.status == "time limit"
    assert (tmp_path / "m.keras").exists()
    position = CheckpointFolder(result.folder).newest().position
    assert (position.epoch, position.batch) == (0, 1)
    run(tmp_path / "m.keras", resume=True, validation=held_out())
    run(tmp_path / "whole.keras", validation=held_out())
    assert losses(tmp_path / "m.keras") == losses(tmp_path / "whole.keras")


@pytest.mark.parametrize(("patience", "status"), [(None, "finished"), (2, "stopped early")])
def test_train_keeps_the_best_model_not_the_last(tmp_path, patience, status):
    def wrong_from_the_third_epoch_on(epoch, x, y):
        return (x, y) if epoch < 2 else (x, (y + 3) % 7)

    source = Changed(wrong_from_the_third_epoch_on)
    result = run(
        tmp_path / "m.keras",
        epochs=4,
        learning_rate=0.05,
        source=source,
        validation=held_out(),
        patience=patience,
    )
    assert (result.best_epoch, result.status) == (2, status)
    assert [record["best"] for record in result.history] == [True, True, False, False]
    judge = keras.Model(result.model.input, result.model.output)
    judge.compile(loss=LOSS)
    assert judge.evaluate(KerasBatches(held_out()), verbose=0) == pytest.approx(result.best, rel=1e-4)


def test_train_that_diverges_raises_and_keeps_the_best_model(tmp_path):
    def no_number(epoch, x, y):
        return x, y, np.full(y.shape, np.nan if epoch else 1.0, np.float32)

    with pytest.raises(TrainingError, match="the loss is nan at step 1 of epoch 2"):
        run(tmp_path / "m.keras", source=Changed(no_number))
    point = CheckpointFolder(run_folder(tmp_path / "m.keras")).newest()
    assert point.position.epoch == 1
    assert all(np.isfinite(value).all() for value in point.arrays.values())
    load_model(tmp_path / "m.keras")


def test_train_reports_its_wait_for_data_and_its_speed(tmp_path):
    heard, source = Heard(), Slow(0.05)
    (record,) = run(tmp_path / "m.keras", epochs=1, source=source, display=heard).history
    # Eight batches are made ahead while the first step compiles, and some whenever the training pauses.
    least = 0.05 * (len(source) - 16) / record["seconds"]
    assert least < record["data_wait"] <= 1
    assert least < heard.waits[-1] <= 1
    steps = len(source) - 1
    least = steps * source.items_per_batch / record["seconds"]
    assert least <= 1.01 * record["items_per_s"] < steps * source.items_per_batch / (0.05 * (steps - 9))
    assert run(tmp_path / "n.keras", epochs=1).history[0]["data_wait"] < 0.5


def test_train_of_a_single_step_has_no_speed_and_starts_over_without_resume(tmp_path):
    source = TextBatches(IDS[:100], length=10, batch_size=8, seed=1)
    assert len(source) == 1
    model = build_text_model(7, embedding=4, units=6, seed=5)
    settings = TrainingSettings(epochs=1)
    options = RunOptions(output=tmp_path / "m.keras", training=settings)
    result = train(model, source, TrainingRun(options=options, loss=LOSS))
    assert result.history[0]["items_per_s"] == 0.0
    assert result.here


def test_train_in_mixed_bfloat16_trains_a_copy_and_keeps_float32_weights(tmp_path):
    result = run(tmp_path / "m.keras", precision="mixed_bfloat16", epochs=1)
    assert result.precision == "mixed_bfloat16"
    model, _ = load_model(tmp_path / "m.keras")
    assert {keras.backend.standardize_dtype(w.dtype) for w in model.weights} == {"float32"}
    assert any(layer.compute_dtype == "bfloat16" for layer in model.layers)


def test_train_of_a_compiled_or_subclassed_model_works_as_well(tmp_path):
    @keras.saving.register_keras_serializable(package="test_loop")
    class Own(keras.Model):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.table, self.lstm, self.head = (
                keras.layers.Embedding(7, 4),
                keras.layers.LSTM(5, return_sequences=True),
                keras.layers.Dense(7),
            )

        def call(self, ids):
            return self.head(self.lstm(self.table(ids)))

    model = Own()
    model(np.zeros((2, 10), np.int32))
    result = run(tmp_path / "m.keras", model=model, epochs=2)
    assert result.history[1]["loss"] < result.history[0]["loss"]


def test_carried_training_differs_from_training_from_zero_states(tmp_path):
    """Carried states let a model see beyond its window of 1 character, which is not enough here."""
    period = np.tile(np.array([0, 0, 0, 1, 0, 0, 0, 2]), 250)
    results = {}
    for carry in (False, True):
        source = StreamBatches(period, length=2, batch_size=4)
        model = build_text_model(3, embedding=4, units=12, seed=1)
        result = run(
            tmp_path / f"{carry}.keras", model=model, source=source, carry=carry, epochs=3, learning_rate=0.02
        )
        results[carry] = result.history[-1]["loss"]
    assert results[True] < 0.6 * results[False]


def test_train_names_its_kernels(tmp_path):
    heard = Heard()
    result = run(tmp_path / "m.keras", epochs=1, display=heard)
    assert heard.messages == [result.kernels]
    assert result.kernels.startswith(f"{keras.config.backend()}, ")
    heard = Heard()
    run(tmp_path / "k.keras", epochs=1, display=heard, implementation="keras")
    assert heard.messages == [f"{keras.config.backend()}, Keras's own kernels"]


def test_samples_appear_every_n_steps_and_after_each_epoch(tmp_path):
    heard, weights = Heard(), []

    def sample(model):
        weights.append(model.get_weights()[0].copy())
        return Sample("Once", " upon")

    result = run(tmp_path / "m.keras", epochs=2, display=heard, sample=sample, sample_every=7, log_every=50)
    steps = result.history[0]["steps"]
    wanted = sorted({*range(7, 2 * steps, 7), steps, 2 * steps})
    said = [f"--- sample after step {step} ---\nOnce upon\n---" for step in wanted]
    assert [text for text in heard.messages if "sample" in text] == said
    assert all((a != b).any() for a, b in itertools.pairwise(weights)), (
        "a sample of weights that are not the newest"
    )


class Counting(keras.callbacks.Callback):
    """Count the calls of each method."""

    def __init__(self):
        super().__init__()
        self.called = []

    def on_train_begin(self, logs=None):
        self.called.append(("begin", self.params["epochs"], self.params["steps"]))

    def on_epoch_end(self, epoch, logs=None):
        self.called.append(("epoch", epoch, sorted(logs)))


class CountingBatches(Counting):
    def on_train_batch_end(self, batch, logs=None):
        self.called.append(("batch", batch, type(logs["loss"])))


def test_callbacks_of_the_user_are_called_as_fit_calls_them(tmp_path):
    plain, batches, functions = Counting(), CountingBatches(), []
    function = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: functions.append(batch))
    result = run(
        tmp_path / "m.keras",
        epochs=2,
        validation=held_out(),
        log_every=50,
        callbacks=[plain, batches, function],
    )
    steps = result.history[0]["steps"]
    assert plain.called == [("begin", 2, steps), *(("epoch", n, ["loss", "val_loss"]) for n in range(2))]
    assert [one for one in batches.called if one[0] == "batch"] == [
        ("batch", n, float) for n in range(steps)
    ] * 2
    assert functions == [*range(steps)] * 2


def test_callback_of_the_user_stops_the_run(tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 1

    assert run(tmp_path / "m.keras", epochs=5, callbacks=[Stop()]).status == "stopped early"
    assert len(losses(tmp_path / "m.keras")) == 2


@pytest.mark.parametrize("wrong", [[print], [None], [keras.callbacks.CallbackList()]], ids=str)
def test_objects_that_are_not_callbacks_are_refused_before_training(tmp_path, wrong):
    with pytest.raises(ConfigError, match="callbacks must be a list of"):
        run(tmp_path / "m.keras", callbacks=wrong)
    assert list(tmp_path.iterdir()) == []


def test_second_ctrl_c_ends_at_once(tmp_path):
    class Conducted:
        stop_requested = False

    heard = Heard()
    with stop_signals(Conducted(), heard):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    assert heard.messages[0].startswith("Stopping after this step")
    assert heard.messages[1] == "at once"
    with pytest.raises(KeyboardInterrupt), stop_signals(Conducted(), Display()):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
