"""The batches after which the loop looks at the clock, the signals and the telemetry."""

import time

import pytest

from cellerate.training.callbacks import Conductor, Progress, RunFacts, RunHooks
from cellerate.training.parallel import Processes
from cellerate.training.settings import TrainingSettings
from cellerate.training.telemetry.display import Display

pytestmark = [pytest.mark.keras, pytest.mark.backends]


@pytest.fixture
def conductor():
    """Follows a run that has looked just now, and need not look again for long."""
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


def test_batches_are_looked_at_at_the_begin_the_end_and_when_something_is_due(conductor):
    assert [batch for batch in range(500) if conductor.due(batch)] == [0, 499]
    conductor.begin_part(400, None, None)
    assert [batch for batch in range(100) if conductor.due(batch)] == [0, 99]


@pytest.mark.parametrize("change", [{"stop_requested": True}, {"_looked": 0.0}, {"_deadline": 0.0}], ids=str)
def test_batch_is_looked_at_at_once_after_a_signal_the_time_or_a_pause(conductor, change):
    vars(conductor).update(change)
    assert conductor.due(7)


def test_time_of_judging_is_not_time_of_training(conductor):
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
