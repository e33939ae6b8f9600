"""Lines that a user types at a prompt, or that come from a file or another program on stdin."""

import contextlib
import sys
from collections.abc import Iterator

from cellerate.errors import DataError


def at_terminal() -> bool:
    """True if a user can type lines and see the results."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def prompts(sign: str = "") -> Iterator[str]:
    """Each line of stdin that is not empty, without its line end.

    Args:
        sign: The prompt. With a prompt, a user types lines with the line editor and its history (arrow keys); Ctrl-C
            drops a line, and Ctrl-D ends.

    Raises:
        DataError: A line is not UTF-8.
    """
    if sign:
        # Python's `input` uses it once it is imported; some builds lack it.
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401
    # As in files of texts, a byte order mark is not part of the text.
    mark = "\ufeff"
    while True:
        try:
            line = input(sign) if sign else sys.stdin.readline()
        except KeyboardInterrupt:
            if not sign:
                raise
            print()
            continue
        except UnicodeDecodeError as error:
            raise DataError(
                f"a line on stdin is not UTF-8: byte 0x{error.object[error.start]:02X}. Convert it to UTF-8."
            ) from error
        except EOFError:
            print()
            return
        if not sign and not line:
            return
        if text := line.removeprefix(mark).rstrip("\r\n"):
            yield text
        mark = ""
