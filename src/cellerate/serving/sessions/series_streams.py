"""Streams of forecasters: rows in the units of the data go in, forecasts and scores come out.

Clients know neither the scaler of a forecaster nor its windows: they push rows. Each row gives a forecast of the rows
after it, and a score: the distance of the row from its own forecast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cellerate.errors import DataError, ModelError
from cellerate.runtime.forecast import ForecastSettings, forecast_settings, point_of
from cellerate.runtime.packed import PackedModel
from cellerate.runtime.program import by_name
from cellerate.serving.sessions.streams import SessionStreams

_OUTPUTS = ("forecast", "score")
# The most numbers in the windows of one forecast call.
_AT_ONCE = 1 << 22


def session_streams(model: PackedModel) -> SessionStreams:
    """The streams for the sessions of a model.

    Raises:
        ModelError: A layer needs steps that are still to come, the record of a forecaster is damaged, or it sees more
            than rows.
    """
    if model.task != "series":
        return SessionStreams(model)
    rows = SeriesRows(model)
    try:
        return ForecastStreams(model, rows)
    except ModelError:
        # The model must see its whole window at once, as the default forecaster does.
        return WindowStreams(model, rows)


class SeriesRows:
    """The rows of a forecaster, in the units of the data and scaled.

    Args:
        model: A packed model of `train series`.

    Attributes:
        settings: How it reads a series.
        features: The number of its features.
        targets: The number of its targets.

    Raises:
        ModelError: The record is damaged, or the model sees more than rows.
    """

    def __init__(self, model: PackedModel) -> None:
        self.settings: ForecastSettings = forecast_settings(
            model.cell.header.get("payload"), "this packed model"
        )
        if not self.settings.covariates.plain:
            raise ModelError(
                "the model sees a calendar, columns that are known in advance, or which series it is, and the rows of "
                "a stream say nothing of them: ask for forecasts of windows."
            )
        (self._input,) = model.inputs
        columns = {name: place for place, name in enumerate(self.settings.scaler.columns)}
        reading = self.settings.reading
        self._features = [columns[name] for name in reading.features or ()]
        self._targets = [columns[name] for name in reading.targets]
        self.features, self.targets = len(self._features), len(self._targets)
        # The index of each target among the features; none for a target that is not a feature.
        places = {name: place for place, name in enumerate(reading.features or ())}
        self._known = [places.get(name, -1) for name in reading.targets]

    def scaled(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """(N, k, F) rows, scaled.

        Raises:
            DataError: They have another number of features, are not numbers, or are too large for float32.
        """
        given = by_name(inputs, [self._input]).get(self._input, np.empty(0))
        if given.ndim != 3 or given.shape[2] != self.features or given.dtype.kind not in "fiu":
            features = ", ".join(self.settings.reading.features or ())
            raise DataError(
                f"each step must be {self.features} numbers, {features:.200}, not {given.dtype} {given.shape[1:]}."
            )
        with np.errstate(over="ignore"):
            scaled = self.settings.scaler.transform(given, self._features)
        # An infinity, as V2 can send it, spoils only its own stream.
        wrong = np.argwhere(np.isinf(scaled) & np.isfinite(given))
        if len(wrong):
            name = (self.settings.reading.features or ())[wrong[0][-1]]
            raise DataError(
                f"column {name!r} has a number that is too large for float32, also after scaling."
            )
        return scaled

    def shaped(self, made: np.ndarray) -> np.ndarray:
        """(N, horizon, targets), with quantiles (..., Q); a model may leave out the axis of a single target."""
        quantiles = self.settings.quantiles
        row = (self.settings.horizon, self.targets, *([len(quantiles)] if quantiles else []))
        if made[0].size != np.prod(row):
            raise ModelError(
                f"this packed model gives {made.shape[1:]}, but its record says {row}: pack it with the record that "
                "it was trained with."
            )
        return made.reshape(len(made), *row)

    def next_row(self, made: np.ndarray) -> np.ndarray:
        """Return the (N, targets) forecasts of the next row; the median of quantiles."""
        return point_of(made[:, 0], self.settings.quantiles)

    def score(self, rows: np.ndarray, expected: np.ndarray) -> np.ndarray:
        """Return the (N,) distances of (N, F) rows from the (N, targets) expected values."""
        if -1 in self._known:
            return np.full(len(rows), np.nan, np.float32)
        error: np.ndarray = np.sqrt(np.mean(np.square(rows[:, self._known] - expected), axis=1))
        return error

    def units(self, made: np.ndarray) -> np.ndarray:
        """Forecasts in the units of the data."""
        return self.settings.scaler.inverse_transform(
            made, self._targets, quantiles=bool(self.settings.quantiles)
        )


class ForecastStreams(SessionStreams):
    """Streams of a forecaster that reads row after row.

    Each push returns `forecast`, (horizon, targets) or (horizon, targets, Q) in the units of the data, for the rows
    after its last row; and `score`, (k,): the distance of each row from the forecast made before it, as the root mean
    square over the targets in standard deviations of the training data. The score is NaN for the very first row, and
    if a target is not a feature. The median of quantiles counts as the forecast.

    Args:
        model: A packed model of `train series`.
        rows: Its rows.

    Raises:
        ModelError: A layer needs steps that are still to come.
    """

    def __init__(self, model: PackedModel, rows: SeriesRows) -> None:
        super().__init__(model)
        self.outputs, self._rows = _OUTPUTS, rows
        # The scaled forecast of each stream's next row, a part of the stream's state.
        self._expected = np.empty((0, rows.targets), np.float32)

    @property
    def initial_state(self) -> np.ndarray:
        """Return an (S,) float32 state; there is no forecast of the first row."""
        return np.concatenate([super().initial_state, np.full(self._rows.targets, np.nan, np.float32)])

    def grow(self, count: int) -> None:
        """Adds streams."""
        super().grow(count)
        more = np.full((count, self._rows.targets), np.nan, np.float32)
        self._expected = np.concatenate([self._expected, more])

    def states_of(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """(N, S) float32, what some streams remember."""
        return np.concatenate([super().states_of(rows), self._expected[rows]], axis=1)

    def set_states(self, rows: Sequence[int] | np.ndarray, states: np.ndarray) -> None:
        """Puts streams back to (N, S) states."""
        super().set_states(rows, states[:, : self._size])
        self._expected[rows] = states[:, self._size :]

    def push(self, inputs: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
        """Reads the next rows of some series; see the class for what comes out.

        Raises:
            DataError: The rows have another number of features, or are not numbers.
        """
        scaled = self._rows.scaled(inputs)
        # One step is read or is not.
        before = self.states_of(rows) if scaled.shape[1] > 1 else None
        try:
            made, scores = self._stepped(scaled, rows)
        except Exception:
            if before is not None:
                # Of a push that fails nothing was read.
                self.set_states(rows, before)
            raise
        return {"forecast": self._rows.units(made), "score": scores}

    def _stepped(self, scaled: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The forecast after the last of (N, k, F) rows, and the scores (N, k) of all."""
        (name,) = self._model.inputs
        scores = np.empty(scaled.shape[:2], np.float32)
        made = np.empty(0)
        for step in range(scaled.shape[1]):
            scores[:, step] = self._rows.score(scaled[:, step], self._expected[rows])
            # One by one, because each row is compared with the forecast made before it.
            (made,) = super().push({name: scaled[:, step : step + 1]}, rows).values()
            made = self._rows.shaped(made)
            self._expected[rows] = self._rows.next_row(made)
        return made, scores


class WindowStreams(SessionStreams):
    """Streams of a forecaster that sees a whole window at once: they remember its last rows.

    Such a model needs the whole window before it computes, for example to subtract its mean, so each row ends a window
    of its own. A push returns the same outputs as in `ForecastStreams`; until a whole window has come, forecasts and
    scores are NaN.

    Args:
        model: A packed model of `train series`.
        rows: Its rows.
    """

    def __init__(self, model: PackedModel, rows: SeriesRows) -> None:
        self._model, self.outputs, self._rows = model, _OUTPUTS, rows
        self._predict = model.forecaster.predict
        self._window = rows.settings.window
        # The rows of each stream, the newest last, NaN for missing rows; and the forecast of its next row.
        self._last = np.empty((0, self._window, rows.features), np.float32)
        self._expected = np.empty((0, rows.targets), np.float32)
        # The number of rows received, up to a window: received rows of NaN count.
        self._came = np.empty(0, np.int64)

    @property
    def count(self) -> int:
        """The number of streams."""
        return len(self._last)

    @property
    def initial_state(self) -> np.ndarray:
        """Return an (S,) float32 state: the number of rows, the rows, and the forecast of the next row."""
        size = self._window * self._rows.features + self._rows.targets
        return np.concatenate([np.zeros(1, np.float32), np.full(size, np.nan, np.float32)])

    def grow(self, count: int) -> None:
        """Adds streams."""
        self._last = np.concatenate([self._last, np.full((count, *self._last.shape[1:]), np.nan, np.float32)])
        self._expected = np.concatenate(
            [self._expected, np.full((count, self._rows.targets), np.nan, np.float32)]
        )
        self._came = np.concatenate([self._came, np.zeros(count, np.int64)])

    def states_of(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """(N, S) float32, what some streams remember."""
        came = self._came[rows][:, np.newaxis].astype(np.float32)
        return np.concatenate([came, self._last[rows].reshape(len(came), -1), self._expected[rows]], axis=1)

    def set_states(self, rows: Sequence[int] | np.ndarray, states: np.ndarray) -> None:
        """Puts streams back to (N, S) states."""
        self._came[rows] = np.nan_to_num(states[:, 0]).clip(0, self._window).astype(np.int64)
        self._last[rows] = states[:, 1 : -self._rows.targets].reshape(len(states), self._window, -1)
        self._expected[rows] = states[:, -self._rows.targets :]

    def push(self, inputs: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
        """Reads the next rows of some series; see the class for what comes out.

        Raises:
            DataError: The rows have another number of features, or are not numbers.
        """
        scaled = self._rows.scaled(inputs).astype(np.float32, copy=False)
        streams, steps = scaled.shape[:2]
        if not steps:
            raise DataError("a push needs at least one row.")
        window = self._window
        every = np.concatenate([self._last[rows], scaled], axis=1)
        # (N, k, window, F): the window that ends with each of the new rows.
        ending = np.lib.stride_tricks.sliding_window_view(every, window, axis=1)[:, 1:].swapaxes(2, 3)
        came = np.minimum(self._came[rows][:, np.newaxis] + np.arange(1, steps + 1), window)
        quantiles = [len(self._rows.settings.quantiles)] if self._rows.settings.quantiles else []
        shape = (streams, steps, self._rows.settings.horizon, self._rows.targets, *quantiles)
        made = np.full(shape, np.nan, np.float32)
        places = np.argwhere(came == window)
        some = max(1, _AT_ONCE // (window * self._rows.features))
        for begin in range(0, len(places), some):
            stream, step = places[begin : begin + some].T
            made[stream, step] = self._rows.shaped(self._predict(ending[stream, step]))
        next_rows = self._rows.next_row(made.reshape(streams * steps, *shape[2:])).reshape(streams, steps, -1)
        expected = np.concatenate([self._expected[rows][:, np.newaxis], next_rows], axis=1)
        flat = scaled.reshape(streams * steps, -1)
        scores = self._rows.score(flat, expected[:, :-1].reshape(len(flat), -1)).reshape(streams, steps)
        forecast = self._rows.units(made[:, -1])
        self._last[rows], self._came[rows] = every[:, -window:], came[:, -1]
        self._expected[rows] = expected[:, -1]
        return {"forecast": forecast, "score": scores}
