"""Records say which commit they are of, with git or without, and never claim to be cleaner than they are."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from benchmarks import conditions, publishing, records


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a project with one file, without git."""
    monkeypatch.delenv("CELLERATE_COMMIT", raising=False)
    root = tmp_path / "copy"
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.py").write_text("a = 1\n")
    return root


def test_commit_without_git_is_unknown(copy, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert records.commit_of(copy) == "unknown"


def test_commit_of_a_bundle_is_dirty_once_a_file_was_changed_there(copy, monkeypatch):
    monkeypatch.setenv("PATH", "")
    (copy / records.BUNDLE).write_text(f"abc123 {records.digest_of(copy)}\n")
    assert records.commit_of(copy) == "abc123"
    (copy / "src" / "__pycache__").mkdir()
    (copy / "src" / "__pycache__" / "a.pyc").write_bytes(b"what Python writes there")
    assert records.commit_of(copy) == "abc123"
    (copy / "src" / "a.py").write_text("a = 2\n")
    assert records.commit_of(copy) == "abc123-dirty"
    (copy / records.BUNDLE).write_text("abc123-dirty other\n")
    assert records.commit_of(copy) == "abc123-dirty"
    monkeypatch.setenv("CELLERATE_COMMIT", "told")
    assert records.commit_of(copy) == "told"


def test_commit_is_not_that_of_a_repository_around_the_copy(copy):
    git(copy.parent, "init")
    git(copy.parent, "add", ".")
    git(copy.parent, "commit", "-m", "around")
    assert records.commit_of(copy.parent) not in ("unknown", "")
    assert records.commit_of(copy) == "unknown"


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def test_tree_is_clean_with_new_records_and_dirty_with_any_other_file(copy):
    git(copy, "init")
    git(copy, "add", ".")
    git(copy, "commit", "-m", "all")
    commit, clean = records.state_of(copy)
    assert clean and re.fullmatch("[0-9a-f]{12}", commit)
    (copy / "benchmarks" / "results").mkdir(parents=True)
    (copy / "benchmarks" / "results" / "step.json").write_text("{}")
    assert records.state_of(copy) == (commit, True)
    (copy / "src" / "new.py").write_text("b = 1\n")
    assert records.state_of(copy) == (f"{commit}-dirty", False)
    (copy / "src" / "new.py").unlink()
    (copy / "src" / "a.py").write_text("a = 2\n")
    assert records.state_of(copy) == (f"{commit}-dirty", False)


def test_code_of_a_bundle_is_a_commit_s_and_that_of_a_told_commit_is_not(copy, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert records.state_of(copy) == ("unknown", False)
    (copy / records.BUNDLE).write_text(f"abc123 {records.digest_of(copy)}\n")
    assert records.state_of(copy) == ("abc123", True)
    monkeypatch.setenv("CELLERATE_COMMIT", "abc123")
    assert records.state_of(copy) == ("abc123", False)


def test_record_begins_with_all_its_conditions(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    monkeypatch.setenv("SECRET", "not to be recorded")
    record = records.new_record("step")
    assert record["threads"]["environment"]["OMP_NUM_THREADS"] == "2"
    assert record["allocator"]["environment"] == {"MALLOC_ARENA_MAX": "1"}
    assert "SECRET" not in json.dumps(record)
    record |= {"anyway": False, "result": {}, "seconds": 1.0}
    record["load"] = dict.fromkeys(("before", "during", "after"), conditions.idle())
    assert not [why for why in publishing.unpublishable(record) if "lacks" in why]


@pytest.mark.parametrize(
    ("program", "command"),
    [("run.py", "python benchmarks/run.py step"), ("gpu/suite.py", "python -m benchmarks.gpu.suite step")],
)
def test_record_has_the_command_that_repeats_it(program, command, monkeypatch):
    monkeypatch.setattr("sys.argv", [str(records.ROOT / "benchmarks" / program), "step"])
    assert records.new_record("step")["command"] == command


def test_record_is_written_under_its_case_and_date_where_there_was_no_folder(tmp_path):
    record = {"case": "step", "date": "2026-12-01T10:20:30+00:00"}
    path = records.write_record(record, tmp_path / "results")
    assert path.name == "step-2026-12-01T102030.json"
    assert json.loads(path.read_text()) == record
    assert [one["file"] for one in publishing.read("step", tmp_path / "results")] == [path]


def test_written_record_has_a_line_for_each_row():
    record = {"a": [{"x": n, "y": [n] * 9} for n in range(40)], "b": list(range(200)), "c": {}, "d": [[]]}
    text = records.in_rows(record)
    assert json.loads(text) == record
    lines = text.splitlines()
    assert lines[2].strip() == '{"x": 0, "y": [0, 0, 0, 0, 0, 0, 0, 0, 0]},'
    # The braces, the rows of a with its brackets, and one each for the others.
    assert len(lines) == 2 + 42 + 3


def test_json_has_a_word_in_place_of_what_is_no_number():
    record = {"a": [1.5, {"b": float("nan")}], "c": (float("-inf"),), "d": "NaN", "not_finite": {"e": "inf"}}
    assert json.loads(records.as_json(record)) == {
        "a": [1.5, {"b": None}],
        "c": [None],
        "d": "NaN",
        "not_finite": {"e": "inf", "a.1.b": "nan", "c.0": "-inf"},
    }
    assert records.as_json({"a": 1}) == '{"a": 1}'
