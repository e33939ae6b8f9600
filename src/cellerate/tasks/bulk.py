"""Passes over large data, into a folder of Parquet files: lines to vectors, series to forecasts, windows to errors.

Each takes any number of files, of any length. Several processes can share one pass: each call does its share of the
pieces that have no results yet (`tasks.pieces`).
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cellerate.data.files import file_digest
from cellerate.data.series import SeriesData, SeriesPart
from cellerate.data.text import find_line_files, line_blocks
from cellerate.errors import DataError
from cellerate.listener import Callbacks, Listener
from cellerate.machine.environment import require
from cellerate.messages import marked
from cellerate.runtime.embedding import vector_column
from cellerate.runtime.forecast import Intervals, forecast_ends, left_out, series_ends
from cellerate.settings import one_or_more
from cellerate.tasks.judging import (
    ERRORS,
    Judging,
    Progress,
    SeriesErrors,
    SeriesForecaster,
    baselines_for,
    count_in,
    forecast_columns,
    forecaster_report,
    judge_windows,
    judged_intervals,
    judging_of,
    part_of,
    raw_windows,
)
from cellerate.tasks.opening import embedder_of, forecaster_of, open_model
from cellerate.tasks.pieces import Pieces
from cellerate.tasks.settings import LineFiles, SeriesFiles

_Path = str | os.PathLike[str]
# The size of a piece: half a minute's work for a small Keras model, and a few megabytes of results.
_LINES_A_PIECE = 32_768
_SERIES_A_PIECE = 1_024
_WINDOWS_A_PIECE = 131_072


@dataclasses.dataclass(frozen=True)
class PassResult:
    """The result of a pass, or of a process's share of it.

    Attributes:
        output: The folder.
        pieces: The number of pieces in the data.
        done: The number of pieces that have results now.
        items: The number of lines, series or windows of this call.
    """

    output: Path
    pieces: int
    done: int
    items: int


def embed_files(
    model: _Path,
    data: LineFiles,
    output: _Path,
    *,
    batch_size: int = 256,
    share: tuple[int, int] | None = None,
    progress: Progress | None = None,
) -> PassResult:
    """Turns each line of files into a vector: rows of `file`, `row` (from 0), `line` and `vector`, in their order.

    Args:
        model: A line model's `.keras` or `.cell` file.
        data: The lines.
        output: The folder to write.
        batch_size: Lines a batch.
        share: The index of this process and the number of all; None reads both from the environment.
        progress: Called now and then with the finished lines and 0, because their total is not known.

    Raises:
        CellerateError: Anything wrong with the model, the files or the folder.

    Example:
        >>> from cellerate.tasks import bulk
        >>> from cellerate.tasks.settings import LineFiles
        >>> bulk.embed_files("titles.cell", LineFiles("titles/"), "vectors/")
    """
    require("pyarrow", "tables", "writing Parquet files")
    import pyarrow as pa

    reading = {name: value for name, value in vars(data).items() if name != "paths"}
    files = find_line_files(one_or_more(data.paths))
    embed = embedder_of(open_model(model), batch_size, data.errors)
    about = {"task": "embed", "model": file_digest(Path(model)), **reading}
    pieces = Pieces(Path(output), {**about, "data": [_state(file) for file in files]}, share)
    number = items = done = 0
    for file in files:
        for block_number, block in enumerate(line_blocks(file, _LINES_A_PIECE, **reading)):
            if pieces.own(number) and not pieces.done(number):
                lines, first = block(), block_number * _LINES_A_PIECE
                try:
                    vectors = embed(lines)
                except DataError as error:
                    raise DataError(f"{file}, counted from line {first + 1}: {marked(error)}") from error
                name = pa.DictionaryArray.from_arrays(np.zeros(len(lines), np.int32), [str(file)])
                rows = np.arange(first, first + len(lines))
                pieces.write(
                    number, {"file": name, "row": rows, "line": lines, "vector": vector_column(vectors)}
                )
                items += len(lines)
                if progress is not None:
                    progress(items, 0)
            done += pieces.done(number)
            number += 1
    if not number:
        raise DataError(f"{', '.join(map(str, files))} has no lines; expected at least one.")
    return PassResult(pieces.folder, number, done, items)


def forecast_files(
    model: _Path,
    data: SeriesFiles,
    output: _Path,
    *,
    levels: Sequence[float] | None = None,
    share: tuple[int, int] | None = None,
    progress: Progress | None = None,
    notify: Callable[[str], None] | None = None,
) -> PassResult:
    """Forecasts the rows after the end of each series: `series`, `time` and the targets, in the order of the series.

    Args:
        model: A forecaster's `.keras` or `.cell` file.
        data: The series.
        output: The folder to write.
        levels: The levels of intervals; see `cellerate.forecast`.
        share: The index of this process and the number of all; None reads both from the environment.
        progress: Called now and then with the number of finished series and their total.
        notify: Called with a sentence for each noteworthy fact about the data.

    Raises:
        CellerateError: Anything wrong with the model, the files or the folder.
    """
    listener = Callbacks(message=notify)
    forecaster, series = _open(model, data, listener)
    ends = list(series_ends(series, forecaster.settings.window).items())
    starts = range(0, len(ends), _SERIES_A_PIECE)
    intervals = Intervals.of(
        series, forecaster.settings, functools.partial(forecaster.forecast_at, series), levels
    )
    about: dict[str, Any] = {
        "task": "forecast",
        "model": file_digest(Path(model)),
        "data": series.fingerprint,
    }
    if data.future is not None:
        about |= {"future": [_state(Path(path)) for path in one_or_more(data.future)]}
    about |= {} if intervals is None else {"levels": list(intervals.reach)}
    pieces = Pieces(Path(output), about, share)
    left, items = pieces.left(len(starts)), 0
    for number in left:
        some = dict(ends[starts[number] : starts[number] + _SERIES_A_PIECE])
        examples = forecast_ends(forecaster.predict, series, forecaster.settings, ends=some)
        if intervals is not None:
            examples = intervals.around(examples)
        pieces.write(number, forecast_columns(examples))
        items += len(some)
        if progress is not None:
            progress(items, min(len(ends), len(left) * _SERIES_A_PIECE))
    if short := left_out(series, forecaster.settings.window):
        listener.message(short)
    done = sum(map(pieces.done, range(len(starts))))
    return PassResult(pieces.folder, len(starts), done, items)


def judge_files(
    model: _Path,
    data: SeriesFiles,
    output: _Path,
    *,
    part: str | None = None,
    share: tuple[int, int] | None = None,
    progress: Progress | None = None,
    notify: Callable[[str], None] | None = None,
) -> tuple[PassResult, dict[str, Any] | None]:
    """Judges a forecaster and the baselines on every window: rows of `series`, `windows`, and the mean errors.

    There is a row for each stretch without a gap; a long stretch is cut into several rows. Errors are per target:
    `model_mae_OT` is the mean absolute error of the model for the target OT, `scale_OT` is the divisor of MASE.

    Args:
        model: A forecaster's `.keras` or `.cell` file.
        data: The series.
        output: The folder to write.
        part: "all", or "held-out": the part that training on the same data held out. None: see
            `evaluate_forecaster`.
        share: The index of this process and the number of all; None reads both from the environment.
        progress: Called now and then with the number of finished windows and their total.
        notify: Called with a sentence for each noteworthy fact about the data.

    Returns:
        The result of the pass, and the figures of all windows, as by `evaluate`, once all pieces have results.

    Raises:
        CellerateError: Anything wrong with the model, the files or the folder.
    """
    forecaster, series = _open(model, data, Callbacks(message=notify))
    settings = forecaster.settings
    chosen = part_of(forecaster, series, part)
    judged, about_errors = chosen.part, judging_of(forecaster, series)
    cut = list(_cut(judged, settings.window, settings.window + settings.horizon))
    if not cut:
        # Called for its errors, which name the missing columns.
        raw_windows(judged, settings.window, settings.horizon, 1)
    about = {
        "task": "evaluate",
        "model": file_digest(Path(model)),
        "data": series.fingerprint,
        "part": chosen.name,
        "errors": 2,
    }
    pieces = Pieces(Path(output), about, share)
    left = pieces.left(len(cut))
    baselines = baselines_for(forecaster, chosen)
    total, before = sum(_windows(cut[number], settings.horizon) for number in left), 0
    for number in left:
        report = functools.partial(_report, progress, before, total)
        found = judge_windows(
            forecaster, SeriesPart(series, judged.name, tuple(cut[number])), baselines, report
        )
        pieces.write(number, _columns(found, about_errors))
        before += int(found.windows.sum())
    result = PassResult(pieces.folder, len(cut), sum(map(pieces.done, range(len(cut)))), before)
    if result.done < result.pieces:
        return result, None
    errors = _summed(pieces.read(len(cut)), about_errors)
    figures = forecaster_report(forecaster, chosen, baselines, errors) | judged_intervals(forecaster, chosen)
    return result, {"task": "series", **figures}


def _open(model: _Path, data: SeriesFiles, listener: Listener) -> tuple[SeriesForecaster, SeriesData]:
    """The model and the series."""
    forecaster = forecaster_of(open_model(model), os.fspath(model))
    future = None if data.future is None else one_or_more(data.future)
    series = forecaster.open(data.paths, future, data.reading, table=data.table, listener=listener)
    return forecaster, series


def _state(file: Path) -> list[Any]:
    """The properties of a file that change when its contents do, without reading it."""
    try:
        found = file.stat()
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}.") from error
    return [str(file), found.st_size, found.st_mtime_ns]


def _cut(part: SeriesPart, window: int, span: int) -> Iterator[list[tuple[int, int, int]]]:
    """The bounds of each piece of a part, each with a bounded number of windows of `span` rows."""
    piece: list[tuple[int, int, int]] = []
    room = _WINDOWS_A_PIECE
    for stretch in part.spans(window):
        first, count = stretch[0], count_in(stretch, span)
        while count:
            taken = min(count, room)
            piece.append((first, first + window, first + taken - 1 + span))
            first, count, room = first + taken, count - taken, room - taken
            if not room:
                yield piece
                piece, room = [], _WINDOWS_A_PIECE
    if piece:
        yield piece


def _windows(piece: Sequence[tuple[int, int, int]], horizon: int) -> int:
    return sum(count_in((begin, stop), horizon) for _, begin, stop in piece)


def _report(progress: Progress | None, before: int, total: int, done: int, of: int) -> None:
    if progress is not None:
        progress(before + done, total)


def _columns(found: SeriesErrors, about: Judging) -> dict[str, Any]:
    """The columns of a piece's results."""
    columns: dict[str, Any] = {"series": list(found.series), "windows": found.windows}
    for place, target in enumerate(about.targets):
        for name, sums in found.sums.items():
            for error, values in zip(ERRORS, sums[:, place].T, strict=True):
                columns[f"{name}_{error}_{target}"] = values / found.windows
        for quantile, values in zip(about.quantiles, found.pinball[:, place].T, strict=True):
            columns[f"pinball_q{quantile:g}_{target}"] = values / found.windows
        for name, values in zip(about.coverage_names, found.covered[:, place].T, strict=True):
            columns[f"coverage_{name}_{target}"] = values / found.windows
        columns[f"scale_{target}"] = found.scales[:, place]
    return columns


def _summed(table: dict[str, list[Any]], about: Judging) -> SeriesErrors:
    """The sums whose means `_columns` wrote."""
    windows = np.array(table["windows"])

    def sums(names: Sequence[str]) -> np.ndarray:
        """(S, T, names): the sums of each target."""
        found = np.empty((len(windows), len(about.targets), len(names)))
        for column, target in enumerate(about.targets):
            for place, name in enumerate(names):
                found[:, column, place] = np.array(table[f"{name}_{target}"]) * windows
        return found

    suffix = f"_{ERRORS[0]}_{about.targets[0]}"
    forecasts = [name.removesuffix(suffix) for name in table if name.endswith(suffix)]
    return SeriesErrors(
        tuple(table["series"]),
        windows,
        {name: sums([f"{name}_{error}" for error in ERRORS]) for name in forecasts},
        sums([f"pinball_q{quantile:g}" for quantile in about.quantiles]),
        sums([f"coverage_{name}" for name in about.coverage_names]),
        np.stack([np.array(table[f"scale_{target}"], np.float64) for target in about.targets], axis=1),
    )
