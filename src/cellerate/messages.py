"""Messages that keep argument names as data, so that each reader sees the words that he types.

A message marks the arguments that it names. Users of Python read `missing='drop'`, those of the command line
`--missing drop`::

    raise ConfigError(f"Leave such rows out with {argument('missing', 'drop')}.")
    listener.message(Message(f"the first column is the time; name another ({argument('time_column')})"))

As plain text, an error or a `Message` is always in Python's form: no marks reach a file or an HTTP answer.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

# Characters of private use, which no keyboard has, and which `repr` escapes.
_BEGIN, _END = "\ue000", "\ue001"
_MARK = re.compile(f"{_BEGIN}([^{_BEGIN}{_END}]*){_END}")


class Message(str):
    """A text in Python's form that keeps its marks for other forms.

    Args:
        text: The text, with the marks of `argument` in it.
    """

    marked: str

    def __new__(cls, text: str) -> "Message":
        """Render the text for users of Python."""
        source = marked(text)
        self = super().__new__(cls, reworded(source, in_python))
        self.marked = source
        return self


def argument(name: str, *values: object) -> str:
    """Mark an argument in a text that becomes a `CellerateError` or a `Message`.

    Args:
        name: Its name in Python.
        values: The value to give, or several to choose from; none if the text names the argument only.
    """
    return f"{_BEGIN}{json.dumps([name, *values], default=str)}{_END}"


def marked(source: object) -> str:
    """The text of a message or an error, with any marks, for use in another message."""
    if isinstance(source, BaseException) and len(source.args) == 1:
        source = source.args[0] if isinstance(source.args[0], Message) else source
    return source.marked if isinstance(source, Message) else str(source)


def reworded(text: str, form: Callable[[str, Sequence[Any]], str]) -> str:
    """A marked text with each argument written by `form`, which takes its name and values."""

    def written(mark: re.Match[str]) -> str:
        try:
            name, *values = json.loads(mark[1])
        except (TypeError, ValueError):  # not a mark, but part of a file's name or of a value
            return mark[0]
        return form(str(name), values)

    return _MARK.sub(written, text)


def in_python(name: str, values: Sequence[Any]) -> str:
    """An argument in Python's form, such as `missing='drop' or 'ffill'`."""
    return f"{name}={alternatives([repr(value) for value in values])}" if values else name


def alternatives(words: Sequence[str]) -> str:
    """Words to choose from: `a`, `a or b`, `a, b or c`."""
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def to_json(text: str) -> str | list[Any]:
    """A text for a file: its parts if it names arguments, each argument a list of its name and values."""
    parts = _MARK.split(marked(text))
    return [part if n % 2 == 0 else json.loads(part) for n, part in enumerate(parts)] if parts[1:] else text


def from_json(parts: Any) -> Message:
    """The text that `to_json` wrote; any other value as text."""
    read = parts if isinstance(parts, list) else [parts]
    return Message(
        "".join(argument(*part) if isinstance(part, list) and part else str(part) for part in read)
    )
