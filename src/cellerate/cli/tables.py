"""The options of verbs that read tables."""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cellerate.cli.options import option
from cellerate.cli.output import notify
from cellerate.errors import ConfigError
from cellerate.files import check_writable
from cellerate.machine.environment import require
from cellerate.messages import Message, argument, marked
from cellerate.settings import changed_fields

Level = Annotated[
    list[float] | None,
    option("The level of an interval; may be repeated. Default: 0.8 and 0.95, if the model was calibrated."),
]
WithIntervals = Annotated[
    bool, typer.Option("--intervals/--no-intervals", help="Give intervals around the forecasts.")
]


def given_words(settings: Any, names: Sequence[str] | None = None) -> list[str]:
    """Return the settings that differ from the defaults, as words of a command; of all fields, or of `names`."""
    words = []
    for name, value in changed_fields(settings).items():
        if names is None or name in names:
            words += [f"--{name.replace('_', '-')}", _word(value)]
    return words


def _word(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return {"\t": "tab", "": "none"}.get(value, str(value))


def levels_of(level: Sequence[float] | None, intervals: bool) -> Sequence[float] | None:
    """Return the levels for the library. Raise `ConfigError` if levels are given without intervals."""
    if level and not intervals:
        raise ConfigError(
            f"{argument('level')} is for intervals: leave it out with {argument('intervals', False)}."
        )
    return (level or None) if intervals else ()


def check_table(output: Path, data: Iterable[str | Path]) -> None:
    """Raise the errors of writing a table before data are read.

    Args:
        output: The table to write.
        data: The files to read, which the table must not replace.

    Raises:
        BackendError: The table is Parquet, and the package `pyarrow` is not installed.
        ConfigError: The table would replace data.
        OutputError: The table cannot be written there.
    """
    if output.exists() and any(Path(path).exists() and output.samefile(path) for path in data):
        raise ConfigError(
            f"{output} has the data to read, which would be replaced: name another file ({argument('output')})."
        )
    if output.suffix.lower() == ".parquet":
        require("pyarrow", "tables", "writing Parquet files")
    check_writable(output)


def check_read(data: Sequence[str | Path] | None, *options: Any) -> None:
    """Raise `ConfigError` if records of options are given for reading tables, and no tables to read."""
    given = {name: value for each in options for name, value in changed_fields(each).items()}
    if given and not data:
        named = ", ".join(argument(name, value) for name, value in given.items())
        raise ConfigError(
            f"{named} is for reading {argument('data')}, and there are none: give data, or leave it out."
        )


@contextlib.contextmanager
def notes_at_end(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Collect the messages of a library function about reading tables, and show each once at the end.

    Python's warnings, such as one about an unknown series, are shown at once.

    Args:
        quiet: Whether to show warnings only.

    Yields:
        The function's `notify`.
    """
    notes: dict[str, None] = {}
    try:
        with warnings_as_notes():
            yield lambda sentence: notes.setdefault(sentence)
    finally:
        # The messages may explain a failure, such as a wrongly detected separator.
        for sentence in notes if not quiet else ():
            notify(sentence)


@contextlib.contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Show Python's warnings as plain lines, each once."""
    shown: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) not in shown:
            notify(Message(marked(message)))
        shown.add(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield
