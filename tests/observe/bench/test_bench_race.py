"""The race is fair: all take turns, nobody is timed unchecked, and nobody is dropped silently.

Its contestants are small programs that speak the language of a contestant and compute nothing.
"""

import dataclasses
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import pytest

from cellerate.errors import BackendError
from cellerate.observe.bench import load
from cellerate.observe.bench.cases import BenchPlan, Contestant
from cellerate.observe.bench.race import Race

FAKE = """
import json, os, sys, time
told = json.loads(sys.argv[1])
name, case = told["contestant"], told["case"]
def say(value):
    print(json.dumps(value), flush=True)
if case == "build":
    say({"protocol": 1, "peaks": {"float32": 1e12}})
    sys.exit()
job = {"work": "1 row", "precision": "float32", "call": "a call", "items": 10, "bound": 1e-4, "error": 1e-6,
       "number": 0, "anew": False}
about = {"protocol": 1, "allocator": "kept", "versions": {"cellerate": "0.1.0"}, "jobs": [job]}
if name == "wrong":
    job["error"] = 0.5
if name == "nan":
    job["error"] = float("nan")
if name == "half":
    about["jobs"].append({"work": "1 row", "precision": "int8", "call": "", "refused": "no int8"})
if name == "stock":
    about["allocator"] = "stock"
if name == "other":
    about["protocol"] = 0
if name == "broken":
    raise ModuleNotFoundError("No module named 'nothing'")
if name == "dead":
    os.kill(os.getpid(), 9)
if name == "slow":
    time.sleep(60)
if name == "fickle" and os.path.exists(os.path.join(told["folder"], "been")):
    job["error"] = 0.5
if name == "fickle":
    open(os.path.join(told["folder"], "been"), "w")
say(about)
for line in sys.stdin:
    asked = json.loads(line)
    if "samples" not in asked:
        say({"1 thread": 1e-3, "2 threads": 5e-4})
        continue
    if name == "dies":
        sys.exit("out of memory")
    with open(LOG, "a") as file:
        file.write(f"{name}:{asked['way']}" + chr(10))
    took = 2e-3 if name == "ours" else 4e-3
    say([took] * asked["samples"])
"""
QUICK = {"between_s": 0.0, "turn_s": 0.005, "sessions": 2, "rounds": 3, "turns": 1, "cases": ("infer",)}


@pytest.fixture
def race_of(tmp_path, monkeypatch):
    """Runs a race of contestants; gives the records, and who was asked in order."""
    monkeypatch.setattr(load, "_WATCHED_S", 0.0)
    log = tmp_path / "log"
    program = f"LOG = {str(log)!r}\n{FAKE}"

    def command(one, told):
        return [one.python or sys.executable, "-c", program, json.dumps({"contestant": one.name, **told})]

    def run(contestants, **plan):
        log.write_text("")
        plan = BenchPlan(**{**QUICK, **plan})
        records = Race(plan, table={"infer": contestants}, command=command).run("again")
        asked = [line.partition(":") for line in log.read_text().splitlines()]
        assert {way for name, _, way in asked if name != "yardstick"} <= {"2 threads"}
        return records, [name for name, _, _ in asked if name != "yardstick"]

    return run


@pytest.fixture
def race(race_of):
    """Runs a race of contestants by their names, "ours" among them; gives the record, and who was asked in order."""

    def run(*names, **plan):
        (record,), asked = race_of([Contestant(name, name, ours=name == "ours") for name in names], **plan)
        return record, asked

    return run


def test_contestants_take_turns_there_and_back_in_every_session(race):
    record, asked = race("ours", "a", "b")
    there, back = ["ours", "a", "b"], ["b", "a", "ours"]
    assert asked == [*there, *back, *there, *back, *there, *back]
    (ours, *_) = record.entries
    assert ours.way == "2 threads"
    assert [(turn.session, turn.round) for turn in ours.turns] == [(s, r) for s in (0, 1) for r in (0, 1, 2)]
    assert (ours.median_s, ours.items_per_s) == (2e-3, 5000)
    assert all(turn.yardstick_s == 4e-3 for turn in ours.turns)


def test_ours_has_more_turns_and_a_turn_is_at_least_three_calls(race):
    record, asked = race("ours", "a", turns=2, turn_s=1e-9, rounds=1, sessions=1)
    assert asked == ["ours", "ours", "a"]
    assert [len(turn.seconds) for entry in record.entries for turn in entry.turns] == [3, 3, 3]


@pytest.mark.parametrize(
    ("name", "wrong", "reason"),
    [
        ("wrong", True, "off by 5.0e-01; 1.0e-04 is allowed"),
        ("nan", True, "off by nan; 1.0e-04 is allowed"),
        ("stock", False, "its C library does not take the allocator setting"),
        ("other", False, "its version of Cellerate measures in another way"),
        ("broken", False, "ModuleNotFoundError: No module named 'nothing'"),
        ("dead", False, "it ended with -9 and said nothing"),
        ("slow", False, "it was not ready in 1 s"),
        ("dies", False, "it ended while it was timed: out of memory"),
    ],
)
def test_contestant_that_is_wrong_or_cannot_run_is_kept_with_its_reason_and_has_no_time(
    race, name, wrong, reason
):
    record, asked = race("ours", name, "b", limit_s=1.0)
    assert [entry.contestant for entry in record.entries] == ["ours", "b"]
    assert name not in asked
    (left,) = record.left_out
    assert (left.title, left.case, left.wrong) == (name, "infer", wrong)
    assert left.reason.startswith(reason)


def test_contestant_that_is_wrong_in_a_later_session_loses_its_earlier_times(race):
    record, asked = race("ours", "fickle")
    assert asked.count("fickle") == 3
    assert [entry.contestant for entry in record.entries] == ["ours"]
    assert record.left_out[0].wrong


def test_job_that_cannot_run_leaves_the_others_of_its_contestant(race):
    record, _ = race("ours", "half")
    assert [(entry.contestant, entry.precision) for entry in record.entries] == [
        ("ours", "float32"),
        ("half", "float32"),
    ]
    assert [(left.what, left.reason) for left in record.left_out] == [("1 row, int8", "no int8")]


def test_peer_that_is_not_installed_is_listed_and_not_started(race_of):
    (record,), asked = race_of([Contestant("gone", "Gone", packages=("no_such_package",))])
    assert (record.entries, asked) == ((), [])
    assert [left.reason for left in record.left_out] == ["not installed: 'no_such_package'"]


def test_no_other_session_begins_when_the_budget_is_used_up(race):
    record, _ = race("ours", budget_s=0.001)
    assert record.sessions == 1
    assert {turn.session for turn in record.entries[0].turns} == {0}


def test_both_versions_of_ours_are_timed_in_turn_and_have_a_record_each(race_of):
    ours = Contestant("ours", "Ours", ours=True)
    there = dataclasses.replace(ours, python=sys.executable)
    (here, there), asked = race_of([ours, there, Contestant("peer", "Peer")], against=sys.executable)
    assert asked[:6] == ["ours", "ours", "peer", "peer", "ours", "ours"]
    assert here.run == there.run
    for record in (here, there):
        assert [entry.contestant for entry in record.entries] == ["ours", "peer"]
    assert here.entries[1] == there.entries[1]
    assert there.versions["cellerate"] == "0.1.0"


def test_interrupted_race_leaves_no_process_and_no_folder(race, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    before = children()

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Race, "_turn", interrupt)
    with pytest.raises(KeyboardInterrupt):
        race("ours", "a")
    assert list((tmp_path / "temporary").iterdir()) == []
    assert children() == before


def test_model_that_cannot_be_made_ends_the_run(monkeypatch):
    monkeypatch.setattr(load, "_WATCHED_S", 0.0)
    with pytest.raises(BackendError, match="no disk"):
        Race(BenchPlan(**QUICK), command=lambda *_: [sys.executable, "-c", "raise OSError('no disk')"]).run()


def test_share_of_the_peak_is_that_of_the_least_operations(race):
    record, _ = race("ours")
    units, vocabulary = 256, 96
    operations = 10 * 2 * (4 * units**2 + units * vocabulary)
    assert record.entries[0].peak_share == pytest.approx(operations / 2e-3 / 1e12)


def test_load_is_what_others_took_of_the_processors():
    busy = load.Times(busy=10.0, stolen=1.0, own=4.0, all=100.0)
    later = load.Times(busy=40.0, stolen=6.0, own=14.0, all=200.0)
    assert load.shares(busy, later) == (0.2, 0.05)
    assert load.shares(busy, busy) == (None, None)
    assert load.shares(None, later) == (None, None)
    started = load.times()
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    others, _ = load.shares(started, load.times())
    assert others is None or 0 <= others <= 1


def children():
    """The processes of this one that still run."""
    found = set()
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            try:
                words = (place / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            if int(words[1]) == os.getpid() and words[0] != "Z":
                found.add(int(place.name))
    return found
