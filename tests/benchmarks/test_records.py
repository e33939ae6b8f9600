"""Records say which commit they are of, with git or without, and never claim to be cleaner than they are."""

import json
import subprocess
from pathlib import Path

import pytest

import records


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
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *arguments], cwd=copy.parent, check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "-m", "around")
    assert records.commit_of(copy.parent) not in ("unknown", "")
    assert records.commit_of(copy) == "unknown"


def test_json_has_a_word_in_place_of_what_is_no_number():
    record = {"a": [1.5, {"b": float("nan")}], "c": (float("-inf"),), "d": "NaN", "not_finite": {"e": "inf"}}
    assert json.loads(records.as_json(record)) == {
        "a": [1.5, {"b": None}],
        "c": [None],
        "d": "NaN",
        "not_finite": {"e": "inf", "a.1.b": "nan", "c.0": "-inf"},
    }
    assert records.as_json({"a": 1}) == '{"a": 1}'
