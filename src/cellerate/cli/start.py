"""The entry point of the program `cellerate`, which says what to install if the command line's packages are missing.

An installed package always has the program, even where it only runs packed models and typer and rich are
missing. So this module must not import typer, as all other modules here do.
"""

import atexit
import contextlib
import os
import signal
import sys
from typing import NoReturn

from cellerate.errors import BackendError
from cellerate.machine.environment import require

_INTERRUPTED = 128 + signal.SIGINT


def start() -> None:
    """Runs the program; if it cannot, exits with the exit code of `BackendError`."""
    _open_closed()
    try:
        for package in ("typer", "rich"):
            require(package, "cli", "the command line")
    except BackendError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    try:
        from cellerate.cli.main import main
    except KeyboardInterrupt:
        # Ctrl-C while the verbs are imported, which takes half a second.
        raise SystemExit(_INTERRUPTED) from None

    try:
        main()
    except SystemExit as ended:
        if ended.code and isinstance(ended.code, int) and "jax" in sys.modules:
            _end_at_once(ended.code)
        raise


def _end_at_once(code: int) -> NoReturn:
    """Ends a process that failed: threads of XLA that still work would crash as Python unloads what they use."""
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _open_closed() -> None:
    """Open those of stdin, stdout and stderr that are closed, so that none is None and no file takes their places."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
