"""Finds rows of a series that a forecaster did not expect.

A row is compared with the median of all its forecasts, of steps 1 to the horizon, each made from earlier rows. A
forecast of one step alone would follow a spike, a shift or a stuck sensor from the next row on.
"""

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from cellerate.data.series import SeriesData
from cellerate.data.settings import TableOptions
from cellerate.data.tables import Tables
from cellerate.data.times import TimeForm
from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.keywords import DetectKeywords
from cellerate.listener import Callbacks
from cellerate.messages import argument
from cellerate.runtime.forecast import check_level, row_forecasts
from cellerate.settings import record_of, takes_fields_of
from cellerate.tasks.opening import Model, forecaster_of, open_model
from cellerate.tasks.settings import ReadingOptions

if TYPE_CHECKING:
    from cellerate.models.storage import TaskRecord

_LEVEL = 0.99


@dataclasses.dataclass(frozen=True, eq=False)
class Anomalies:
    """The distance of each row of a table from its forecasts; N rows, series after series, target after target.

    Attributes:
        level: The share of usual rows whose score is at most 1.
        series: (N,) the name of the series; "" without names.
        time: (N,) times, those of zones in UTC, or row numbers; `form` writes them as the data do.
        target: (N,) the column.
        value: (N,) in the units of the data, as are the next three.
        expected: (N,) the median of the forecasts of this row.
        low: (N,) the lower end of the interval of usual rows.
        high: (N,) its upper end.
        score: (N,) the distance from `expected`, divided by the distance that the share `level` of the held-out rows
            did not exceed.
        p_value: (N,) the share of held-out rows as far off or further.
        form: How the data write times.
    """

    level: float
    series: np.ndarray
    time: np.ndarray
    target: np.ndarray
    value: np.ndarray
    expected: np.ndarray
    low: np.ndarray
    high: np.ndarray
    score: np.ndarray
    p_value: np.ndarray
    form: TimeForm = dataclasses.field(default_factory=TimeForm)

    def __len__(self) -> int:
        return len(self.score)

    @property
    def anomaly(self) -> np.ndarray:
        """(N,) bool: a score above 1."""
        return self.score > 1

    def columns(self) -> dict[str, np.ndarray]:
        """The columns of a table, with `anomaly`; without `series` if none has a name."""
        names = [field.name for field in dataclasses.fields(self) if field.name not in ("level", "form")]
        found = {name: getattr(self, name) for name in names} | {"anomaly": self.anomaly}
        if not self.series.astype(bool).any():
            del found["series"]
        return found

    def worst(self, count: int) -> np.ndarray:
        """(at most count,) the indices of the anomalies with the highest scores, the highest first."""
        order = np.argsort(-self.score, kind="stable")[:count]
        return order[self.score[order] > 1]


@takes_fields_of(ReadingOptions, TableOptions)
def detect(
    model: Model,
    data: Tables,
    *,
    record: "TaskRecord | None" = None,
    level: float | None = None,
    progress: Callable[[int, int], None] | None = None,
    notify: Callable[[str], None] | None = None,
    **options: Unpack[DetectKeywords],
) -> Anomalies:
    """Finds rows of series that a forecaster did not expect.

    The threshold comes from the validation part of the training. So about `1 - level` of the rows are flagged in data
    as regular as that part; of the rows that the model was trained on, fewer.

    Args:
        model: A forecaster's `.keras` or `.cell` file, a Keras model, or the result of `load`.
        data: Tables, in files or frames, read as in training. Every row with `window` rows before it is judged.
        record: The record of a Keras model that is not given as a file, as `load_model` returns it.
        level: The share of usual rows that are not flagged; None for 0.99, or for the highest level that the
            validation part of the training was long enough for.
        progress: Called now and then with the number of finished rows and their total.
        notify: Called with a sentence for each noteworthy fact about how the tables were read.
        options: Options for the format of the tables, and those that differ from the training; listed below.

    Returns:
        For each row and target: `series`, `time`, `target`, `value`, `expected`, `low`, `high`, `score` (above 1 for an
        anomaly), `p_value` and `anomaly`, as arrays.

    Raises:
        ConfigError: The level is out of range, or too high for what the model was calibrated on.
        DataError: A file cannot be used, or no series has more than `window` rows without a gap.
        ModelError: The model is not a forecaster, or was not calibrated.

    Example:
        >>> found = cellerate.detect("ett.keras", "ETTh1.csv")
        >>> found.time[found.anomaly]
    """
    if level is not None:
        check_level(level)
    name = os.fspath(model) if isinstance(model, str | os.PathLike) else "this model"
    known = forecaster_of(open_model(model, record), name)
    settings = known.settings
    if settings.calibration is None:
        raise ModelError(
            f"{name} was not calibrated, so nobody knows how far a usual row may be from its forecast. Train it with "
            f"`cellerate train series` and a validation part ({argument('validation_fraction')})."
        )
    highest = float(settings.calibration.grid[-1])
    if level is None:
        level = min(_LEVEL, highest)
        if notify is not None and level < _LEVEL:
            notify(
                f"level {level:g}, the highest that a validation part of {settings.calibration.scored_rows:,} rows is "
                "long enough for"
            )
    reach = settings.calibration.reach_at(level, rows=True)
    reading, table = record_of(ReadingOptions, options), record_of(TableOptions, options)
    series = known.open(data, None, reading, table=table, listener=Callbacks(message=notify))
    bounds = [(first, first, stop) for first, stop, _ in series.segments]
    # The columns that are known in advance must be known for the whole horizon.
    least = settings.horizon if settings.covariates.future else 1
    counts = [stop - first - settings.window for first, _, stop in bounds]
    total = sum(count for count in counts if count >= least)
    if not total:
        more = f" and {least} rows to forecast" if least > 1 else ""
        raise DataError(
            f"no row can be judged: the model needs {settings.window} rows before it{more}, and no series has that "
            "many without a gap. Give more rows."
        )
    forecast = functools.partial(known.forecast_at, series)
    blocks: list[tuple[np.ndarray, ...]] = []
    done = 0
    for rows, expected, spread in row_forecasts(forecast, series, settings, bounds):
        divisor = settings.calibration.divisor(spread)
        # If all held-out forecasts were exact, any distance at all is an anomaly.
        far = np.maximum(reach * divisor, np.finfo(np.float32).tiny)
        value = np.asarray(series.values[rows], np.float64)[:, list(series.target_columns)]
        off = np.abs(value - expected)
        blocks.append((rows, value, expected, far, off / far, settings.calibration.p_values(off / divisor)))
        done += len(rows)
        if progress is not None:
            progress(done, total)
    return _table(series, level, *(np.concatenate(parts) for parts in zip(*blocks, strict=True)))


def check_anomalies_path(path: str | os.PathLike[str]) -> None:
    """Raises `ConfigError` for a path that is not *.csv, *.parquet or *.json."""
    if os.path.splitext(path)[1].lower() not in (".csv", ".parquet", ".json"):  # noqa: PTH122
        raise ConfigError(
            f"{argument('output')} is {os.fspath(path)!r}; expected a name that ends in .csv, .parquet or .json."
        )


def _table(
    data: SeriesData,
    level: float,
    rows: np.ndarray,
    value: np.ndarray,
    expected: np.ndarray,
    far: np.ndarray,
    score: np.ndarray,
    p_value: np.ndarray,
) -> Anomalies:
    """Rows of (R, targets) numbers, target after target within each series."""
    firsts = [first for first, _, _ in data.segments]
    names = np.array([name for _, _, name in data.segments], object)
    places = np.searchsorted(firsts, rows, side="right") - 1
    of = names[places]
    codes = {name: code for code, name in enumerate(dict.fromkeys(names.tolist()))}
    numbers = np.array([codes[name] for name in names], np.int64)
    targets = len(data.target_names)
    order = np.lexsort(
        (
            np.repeat(rows, targets),
            np.tile(np.arange(targets), len(rows)),
            np.repeat(numbers[places], targets),
        )
    )

    def flat(numbers: np.ndarray) -> Any:
        return numbers.ravel()[order]

    times = rows if data.times is None else np.asarray(data.times[rows])
    return Anomalies(
        level,
        np.repeat(of, targets)[order],
        np.repeat(times, targets)[order],
        np.tile(np.array(data.target_names, object), len(rows))[order],
        flat(value),
        flat(expected),
        flat(expected - far),
        flat(expected + far),
        flat(score),
        flat(p_value),
        data.form,
    )
