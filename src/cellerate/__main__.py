"""The command `cellerate`, run as `python -m cellerate`."""

import sys
import sysconfig
from pathlib import Path

from cellerate.cli.start import start

if __name__ == "__main__":
    # Messages name the command, and processes that share a work start by it, not by this file.
    sys.argv[0] = str(Path(sysconfig.get_path("scripts"), "cellerate"))
    start()
