"""`run.py` keeps to its limits, refuses changed code, and says what each case took."""

import subprocess
import sys
import time

import pytest

from benchmarks import cases, conditions, records, run
from benchmarks.run import CaseError
from cellerate.observe.bench import load
from support.benchmarks import planted

PROGRAM = """
import json, os, pathlib, subprocess, sys, time
name, into = sys.argv[1], pathlib.Path(sys.argv[3])
if name == "hangs":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    pathlib.Path(os.environ["TOLD"]).write_text(str(child.pid))
    time.sleep(60)
if name == "fails":
    sys.exit(3)
into.write_text(json.dumps({"quick": "--quick" in sys.argv}))
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    monkeypatch.setenv("TOLD", str(tmp_path / "child"))
    return file


def test_expected_time_is_known_of_cases_that_exist():
    assert all(run.limit_of(name) > case.expected_s > 0 for name, case in cases.CASES.items())


def test_all_cases_together_keep_to_forty_minutes(monkeypatch, capsys):
    clock, given = [0.0], []

    def measure(name, *, quick, limit_s):
        # Each takes all that it may, and the watching of the idle machine.
        given.append(limit_s)
        clock[0] += limit_s + 2 * conditions.WATCHED_S
        raise CaseError("took too long")

    monkeypatch.setattr(run, "measure", measure)
    monkeypatch.setattr(run.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(run, "state_of", lambda _: ("0123456789ab", True))
    monkeypatch.setattr(conditions, "adopt_orphans", lambda: None)
    monkeypatch.setattr("sys.argv", ["run.py"])
    assert run.main() == 1
    assert clock[0] == 2400 and sum(given) > 2000
    assert "the 40 min 00 s of all cases are over" in capsys.readouterr().out
    # A case by its name has its own limit, and no other.
    monkeypatch.setattr("sys.argv", ["run.py", "compression"])
    given.clear()
    run.main()
    assert given == [run.limit_of("compression")] and given[0] > 2400


def test_case_beyond_its_limit_is_ended_with_what_it_started(program, tmp_path):
    start = time.monotonic()
    with pytest.raises(CaseError, match="longer than 2 s"):
        run.in_process("hangs", quick=False, limit_s=2, program=program)
    assert time.monotonic() - start < 30
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        if not _runs(child):
            return
        time.sleep(0.1)
    raise AssertionError("the child of the case still runs")


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().split()[2] not in "ZX"
    except OSError:
        return False


def test_case_that_fails_gives_no_result_and_one_that_ends_does(program):
    with pytest.raises(CaseError, match="ended with 3"):
        run.in_process("fails", quick=False, limit_s=30, program=program)
    assert run.in_process("works", quick=True, limit_s=30, program=program) == {"quick": True}
    assert run.in_process("works", quick=False, limit_s=30, program=program) == {"quick": False}


ORPHANS = """
import sys
sys.path[:0] = {paths!r}
from benchmarks import conditions, run
conditions.adopt_orphans()
before = conditions.times().own
run.in_process("leaves", quick=False, limit_s=60, program={program!r})
print(conditions.times().own - before)
"""


@pytest.mark.skipif(not load.STAT.exists(), reason="only Linux tells")
def test_time_of_what_a_case_leaves_behind_counts_as_ours(tmp_path):
    program = tmp_path / "leaves.py"
    burn = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True); time.sleep(60)"
    # The child has worked, and lives on when the case is over; nobody has waited for it.
    program.write_text(
        "import os, pathlib, subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {burn!r}], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "pathlib.Path(sys.argv[3]).write_text('{}')\n"
        "os._exit(0)\n"
    )
    paths = [str(records.ROOT)]
    told = ORPHANS.format(paths=paths, program=str(program))
    done = subprocess.run([sys.executable, "-c", told], check=True, capture_output=True, text=True)
    assert float(done.stdout) >= 0.5


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """Runs cases that take no time, of code in a state, and gives status and written records."""

    def go(names, *, before=("0123456789ab", True), after=None, broken=(), **options):
        def measure(name, **_):
            if name in broken:
                raise CaseError("took longer than 1 s and was ended")
            return planted.record(name, commit=before[0], clean=before[1])

        written = []
        monkeypatch.setattr(run, "measure", measure)
        monkeypatch.setattr(run, "state_of", lambda _: after or before)
        status = run.run(names, write=lambda record: written.append(record) or tmp_path, **options)
        return status, written

    return go


def test_run_tells_what_each_case_took_and_goes_on_after_one_without_a_record(runs, capsys):
    status, written = runs(["step", "small", "loss"], broken=["small"])
    assert status == 1
    assert [one["case"] for one in written] == ["step", "loss"]
    told = capsys.readouterr().out.split("== took")[1]
    assert [line.split()[0] for line in told.strip().splitlines()] == ["step", "small", "loss", "in"]
    assert "took longer than 1 s" in told


def test_code_that_changes_while_a_case_runs_gives_no_record(runs, capsys):
    assert runs(["step"], after=("0123456789ab-dirty", False)) == (1, [])
    assert runs(["step"], after=("abcdef012345", True)) == (1, [])
    assert "the code changed while it ran" in capsys.readouterr().out


def test_record_written_anyway_is_marked_and_said_to_be_unpublishable(runs, capsys):
    status, (record,) = runs(["step"], before=("0123456789ab-dirty", False), anyway=True)
    assert status == 0
    assert record["anyway"] is True and record["clean"] is False
    assert "not publishable: its code is not surely that of a commit" in capsys.readouterr().out


def test_quick_run_writes_nothing(runs):
    assert runs(["step"], quick=True) == (0, [])


def test_changed_code_is_refused_before_anything_runs(monkeypatch, capsys):
    monkeypatch.setattr(run, "state_of", lambda _: ("0123456789ab-dirty", False))
    monkeypatch.setattr(run, "run", lambda *_, **__: pytest.fail("it ran"))
    monkeypatch.setattr("sys.argv", ["run.py", "step"])
    with pytest.raises(SystemExit) as stopped:
        run.main()
    assert stopped.value.code == 2
    assert "Commit first" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--anyway"], ["--quick"]])
def test_changed_code_runs_when_asked_to(options, monkeypatch):
    asked = {}
    monkeypatch.setattr(run, "state_of", lambda _: ("0123456789ab-dirty", False))
    monkeypatch.setattr(run, "run", lambda names, **given: asked.update(given, names=names) or 0)
    monkeypatch.setattr(conditions, "adopt_orphans", lambda: asked.update(adopted=True))
    monkeypatch.setattr("sys.argv", ["run.py", "step", *options])
    assert run.main() == 0
    assert asked["names"] == ["step"] and asked["adopted"]
    assert (asked["anyway"], asked["quick"]) == ("--anyway" in options, "--quick" in options)


def test_list_names_each_case_and_its_limit(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["run.py", "--list"])
    assert run.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*cases.CASES]
    assert [line.split()[0] for line in lines if "only by its name" in line] == [
        name for name, case in cases.CASES.items() if case.long
    ]


def test_measured_record_has_the_load_around_and_during_the_case(monkeypatch):
    moments = iter([conditions.Times(0, 0, 0, 0), conditions.Times(30, 1, 10, 100)])
    monkeypatch.setattr(conditions, "times", lambda: next(moments))
    monkeypatch.setattr(conditions, "idle", lambda: planted.QUIET)
    monkeypatch.setattr(run, "in_process", lambda *_, **__: {"found": 1})
    record = run.measure("step", quick=False, limit_s=1)
    assert record["load"] == {
        "before": planted.QUIET,
        "during": {"others": 0.2, "stolen": 0.01},
        "after": planted.QUIET,
    }
    assert record["result"] == {"found": 1}
