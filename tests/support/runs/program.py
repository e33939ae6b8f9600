"""The program `cellerate`, run in the process of a test."""

import sys
from collections.abc import Callable
from typing import Any

import pytest


def share_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the program run in a process that it shares with tests: it hides and keeps nothing that concerns them."""
    from cellerate.cli import backend

    monkeypatch.setattr(backend, "_leave_out_tensorflow", lambda: None)
    monkeypatch.setattr(backend, "_keep_programs", lambda _: None)


def program_here(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Callable[..., tuple[Any, str, str]]:
    """A function that runs the program, returns its exit code, stdout and stderr, and fails on a traceback."""
    from cellerate.cli import main

    share_process(monkeypatch)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: Any) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["cellerate", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main.main()
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err
        return ended.value.code or 0, shown.out, shown.err

    return run
