"""Windows of a long array: inputs, and the rows that follow as targets, without storing a single window.

A window is only a number here; many are copied in one gather and handed out batch by batch.
`data.windows.text_windows` has the windows of a text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cellerate.data.arrays import (
    CHUNK_BYTES,
    MIXING_BYTES,
    Batch,
    GatheredBatches,
    Shuffle,
    WindowIndex,
    at_least,
    digest,
    joined,
    plan_windows,
    source_fingerprint,
    take_windows,
)
from cellerate.errors import ConfigError, DataError
from cellerate.messages import argument

if TYPE_CHECKING:
    from cellerate.data.series import SeriesPart
    from cellerate.data.windows.scaler import Scaler

# Rows up to this size are converted before windows are taken from them: a row is in many windows.
_PREPARED_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowSettings:
    """The form of windows and batches, and their order.

    Attributes:
        window: Rows of the input, at least 1.
        horizon: Rows of the target, which continue the input. With 0 there is no target, and batches are `(x,)`.
        batch_size: Windows per batch.
        stride: Rows between the starts of neighbouring windows.
        seed: The seed of the shuffle, which differs each epoch; None keeps the order in every epoch.
        drop_last: True leaves out the windows that do not fill a batch (different ones each epoch, if
            shuffled). False keeps them: every batch is then `(x, y, sample_weight)`, and the last one is
            filled up with copies of weight 0, so that shapes never change. False needs a horizon.
        fill_last: With `drop_last=False`, False makes the last batch a smaller one, without weights.
        sampling_rate: Rows between two neighbouring rows of a window, and of its target.
        shuffle: "exact" or "blocks", as `BlockPlan` says; "auto" takes blocks for a large memory-mapped file.
        mixing_bytes: How much of the file "blocks" mixes at a time; see `BlockPlan` for the trade-off.
    """

    window: int
    horizon: int = 0
    batch_size: int
    stride: int = 1
    seed: int | None = None
    drop_last: bool = True
    fill_last: bool = True
    sampling_rate: int = 1
    shuffle: Shuffle = "auto"
    mixing_bytes: int = MIXING_BYTES

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            ConfigError: A field cannot be used.
        """
        at_least(
            1,
            window=self.window,
            batch_size=self.batch_size,
            stride=self.stride,
            sampling_rate=self.sampling_rate,
            mixing_bytes=self.mixing_bytes,
        )
        at_least(0, horizon=self.horizon)
        if self.shuffle not in ("auto", "exact", "blocks"):
            raise ConfigError(f'shuffle is {self.shuffle!r}; expected "auto", "exact" or "blocks".')
        if self.fills_last and not self.horizon:
            raise ConfigError(
                f"{argument('drop_last', False)} needs a horizon: a weight of 0 marks a target, and there is none."
            )

    @property
    def fills_last(self) -> bool:
        """True if rows of weight 0 fill up the last batch."""
        return self.fill_last and not self.drop_last

    @property
    def reach(self) -> int:
        """The rows from the first one of a window to the first one of its target."""
        return self.window * self.sampling_rate

    def index(self, table: np.ndarray) -> WindowIndex:
        """Finds the windows in a table of segments.

        Raises:
            DataError: No window fits, or too few for one batch.
        """
        span = (self.window + self.horizon - 1) * self.sampling_rate + 1
        index = WindowIndex(table, span, self.stride)
        if not index.count:
            longest = int((table[:, 1] - table[:, 0]).max())
            where = "the series has" if len(table) == 1 else f"the longest of {len(table)} segments has"
            raise DataError(
                f"no window fits: {where} {longest} rows, but a window of {self.window} and a horizon of "
                f"{self.horizon} need {span}. Give a longer series, or a smaller window or horizon."
            )
        if self.drop_last and index.count < self.batch_size:
            raise DataError(
                f"the data hold {index.count} windows (window {self.window}, horizon {self.horizon}, stride "
                f"{self.stride}), fewer than one batch of {self.batch_size}. Lower {argument('batch_size')}, the "
                "window or the stride."
            )
        return index


class WindowSource(GatheredBatches):
    """Windows of a long array, as inputs and the rows that follow as targets.

    A memory-mapped file of more than 32 MiB is read in blocks, so that resident memory does not grow with the
    file; it is then shuffled on two levels, as `BlockPlan` says. Everything else is shuffled exactly.

    Args:
        values: (N, F) or (N,) array or memory map. Floats come out as float32, other types unchanged.
        settings: The form of the windows and batches, and their order.
        segments: (first row, row after the last) of each stretch, rising and not overlapping; no window
            crosses from one to the next. None makes the whole array one segment.
        data_fingerprint: Content hash of `values`, if known; otherwise `fingerprint` computes one from up to
            4 MiB of it.

    Raises:
        ConfigError: The segments cannot be used.
        DataError: No window fits, or too few for one batch.
    """

    def __init__(
        self,
        values: np.ndarray,
        settings: WindowSettings,
        *,
        segments: Sequence[tuple[int, int]] | None = None,
        data_fingerprint: str | None = None,
    ) -> None:
        super().__init__()
        if values.ndim not in (1, 2):
            raise DataError(f"values has shape {values.shape}; expected (rows,) or (rows, features).")
        table = _checked_segments(segments, len(values))
        index = settings.index(table)
        window, horizon, batch_size = settings.window, settings.horizon, settings.batch_size
        stride, seed, drop_last = settings.stride, settings.seed, settings.drop_last
        self.batch_size = batch_size
        self.item = "windows"
        self.items_per_batch = batch_size
        self.window, self.horizon, self.stride, self.seed = window, horizon, stride, seed
        self._reach, self._step = settings.reach, settings.sampling_rate
        self._values = values
        self._windows, self._pad = index.count, settings.fills_last
        self._short = not drop_last and not settings.fill_last
        self._plan = plan_windows(values, index, seed, settings.shuffle, settings.mixing_bytes)
        row_bytes = int(np.prod(values.shape[1:], dtype=np.int64)) * max(4, values.dtype.itemsize)
        bytes_each = (window + horizon) * row_bytes
        self._chunk = max(1, CHUNK_BYTES // (bytes_each * batch_size))
        self._data_fingerprint = data_fingerprint
        self._converted: tuple[tuple[np.ndarray, np.ndarray, np.ndarray], ...] = ()
        self._settings = (
            f"windows/1 {window} {horizon} {stride} {batch_size} {seed} {drop_last} "
            f"{type(self._plan).__name__} {settings.mixing_bytes} {digest(table.tobytes())}"
        )
        # Checkpoints of runs without these go on to fit.
        if self._short or self._step > 1:
            self._settings += f" {self._short} {self._step}"

    def fingerprint(self) -> str:
        """See `BatchSource.fingerprint`."""
        return source_fingerprint(self._settings, self._values, self._data_fingerprint)

    def origins(self, epoch: int, index: int) -> np.ndarray:
        """(B,) int64, the row of the whole array after each window of a batch; that of the last for its copies."""
        first = index * self.batch_size
        found = self._plan.where(epoch, first, min(first + self.batch_size, self._windows)) + self._reach
        return found[np.minimum(np.arange(self.batch_size), len(found) - 1)]

    def _read(self, epoch: int, first: int, last: int) -> Batch:
        xs, ys = [], []
        for rows, starts in self._plan.locate(epoch, first, last):
            if rows.nbytes <= _PREPARED_BYTES:
                # A row is in many windows: it is converted once.
                inputs, targets = self._prepared(rows)
                xs.append(take_windows(inputs, starts, 0, self.window, self._step))
                if self.horizon:
                    ys.append(take_windows(targets, starts, self._reach, self.horizon, self._step))
            else:
                xs.append(self._inputs(take_windows(rows, starts, 0, self.window, self._step)))
                if self.horizon:
                    taken = take_windows(rows, starts, self._reach, self.horizon, self._step)
                    ys.append(self._targets(taken))
        parts = (joined(xs), joined(ys)) if ys else (joined(xs),)
        return tuple(part[..., 0] for part in parts) if self._values.ndim == 1 else parts

    def _prepared(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The inputs and the targets of rows that several calls may ask for."""
        for known, inputs, targets in self._converted:
            if known is rows:
                return inputs, targets
        inputs = self._inputs(rows)
        targets = self._targets(rows) if self.horizon else inputs
        # Two are kept, for threads on both sides of a border. A single assignment needs no lock.
        self._converted = ((rows, inputs, targets), *self._converted[:1])
        return inputs, targets

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_converted": ()}

    def _inputs(self, rows: np.ndarray) -> np.ndarray:
        """Turns raw rows (..., F) into inputs; `SeriesBatches` scales and selects columns here."""
        return _as_float32(rows)

    def _targets(self, rows: np.ndarray) -> np.ndarray:
        """The same for targets."""
        return _as_float32(rows)


class SeriesBatches(WindowSource):
    """Windows of one part of a time series, scaled: past features in, future targets out.

    The stored values stay as they are, float16 included. Each batch is converted to float32 and scaled after
    the gather, so a series larger than memory trains without a scaled copy. All targets lie in the part; the
    inputs of its first windows reach back into the part before it.

    Args:
        part: From `SeriesData.split`, or `SeriesData.whole`.
        settings: The form of the windows and batches, and their order.
        scaler: Fitted on the training part; None leaves values unscaled.

    Batches hold x (B, window, features) float32, with a horizon y (B, horizon, targets) float32 and, with
    `drop_last=False`, sample_weight (B,) float32.

    Raises:
        ConfigError: A setting is out of range, or the scaler is for other columns.
        DataError: No window fits, or too few for one batch.
    """

    def __init__(self, part: SeriesPart, settings: WindowSettings, scaler: Scaler | None = None) -> None:
        data = part.data
        if scaler is not None and scaler.columns != data.columns:
            raise ConfigError(
                f"the scaler is for the columns {', '.join(scaler.columns)}, but the series has "
                f"{', '.join(data.columns)}. Fit the scaler on a part of this series."
            )
        super().__init__(
            data.values,
            settings,
            # Without a target, a window is of the part that its rows are of.
            segments=part.spans(settings.reach if settings.horizon else 0),
            data_fingerprint=digest(f"{data.fingerprint} {scaler and scaler.to_config()}".encode()),
        )
        every = tuple(range(data.values.shape[1]))
        self._scaler = scaler
        self._feature_columns = None if data.feature_columns == every else list(data.feature_columns)
        self._target_columns = None if data.target_columns == every else list(data.target_columns)

    def _inputs(self, rows: np.ndarray) -> np.ndarray:
        return self._scaled(rows, self._feature_columns)

    def _targets(self, rows: np.ndarray) -> np.ndarray:
        return self._scaled(rows, self._target_columns)

    def _scaled(self, values: np.ndarray, columns: list[int] | None) -> np.ndarray:
        if columns is not None:
            values = values[..., columns]
        return _as_float32(values) if self._scaler is None else self._scaler.transform(values, columns)


def _checked_segments(segments: Sequence[tuple[int, int]] | None, rows: int) -> np.ndarray:
    if segments is None:
        return np.array([[0, rows]], dtype=np.int64)
    table = np.asarray(segments, dtype=np.int64).reshape(-1, 2)
    if not len(table):
        raise DataError("segments is empty; expected at least one (first row, row after the last).")
    flat = table.ravel()
    if flat[0] < 0 or flat[-1] > rows or (np.diff(flat) < 0).any():
        raise ConfigError(
            f"segments must rise, not overlap and lie within 0 to {rows}, not {table[:3].tolist()}"
            + (" ..." if len(table) > 3 else "")
        )
    return table


def _as_float32(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32, copy=False) if values.dtype.kind == "f" else values
