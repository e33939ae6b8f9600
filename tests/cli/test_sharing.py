"""`embed`, `forecast` and `evaluate` into folders and with several processes, from the command line."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from cellerate.runtime.cell import write_cell
from support import packed_forecaster
from support.runtime import packed_lines
from support.runtime.packed_lines import LINES

PROGRAM = Path(sys.executable).with_name("cellerate")
# A shell that runs the tests in the background ignores Ctrl-C, and child processes inherit that.
HEARING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
# Three pieces.
MANY = LINES * 7_000


def run(*words, **options):
    """Run the program in a separate process."""
    return subprocess.run(
        [PROGRAM, *map(str, words)], capture_output=True, text=True, check=False, timeout=120, **options
    )


@pytest.fixture
def lines(tmp_path):
    write_cell(tmp_path / "l.cell", packed_lines.program(), precision="float32", header=packed_lines.header())
    (tmp_path / "l.txt").write_text("\n".join(MANY))
    return tmp_path


@pytest.fixture
def series(tmp_path):
    packed_forecaster.write_series(tmp_path / "s.csv")
    header = packed_forecaster.header(series_column=["region"], season=4)
    write_cell(tmp_path / "f.cell", packed_forecaster.program(), precision="float32", header=header)
    return tmp_path


def test_two_processes_embed_like_one(lines):
    done = run("embed", "l.cell", "l.txt", "-o", "out", "--processes", "2", cwd=lines)
    assert (done.returncode, done.stdout, done.stderr) == (0, "out: 3 files\n", "")
    again = run("embed", "l.cell", "l.txt", "-o", "out", "--json", cwd=lines)
    assert json.loads(again.stdout) == {"output": "out", "files": 3, "of": 3}
    assert run("embed", "l.cell", "l.txt", "-o", "one.parquet", cwd=lines).returncode == 0
    table, whole = pq.read_table(lines / "out"), pq.read_table(lines / "one.parquet")
    assert table["line"].to_pylist() == MANY
    vectors, expected = (np.stack(one["vector"].to_numpy()) for one in (table, whole))
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert len({tuple(row) for row in vectors[: len(LINES)].tolist()}) > len(LINES) / 2


def test_error_of_a_process_is_reported_once_and_leaves_no_files(lines):
    (lines / "l.txt").write_text("zoo\n")
    done = run("embed", "l.cell", "l.txt", "-o", "out", "--processes", "2", cwd=lines)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.count("counted from line 1: line 1: ") == 1
    assert "Traceback" not in done.stderr
    assert not (lines / "out").exists()


@pytest.mark.parametrize("processes", [1, 2])
def test_interrupted_pass_resumes(lines, processes):
    (lines / "l.txt").write_text("\n".join(LINES * 40_000))
    words = ["embed", "l.cell", "l.txt", "-o", "out", "--processes", str(processes)]
    started = subprocess.Popen(
        [sys.executable, "-c", HEARING, PROGRAM, *words],
        cwd=lines,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not list((lines / "out").glob("part-*")) and time.monotonic() < deadline:
        time.sleep(0.005)
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=60)
    assert (started.returncode, out) == (130, ""), err
    assert "what is done stays in out. To go on:\n  cellerate embed l.cell l.txt -o out" in err
    assert "Traceback" not in err
    before = {path.name: path.stat().st_mtime_ns for path in (lines / "out").glob("part-*")}
    assert 0 < len(before) < 13
    done = run("embed", "l.cell", "l.txt", "-o", "out", cwd=lines)
    assert (done.returncode, done.stdout) == (0, "out: 13 files\n")
    after = {path.name: path.stat().st_mtime_ns for path in (lines / "out").glob("part-*")}
    assert {name: after[name] for name in before} == before
    assert not list((lines / "out").glob(".*unfinished*"))


def test_second_command_into_one_folder_is_refused(lines):
    (lines / "l.txt").write_text("\n".join(LINES * 40_000))
    first = subprocess.Popen([PROGRAM, "embed", "l.cell", "l.txt", "-o", "out"], cwd=lines)
    while not (lines / "out" / "_about.json").exists():
        time.sleep(0.005)
    second = run("embed", "l.cell", "l.txt", "-o", "out", cwd=lines)
    assert first.wait(timeout=60) == 0
    assert second.returncode == 6
    assert "another process is writing into out" in second.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["embed", "l.cell", "l.txt", "-o", "v.npy", "--processes", "2"], "write a folder of Parquet files"),
        (["embed", "l.cell", "l.txt", "l.txt", "-o", "v.npy"], "several files need a folder as output"),
        (["forecast", "f.cell", "s.csv", "--processes", "2"], "name it with -o"),
        (["evaluate", "f.cell", "s.csv", "-o", "e.parquet"], "and e.parquet is a file"),
        (["forecast", "f.cell", "s.csv", "-o", "out", "--plot", "p.png"], "plot is for a few series"),
    ],
)
def test_unsuitable_outputs_are_refused(cellerate, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    code, out, err = cellerate(*words)
    assert (code, out) == (2, "")
    assert said in err
    assert list(tmp_path.iterdir()) == []


def test_externally_started_processes_share_a_folder_and_print_figures_last(series):
    first = {"RANK": "1", "WORLD_SIZE": "2"}
    refused = run("evaluate", "f.cell", "s.csv", "--processes", "2", cwd=series, env={**os.environ, **first})
    assert (refused.returncode, "name it with -o" in refused.stderr) == (2, True)
    words = ("evaluate", "f.cell", "s.csv", "-o", "errors", "--json")
    shared = run(*words, cwd=series, env={**os.environ, **first})
    assert (shared.returncode, shared.stdout) == (0, "")
    last = run(*words, cwd=series, env={**os.environ, **first, "RANK": "0"})
    assert json.loads(last.stdout)["windows"] == 44
    half = {name: value for name, value in first.items() if name == "RANK"}
    wrong = run(*words, cwd=series, env={**os.environ, **half})
    assert (wrong.returncode, "WORLD_SIZE is not set" in wrong.stderr) == (2, True)


def test_forecasts_go_into_a_folder_or_one_file(series):
    assert run("forecast", "f.cell", "s.csv", "-o", "out", "--processes", "2", cwd=series).returncode == 0
    shown = run("forecast", "f.cell", "s.csv", "-o", "one.parquet", cwd=series)
    assert shown.stdout.startswith("series,time,price,load\nn,2024-02-29T06:00,")
    assert pq.read_table(series / "out").equals(pq.read_table(series / "one.parquet"))


def test_several_processes_evaluate_like_one(series):
    one = json.loads(run("evaluate", "f.cell", "s.csv", "--json", cwd=series).stdout)
    before = sorted(series.iterdir())
    shared = run("evaluate", "f.cell", "s.csv", "--json", "--processes", "2", cwd=series)
    assert json.loads(shared.stdout)["model"] == pytest.approx(one["model"], rel=1e-9)
    assert sorted(series.iterdir()) == before
    shown = run("evaluate", "f.cell", "s.csv", "-o", "errors", cwd=series).stdout
    assert shown.startswith("judged on 44 windows: all data; ")
    assert pq.read_table(series / "errors")["series"].to_pylist() == ["n", "s"]
