"""Forecasts with a packed model, in the units of the data: neither Keras nor a framework is needed.

Everything around a forecaster (which columns it reads, its scaler, the times that follow) is the same for a packed
model and for the Keras model it came from, so the tasks use these functions too. Forecasting rows needs only NumPy;
CSV and Parquet files need pyarrow.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cellerate.data.arrays import unmasked
from cellerate.data.series import SeriesData
from cellerate.data.settings import Reading
from cellerate.data.times import Frequency, TimeForm
from cellerate.data.windows import Covariates, Inputs, Scaler, held_by
from cellerate.errors import DataError, ModelError
from cellerate.format import counted
from cellerate.runtime.cell import Cell
from cellerate.runtime.forecast.ends import row_times, series_ends
from cellerate.runtime.forecast.forecast_rows import RowForecaster
from cellerate.runtime.forecast.intervals import Calibration
from cellerate.runtime.forecast.named_rows import by_name
from cellerate.runtime.forecast.origins import forecast_at
from cellerate.runtime.forecast.settings import ForecastSettings, Predict
from cellerate.runtime.program import Engine

__all__ = [
    "Example",
    "ForecastSettings",
    "Forecaster",
    "Predict",
    "forecast_ends",
    "forecast_settings",
]

_MOST_ROWS = 2**31 - 1
# A Keras model holds its results for all of them in memory.
_SERIES_AT_ONCE = 1024


@dataclasses.dataclass(frozen=True)
class Example:
    """One window, what came after it, and the forecast, in the units of the data.

    Attributes:
        targets: Names of the targets.
        past_times: (window,) times or row numbers.
        past: (window, targets).
        times: (horizon,) times or row numbers.
        truth: (horizon, targets), or None if the future is not known.
        forecast: (horizon, targets) or (horizon, targets, Q).
        quantiles: The Q quantiles, or empty.
        series: The name of the series, or "".
        intervals: By level, such as 0.8: (horizon, targets, 2), low and high. Empty without intervals.
        form: How the data write times.
    """

    targets: tuple[str, ...]
    past_times: np.ndarray
    past: np.ndarray
    times: np.ndarray
    truth: np.ndarray | None
    forecast: np.ndarray
    quantiles: tuple[float, ...]
    series: str = ""
    intervals: Mapping[float, np.ndarray] = dataclasses.field(default_factory=dict)
    form: TimeForm = dataclasses.field(default_factory=TimeForm)


def forecast_settings(payload: Any, model: str) -> ForecastSettings:
    """The settings in the task record of a forecaster.

    Args:
        payload: The record; any JSON.
        model: What messages call the model.

    Raises:
        ModelError: The record is damaged.
    """
    try:
        if not isinstance(payload, dict) or not isinstance(payload.get("options"), dict):
            raise ValueError("it holds no options")
        options = payload["options"]
        targets, features = _names(options, "target"), _names(options, "feature")
        scaler = Scaler.from_config(payload["scaler"])
        if list(scaler.columns) != list(dict.fromkeys([*features, *targets])):
            raise ValueError("its scaler does not belong to its features and targets")
        covariates = Covariates.from_config(payload.get("covariates"), scaler)
        every = list(dict.fromkeys([*features, *options.get("future", ())]))
        if every != features or not set(covariates.future) <= set(features):
            raise ValueError("its future columns are none of its features")
        reading = dataclasses.replace(
            _reading(options), targets=targets, features=features, missing_marks=_words(payload)
        )
        horizon, kept = _count(options, "horizon"), payload.get("calibration")
        return ForecastSettings(
            reading,
            _count(options, "window"),
            horizon,
            _quantiles(payload["quantiles"]),
            scaler,
            covariates,
            None if kept is None else Calibration.from_config(kept, horizon, len(targets)),
            _frequency(payload),
        )
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
        raise ModelError(
            f"the task record of {model} is damaged: {reason}. Train the model again."
        ) from error


def _frequency(payload: Mapping[str, Any]) -> Frequency | None:
    """The frequency of the data of the training; None in models of earlier versions."""
    config = dict(payload.get("data") or {}).get("frequency")
    return None if config is None else Frequency.from_config(dict(config))


def forecast_ends(
    predict: Predict,
    data: SeriesData,
    settings: ForecastSettings,
    progress: Callable[[int, int], None] | None = None,
    *,
    ends: Mapping[str, int] | None = None,
) -> tuple[Example, ...]:
    """Forecasts what comes after the end of each series.

    Args:
        predict: The model.
        data: The series; the last `window` rows of each are used.
        settings: How the model was trained to read it.
        progress: Called now and then with how many series are done, and of how many.
        ends: Some of what `series_ends` gives, to forecast those only; None for all.

    Returns:
        One `Example` a series, without truth.

    Raises:
        DataError: Each series has fewer than `window` rows after its last gap.
    """
    window = settings.window
    ends = series_ends(data, window) if ends is None else ends
    targets = list(data.target_columns)
    origins = np.array(list(ends.values()), np.int64)
    parts = []
    for begin in range(0, len(origins), _SERIES_AT_ONCE):
        some = origins[begin : begin + _SERIES_AT_ONCE]
        parts.append(forecast_at(predict, data, settings, some))
        if progress is not None:
            progress(begin + len(some), len(origins))
    made = np.concatenate(parts)
    found = []
    for place, (series, stop) in enumerate(ends.items()):
        times = row_times(data, stop - window, stop)
        found.append(
            Example(
                targets=data.target_names,
                past_times=times,
                past=np.asarray(data.values[stop - window : stop], np.float64)[:, targets],
                times=data.times_after(stop, settings.horizon),
                truth=None,
                forecast=made[place],
                quantiles=settings.quantiles,
                series=series,
                form=data.form,
            )
        )
    return tuple(found)


class Forecaster:
    """A packed forecaster.

    Args:
        cell: What its file holds.
        engine: Runs its program.

    Raises:
        ModelError: The record is damaged, or the program is not a forecaster of the record's columns.
    """

    def __init__(self, cell: Cell, engine: Engine) -> None:
        self._settings = settings = forecast_settings(cell.header.get("payload"), "this packed model")
        self._engine = engine
        columns = {name: place for place, name in enumerate(settings.scaler.columns)}
        self._features: tuple[str, ...] = tuple(settings.reading.features or ())
        self._targets = [columns[name] for name in settings.reading.targets]
        program = engine.program
        shapes: list[Any] = [program.nodes[number].options["shape"] for number in program.inputs.values()]
        wanted = settings.covariates.input_shapes(len(self._features), settings.window, settings.horizon)
        fits = len(program.outputs) == 1 and (
            # The only input may have any name.
            _shape_fits(shapes[0], wanted["series"])
            if len(shapes) == len(wanted) == 1
            else set(program.inputs) == set(wanted)
            and all(map(_shape_fits, shapes, [wanted[name] for name in program.inputs]))
        )
        if not fits:
            expected = ", ".join(f"{name} {(-1, *shape)}" for name, shape in wanted.items())
            expected = (
                f"one input {(-1, *wanted['series'])}" if len(wanted) == 1 else f"the inputs {expected}"
            )
            raise ModelError(
                f"this packed model does not fit its record: expected {expected} and one output, got "
                f"{len(program.outputs)} outputs and the inputs {shapes!s:.80}. Pack the trained model again."
            )
        self._rows = RowForecaster(
            self.predict,
            settings.scaler,
            settings.covariates,
            window=settings.window,
            horizon=settings.horizon,
            features=self._features,
            targets=self._targets,
            quantiles=bool(settings.quantiles),
        )

    def forecast(
        self, rows: Any, future: Any = None, times: Any = None, series: str | Sequence[str] | None = None
    ) -> np.ndarray:
        """See `PackedModel.forecast`."""
        given = self._checked(rows)
        made = self._rows.forecast(given if given.ndim == 3 else given[None], future, times, series)
        return made if given.ndim == 3 else made[0]

    @property
    def settings(self) -> ForecastSettings:
        """The way the model reads a series."""
        return self._settings

    def predict(self, scaled: Inputs) -> np.ndarray:
        """Forecasts of scaled windows; see `Predict`."""
        (made,) = self._engine.run(scaled).values()
        quantiles, targets = self._settings.quantiles, len(self._targets)
        expected = [(self._settings.horizon, targets, *([len(quantiles)] if quantiles else []))]
        if targets == 1 and not quantiles:
            expected.append((self._settings.horizon,))
        if made.shape[1:] not in expected:
            raise ModelError(
                f"this packed model gives {made.shape[1:]} for a window, but its record says {expected[0]}: pack it "
                "with the record that it was trained with."
            )
        return made

    def _checked(self, rows: Any) -> np.ndarray:
        """The last `window` rows of each window, float32, or float64 if they are of a type that it does not hold."""
        window, count = self._settings.window, len(self._features)
        wanted = (
            f"numbers of shape (rows, {count}) or (windows, rows, {count}), with at least {window} rows and the "
            f"features {', '.join(self._features):.200}"
        )
        named = by_name(rows, self._features)
        try:
            array = np.asarray(unmasked(rows)) if named is None else named
        except ValueError as error:
            raise DataError(f"rows must be {wanted}, not rows of different lengths.") from error
        if array.dtype.kind not in "fiu":
            raise DataError(f"rows must be {wanted}, not dtype {array.dtype}.")
        if array.ndim not in (2, 3) or array.shape[-1] != count:
            raise DataError(f"rows must be {wanted}, not shape {array.shape}.")
        if array.shape[-2] < window:
            found = array.shape[-2]
            raise DataError(
                f"rows has {counted(found, 'row')}, but the model forecasts from {window}: "
                "give at least that many."
            )
        before = array.shape[-2] - window
        with np.errstate(over="ignore"):
            last = array[..., before:, :].astype(np.float32)
        wrong = np.argwhere(~np.isfinite(last))
        if len(wrong):
            place = tuple(map(int, wrong[0]))
            where = f"row {place[-2] + before}, column {self._features[place[-1]]!r}"
            if array.ndim == 3:
                where = f"window {place[0]}, {where}"
            value = array[(*place[:-2], place[-2] + before, place[-1])]
            raise DataError(
                f"rows holds {value!s} in {where} (counted from 0): fill in missing values, and scale down those "
                "that are too large for float32."
            )
        return array[..., before:, :].astype(held_by(array.dtype))


def _shape_fits(shape: Sequence[int], row: Sequence[int]) -> bool:
    """True if an input has the shape that rows have; any number of steps may do."""
    return len(shape) == len(row) + 1 and all(
        found == wanted or (axis == 0 and found == -1)
        for axis, (found, wanted) in enumerate(zip(shape[1:], row, strict=True))
    )


def _names(options: Mapping[str, Any], name: str) -> list[str]:
    found = options[name]
    if not isinstance(found, list) or not found or not all(isinstance(each, str) for each in found):
        raise ValueError(f"{name} must be a list of names, not {found!r:.40}")
    if len(set(found)) < len(found):
        raise ValueError(f"{name} names a column twice")
    return found


def _reading(options: Mapping[str, Any]) -> Reading:
    """The reading that a training's options describe."""
    texts = {name: options[name] for name in ("time_column", "time_zone", "frequency")}
    for name, value in texts.items():
        if not isinstance(value, str | None):
            raise ValueError(f"{name} must be a name or null, not {value!r:.40}")
    wide, series = options["wide"], options["series_column"]
    if not isinstance(wide, bool):
        raise ValueError(f"wide must be true or false, not {wide!r:.40}")
    if not isinstance(series, list | tuple) or not all(isinstance(each, str) for each in series):
        raise ValueError(f"series_column must be a list of names, not {series!r:.40}")
    return Reading(
        **texts,
        series_column=series,
        wide=wide,
        missing=options["missing"],
        gaps=options["gaps"],
        storage=options["storage"],
        duplicates=options["duplicates"],
    )


def _words(payload: Mapping[str, Any]) -> list[str]:
    words = payload.get("missing_values", [])
    if not isinstance(words, list) or not all(isinstance(one, str) and len(one) < 100 for one in words):
        raise ValueError(f"missing_values must be words, not {words!r:.40}")
    return words


def _count(options: Mapping[str, Any], name: str) -> int:
    found = options[name]
    if isinstance(found, bool) or not isinstance(found, int) or not 1 <= found <= _MOST_ROWS:
        raise ValueError(f"{name} must be an integer from 1 to {_MOST_ROWS}, not {found!r:.40}")
    return found


def _quantiles(found: Any) -> tuple[float, ...]:
    levels = tuple(map(float, found))
    if not all(low < high for low, high in itertools.pairwise((0.0, *levels, 1.0))):
        raise ValueError(f"quantiles must be increasing numbers between 0 and 1, not {found!r:.40}")
    return levels
