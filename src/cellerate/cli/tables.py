"""The options of verbs that read tables."""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
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
    """The settings that are not the defaults, as a command has them; of all fields, or of those named."""
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
    """The levels that the library is asked for. Raises `ConfigError` if there are some and are to be none."""
    if level and not intervals:
        raise ConfigError(
            f"{argument('level')} is for intervals: leave it out with {argument('intervals', False)}."
        )
    return (level or None) if intervals else ()


def check_table(output: Path) -> None:
    """Raise, before data are read, what writing a table would raise.

    Raises:
        BackendError: It is to be Parquet, and the package `pyarrow` is not installed.
        OutputError: It cannot be written there.
    """
    if output.suffix.lower() == ".parquet":
        require("pyarrow", "tables", "writing Parquet files")
    check_writable(output)


@contextlib.contextmanager
def notes_at_end(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Collects what a library function says of how tables were read, and shows each sentence once at the end.

    What Python would warn of, such as a series that the model does not know, is shown at once.

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
        # They may say why it failed: a separator that was taken for another.
        for sentence in notes if not quiet else ():
            notify(sentence)


@contextlib.contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Shows what Python would warn of as lines for people, each once."""
    shown: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) not in shown:
            notify(Message(marked(message)))
        shown.add(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield
