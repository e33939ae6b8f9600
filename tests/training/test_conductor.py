"""The batches after which the loop checks the clock, the signals and the telemetry."""

import time

import pytest

from cellerate.training.callbacks import Conductor, Progress, RunFacts, RunHooks
from cellerate.training.parallel import Processes
from cellerate.training.settings import TrainingSettings
from cellerate.training.telemetry.display import Display

pytestmark = [pytest.mark.keras, pytest.mark.backends]


@pytest.fixture
def conductor():
    """A conductor that has just checked, with its next check far away."""
    facts = RunFacts(
        settings=TrainingSettings(log_every=1000),
        steps_per_epoch=500,
        items_per_step=1,
        monitor="loss",
        identity={},
    )
    names = ("write_checkpoint", "write_best", "write_history")
    hooks = RunHooks(begin_states=lambda: None, **dict.fromkeys(names))
    made = Conductor(facts, hooks, progress=Progress(), display=Display(), processes=Processes())
    made.begin_part(0, None, None)
    made._looked = time.perf_counter() + 1000
    return made


def test_first_last_and_due_batches_are_checked(conductor):
    assert [batch for batch in range(500) if conductor.due(batch)] == [0, 499]
    conductor.begin_part(400, None, None)
    assert [batch for batch in range(100) if conductor.due(batch)] == [0, 99]


@pytest.mark.parametrize("change", [{"stop_requested": True}, {"_looked": 0.0}, {"_deadline": 0.0}], ids=str)
def test_signal_deadline_or_pause_makes_the_next_batch_checked(conductor, change):
    vars(conductor).update(change)
    assert conductor.due(7)


def test_evaluation_time_does_not_count_as_training_time(conductor):
    conductor._deadline = time.perf_counter() + 0.05
    conductor.on_test_begin()
    time.sleep(0.1)
    conductor.on_test_end()
    assert not conductor.due(7)
    time.sleep(0.05)
    assert conductor.due(7)


def test_asynchronous_steps_are_checked_at_their_own_pace(conductor, monkeypatch):
    class Clock:
        """A clock that stands still while steps are queued; reading a result waits for its step."""

        now, step_s = 0.0, 0.0

        def perf_counter(self):
            return self.now

    clock, seen = Clock(), []
    monkeypatch.setattr("cellerate.training.callbacks.time", clock)
    monkeypatch.setattr(
        Processes, "logs", lambda *_: setattr(clock, "now", clock.step_s * (seen[-1] + 1)) or {"loss": 1.0}
    )
    conductor._batches = type("Batches", (), {"waited_s": 0.0})
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
