"""Writes the arguments that messages of the library name as options: `missing='drop'` as `--missing drop`."""

import functools
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from typer.core import TyperOption

from cellerate.messages import alternatives, in_python, marked, reworded


class Verb(Protocol):
    """A command of Click, which newer versions of typer bring along and older ones import."""

    params: list[Any]


_program: Callable[[], Verb] | None = None


def speak_for(program: Callable[[], Verb]) -> None:
    """Take the options of this process's verb from a program, which is made when the first message needs it."""
    global _program
    _program = functools.cache(program)


def in_options(message: object, verb: Verb | None = None) -> str:
    """Return a message in the words of the command line.

    Args:
        message: An error or a sentence of the library. A plain text stays as it is.
        verb: The verb whose options are named; None for that of this process. An argument that is not among them is
            written as Python has it.
    """
    if verb is None and _program is not None:
        verb = verb_of(_program())
    options = {one.name: one for one in (verb.params if verb else ()) if isinstance(one, TyperOption)}
    # An option that may be repeated is a list in the library, and sometimes called so there: targets, features.
    options = {f"{name}s": one for name, one in options.items() if one.multiple} | options
    return reworded(marked(message), functools.partial(_option, options))


def verb_of(program: Verb, words: Sequence[str] | None = None) -> Verb:
    """The verb that a command line is for, or the program if there is none; `words` are those of this process."""
    command = program
    for word in sys.argv[1:] if words is None else words:
        commands: Mapping[str, Verb] = getattr(command, "commands", {})
        if word in commands:
            command = commands[word]
        elif not word.startswith("-"):
            # Some groups take the argument of a default command without the command's name.
            command = commands.get(getattr(command, "default", ""), command)
            break
    return command


def _option(options: Mapping[str, TyperOption], name: str, values: Sequence[Any]) -> str:
    """An argument as it is typed; in Python's words if it cannot be typed."""
    option = options.get(name)
    if option is None or None in values:
        return in_python(name, values)
    flag = max(option.opts, key=len)
    if not values:
        return flag
    if option.is_flag:
        flags = {True: flag, False: max(option.secondary_opts, key=len, default=None)}
        return flags.get(values[0]) or in_python(name, values)
    if isinstance(values[0], list):
        return " ".join(f"{flag} {_word(value)}" for value in values[0])
    return f"{flag} {alternatives([_word(value) for value in values])}"


def _word(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else shlex.quote(str(value))
