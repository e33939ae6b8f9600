"""Makes a process's writes under one folder fail as a test says: `failing_files.cpp`, preloaded into the process."""

import mmap
import os
import struct
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_suffix(".cpp")
# The fields of `Control` in `failing_files.cpp`, in order.
_FIELDS = ("count", "failed", "first", "last", "error", "pause_us")
_BYTES = 8 * len(_FIELDS) + 4096
NEVER = 2**62


def build_library(folder: Path) -> Path:
    """Compile the library to preload."""
    library = folder / "failing_files.so"
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-D_GNU_SOURCE", "-shared", "-fPIC"]
    subprocess.run([*command, str(_SOURCE), "-o", str(library), "-ldl"], check=True)
    return library


class FailingFiles:
    """The disk of processes that were started with `environment`.

    Args:
        control: A file that tells the processes which changes fail; made if it is missing.
    """

    def __init__(self, control: Path) -> None:
        self._path = control
        if not control.exists():
            control.write_bytes(bytes(_BYTES))
        with control.open("r+b") as file:
            self._fields = mmap.mmap(file.fileno(), _BYTES)

    def environment(self, library: Path) -> dict[str, str]:
        """The variables to add to the environment of a process."""
        return {"LD_PRELOAD": str(library), "FAILING_FILES": str(self._path)}

    def watch(self, folder: Path) -> None:
        """Count changes under a folder from now on, and let none fail."""
        name = os.fsencode(folder.resolve())
        self.heal()
        self._fields[8 * len(_FIELDS) :] = name + bytes(4096 - len(name))

    def fail(self, error: int, first: int = 0, last: int = NEVER, *, pause_us: int = 0) -> None:
        """Make changes fail, counted from now on.

        Args:
            error: The error number; 0 if they only take long.
            first: The number of the first change that fails.
            last: The number of the last change that fails.
            pause_us: The pause before each of them, in microseconds.
        """
        self.heal()
        self._put(error=error, pause_us=pause_us, last=min(last, NEVER) + 1, count=0, failed=0)
        self._put(first=first)

    def heal(self) -> None:
        """Let no change fail any more; start counting from 0."""
        self._put(first=-1)
        self._put(count=0)

    @property
    def fails(self) -> bool:
        """True while changes fail; False if they only take long."""
        return self._get("first") >= 0 and self._get("error") > 0

    @property
    def count(self) -> int:
        """The number of changes tried since the last call of `watch`, `fail` or `heal`."""
        return self._get("count")

    @property
    def failed(self) -> int:
        """The number of calls that failed, or took long, since `fail`."""
        return self._get("failed")

    def _put(self, **values: int) -> None:
        for name, value in values.items():
            struct.pack_into("<q", self._fields, 8 * _FIELDS.index(name), value)

    def _get(self, name: str) -> int:
        value: int = struct.unpack_from("<q", self._fields, 8 * _FIELDS.index(name))[0]
        return value
