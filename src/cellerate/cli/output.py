"""The output of verbs: results on stdout, all else on stderr, errors as one line; scripts can rely on it."""

import json
import math
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cellerate.cli.words import in_options
from cellerate.files import output_error

INTERRUPTED = 130
"""The exit code after Ctrl-C."""
_silent = False


def silence() -> None:
    """Print only errors from now on: of several processes with the same work, only one prints."""
    global _silent
    _silent = True


def is_silent() -> bool:
    """True if another process prints for this one."""
    return _silent


def keep_stdout() -> None:
    """Keep stdout for results: prints of native libraries are discarded."""
    sys.stdout.flush()
    sys.stdout = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors="backslashreplace")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def show(text: str) -> None:
    """Prints a piece of a result as soon as it comes.

    Raises:
        OutputError: Stdout cannot be written, for example because the disk is full.
        SystemExit: The reader of stdout (head, less) has gone: with 0, because it has all that it wanted.
    """
    if _silent:
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # At exit Python would write what is left, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except OSError as error:
        raise output_error(Path("stdout"), error) from error


def print_result(text: str) -> None:
    """Prints a line of a result."""
    show(f"{text}\n")


def print_json(result: Mapping[str, Any]) -> None:
    """Prints a result as one JSON object; see `json_text`."""
    print_result(json_text(result))


def json_text(result: Mapping[str, Any]) -> str:
    """A result as one JSON object; NaN and infinities become null."""
    return json.dumps(_finite(result), indent=2, default=str)


def written(value: float, digits: int) -> str:
    """Return a number for tables: with `digits` digits, and all digits before the point."""
    return f"{value:.{digits}g}" if not 10.0 ** (digits - 1) <= abs(value) < 1e15 else f"{value:.1f}"


def check_plot(path: Path | None) -> None:
    """Raise the errors of drawing a chart before anything is computed; do nothing without a path."""
    if path is not None:
        from cellerate.report.charts import check_chart

        check_chart(path)


def outputs(*paths: Path | None) -> Callable[[], None]:
    """Note which files exist now; return a function that later says which were written or replaced."""
    given = {path: path.exists() for path in paths if path is not None}

    def say() -> None:
        for path, existed in given.items():
            notify(f"{'replaced' if existed else 'written'}: {path}")

    return say


def notify(text: str) -> None:
    """Print a message about progress."""
    if not _silent:
        print(in_options(text), file=sys.stderr, flush=True)


def command_to_resume() -> str:
    """The command line of this process with `--resume`."""
    return command_to_repeat() + ("" if "--resume" in sys.argv else " --resume")


def command_to_repeat() -> str:
    """The command line of this process, without the options that would discard its results."""
    words = [word for word in sys.argv[1:] if word not in ("--restart", "--overwrite")]
    return shlex.join([os.path.basename(sys.argv[0]), *words])  # noqa: PTH119


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
