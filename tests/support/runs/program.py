"""The program `cellerate`, run in the process of a test."""

import sys
from collections.abc import Callable
from typing import Any

import pytest


def program_here(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Callable[..., tuple[Any, str, str]]:
    """A function that runs the program, returns its exit code, stdout and stderr, and fails on a traceback."""
    from cellerate.cli import backend, main

    # In a process of its own the program hides TensorFlow from the other backends; here other tests need it.
    monkeypatch.setattr(backend._LeftOut, "find_spec", lambda *_: None)
    monkeypatch.setattr(backend, "_keep_programs", lambda _: None)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
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
