"""Results of a pass over much data: a folder of Parquet files, one for each piece of the data.

    _about.json          the origin of the results; readers of such folders skip names that begin with "_"
    part-000000.parquet  the results of the first piece

The division into pieces depends on the data alone, and a piece whose file exists is done. So any number of processes
can share the work, on one machine or many that see the folder, and an interrupted pass can continue.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cellerate.distributed.group import own_share
from cellerate.errors import ConfigError, DataError
from cellerate.files import (
    ABANDONED_AFTER_S,
    LOCK,
    atomic_write,
    output_error,
    remove_unfinished,
    write_parquet,
)
from cellerate.machine.environment import require

_ABOUT = "_about.json"
_FORMAT = "cellerate-pieces-1"


class Pieces:
    """The folder that a pass writes, and this process's share of the work.

    Args:
        folder: The folder; made if it is missing.
        about: Everything that determines the results, as JSON values.
        share: The index of this process and the number of all; None reads `RANK` and `WORLD_SIZE`.

    Raises:
        BackendError: The package `pyarrow` is not installed.
        ConfigError: The folder holds something else.
        OutputError: It cannot be written.
    """

    def __init__(
        self, folder: str | Path, about: Mapping[str, Any], share: tuple[int, int] | None = None
    ) -> None:
        require("pyarrow", "tables", "writing Parquet files")
        self.number, self.count = share or own_share()
        if not 0 <= self.number < self.count:
            raise ConfigError(
                f"share is {self.number, self.count}; expected the number of this process, from 0, and how many "
                "there are."
            )
        self.folder = Path(folder)
        whole = {"format": _FORMAT, **json.loads(json.dumps(about))}
        known = self._about(whole)
        if known != whole:
            names = sorted(name for name in {*known, *whole} if known.get(name) != whole.get(name))
            raise ConfigError(
                f"{self.folder} holds results of another pass: {' and '.join(names)} differ{'s'[: len(names) == 1]}. "
                "Remove it, or choose another name."
            )
        # A killed process leaves an unfinished file; other processes of the group may be writing theirs now.
        remove_unfinished(self.folder, ABANDONED_AFTER_S)

    def _about(self, whole: dict[str, Any]) -> dict[str, Any]:
        """The folder's own description; a new one is written."""
        path = self.folder / _ABOUT
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if all(one.name.startswith(".") for one in self.folder.iterdir()):
                # Several processes may begin at once, perhaps with different arguments: the first description stays.
                handle, name = tempfile.mkstemp(dir=self.folder, prefix=".about-")
                beside = Path(name)
                try:
                    with os.fdopen(handle, "w") as file:
                        json.dump(whole, file)
                        file.flush()
                        os.fsync(handle)
                    beside.chmod(0o644)
                    self._name(beside, path)
                finally:
                    # A disk that refuses changes keeps the file; the failure was already reported.
                    with contextlib.suppress(OSError):
                        beside.unlink()
            found = json.loads(path.read_text())
            if isinstance(found, dict):
                return found
        except (FileNotFoundError, FileExistsError, NotADirectoryError, ValueError, RecursionError):
            pass
        except OSError as error:
            raise output_error(self.folder, error) from error
        raise ConfigError(f"{self.folder} exists and holds no results of a pass. Choose another name.")

    def _name(self, beside: Path, path: Path) -> None:
        """Give a file its final name, unless another process was faster."""
        try:
            path.hardlink_to(beside)
        except FileExistsError:
            pass
        except OSError:
            # Without hard links, two processes that begin at the same moment may both succeed.
            with atomic_write(path) as other:
                other.write_bytes(beside.read_bytes())

    def path(self, number: int) -> Path:
        """The file of a piece."""
        return self.folder / f"part-{number:06}.parquet"

    def own(self, number: int) -> bool:
        """True if a piece falls to this process."""
        return number % self.count == self.number

    def done(self, number: int) -> bool:
        """True if a piece has its results."""
        return self.path(number).is_file()

    def left(self, count: int) -> list[int]:
        """The pieces of this process's share that have no results yet."""
        return [number for number in range(count) if self.own(number) and not self.done(number)]

    def write(self, number: int, columns: Mapping[str, Any]) -> None:
        """Writes the results of a piece: a column of equal length for each name, as NumPy or Arrow arrays or lists.

        Raises:
            OutputError: They cannot be written.
        """
        write_parquet(self.path(number), columns)

    def read(self, count: int) -> dict[str, list[Any]]:
        """The results of all pieces, in their order, as lists by the names of the columns.

        Raises:
            DataError: A file cannot be read; the message says to remove it.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        found: dict[str, list[Any]] = {}
        for number in range(count):
            try:
                columns = pq.read_table(self.path(number)).to_pydict()
            except (OSError, pa.ArrowException) as error:
                raise DataError(
                    f"{self.path(number)} cannot be read: {error}. Remove it, and start the pass again."
                ) from error
            for name, values in columns.items():
                found.setdefault(name, []).extend(values)
        return found


def remove_pass(folder: Path) -> None:
    """Removes the folder of a pass that has no results, unless there is something else in it."""
    with contextlib.suppress(OSError):
        for name in (_ABOUT, LOCK):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()
