"""The entry point of the program `cellerate`, which says what to install if the command line's packages are missing.

An installed package always has the program, even where it only runs packed models and typer and rich are
missing. So this module must not import typer, as all other modules here do.
"""

import signal
import sys

from cellerate.errors import BackendError
from cellerate.machine.environment import require


def start() -> None:
    """Runs the program; if it cannot, exits with the exit code of `BackendError`."""
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
        raise SystemExit(128 + signal.SIGINT) from None

    main()
