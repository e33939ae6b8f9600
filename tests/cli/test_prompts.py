"""Typed and piped prompts, and their ends."""

import io
import os
import pty
import sys

import pytest

from cellerate.cli.prompts import at_terminal, prompts
from cellerate.errors import DataError


def test_each_line_of_stdin_is_a_prompt_without_its_newline_and_the_mark_before_all(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("\ufeffWell,\r\n\n  two \n\ufefflast"))
    assert list(prompts()) == ["Well,", "  two ", "\ufefflast"]
    assert capsys.readouterr() == ("", "")
    assert not at_terminal()


def test_line_of_stdin_that_is_not_utf8_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding="utf-8"))
    with pytest.raises(DataError, match=r"not UTF-8: byte 0xE9"):
        list(prompts())


def test_typed_lines_end_with_ctrl_d_and_ctrl_c_drops_one(monkeypatch, capsys):
    typed = iter(["one", KeyboardInterrupt, "", "two", EOFError])

    def type_line(sign):
        assert sign == "> "
        if isinstance(line := next(typed), str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", type_line)
    assert list(prompts("> ")) == ["one", "two"]
    assert capsys.readouterr().out == "\n\n"


def test_at_terminal_needs_stdin_and_stdout(monkeypatch):
    own, other = pty.openpty()
    with os.fdopen(own, "r") as terminal, os.fdopen(other, "w") as screen:
        monkeypatch.setattr(sys, "stdin", terminal)
        assert not at_terminal()
        monkeypatch.setattr(sys, "stdout", screen)
        assert at_terminal()
