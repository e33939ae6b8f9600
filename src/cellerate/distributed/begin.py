"""The first moments of a process that `distributed.launch` starts, before its program takes its place.

It runs as a file, without the package, so that it takes no time: `python begin.py PARENT 0,1 PROGRAM ARGUMENT...`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ties the process to the one that waits for it and to its processors, then becomes the program."""
    parent, own, *command = sys.argv[1:]
    # Without the one that waits for it the process would go on unseen. It saves before it ends.
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit(1)
    if own:
        os.sched_setaffinity(0, {int(number) for number in own.split(",")})
    os.execvp(command[0], command)  # noqa: S606 (a program without a shell is what is wanted)


if __name__ == "__main__":
    main()
