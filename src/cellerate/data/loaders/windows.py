"""Windows of arrays and tables for `fit`, with the arguments of Keras's `timeseries_dataset_from_array`."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex, TypeAlias, Unpack, cast

import numpy as np

from cellerate.data.arrays import Batch, at_least, source_fingerprint
from cellerate.data.loaders.loader import ArrayLike, Loader, drawn_seed, is_array, numbers_of
from cellerate.data.series import SeriesData, SeriesPart, open_series
from cellerate.data.settings import FILLED_IN, Reading, TableOptions
from cellerate.data.tables import Tables, as_sources
from cellerate.data.windows import Scaler, SeriesBatches, WindowSettings
from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.keywords import WindowsKeywords
from cellerate.listener import Callbacks
from cellerate.messages import argument
from cellerate.settings import one_or_more, record_of, takes_fields_of

_Names: TypeAlias = str | Sequence[str]


@dataclasses.dataclass(frozen=True)
class _Form:
    """The form of windows, for each part of a series.

    Attributes:
        settings: The settings of the windows and batches.
        scale: True to scale by the part, or a scaler.
        inner: The shape of a row, if rows are single numbers or arrays of several axes; None for columns.
        targets: (N, ...) the target of the window that begins at each row; None for rows of the series.
    """

    settings: WindowSettings
    scale: bool | Scaler
    inner: tuple[int, ...] | None = None
    targets: np.ndarray | None = None


class _FormedWindows(SeriesBatches):
    """Windows of a part of a series with rows of any shape, and with separate targets if the user gave any."""

    def __init__(self, part: SeriesPart, form: _Form, scaler: Scaler | None) -> None:
        super().__init__(part, form.settings, scaler)
        self._inner, self._own_targets = form.inner, form.targets
        self._settings += f" {form.inner}"
        if form.targets is not None:
            self._settings += f" {source_fingerprint('targets', form.targets, None)}"

    def _read(self, epoch: int, first: int, last: int) -> Batch:
        arrays = super()._read(epoch, first, last)
        if self._inner is not None:
            arrays = tuple(array.reshape(*array.shape[:2], *self._inner) for array in arrays)
        if self._own_targets is None:
            return arrays
        found = self._own_targets[self._plan.where(epoch, first, last)]
        return *arrays, found.astype(np.float32, copy=False) if found.dtype.kind == "f" else found


class Windows(Loader):
    """Windows as batches `(x, y)`, or `(x,)` without a target; see `cellerate.windows`.

    Attributes:
        feature_names: The columns of the input.
        target_names: The columns of the target.
        scaler: The mean and the scale of each column, or None.
        seed: The seed of the shuffle, or None.
    """

    def __init__(self, part: SeriesPart, form: _Form) -> None:
        self._part, self._form = part, form
        self.feature_names, self.target_names = part.data.feature_names, part.data.target_names
        self.seed = form.settings.seed
        self.scaler = _scaler(part, form.scale)
        super().__init__(_FormedWindows(part, form, self.scaler))

    def split(self, train: float = 0.7, validation: float = 0.1) -> "tuple[Windows, ...]":
        """Cut each series in time: training, then validation, then what is left as test part.

        Every row is the target of one part only; the inputs of the first windows of a part look back into the part
        before it. All parts are scaled as the training part. The validation and the test part are in order, and have
        all windows.

        Args:
            train: The share of rows to train on.
            validation: The share of rows after those; 0 leaves this part out.

        Returns:
            The parts that have a share of the rows.

        Raises:
            ConfigError: The shares are out of range, or targets were given as a separate array, whose rows have no
                known time.
            DataError: A part is too short for a window.
        """
        if self._form.targets is not None:
            raise ConfigError(
                f"the targets are an array of their own, so nobody knows at which row they are known: name "
                f"columns as targets ({argument('targets')}), or cut the data with {argument('start_index')} "
                f"and {argument('end_index')}."
            )
        parts = self._part.data.split(train, validation)
        first = Windows(parts.train, self._form)
        held = dataclasses.replace(
            self._form,
            settings=dataclasses.replace(self._form.settings, seed=None, drop_last=False),
            scale=first.scaler or False,
        )
        others = [Windows(part, held) for part in (parts.validation, parts.test) if part.rows]
        return first, *others

    def unscale(self, values: ArrayLike) -> np.ndarray:
        """Take scaled targets, such as predictions (B, horizon, targets), back to the units of the data.

        Without a scaler they are returned as they are.
        """
        array = np.asarray(values)
        if self.scaler is None:
            return array
        return self.scaler.inverse_transform(array, self._part.data.target_columns)


@takes_fields_of(Reading, TableOptions, leave_out=FILLED_IN)
def windows(
    data: Tables | ArrayLike,
    targets: _Names | ArrayLike | None,
    sequence_length: int,
    sequence_stride: int = 1,
    sampling_rate: int = 1,
    batch_size: int = 128,
    shuffle: bool = False,
    seed: int | None = None,
    start_index: int | None = None,
    end_index: int | None = None,
    *,
    horizon: int | None = None,
    features: _Names | None = None,
    scale: bool | Scaler = False,
    drop_last: bool = False,
    notify: Callable[[str], None] | None = None,
    **options: Unpack[WindowsKeywords],
) -> Windows:
    """Make batches of windows for `fit` of series, a few million windows a second, in bounded memory.

    The arguments and the windows are those of `keras.utils.timeseries_dataset_from_array`: to switch, change only the
    function's name. In addition, series can be read from tables, targets named by column, and the number of rows to
    forecast given as `horizon`. A window is an index; nothing is copied before its batch is made.

    Args:
        data: (N,), (N, F) or (N, ...) numbers, a memory map too; or tables: files (CSV, Parquet, Arrow, Excel, JSON
            lines, `.npy`), frames of pandas, polars or Arrow, or a packed series. The columns of an array are "0", "1"
            and so on. Gaps and the ends of series are not crossed.
        targets: Columns whose next `horizon` rows are the target; or, as in Keras, an array whose row `i` is the target
            of the window that begins at row `i` of `data`; or None, which with a `horizon` stands for all columns of an
            array, and without one for no target.
        sequence_length: Rows of a window.
        sequence_stride: Rows between the starts of two windows.
        sampling_rate: Rows between two neighbouring rows of a window, and of its target.
        batch_size: Windows per batch.
        shuffle: Draws the windows of each epoch in a new order.
        seed: The seed of that order; None draws one.
        start_index: The first row of an array to use.
        end_index: The row of an array after the last one to use.
        horizon: Rows of the target, which continue the window; None is 1 if columns are named.
        features: Columns of the input; None for all columns of numbers.
        scale: Scales each column to mean 0 and deviation 1 over all rows, or over the training part after a `split`;
            or the `scaler` of other windows.
        drop_last: Leaves out the windows that do not fill a batch. Otherwise the last batch is smaller.
        notify: Called with a sentence for each noteworthy fact about how tables were read.
        options: How tables are read, listed below.

    Returns:
        A `keras.utils.PyDataset` for `fit`, `evaluate` and `predict`. A batch is `(x, y)`, or `(x,)` without a target:
        x is (B, sequence_length, F), y (B, horizon, targets), or (B, ...) of an array of targets. Floats are float32.
        `split(train, validation)` cuts it in time, `unscale(y)` takes predictions back to the units of the data,
        `input_shape` is that of `keras.Input`, `as_tf_dataset(epoch)` and `as_torch_dataset(epoch)` are the same
        batches for loops of your own. `epoch` is the next epoch: set it in such a loop, or to continue a training.

    Raises:
        ConfigError: An argument cannot be used.
        DataError: The data cannot be read, hold no window, or hold no numbers.

    Example:
        >>> train, validation, test = cellerate.windows(
        ...     "ETTh1.csv", "OT", 96, horizon=24, batch_size=64, shuffle=True, seed=0, scale=True
        ... ).split()
        >>> model.fit(train, validation_data=validation, epochs=3)
        >>> test.unscale(model.predict(test))
    """
    at_least(1, sequence_length=sequence_length)
    settings = WindowSettings(
        window=sequence_length,
        horizon=int(_named(targets)) if horizon is None else horizon,
        batch_size=batch_size,
        stride=sequence_stride,
        sampling_rate=sampling_rate,
        seed=drawn_seed(shuffle, seed),
        drop_last=drop_last,
        fill_last=False,
    )
    if is_array(data):
        if options:
            raise ConfigError(
                f"{', '.join(argument(name) for name in options)} say how tables are read, and the data are an array: "
                "leave that out."
            )
        return _array_windows(data, targets, settings, (start_index, end_index), features, scale)
    if start_index is not None or end_index is not None:
        raise ConfigError(
            f"{argument('start_index')} and {argument('end_index')} are for arrays: cut tables in time with "
            "split(train, validation) of what is returned."
        )
    sources = as_sources(cast(Tables, data))
    if not _named(targets):
        raise ConfigError(
            f"{argument('targets')} is {targets!r:.40}; expected the names of columns of the tables to forecast."
        )
    at_least(1, horizon=settings.horizon)
    reading = record_of(
        Reading, options, targets=one_or_more(targets), features=features and one_or_more(features)
    )
    listener = Callbacks(message=notify)
    series = open_series(sources, reading, table=record_of(TableOptions, options), listener=listener)
    for note in series.notes:
        listener.message(note)
    return Windows(series.whole(), _Form(settings, scale))


def _array_windows(
    data: Any,
    targets: Any,
    settings: WindowSettings,
    rows: tuple[int | None, int | None],
    features: _Names | None,
    scale: bool | Scaler,
) -> Windows:
    values = numbers_of("data", data)
    first, stop = _rows(rows, len(values))
    own = None if targets is None or _named(targets) else numbers_of("targets", targets)
    if own is not None:
        if settings.horizon:
            raise ConfigError(
                f"{argument('horizon')} is {settings.horizon}, and the targets are an array, whose row i is the whole "
                "target of the window that begins at row i: leave one of the two out."
            )
        # A window that begins after the last target has none.
        stop = min(stop, len(own) + (settings.window - 1) * settings.sampling_rate)
    inner = None if values.ndim == 2 else values.shape[1:]
    table = values.reshape(len(values), -1)
    names = tuple(str(number) for number in range(table.shape[1]))
    place = {name: number for number, name in enumerate(names)}

    def columns(which: str, chosen: Any) -> tuple[int, ...]:
        if chosen is None:
            return tuple(place.values())
        if inner is not None:
            raise ConfigError(
                f"{argument(which)} names columns, and the data have the shape {values.shape}: expected "
                "(rows, columns)."
            )
        unknown = [name for name in one_or_more(chosen) if name not in place]
        if unknown:
            raise DataError(
                f"there is no column {unknown[0]!r} for {argument(which)}: an array of the shape {values.shape} has "
                f'the columns "0" to "{len(names) - 1}".'
            )
        return tuple(place[name] for name in one_or_more(chosen))

    series = SeriesData(
        values=table,
        columns=names,
        feature_columns=columns("features", features),
        target_columns=columns("targets", targets if _named(targets) else None),
        times=None,
        segments=((first, stop, ""),),
        step=None,
        fingerprint=source_fingerprint("array", table, None),
    )
    return Windows(series.whole(), _Form(settings, scale, inner, own))


def _named(targets: Any) -> bool:
    """True if targets are names of columns."""
    if isinstance(targets, list | tuple):
        return bool(targets) and all(isinstance(one, str) for one in targets)
    return isinstance(targets, str)


def _rows(chosen: tuple[int | None, int | None], rows: int) -> tuple[int, int]:
    first, stop = chosen
    first, stop = 0 if first is None else first, rows if stop is None else stop
    if not (
        isinstance(first, SupportsIndex) and isinstance(stop, SupportsIndex) and 0 <= first < stop <= rows
    ):
        raise ConfigError(
            f"{argument('start_index')} is {first!r} and {argument('end_index')} {stop!r}; expected rows of the "
            f"data, 0 to {rows:,}, the first before the last."
        )
    return first, stop


def _scaler(part: SeriesPart, scale: bool | Scaler) -> Scaler | None:
    if not isinstance(scale, bool):
        return scale
    try:
        return Scaler.fit(part) if scale else None
    except ModelError as error:
        raise DataError(
            f"the data cannot be scaled ({argument('scale', True)}), for they hold NaN, infinite or huge values: fill "
            f"them in, or leave {argument('scale')} out."
        ) from error
