"""Runs are found, and their telemetry is read while it is written."""

import json
import time

import pytest

from cellerate.errors import DataError
from cellerate.observe import runs
from cellerate.observe.runs import find_runs, read_run


def write(folder, rows, *, mode="w", end=""):
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "telemetry.jsonl").open(mode) as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows) + end)
    return folder


def figures(*steps, begin=100.0):
    return [{"time": begin + step, "epoch": 1, "step": step, "loss": 1.0 / step} for step in steps]


def test_runs_are_found_by_folder_model_pattern_and_in_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("book.run", "a/book.run", "a/deep/ett.run", "other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a" / "deep" / "ett.keras").write_text("")
    assert find_runs(["book.run"]).keys() == {"book"}
    assert [str(path) for path in find_runs(["a/deep/ett.keras"]).values()] == ["a/deep/ett.run"]
    assert [str(path) for path in find_runs(["a/*/*.keras"]).values()] == ["a/deep/ett.run"]
    found = find_runs(["."])
    assert len(found) == 3
    assert {"a/book", "ett"} < found.keys()
    assert find_runs(["book.run", ".", "book.keras"]).keys() == found.keys()
    assert find_runs(["other"]) == {}
    for wrong in ("nothing.run", "nothing.keras", "a/deep/ett.txt", "*.h5"):
        with pytest.raises(DataError, match="is not a run: expected the folder of one"):
            find_runs([wrong])


def test_what_is_new_is_read_once(tmp_path):
    run = write(tmp_path / "m.run", figures(1, 2), end='{"time": 103, "st')
    first = read_run(run)
    assert [row["step"] for row in first.rows] == [1, 2]
    write(run, [], mode="a", end='ep": 3, "epoch": 1}\n')
    second = read_run(run, first.began, first.end)
    assert [row["step"] for row in second.rows] == [3]
    assert read_run(run, second.began, second.end).rows == ()
    assert second.end == (run / "telemetry.jsonl").stat().st_size


def test_another_run_in_the_folder_is_read_from_its_beginning(tmp_path):
    run = write(tmp_path / "m.run", figures(1, 2))
    first = read_run(run)
    write(run, figures(1, 2, 3, begin=500.0))
    second = read_run(run, first.began, first.end)
    assert second.began != first.began
    assert [row["step"] for row in second.rows] == [1, 2, 3]


def test_state_is_how_it_ended_or_when_it_was_last_heard(tmp_path):
    now = time.time()
    assert read_run(tmp_path / "none.run") == runs.Page(0.0, 0, (), "silent", 0.0)
    run = write(tmp_path / "m.run", figures(1, begin=now - 20))
    assert read_run(run).status == "training"
    write(run, figures(1, begin=now - 200))
    assert (read_run(run).status, round(read_run(run).heard - now)) == ("silent", -199)
    write(run, [{"time": now - 100, "status": "stopped early"}], mode="a")
    assert read_run(run).status == "stopped early"
    write(run, figures(2, begin=now - 3), mode="a")  # it goes on
    assert read_run(run).status == "training"
    write(tmp_path / "empty.run", [])
    assert read_run(tmp_path / "empty.run").status == "silent"


def test_long_run_is_thinned_but_for_its_epochs(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "_MOST_LINES", 10)
    rows = figures(*range(1, 96))
    rows[33]["epoch/val_loss"] = 0.5
    found = read_run(write(tmp_path / "m.run", rows)).rows
    assert [row["step"] for row in found] == [1, 11, 21, 31, 34, 41, 51, 61, 71, 81, 91]
