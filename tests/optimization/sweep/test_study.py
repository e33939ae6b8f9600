"""The study that the processes of a search share."""

import pytest

from cellerate.optimization.sweep.record import PointRecord
from cellerate.optimization.sweep.settings import CONTROL_PATIENCE_S
from cellerate.optimization.sweep.study import Study

pytest.importorskip("optuna")


def study_in(folder, **identity):
    folder.mkdir(exist_ok=True)
    return Study(folder, f"sqlite:///{folder.parent / 'shared.db'}", identity, 0)


def test_one_of_several_simultaneous_processes_begins_the_search(tmp_path, monkeypatch):
    first = study_in(tmp_path / "one", units=[4, 8])
    # The first process still trains its control.
    second = study_in(tmp_path / "two", units=[4, 8])
    assert (first.has_begun, second.has_begun) == (False, True)
    assert not study_in(tmp_path / "two", units=[4, 16]).has_begun
    assert second.facts == {}
    now = study_module_time(monkeypatch)
    first.begin(now + 60, 1.0, PointRecord("control", {}, control=True))
    assert second.has_begun and second.goes_on
    first.end()
    assert not second.has_begun


def test_search_whose_first_process_never_trained_restarts(tmp_path, monkeypatch):
    study_in(tmp_path / "one", units=[4, 8])
    later = study_in(tmp_path / "two", units=[4, 8])
    study_module_time(monkeypatch, CONTROL_PATIENCE_S + 1)
    assert not later.has_begun


def study_module_time(monkeypatch, ahead_s=0.0):
    """Advance the clock of studies, and return its messages."""
    from cellerate.optimization.sweep import study

    now = study.time.time() + ahead_s
    monkeypatch.setattr(study.time, "time", lambda: now)
    return now
