"""Puts unmarked messages of the library, which speak of Python's arguments, into the words of the command line.

`missing='drop'` becomes `--missing drop`, and `batch_size` becomes `--batch-size`, where the verb has such options. It
is done where an error is shown, so that the library has one message for both kinds of users.
"""

import re
import shlex
from typing import Any

from typer.core import TyperOption

# What is quoted, called or part of a path is somebody's name or code, and stays.
_AS_IT_IS = r"`[^`]*`|\w\([^()]*\)|(?<![=\w])'[^']*'|(?<![=\w])\"[^\"]*\"|[^\s'\"]*[/\\][^\s'\"]*"
_QUOTED = r"'[^']*'|\"[^\"]*\""
_VALUE = rf"{_QUOTED}|\[[^\[\]]*\]|-?\w+(?:[.+-]\w+)*"
_MORE = r"(?:,? or |, )(?:'[\w.-]+')"


def reword(message: str, command: Any) -> str:
    """A message in the words of the command line.

    A name with an underscore is one that a message means as an argument. Other names are words of the language, too
    ("length", "model"), so only where they are given a value, stand alone in brackets, or are what a sentence of a
    check is about.

    Args:
        message: What an error of the library says.
        command: The verb; only its options are named.
    """
    options = {
        parameter.name: parameter
        for parameter in command.params
        if isinstance(parameter, TyperOption) and parameter.name is not None
    }
    if not options:
        return message
    name = "|".join(sorted(map(re.escape, options), key=len, reverse=True))
    # What may be given again is a list in the library, and is called so there: targets, features.
    subjects = options | {f"{one}s": option for one, option in options.items() if option.multiple}
    subject = "|".join(sorted(map(re.escape, subjects), key=len, reverse=True))
    spaced = "|".join(sorted((one for one in options if "_" in one), key=len, reverse=True)) or r"(?!)"
    pattern = re.compile(
        rf"(?P<subject>^(?:{subject})(?: (?:and|or) (?:{subject}))?(?= (?:must|should|is|cannot|needs|names)\b))"
        rf"|(?<![\w.-])(?P<set>{name})=(?P<value>{_VALUE})(?P<more>(?:{_MORE})*)"
        rf"|\((?P<alone>{name})\)"
        rf"|(?<=leave )(?P<out>{name})(?= out\b)"
        rf"|(?<=[:;] )(?P<was>{name})(?= was )"
        rf"|{_AS_IT_IS}"
        rf"|(?<![\w.-])(?P<named>{spaced})(?![\w(=-]|\.\w)"
    )

    def reworded(match: re.Match[str]) -> str:
        found = match.groupdict()
        if found["subject"]:
            return re.sub(rf"\b({subject})\b", lambda one: _flag(subjects[one[0]]), found["subject"])
        if found["set"]:
            more = found["more"] or ""
            return _given(options[found["set"]], found["value"], match[0]) + more.replace("'", "")
        if found["alone"]:
            return f"({_flag(options[found['alone']])})"
        if bare := found["out"] or found["was"] or found["named"]:
            return _flag(options[bare])
        return match[0]

    return pattern.sub(reworded, message)


def _flag(option: TyperOption) -> str:
    return max(option.opts, key=len)


def _given(option: TyperOption, value: str, said: str) -> str:
    """An option with a value, as it is typed; `said` again if that cannot be typed."""
    flag = _flag(option)
    if option.is_flag:
        negative = max(option.secondary_opts, key=len, default=None)
        return {"True": flag, "False": negative or said}.get(value, said)
    if value.startswith("["):
        entries = re.findall(_QUOTED, value)
        return " ".join(f"{flag} {shlex.quote(entry[1:-1])}" for entry in entries) or said
    if value == "None":
        return said
    written = {"True": "on", "False": "off"}.get(value) or (value[1:-1] if value[0] in "'\"" else value)
    return f"{flag} {shlex.quote(written)}"
