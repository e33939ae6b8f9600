"""Where the program `cellerate` begins: it says what to install where what it is made with is missing.

A module of its own because an installed package has the program also where only packed models are run, and there
typer and rich are not installed: every other module here imports typer.
"""

import sys

from cellerate.errors import BackendError
from cellerate.machine.environment import require


def start() -> None:
    """Runs the program; ends with the exit code of `BackendError` where it cannot."""
    try:
        for package in ("typer", "rich"):
            require(package, "cli", "the command line")
    except BackendError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    from cellerate.cli.main import main

    main()
