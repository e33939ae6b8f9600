"""Results of a pass over much data: a folder of Parquet files, one for each piece of the data.

    _about.json          what they are results of; readers of such folders leave out names that begin with "_"
    part-000000.parquet  the results of the first piece

What a piece is depends on the data alone, and a piece whose file is there is done. So any number of processes can share
the work, on one machine or many that see the folder, and a pass that was interrupted goes on.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cellerate.distributed.group import own_place
from cellerate.errors import ConfigError, DataError
from cellerate.files import ABANDONED_AFTER_S, atomic_write, output_error, remove_unfinished, write_parquet
from cellerate.machine.environment import require

_ABOUT = "_about.json"
_FORMAT = "cellerate-pieces-1"


class Pieces:
    """The folder that a pass writes, and this process's share of the work.

    Args:
        folder: The folder; made if it is missing.
        about: What the results are of, as JSON values: everything that, if it were different, would give others.
        share: Which process this is, and of how many; None for what the environment says (`RANK`, `WORLD_SIZE`).

    Raises:
        BackendError: The package `pyarrow` is not installed.
        ConfigError: The folder holds something else.
        OutputError: It cannot be written.
    """

    def __init__(
        self, folder: str | Path, about: Mapping[str, Any], share: tuple[int, int] | None = None
    ) -> None:
        require("pyarrow", "train", "writing Parquet files")
        place = own_place()
        self.number, self.count = share or ((place.number, place.count) if place else (0, 1))
        if not 0 <= self.number < self.count:
            raise ConfigError(
                f"share is {self.number, self.count}; expected the number of this process, from 0, and how many "
                "there are."
            )
        self.folder = Path(folder)
        whole = {"format": _FORMAT, **json.loads(json.dumps(about))}
        known = self._about()
        if known is None:
            with atomic_write(self.folder / _ABOUT) as beside:
                beside.write_text(json.dumps(whole))
        elif known != whole:
            names = sorted(name for name in {*known, *whole} if known.get(name) != whole.get(name))
            raise ConfigError(
                f"{self.folder} holds results of another pass: {' and '.join(names)} differ{'s'[: len(names) == 1]}. "
                "Remove it, or choose another name."
            )
        # A killed process leaves what it was writing; others of the group may be writing now.
        remove_unfinished(self.folder, ABANDONED_AFTER_S)

    def _about(self) -> dict[str, Any] | None:
        """What the folder says of itself; None for one that is new."""
        try:
            if not self.folder.exists():
                return None
            if (self.folder / _ABOUT).is_file():
                found = json.loads((self.folder / _ABOUT).read_text())
                if isinstance(found, dict):
                    return found
            elif self.folder.is_dir() and all(path.name.startswith(".") for path in self.folder.iterdir()):
                return None
        except OSError as error:
            raise output_error(self.folder, error) from error
        except ValueError:
            pass
        raise ConfigError(f"{self.folder} exists and holds no results of a pass. Choose another name.")

    def path(self, number: int) -> Path:
        """The file of a piece."""
        return self.folder / f"part-{number:06}.parquet"

    def own(self, number: int) -> bool:
        """Whether a piece falls to this process."""
        return number % self.count == self.number

    def done(self, number: int) -> bool:
        """Whether a piece has its results."""
        return self.path(number).is_file()

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
