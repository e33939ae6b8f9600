import itertools
import json
import os
import signal
import threading
import time

import keras
import numpy as np
import pytest

from cellerate.data.pipeline import KerasBatches
from cellerate.data.windows.text_windows import StreamBatches, TextBatches
from cellerate.errors import CheckpointError, ConfigError, OutputError, TrainingError
from cellerate.files import exclusive
from cellerate.models.storage import load_model
from cellerate.models.text import build_text_model
from cellerate.training.callbacks import Conductor, Progress
from cellerate.training.checkpoint_folder import CheckpointFolder
from cellerate.training.loop import train
from cellerate.training.parallel import Processes
from cellerate.training.run import RunOptions, TrainingRun
from cellerate.training.settings import TrainingSettings
from cellerate.training.signals import stop_signals
from cellerate.training.start import check_start, run_folder
from cellerate.training.telemetry.display import Display
from cellerate.training.telemetry.records import Sample

pytestmark = [pytest.mark.keras, pytest.mark.backends]

# Each id is the one before plus 1 or 2: half of what there is to know can be learned.
IDS = np.random.default_rng(3).integers(1, 3, 1200).cumsum().astype(np.int64) % 7
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def run(
    output, *, model=None, source=None, validation=None, display=None, carry=False, sample=None, **settings
):
    passed = ("resume", "overwrite", "callbacks", "sample_every")
    options = {name: settings.pop(name) for name in passed if name in settings}
    model = model or build_text_model(7, embedding=4, units=6, dropout=0.3, seed=5)
    source = source or TextBatches(IDS[:1000], length=10, batch_size=8, seed=1)
    return train(
        model,
        source,
        TrainingRun(
            options=RunOptions(
                output=output,
                training=TrainingSettings(
                    **({"epochs": 3, "learning_rate": 0.01, "log_every": 1} | settings)
                ),
                display=display,
                **options,
            ),
            loss=LOSS,
            validation=validation,
            carry_states=carry,
            sample=sample,
        ),
    )


def held_out():
    return TextBatches(IDS[1000:], length=10, batch_size=8, drop_last=False)


def curve(output):
    return (run_folder(output) / "curve.csv").read_text()


def losses(output):
    lines = (run_folder(output) / "history.jsonl").read_text().splitlines()
    return [(r["epoch"], r["loss"], r.get("val_loss")) for r in map(json.loads, lines)]


class Heard(Display):
    """Notes what the run says."""

    def __init__(self):
        self.messages, self.waits = [], []

    def message(self, text):
        self.messages.append(text)

    def end_at_once(self):
        self.messages.append("at once")

    def data_wait(self, share):
        self.waits.append(share)


class Slow:
    """Batches that take their time."""

    def __init__(self, seconds):
        self._source, self._seconds = TextBatches(IDS[:1000], length=10, batch_size=8, seed=1), seconds

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


class StopAt(Display):
    """Sends a signal to this process at a step, as Ctrl-C does."""

    def __init__(self, epoch, step, number=signal.SIGINT):
        self.place, self.number, self.said = (epoch, step), number, []

    def step(self, epoch, step, logs):
        if (epoch, step) == self.place:
            os.kill(os.getpid(), self.number)

    def message(self, text):
        self.said.append(text)


def test_train_to_the_end_writes_model_history_and_checkpoint(tmp_path):
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


@pytest.mark.parametrize(
    ("step", "carry"),
    [
        *((7, False), ("last", False), (1, True)),
        *(pytest.param(*rest, marks=pytest.mark.slow) for rest in ((1, False), (7, True), ("last", True))),
    ],
)
def test_train_resumed_in_the_middle_of_an_epoch_gives_the_same_curve(tmp_path, step, carry):
    def source():
        ids = IDS[:1000]
        return (
            StreamBatches(ids, length=8, batch_size=8)
            if carry
            else TextBatches(ids, length=10, batch_size=8, seed=1)
        )

    step = len(source()) if step == "last" else step
    common = {"validation": None if carry else held_out(), "carry": carry, "clipnorm": 1.0, "epochs": 3}
    run(tmp_path / "whole.keras", source=source(), **common)
    cut = run(tmp_path / "cut.keras", source=source(), display=StopAt(1, step), **common)
    assert cut.status == "interrupted"
    position = CheckpointFolder(cut.folder).newest().position
    assert (position.epoch, position.batch) == ((1, step) if step < len(source()) else (2, 0))
    again = run(tmp_path / "cut.keras", source=source(), resume=True, **common)
    assert again.status == "finished"
    assert curve(tmp_path / "cut.keras") == curve(tmp_path / "whole.keras")
    assert losses(tmp_path / "cut.keras") == losses(tmp_path / "whole.keras")
    one, other = (load_model(tmp_path / f"{name}.keras")[0] for name in ("whole", "cut"))
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_train_resumed_keeps_the_counters_of_early_stopping_and_plateau(tmp_path):
    # A loss that cannot get better: the counters alone decide.
    common = {
        "learning_rate": 1e-9,
        "epochs": 12,
        "patience": 5,
        "plateau_patience": 2,
        "validation": held_out(),
        "optimizer": "sgd",
    }
    whole = run(tmp_path / "whole.keras", **common)
    cut = run(tmp_path / "cut.keras", display=StopAt(3, 2), **common)
    assert cut.status == "interrupted"
    again = run(tmp_path / "cut.keras", resume=True, **common)
    assert again.status == whole.status == "stopped early"
    assert len(again.history) == len(whole.history) < 12
    rates = [r["learning_rate"] for r in whole.history]
    assert rates[-1] < rates[0]
    assert [r["learning_rate"] for r in again.history] == rates


def test_train_on_after_the_last_epoch_continues_the_curve(tmp_path):
    run(tmp_path / "whole.keras", epochs=3)
    run(tmp_path / "two.keras", epochs=1)
    run(tmp_path / "two.keras", epochs=3, resume=True)
    assert curve(tmp_path / "two.keras") == curve(tmp_path / "whole.keras")


def test_train_resumed_with_nothing_left_to_do_says_so(tmp_path):
    run(tmp_path / "m.keras", epochs=1)
    with pytest.raises(ConfigError, match="already trained 1 epochs"):
        run(tmp_path / "m.keras", epochs=1, resume=True)


def test_train_resumed_with_other_settings_names_them(tmp_path):
    run(tmp_path / "m.keras", epochs=1)
    with pytest.raises(CheckpointError, match=r"learning_rate was 0\.01, now 0\.02"):
        run(tmp_path / "m.keras", epochs=2, learning_rate=0.02, resume=True)
    with pytest.raises(CheckpointError, match="the training data are others"):
        source = TextBatches(IDS[:990], length=10, batch_size=8, seed=1)
        run(tmp_path / "m.keras", epochs=2, source=source, resume=True)
    with pytest.raises(CheckpointError, match="the model has other layers"):
        model = build_text_model(7, embedding=4, units=5, seed=5)
        run(tmp_path / "m.keras", epochs=2, model=model, resume=True)


def test_train_over_an_unfinished_run_is_refused(tmp_path):
    run(tmp_path / "m.keras", display=StopAt(0, 3))
    with pytest.raises(ConfigError, match=r"has not ended.*resume=True.*overwrite=True"):
        run(tmp_path / "m.keras")
    assert run(tmp_path / "m.keras", overwrite=True).status == "finished"


def test_train_over_a_finished_model_is_refused_until_it_may_be_overwritten(tmp_path):
    run(tmp_path / "m.keras", epochs=1)
    before = (tmp_path / "m.keras").read_bytes()
    with pytest.raises(ConfigError, match=r"m\.keras exists. Replace it \(overwrite=True\), .*resume=True"):
        run(tmp_path / "m.keras", epochs=1)
    assert (tmp_path / "m.keras").read_bytes() == before
    assert run(tmp_path / "m.keras", epochs=1, overwrite=True, learning_rate=0.1).status == "finished"
    assert (tmp_path / "m.keras").read_bytes() != before
    run(tmp_path / "m.keras", epochs=2, resume=True, learning_rate=0.1)


def test_train_resumed_without_a_checkpoint_says_so(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint"):
        run(tmp_path / "m.keras", resume=True)


def test_train_whose_checkpoints_are_all_damaged_begins_anew_and_is_not_resumed(tmp_path):
    result = run(tmp_path / "m.keras", display=StopAt(1, 3))
    for path in result.folder.glob("checkpoint-*"):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="No older one is whole"):
        run(tmp_path / "m.keras", resume=True)
    assert run(tmp_path / "m.keras", overwrite=True).status == "finished"
    assert CheckpointFolder(result.folder).newest().progress["finished"]


def test_train_resumed_from_the_checkpoint_before_a_damaged_one_has_the_same_curve(tmp_path):
    whole = tmp_path / "whole.keras"
    run(whole, epochs=4)
    cut = run(tmp_path / "m.keras", epochs=4, display=StopAt(2, 3))
    newest = max(cut.folder.glob("checkpoint-*"))
    newest.write_bytes(newest.read_bytes().replace(b"epoch", b"Epoch", 1))
    heard = Heard()
    run(tmp_path / "m.keras", epochs=4, resume=True, display=heard)
    assert newest.name in heard.messages[0] and "before it" in heard.messages[0]
    assert curve(tmp_path / "m.keras") == curve(whole)
    assert losses(tmp_path / "m.keras") == losses(whole)


def test_second_process_in_the_same_run_is_refused(tmp_path):
    with exclusive(run_folder(tmp_path / "m.keras")), pytest.raises(OutputError, match="another process"):
        run(tmp_path / "m.keras")
    assert not (tmp_path / "m.keras").exists()


def test_train_stopped_by_sigterm_saves_as_ctrl_c_does(tmp_path):
    stop = StopAt(0, 5, signal.SIGTERM)
    assert run(tmp_path / "m.keras", display=stop).status == "interrupted"
    assert stop.said
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


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


def test_train_with_a_time_limit_ends_in_good_order_and_can_go_on(tmp_path):
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


def test_train_that_diverges_raises_and_keeps_what_was_good(tmp_path):
    def no_number(epoch, x, y):
        return x, y, np.full(y.shape, np.nan if epoch else 1.0, np.float32)

    with pytest.raises(TrainingError, match="the loss is nan at step 1 of epoch 2"):
        run(tmp_path / "m.keras", source=Changed(no_number))
    point = CheckpointFolder(run_folder(tmp_path / "m.keras")).newest()
    assert point.position.epoch == 1
    assert all(np.isfinite(value).all() for value in point.arrays.values())
    load_model(tmp_path / "m.keras")


def test_train_tells_how_long_it_waited_for_data_and_how_fast_it_was(tmp_path):
    heard, source = Heard(), Slow(0.05)
    (record,) = run(tmp_path / "m.keras", epochs=1, source=source, display=heard).history
    # Eight batches are made ahead while the first step compiles.
    least = 0.05 * (len(source) - 10) / record["seconds"]
    assert least < record["data_wait"] <= 1
    assert least < heard.waits[-1] <= 1
    steps = len(source) - 1
    least = steps * source.items_per_batch / record["seconds"]
    assert least <= 1.01 * record["items_per_s"] < steps * source.items_per_batch / (0.05 * (steps - 9))
    assert run(tmp_path / "n.keras", epochs=1).history[0]["data_wait"] < 0.5


def test_train_of_a_single_step_knows_no_speed_and_begins_anew_unless_told(tmp_path):
    source = TextBatches(IDS[:100], length=10, batch_size=8, seed=1)
    assert len(source) == 1
    model = build_text_model(7, embedding=4, units=6, seed=5)
    settings = TrainingSettings(epochs=1)
    options = RunOptions(output=tmp_path / "m.keras", training=settings)
    result = train(model, source, TrainingRun(options=options, loss=LOSS))
    assert result.history[0]["items_per_s"] == 0.0
    assert result.here


def test_train_interrupted_in_its_first_epoch_has_no_best_one(tmp_path):
    result = run(tmp_path / "m.keras", display=StopAt(0, 2))
    assert (result.status, result.best_epoch, result.best) == ("interrupted", 0, None)


@pytest.fixture
def conductor():
    """Follows a run that has looked just now, and need not look again for long."""
    names = ("write_checkpoint", "write_best", "write_history", "begin_states")
    made = Conductor(
        settings=TrainingSettings(log_every=1000),
        progress=Progress(),
        steps_per_epoch=500,
        items_per_step=1,
        monitor="loss",
        display=Display(),
        identity={},
        processes=Processes(),
        **dict.fromkeys(names),
    )
    made.begin_part(0, None, None)
    made._looked = time.perf_counter() + 1000
    return made


def test_batches_are_looked_at_at_the_begin_the_end_and_when_something_is_due(conductor):
    assert [batch for batch in range(500) if conductor.due(batch)] == [0, 499]
    conductor.begin_part(400, None, None)
    assert [batch for batch in range(100) if conductor.due(batch)] == [0, 99]


@pytest.mark.parametrize("change", [{"stop_requested": True}, {"_looked": 0.0}, {"_deadline": 0.0}], ids=str)
def test_batch_is_looked_at_at_once_after_a_signal_the_time_or_a_pause(conductor, change):
    vars(conductor).update(change)
    assert conductor.due(7)


def test_time_of_judging_is_not_time_of_training(conductor, monkeypatch):
    monkeypatch.setattr(conductor, "_begin_states", lambda: None)
    conductor._deadline = time.perf_counter() + 0.05
    conductor.on_test_begin()
    time.sleep(0.1)
    conductor.on_test_end()
    assert not conductor.due(7)
    time.sleep(0.05)
    assert conductor.due(7)


def test_steps_that_are_taken_up_long_before_they_are_done_are_looked_at_as_often_as_their_pace_asks(
    conductor, monkeypatch
):
    class Clock:
        """Stands still while steps are taken up; looking at one waits until it is done."""

        now, step_s = 0.0, 0.0

        def perf_counter(self):
            return self.now

    clock, seen = Clock(), []
    monkeypatch.setattr("cellerate.training.callbacks.time", clock)
    monkeypatch.setattr(
        Processes, "logs", lambda *_: setattr(clock, "now", clock.step_s * (seen[-1] + 1)) or {"loss": 1.0}
    )
    conductor._begin_states, conductor._batches = lambda: None, type("Batches", (), {"waited_s": 0.0})
    for clock.step_s, looks in ((1 / 128, [0, 25, 50]), (1.0, [*range(60)])):
        clock.now = 0.0
        seen.clear()
        conductor._looked, conductor._saved = 0.0, float("inf")
        conductor.on_epoch_begin(0)
        for batch in range(60):
            if conductor.due(batch):
                seen.append(batch)
                conductor.on_train_batch_end(batch)
        assert seen == looks


def test_train_into_a_file_of_another_suffix_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"\.keras"):
        run(tmp_path / "m.h5")


def test_train_into_a_place_that_cannot_be_written_is_refused_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        run(tmp_path / "file" / "m.keras")


def test_train_in_mixed_bfloat16_trains_a_copy_and_keeps_float32_weights(tmp_path):
    result = run(tmp_path / "m.keras", precision="mixed_bfloat16", epochs=1)
    assert result.precision == "mixed_bfloat16"
    model, _ = load_model(tmp_path / "m.keras")
    assert {keras.backend.standardize_dtype(w.dtype) for w in model.weights} == {"float32"}
    assert any(layer.compute_dtype == "bfloat16" for layer in model.layers)


def test_train_with_precision_auto_resumes_in_the_chosen_precision(tmp_path):
    cut = run(tmp_path / "m.keras", precision="auto", display=StopAt(0, 3))
    again = run(tmp_path / "m.keras", precision="auto", resume=True)
    assert again.precision == cut.precision


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
    """States that are carried let a model see further than its windows: here 1 character is not enough."""
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


def test_run_that_another_process_ended_meanwhile_is_not_overwritten(tmp_path):
    output = tmp_path / "m.keras"
    check_start(RunOptions(output=output))
    run(output, epochs=1)
    with pytest.raises(ConfigError, match="exists"):
        run(output, epochs=1)


def test_second_process_is_refused_before_it_reads_anything(tmp_path):
    folder = run_folder(tmp_path / "m.keras")
    with exclusive(folder), pytest.raises(OutputError, match="another process"):
        check_start(RunOptions(output=tmp_path / "m.keras"))


def test_run_that_comes_to_nothing_leaves_no_folder(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint"):
        run(tmp_path / "m.keras", resume=True)
    with pytest.raises(ConfigError, match="choose one of the two"):
        run(tmp_path / "m.keras", resume=True, overwrite=True)
    assert list(tmp_path.iterdir()) == []


def test_train_says_which_kernels_compute(tmp_path):
    heard = Heard()
    result = run(tmp_path / "m.keras", epochs=1, display=heard)
    assert heard.messages == [result.kernels]
    assert result.kernels.startswith(f"{keras.config.backend()}, ")
    heard = Heard()
    run(tmp_path / "k.keras", epochs=1, display=heard, implementation="keras")
    assert heard.messages == [f"{keras.config.backend()}, Keras's own kernels"]


def test_samples_are_shown_every_so_many_steps_of_the_run_and_after_each_epoch(tmp_path):
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
    """Counts what it is called for."""

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
def test_callbacks_that_are_none_are_refused_before_training(tmp_path, wrong):
    with pytest.raises(ConfigError, match="callbacks must be a list of"):
        run(tmp_path / "m.keras", callbacks=wrong)
    assert list(tmp_path.iterdir()) == []


def test_second_ctrl_c_ends_at_once_as_the_display_has_it(tmp_path):
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
