"""What the launcher does with processes of plain Python."""

import functools
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import types

import pytest

from cellerate.distributed.launch import launch, probe
from cellerate.errors import ConfigError
from cellerate.machine.environment import processors


def python(code: str) -> list[str]:
    """A process in which `rank` and `count` say its place."""
    head = "import os, signal, sys, time, json\n"
    head += "rank, count = (int(os.environ.get(name, 0)) for name in ('RANK', 'WORLD_SIZE'))\n"
    return [sys.executable, "-c", head + textwrap.dedent(code)]


def test_each_process_has_a_place_and_a_share_of_the_processors(tmp_path):
    code = f"""
        found = [count, os.environ['MASTER_PORT'], sorted(os.sched_getaffinity(0))]
        json.dump(found, open(f'{tmp_path}/{{rank}}', 'w'))
    """
    known = os.sched_getaffinity(0)
    count = min(2, len(known))
    assert launch(python(code), count) == 0
    found = [json.loads((tmp_path / str(number)).read_text()) for number in range(count)]
    assert {tuple(each[:2]) for each in found} == {(count, found[0][1])}
    assert sorted(number for each in found for number in each[2]) == sorted(known)


def test_more_processes_than_processors_share_them_all(tmp_path):
    count = len(os.sched_getaffinity(0)) + 1
    assert (
        launch(python(f"open(f'{tmp_path}/{{rank}}', 'w').write(str(len(os.sched_getaffinity(0))))"), count)
        == 0
    )
    assert {(tmp_path / str(number)).read_text() for number in range(count)} == {str(count - 1)}


def test_far_more_processes_than_processors_are_refused_before_any_starts(tmp_path):
    most = 8 * processors()
    with pytest.raises(ConfigError, match=rf"1,000 processes are too many .*, and {most} are allowed"):
        launch(python(f"open(f'{tmp_path}/{{rank}}', 'w')"), 1000)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("visible", "seen"), [("3,5", ["3", "5"]), ("3,5,6", ["3", "5"]), (None, ["", ""])])
def test_each_process_has_a_gpu_of_its_own_where_there_are_enough(tmp_path, monkeypatch, visible, seen):
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr("cellerate.distributed.launch.facts", lambda: types.SimpleNamespace(devices=()))
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    code = f"open(f'{tmp_path}/{{rank}}', 'w').write(os.environ.get('CUDA_VISIBLE_DEVICES', ''))"
    assert launch(python(code), 2) == 0
    assert [(tmp_path / str(number)).read_text() for number in (0, 1)] == seen


def test_fewer_gpus_than_processes_are_refused(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(ConfigError, match="2 processes need a GPU each, and this machine has 1"):
        launch(python(""), 2)
    assert launch(python(""), 1) == 0


@pytest.fixture
def little_grace(monkeypatch):
    """The others have less time to end by themselves, as processes that only sleep do not."""
    monkeypatch.setattr("cellerate.distributed.launch._GRACE_S", 0.5)


@pytest.mark.usefixtures("little_grace")
def test_failure_of_another_process_ends_all_and_is_shown(capfd):
    code = """
        if rank == 2:
            print('what is wrong', file=sys.stderr)
            sys.exit(7)
        time.sleep(60)
    """
    began = time.monotonic()
    assert launch(python(code), 3) == 7
    assert time.monotonic() - began < 20
    assert capfd.readouterr().err == "process 2 ended with exit code 7:\nwhat is wrong\n"


def test_failure_that_all_share_is_shown_once(capfd):
    assert launch(python("print('wrong', rank, file=sys.stderr); time.sleep(rank == 0); sys.exit(3)"), 3) == 3
    assert capfd.readouterr().err == "wrong 0\n"


@pytest.mark.usefixtures("little_grace")
@pytest.mark.parametrize("killed", [0, 1])
def test_process_that_is_killed_is_named(capfd, killed):
    code = f"os.kill(os.getpid(), signal.SIGKILL) if rank == {killed} else time.sleep(60)"
    assert launch(python(code), 2) == 128 + 9
    said = f"process {killed} was ended by SIGKILL (as the system does if the memory is full)"
    assert said in capfd.readouterr().err


def test_killed_process_is_named_before_one_that_fails_because_of_it(capfd, monkeypatch):
    # Both have ended when the launcher looks.
    monkeypatch.setattr("cellerate.distributed.launch._LOOK_EVERY_S", 1.0)
    code = "os.kill(os.getpid(), signal.SIGKILL) if rank else time.sleep(0.3); sys.exit(1)"
    assert launch(python(code), 2) == 128 + 9
    assert "process 1 was ended by SIGKILL" in capfd.readouterr().err


def test_only_the_first_process_speaks(capfd):
    assert launch(python("print(rank); print(rank, file=sys.stderr)"), 3) == 0
    assert capfd.readouterr() == ("0\n", "0\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_reaches_every_process_once(tmp_path, number):
    child = f"""
        seen = []
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, lambda number, frame: seen.append(number))
        open(f'{tmp_path}/ready{{rank}}', 'w').close()
        time.sleep(60) if not seen else None
        time.sleep(0.3)
        open(f'{tmp_path}/{{rank}}', 'w').write(str(seen))
        sys.exit(130)
    """
    child = child.replace(
        "time.sleep(60) if not seen else None", "[time.sleep(0.05) for _ in range(1200) if not seen]"
    )
    launcher = (
        f"from cellerate.distributed.launch import launch; import sys; sys.exit(launch({python(child)!r}, 2))"
    )
    with subprocess.Popen([sys.executable, "-c", launcher]) as process:
        for rank in (0, 1):
            while not (tmp_path / f"ready{rank}").exists():
                time.sleep(0.02)
        process.send_signal(number)
        assert process.wait(20) == 130
    assert [(tmp_path / str(rank)).read_text() for rank in (0, 1)] == [f"[{int(number)}]"] * 2


def test_processes_end_with_the_one_that_waits_for_them(tmp_path):
    child = f"""
        signal.signal(signal.SIGTERM, lambda *_: (open(f'{tmp_path}/{{rank}}', 'w').close(), sys.exit()))
        open(f'{tmp_path}/ready{{rank}}', 'w').close()
        time.sleep(60)
    """
    launcher = f"from cellerate.distributed.launch import launch; launch({python(child)!r}, 2)"
    with subprocess.Popen([sys.executable, "-c", launcher]) as process:
        for name in ("ready0", "ready1"):
            while not (tmp_path / name).exists():
                time.sleep(0.02)
        process.kill()
    deadline = time.monotonic() + 20
    while not all((tmp_path / name).exists() for name in ("0", "1")):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def steps(alone: float, together: float):
    """Runs a training that says it took so long."""
    code = "path = json.loads(os.environ['CELLERATE_PROBE'])['result']\n"
    code += f"json.dump({{'step_s': {{1: {together} if count > 1 else {alone}}}}}, open(path, 'w'))"
    return functools.partial(launch, python(code))


def test_probe_tells_the_gain(tmp_path):
    found = probe(steps(0.3, 0.2), 2, tmp_path)
    assert found == (
        "a step takes 300 ms in one process and 200 ms in 2: 1.50 times as fast, an efficiency of 75%"
    )
    assert not [*tmp_path.iterdir()]


def test_probe_refuses_processes_that_are_slower(tmp_path):
    with pytest.raises(ConfigError, match=r"0\.67 times as fast.*probe=False"):
        probe(steps(0.2, 0.3), 2, tmp_path)


def test_probe_of_a_training_that_fails_exits_as_it_does(tmp_path):
    with pytest.raises(SystemExit) as ended:
        probe(functools.partial(launch, python("sys.exit(3)")), 2, tmp_path)
    assert ended.value.code == 3
