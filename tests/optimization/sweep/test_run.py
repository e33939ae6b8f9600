import pytest

from cellerate.errors import DataError
from cellerate.optimization.probe_client import ProbeError
from cellerate.optimization.sweep import run
from cellerate.optimization.sweep.record import read_record
from cellerate.optimization.sweep.settings import SweepSettings
from support.optimization.sweeps import failing, made_up, plan_of, record_of_plan, run_made_up

SETTINGS = SweepSettings(seconds=4.0, rounds=4, beside_stock=False)


def test_all_points_train_equally_long_in_turns_of_changing_order(tmp_path, monkeypatch):
    asked = made_up(monkeypatch)
    record = run_made_up(tmp_path, SETTINGS, batch_size="8,16")
    assert record.status == "finished"
    for point in record.points:
        assert point.status == "measured"
        assert point.seconds == pytest.approx(4.0, rel=0.05)
        assert len(point.turns) == 4
        assert point.items_per_s == pytest.approx(1000)
    turns = [rows for rows, kind in asked if kind == "turn"]
    rounds = [tuple(turns[n : n + 3]) for n in range(0, 12, 3)]
    assert all(sorted(one) == [8, 16, 64] for one in rounds)
    assert len(set(rounds)) > 1
    assert not (tmp_path / "points").exists()


def test_step_limit_is_the_same_for_all_points(tmp_path, monkeypatch):
    made_up(monkeypatch)
    record = run_made_up(tmp_path, SweepSettings(steps=10, rounds=4, beside_stock=False), batch_size="8,16")
    assert [point.steps for point in record.points] == [10, 10, 10]


def test_failed_point_gives_its_reason_and_the_others_continue(tmp_path, monkeypatch):
    made_up(monkeypatch, failing([8], "turn"))
    said = []
    record = run_made_up(tmp_path, SETTINGS, said=said, batch_size="8,16")
    by_rows = {point.values["batch_size"]: point for point in record.points}
    assert (by_rows[8].status, by_rows[8].reason) == ("failed", "it broke")
    assert by_rows[16].status == "measured"
    assert any("batch size 8 failed: it broke" in one for one in said)


def test_point_out_of_memory_beside_others_is_retried_alone(tmp_path, monkeypatch):
    full = []

    def fails(rows, kind):
        if rows == 8 and kind == "turn" and not full:
            full.append(rows)
            raise ProbeError("no memory left", memory=True)

    made_up(monkeypatch, fails)
    record = run_made_up(tmp_path, SETTINGS, batch_size="8,16")
    found = next(point for point in record.points if point.values["batch_size"] == 8)
    assert (found.status, found.heat) == ("measured", 2)
    assert found.seconds == pytest.approx(4.0, rel=0.05)


def test_point_out_of_memory_alone_fails(tmp_path, monkeypatch):
    made_up(monkeypatch, failing([8], "turn", memory=True))
    record = run_made_up(tmp_path, SETTINGS, batch_size="8,16")
    found = next(point for point in record.points if point.values["batch_size"] == 8)
    assert (found.status, found.reason) == ("failed", "out of memory")


def test_control_that_cannot_train_raises_the_error_of_its_cause(tmp_path, monkeypatch):
    def fails(rows, kind):
        raise ProbeError("the file is missing", memory=False, kind="DataError")

    made_up(monkeypatch, fails)
    with pytest.raises(DataError, match="the file is missing"):
        run_made_up(tmp_path, SETTINGS, batch_size="8,16")


def test_batches_that_the_data_cannot_fill_are_refused(tmp_path, monkeypatch):
    from support.optimization import sweeps

    made_up(monkeypatch)
    whole = sweeps.MadeUpProcess.ask

    def ask(self, kind, **options):
        found = whole(self, kind, **options)
        return {**found, "batch_size": min(found["batch_size"], 100)} if kind == "ready" else found

    monkeypatch.setattr(sweeps.MadeUpProcess, "ask", ask)
    record = run_made_up(tmp_path, SETTINGS, batch_size="64,4096")
    assert record.points[1].reason == (
        "the data fill a batch of 100 at most, not of 4,096: give a smaller batch_size, or more data."
    )


def test_points_run_in_small_heats_that_each_include_the_control(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "_MOST_ALIVE", 2)
    asked = made_up(monkeypatch)
    record = run_made_up(tmp_path, SETTINGS, batch_size="4,8,16")
    assert sorted(point.heat for point in record.points) == [0, 1, 2, 3]
    # Four turns in the first heat, and one in each other heat.
    assert [kind for rows, kind in asked if rows == 64] == ["ready", *["turn"] * 6]
    assert len(record.points[0].turns) == 4


def test_slower_machine_in_a_later_heat_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "_MOST_ALIVE", 2)
    made_up(monkeypatch)
    monkeypatch.setattr(
        "cellerate.optimization.sweep.points.RunningPoint.time",
        lambda self, steps, patience_s: run_timing(0.128),
    )
    record = run_made_up(tmp_path, SETTINGS, batch_size="4,8")
    assert "2.00x in heat 2" in record.notes[0]


def run_timing(seconds):
    from cellerate.measure import as_timing

    return as_timing([seconds])


def test_time_budget_shortens_training_and_leaves_points_out(tmp_path, monkeypatch):
    made_up(monkeypatch)
    monkeypatch.setattr(run.Sweep, "_start_control", slow_start(run.Sweep._start_control))
    settings = SweepSettings(seconds=4.0, time_budget=45.0, beside_stock=False)
    record = run_made_up(tmp_path, settings, batch_size="1..32")
    left_out = [point for point in record.points if point.status == "left out"]
    assert len(left_out) == 3
    assert record.point_s == 1.0
    assert all(point.seconds == pytest.approx(1.0, rel=0.1) for point in record.points if point.measured)
    assert "left out for lack of time" in record.notes[0]
    assert "A larger time budget has room" in record.notes[0]


def slow_start(start):
    def started(self, control):
        start(self, control)
        self._start_s = 10.0

    return started


def test_interrupted_sweep_keeps_its_measurements_and_resumes(tmp_path, monkeypatch):
    turns = []

    def interrupt(rows, kind):
        turns.append(kind)
        if turns.count("turn") == 5:
            raise KeyboardInterrupt

    made_up(monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_made_up(tmp_path, SETTINGS, batch_size="8,16")
    record = read_record(tmp_path)
    assert record.status == "interrupted"
    assert sum(len(point.turns) for point in record.points) == 4
    before = {point.label: point.turns[:] for point in record.points}

    asked = made_up(monkeypatch)
    made = plan_of(SETTINGS, batch_size="8,16")
    run.Sweep(made, SETTINGS, record, tmp_path, run.Listener()).run()
    assert record.status == "finished"
    assert [kind for _, kind in asked].count("turn") == 12 - 4
    for point in record.points:
        assert point.turns[: len(before[point.label])] == before[point.label]
        assert point.seconds == pytest.approx(4.0, rel=0.05)
        assert [one["steps"] for one in point.judged] == sorted(one["steps"] for one in point.judged)


def test_turn_missing_from_the_record_is_trained_again(tmp_path, monkeypatch):
    made_up(monkeypatch)
    made = plan_of(SETTINGS, batch_size="8,16")
    record = record_of_plan(made)

    def interrupt(rows, kind):
        if kind == "turn" and record.points[0].turns:
            raise KeyboardInterrupt

    made_up(monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        run.Sweep(made, SETTINGS, record, tmp_path, run.Listener()).run()
    for state in (tmp_path / "points").iterdir():
        state.write_text("99999")
    made_up(monkeypatch)
    run.Sweep(made, SETTINGS, record, tmp_path, run.Listener()).run()
    assert all(point.seconds == pytest.approx(4.0, rel=0.05) for point in record.points)


def test_slow_stock_points_are_dropped_first(tmp_path, monkeypatch):
    from support.optimization import sweeps

    clock = [0.0]
    monkeypatch.setattr(run.time, "perf_counter", lambda: clock[0])
    made_up(monkeypatch)
    whole = sweeps.MadeUpProcess.ask

    def ask(self, kind, **options):
        found = whole(self, kind, **options)
        if kind == "ready":
            found["ready_s"] = 30.0 if self._opened_by_keras else 1.0
            clock[0] += found["ready_s"]
        else:
            clock[0] += found["seconds"]
        return found

    made = sweeps.MadeUpProcess.__init__

    def init(self, module, opened, **options):
        made(self, module, opened, **options)
        self._opened_by_keras = opened["parts"].get("training", {}).get("implementation") == "keras"

    monkeypatch.setattr(sweeps.MadeUpProcess, "ask", ask)
    monkeypatch.setattr(sweeps.MadeUpProcess, "__init__", init)
    settings = SweepSettings(seconds=2.0, time_budget=110.0)
    record = run_made_up(tmp_path, settings, batch_size="1..32")
    ours = [point for point in record.points if point.values["implementation"] == "auto"]
    stock = [point for point in record.points if point.values["implementation"] == "keras"]
    assert all(point.measured for point in ours)
    assert any(point.status == "left out" for point in stock)
    assert any(point.measured for point in stock)
    assert clock[0] < 115.0
