import json
import math
import time

import keras
import numpy as np
import pytest

from cellerate.data.pipeline import KerasBatches
from cellerate.data.windows.changed import MeanOverItems
from cellerate.data.windows.sampled import SampledBatches
from cellerate.data.windows.text_windows import StreamBatches, TextBatches
from cellerate.models.storage import load_model
from cellerate.models.text import build_text_model
from cellerate.training import time_limits
from cellerate.training.checkpoint_folder import CheckpointFolder
from cellerate.training.loop import train
from cellerate.training.run import RunOptions, TrainingRun
from cellerate.training.settings import TrainingSettings
from cellerate.training.telemetry.display import Display
from cellerate.training.time_limits import TimeLimits

pytestmark = [pytest.mark.keras, pytest.mark.backends]

IDS = np.random.default_rng(3).integers(1, 3, 4000).cumsum().astype(np.int64) % 7
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Heard(Display):
    """Record the messages of the run."""

    def __init__(self):
        self.messages = []

    def message(self, text):
        self.messages.append(text)


def held_out():
    return MeanOverItems(TextBatches(IDS[1000:], length=10, batch_size=8, drop_last=False), 2999)


def run(output, *, validation=None, carry=False, **settings):
    passed = ("resume", "display", "began")
    options = {name: settings.pop(name) for name in passed if name in settings}
    source = (
        StreamBatches(IDS[:1000], length=10, batch_size=8)
        if carry
        else TextBatches(IDS[:1000], length=10, batch_size=8, seed=1)
    )
    return train(
        build_text_model(7, embedding=4, units=6, seed=5),
        source,
        TrainingRun(
            options=RunOptions(
                output=output,
                training=TrainingSettings(**({"epochs": 2, "learning_rate": 0.01} | settings)),
                **options,
            ),
            loss=LOSS,
            validation=validation or held_out(),
            carry_states=carry,
        ),
    )


@pytest.fixture
def hurried(monkeypatch):
    """Leave a pass over held-out data almost no time."""
    monkeypatch.setattr(time_limits, "_LEAST_S", 1e-6)
    return {"max_seconds": 1e-5}


@pytest.mark.parametrize(
    ("settings", "judging_s", "told"),
    [
        ({}, math.inf, ""),
        ({"max_seconds": 0.5}, 1.0, "at most 500 ms of training"),
        ({"max_seconds": 60}, 15.0, "at most 1 min 00 s of training"),
        ({"time_budget": 60}, 6.0, "about 1 min 00 s in all"),
        ({"max_seconds": 12, "time_budget": 60}, 3.0, "at most 12 s of training, about 1 min 00 s in all"),
    ],
    ids=str,
)
def test_time_limits_leave_a_share_to_each_pass_over_held_out_data(settings, judging_s, told):
    limits = TimeLimits.of(TrainingSettings(**settings))
    assert (limits.judging_s, limits.words) == (judging_s, told)
    assert limits.pass_s() == (judging_s if told else None)


def test_time_budget_starts_with_the_command():
    limits = TimeLimits.of(TrainingSettings(time_budget=60), time.perf_counter() - 58)
    assert 1 < limits.pass_s() <= 2
    assert limits.training_ends(5.0) == pytest.approx(limits.ends - 20)
    assert TimeLimits.of(TrainingSettings(time_budget=60), time.perf_counter() - 90).pass_s() == 0


def test_training_gets_the_time_that_the_limits_leave():
    settings = TrainingSettings(max_seconds=6, time_budget=60)
    limits = TimeLimits.of(settings)
    assert limits.training_s(settings, 1.5) == 6
    assert 39 < limits.training_s(TrainingSettings(), 5.0) <= 40
    assert limits.training_s(settings, 20.0) == 0
    assert TimeLimits().training_s(TrainingSettings(), 0.0) is None


def test_train_over_its_time_budget_ends_cleanly_after_a_step(tmp_path):
    result = run(tmp_path / "m.keras", time_budget=5.0, began=time.perf_counter() - 5)
    assert result.status == "time limit"
    position = CheckpointFolder(result.folder).newest().position
    assert (position.epoch, position.batch) == (0, 1)
    # Far more than the evaluation time that the first run measured, perhaps on a stalled machine.
    again = run(tmp_path / "m.keras", resume=True, time_budget=1e6)
    assert again.status == "finished"


def test_train_with_little_time_evaluates_a_sample_and_says_so(tmp_path, hurried):
    heard = Heard()
    result = run(tmp_path / "m.keras", display=heard, **hurried)
    assert result.judged == (4 * 80, 38 * 80)
    assert any("judged on 320 of 3,040 characters" in one for one in heard.messages)
    assert any(one.startswith("time: at most") and "of training" in one for one in heard.messages)
    model, _ = load_model(tmp_path / "m.keras")
    model.compile(loss=LOSS)
    sample = KerasBatches(SampledBatches(held_out(), 4))
    assert model.evaluate(sample, verbose=0) == pytest.approx(result.history[-1]["val_loss"], rel=1e-5)
    # The four batches have equal weight, and the whole part has another loss.
    assert model.evaluate(KerasBatches(held_out()), verbose=0) != pytest.approx(result.best, rel=1e-4)


@pytest.mark.parametrize("carry", [False, True])
def test_resumed_train_evaluates_its_original_sample(tmp_path, hurried, carry):
    validation = StreamBatches(IDS[1000:], length=10, batch_size=8) if carry else held_out()
    cut = run(tmp_path / "m.keras", validation=validation, carry=carry, **hurried)
    again = run(tmp_path / "m.keras", validation=validation, carry=carry, resume=True)
    assert again.judged == cut.judged
    assert cut.judged.items < cut.judged.of
    assert again.status == "finished"
    lines = (again.folder / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]


def test_train_without_a_tight_limit_evaluates_all_data(tmp_path):
    assert run(tmp_path / "free.keras").judged is None
    heard = Heard()
    result = run(tmp_path / "long.keras", max_seconds=3600, display=heard)
    assert (result.judged, result.status) == (None, "finished")
    assert "time: at most 1 h 00 min of training" in heard.messages
