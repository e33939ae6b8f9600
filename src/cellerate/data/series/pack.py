"""A packed series: a folder of plain `.npy` files, mapped into memory instead of loaded, and their description.

    values.npy     (N, C) float32, float64 or float16, series after series
    times.npy      (N,) datetime64[us] or float64; only with a time column
    segments.npy   (S, 3) int64: first row, row after the last, number of the series
    series.json    the columns, the names of the series, the settings it was packed with, and checksums

The cache of opened tables holds the same kind of folders.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from cellerate.data.arrays import digest
from cellerate.data.series.block_checksums import block_checksums, damaged_byte
from cellerate.data.times import Frequency, TimeForm
from cellerate.errors import DataError
from cellerate.files import atomic_write
from cellerate.messages import from_json, to_json

_FORMAT = "cellerate-series-1"
_DESCRIPTION = "series.json"
SUFFIX = ".series"


@dataclasses.dataclass(frozen=True, eq=False)
class PackedSeries:
    """A packed series.

    Attributes:
        values: (N, C), usually a memory map.
        columns: Names of the C columns.
        times: (N,) datetime64[us] or float64, a memory map; None without a time column.
        segments: (S, 3) int64; see the module.
        names: The name of each series.
        step: The median time step: () timedelta64 or float64, or an empty array without times.
        settings: The settings of packing: time_column, series_column, missing, gaps, dtype.
        fingerprint: Hash of the packed content and of the settings.
        frequency: The frequency of the rows; None without times.
        form: How the tables wrote the times.
        notes: The notes on the reading of the tables.
    """

    values: np.ndarray
    columns: tuple[str, ...]
    times: np.ndarray | None
    segments: np.ndarray
    names: tuple[str, ...]
    step: np.ndarray
    settings: dict[str, Any]
    fingerprint: str
    frequency: Frequency | None = None
    form: TimeForm = dataclasses.field(default_factory=TimeForm)
    notes: tuple[str, ...] = ()


def is_packed_series(path: Path) -> bool:
    """True if a path is the folder of a packed series."""
    return (path / _DESCRIPTION).is_file()


def describe(folder: Path, packed: PackedSeries, *, in_place: bool) -> None:
    """Writes the other files of a folder that has the values and times; `in_place`: these are elsewhere."""
    np.save(folder / "segments.npy", packed.segments)
    step = None
    if packed.step.size:
        dates = packed.step.dtype.kind == "m"
        step = int(packed.step.astype(np.int64)) if dates else float(packed.step)
    description = {
        "format": _FORMAT,
        "columns": list(packed.columns),
        "rows": len(packed.values),
        "names": list(packed.names),
        "times": None if packed.times is None else packed.times.dtype.str,
        "step": step,
        "settings": packed.settings,
        "fingerprint": packed.fingerprint,
        "segments": digest(packed.segments.tobytes()),
        "in_place": in_place,
        "checksums": {
            name: block_checksums(folder / name) for name in _large_files(packed.times is not None, in_place)
        },
        "frequency": None if packed.frequency is None else packed.frequency.to_config(),
        "form": packed.form.to_config(),
        "notes": [to_json(note) for note in packed.notes],
    }
    description["checksum"] = _own_checksum(description)
    with atomic_write(folder / _DESCRIPTION) as beside:
        beside.write_text(json.dumps(description))


def open_packed(folder: Path, in_place: np.ndarray | None = None, *, check_all: bool = False) -> PackedSeries:
    """Opens a packed series, and compares a sample of its values and times with their checksums.

    Args:
        folder: Its folder.
        in_place: The values, if they lie elsewhere.
        check_all: Compare all of them, not a sample.

    Raises:
        DataError: It is damaged, or of another version.
    """
    try:
        description = json.loads((folder / _DESCRIPTION).read_text())
        if description["format"] != _FORMAT:
            raise DataError(
                f"{folder} is a packed series of another version ({description['format']!r}, expected {_FORMAT!r}): "
                "pack it again."
            )
        values = in_place if description["in_place"] else _mapped(folder / "values.npy")
        times = None if description["times"] is None else _mapped(folder / "times.npy")
        segments = np.load(folder / "segments.npy", allow_pickle=False)
        rows, columns = int(description["rows"]), tuple(map(str, description["columns"]))
        wrong = [
            name
            for name, right in {
                "values.npy": values is not None and values.shape == (rows, len(columns)),
                "times.npy": times is None
                or (times.shape == (rows,) and times.dtype.str == description["times"]),
                "segments.npy": digest(segments.tobytes()) == description["segments"],
            }.items()
            if not right
        ]
        if description.pop("checksum") != _own_checksum(description):
            wrong.append(_DESCRIPTION)
        if wrong:
            raise DataError(
                f"{folder} is damaged: {wrong[0]} is not what {_DESCRIPTION} says. Pack it again."
            )
        for name in _large_files(times is not None, description["in_place"]):
            at = damaged_byte(folder / name, description["checksums"][name], every=check_all)
            if at is not None:
                raise DataError(
                    f"{folder} is damaged: {name} has changed since it was written, after byte {at:,}. Pack it again."
                )
        assert values is not None  # noqa: S101 (else it is wrong)
        names = tuple(map(str, description["names"]))
        return PackedSeries(
            values,
            columns,
            times,
            segments,
            names,
            _step_of(description["step"]),
            dict(description["settings"]),
            str(description["fingerprint"]),
            Frequency.from_config(description["frequency"]),
            TimeForm.from_config(description["form"]),
            tuple(map(from_json, description["notes"])),
        )
    except (OSError, ValueError, KeyError, TypeError, EOFError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{folder} is damaged ({type(error).__name__}: {error}). Pack it again.") from error


def _step_of(written: int | float | None) -> np.ndarray:
    """The step between rows: () of microseconds or of numbers; empty without one."""
    if written is None:
        return np.empty(0)
    return np.array(written, "timedelta64[us]" if isinstance(written, int) else np.float64)


def _large_files(has_times: bool, in_place: bool) -> list[str]:
    """The names of the files that are checked by blocks."""
    return ([] if in_place else ["values.npy"]) + (["times.npy"] if has_times else [])


def _own_checksum(description: dict[str, Any]) -> str:
    return digest(json.dumps(description, sort_keys=True).encode())


def _mapped(path: Path) -> np.ndarray:
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty. Pack the series again.")
    found: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return found
