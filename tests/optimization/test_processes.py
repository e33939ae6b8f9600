"""The processes of a run: reused, identified by their training, and ended."""

import contextlib
import functools
import os

import pytest

from cellerate.optimization import processes as module
from cellerate.optimization.probe_client import Probe, ProbeError
from cellerate.optimization.processes import Training, TrainingWay
from support.optimization.processes import Noted, usual

pytestmark = pytest.mark.keras

KERAS = TrainingWay("keras", "float32", 8, 10)
OURS = TrainingWay("auto", "float32", 8, 10)


def ways(count):
    return [TrainingWay("auto", "float32", rows, 10) for rows in range(1, count + 1)]


def test_baseline_processes_open_the_model_in_parallel():
    noted = Noted()
    processes = noted.processes()
    processes.begin()
    # Both open the model before the run waits for either.
    assert sorted(noted.log) == [
        (0, "start", None),
        (0, "tell", "open"),
        (1, "start", None),
        (1, "tell", "open"),
    ]
    first = processes.keras()
    (training,) = processes.trainings([KERAS])
    assert [first.number, training.probe.number] == [0, 1]
    assert noted.of("start") == [0, 1]
    # The process opened the model once and does not train.
    assert processes.keras() is first
    assert [kind for number, what, kind in noted.log if (number, what) == (0, "answer")] == ["open"]
    assert [kind for number, what, kind in noted.log if (number, what) == (1, "answer")] == [
        "open",
        "trainer",
    ]


def test_keras_process_starts_on_demand_and_reports_its_start_time():
    for begun in (False, True):
        noted = Noted(lambda number, kind, options: 3.0)
        processes = noted.processes()
        if begun:
            processes.begin()
        first = processes.keras()
        assert (first.number, processes.opened_s) == (0, 3.0)
        assert processes.keras() is first
        assert noted.of("start") == ([0, 1] if begun else [0])


def test_training_is_prepared_in_the_background():
    noted = Noted()
    processes = noted.processes()
    processes.begin()
    processes.prepare(KERAS)
    assert noted.log[-1] == (1, "tell", "trainer")
    processes.keras()
    (training,) = processes.trainings([KERAS])
    # The process gets each request only once.
    assert [kind for number, what, kind in noted.log if (number, what) == (1, "tell")] == ["open", "trainer"]
    assert training.probe.number == 1
    processes.prepare(KERAS)
    assert processes.trainings([KERAS]) == [training]


def test_training_processes_start_in_parallel_and_stay_ready():
    noted = Noted()
    processes = noted.processes()
    found = processes.trainings([KERAS, OURS])
    told = [(what, kind) for _, what, kind in noted.log if what != "start"]
    assert told == [("tell", "trainer")] * 2 + [("answer", "trainer")] * 2
    assert [training.way for training in found] == [KERAS, OURS]
    assert processes.trainings([OURS, KERAS]) == found[::-1]
    assert noted.of("start") == [0, 1]
    about = [(training.step_s, training.items, training.compile_s) for training in found]
    assert about == [(0.15, 80, 5.0)] * 2


def test_training_reports_its_step_time_over_all_turns():
    (training,) = Noted().processes().trainings([OURS])
    turns = [
        {"seconds": [0.1, 0.3], "loss": 2.0, "peak_memory_bytes": 5},
        {"seconds": [0.2], "loss": 5.0, "peak_memory_bytes": 7},
    ]
    step = training.step(turns, "race")
    assert (step.way, step.batch_size, step.length, step.race) == ("fused kernels, float32", 8, 10, "race")
    assert (step.step_ms, step.items_per_s) == (pytest.approx(200), pytest.approx(400))
    assert (step.loss, step.peak_memory_bytes) == (pytest.approx(3.0), 7)
    assert training.step([*turns, {"seconds": [0.2], "loss": None, "peak_memory_bytes": 7}]).loss is None


def test_oldest_training_process_ends_above_the_limit_unless_requested(monkeypatch):
    monkeypatch.setattr(module, "_MOST_TRAININGS", 2)
    noted = Noted()
    processes = noted.processes()
    one, two, three, four, five = ways(5)
    for way in (one, two, three):
        processes.trainings([way])
    assert noted.of("close") == []
    processes.trainings([four])
    assert noted.of("close") == [0]
    # The second is requested, so the third is the oldest of the rest.
    processes.trainings([two, five])
    assert noted.of("close") == [0]
    processes.trainings([one])
    assert noted.of("close") == [0, 1, 2]
    assert [process.has_ended for process in noted.all] == [True, True, True, False, False, False]


def test_ended_process_is_dropped_and_restarted():
    noted = Noted()
    processes = noted.processes()
    first, other = processes.trainings([KERAS, OURS])
    noted.all[0].has_ended = True
    anew, same = processes.trainings([KERAS, OURS])
    assert same is other
    assert (anew is first, anew.probe.number) == (False, 2)
    assert noted.of("close") == [0]
    # Like the first process, the new one has a training to continue.
    assert (2, "answer", "trainer") in noted.log


def test_failed_training_process_is_reported_and_retried_on_request():
    failing = [True]

    def rule(number, kind, options):
        if kind == "trainer" and options["implementation"] == "auto" and failing:
            return ProbeError("no such kernel", memory=False)
        return usual(number, kind, options)

    noted = Noted(rule)
    processes = noted.processes()
    trained, error = processes.trainings([KERAS, OURS])
    assert trained.way == KERAS
    assert isinstance(error, ProbeError)
    assert noted.of("close") == [1]
    failing.clear()
    assert processes.trainings([OURS])[0].probe.number == 2


def test_spare_process_that_could_not_open_the_model_reports_it_on_the_next_request():
    def rule(number, kind, options):
        return ProbeError(f"{kind} failed", memory=False)

    noted = Noted(rule)
    processes = noted.processes()
    processes.begin()
    (error,) = processes.trainings([KERAS])
    assert str(error) == "trainer failed"
    with pytest.raises(ProbeError, match="open failed"):
        processes.keras()


def test_close_ends_all_processes():
    noted = Noted()
    processes = noted.processes()
    processes.begin()
    processes.keras()
    processes.trainings([KERAS, OURS])
    processes.end(KERAS)
    processes.end(KERAS)
    assert noted.of("close") == [1]
    processes.close()
    assert sorted(noted.of("close")) == [0, 1, 2]
    processes.close()
    assert len(noted.of("close")) == 3
    # A new request starts a new process, which opens the model again.
    processes.keras()
    assert noted.log[-3:] == [(3, "start", None), (3, "tell", "open"), (3, "answer", "open")]
    # A process that was started but never used ends as well.
    begun = Noted()
    processes = begun.processes()
    processes.begin()
    processes.close()
    assert sorted(begun.of("close")) == [0, 1]


def test_wait_limit_applies_to_running_and_future_processes():
    noted = Noted()
    processes = noted.processes()
    processes.begin()
    processes.trainings([KERAS, OURS])
    processes.wait_for(7.0)
    processes.trainings([TrainingWay("auto", "mixed_bfloat16", 8, 10)])
    assert [process.patience_s for process in noted.all] == [7.0] * 4


@pytest.mark.backends
def test_training_compiles_once_and_restarts_from_the_same_weights(made):
    import keras

    start = functools.partial(
        Probe, made / "text.keras", [made / "t.txt"], seed=0, backend=keras.config.backend(), patience_s=300.0
    )
    with contextlib.closing(module.Workers(start)) as processes:
        (training,) = processes.trainings([OURS])
        assert isinstance(training, Training), training
        first, further, again = (training.turn(6, restart=restart) for restart in (True, False, True))
        assert again["loss"] == pytest.approx(first["loss"], rel=1e-5)
        assert further["loss"] < 0.99 * first["loss"]
        assert len(first["seconds"]) == 6
        pid = training.probe._process.pid
        assert processes.trainings([OURS]) == [training]
        # The process dies by itself, as when memory runs out; its replacement restarts from the same weights.
        training.probe._process.kill()
        training.probe._process.wait()
        (anew,) = processes.trainings([OURS])
        assert isinstance(anew, Training), anew
        assert anew.probe._process.pid != pid
        assert anew.turn(6, restart=True)["loss"] == pytest.approx(first["loss"], rel=1e-5)
        pid = anew.probe._process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
