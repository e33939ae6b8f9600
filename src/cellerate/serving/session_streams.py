"""What sessions read and give: a model's own arrays, or the rows of a series with forecasts and scores.

Of a forecaster clients know neither its scaler nor its windows: they push rows in the units of the data, and each row
gives the forecast from there on, and a score that says how far the row was from its forecast.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cellerate.errors import DataError, ModelError
from cellerate.runtime.forecasting import ForecastSettings, forecast_settings
from cellerate.runtime.inputs import by_name
from cellerate.runtime.packed import PackedModel


def session_streams(model: PackedModel) -> "SessionStreams":
    """The streams for the sessions of a model.

    Raises:
        ModelError: A layer needs steps that are still to come, or the record of a forecaster is damaged.
    """
    return ForecastStreams(model) if model.task == "series" else SessionStreams(model)


class StepSize(NamedTuple):
    """How much a push gives.

    Attributes:
        of_each_step: The outputs that have an entry a step; of the others there is that of the last step.
        step: The numbers of each step.
        last: The numbers that do not depend on how many steps there are.
    """

    of_each_step: frozenset[str]
    step: int
    last: int


class SessionStreams:
    """Streams of any model: its inputs go in, its outputs come out.

    Args:
        model: The model.
    """

    def __init__(self, model: PackedModel) -> None:
        self._model = model
        self._streams = model.streams(0)
        self._size = self._streams.state.shape[1]

    def measured(self) -> StepSize:
        """What a push gives, found out with two pushes to the first stream, which need not be one afterwards."""
        if not self.count:
            self.grow(1)
        nodes = self._model.cell.program.nodes
        inputs = self._model.cell.program.inputs
        found: list[dict[str, np.ndarray]] = []
        for steps in (1, 2):
            self.set_states([0], self.initial_state[np.newaxis])
            zeros = {
                name: np.zeros((1, steps, *self._model.inputs[name][2:]), str(nodes[at].options["dtype"]))
                for name, at in inputs.items()
            }
            found.append(self.push(zeros, np.array([0])))
        one, two = found
        each = frozenset(name for name in one if one[name].size != two[name].size)
        step = sum(one[name].size for name in each)
        return StepSize(each, step, sum(array.size for array in one.values()) - step)

    @property
    def count(self) -> int:
        """How many streams there are."""
        return self._streams.count

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what a push gives."""
        return tuple(self._model.outputs)

    @property
    def initial_state(self) -> np.ndarray:
        """(S,) float32, what a stream remembers before its first step."""
        return np.zeros(self._size, np.float32)

    def grow(self, count: int) -> None:
        """Adds streams."""
        self._streams.join(self._model.streams(count))

    def states_of(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """(N, S) float32, what some streams remember."""
        return self._streams.states_of(rows)

    def set_states(self, rows: Sequence[int] | np.ndarray, states: np.ndarray) -> None:
        """Puts streams back to (N, S) states."""
        self._streams.set_states(rows, states)

    def push(self, inputs: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
        """Reads the next steps of some streams.

        Args:
            inputs: By name, (N, k, F) numbers or (N, k) ids.
            rows: (N,) which streams, each once.

        Returns:
            The outputs by name, the N streams first.

        Raises:
            ConfigError, DataError: As `Streams.push`.
        """
        outputs = self._streams.push(inputs, rows)
        return outputs if isinstance(outputs, dict) else {self._model.outputs[0]: outputs}


class ForecastStreams(SessionStreams):
    """Streams of a forecaster: rows in the units of the data go in.

    Each push gives `forecast`, (horizon, targets) or (horizon, targets, Q) in the units of the data, of what comes
    after its last row; and `score`, (k,): how far each row was from the forecast made before it, the root mean square
    over the targets, in standard deviations of the training data. It is NaN for the first row of all, and where a
    target is none of the features. Of quantiles, the middle one is the forecast.

    Args:
        model: A packed model of `train series`.

    Raises:
        ModelError: The record is damaged, a layer needs steps that are still to come, or the model sees more than rows.
    """

    def __init__(self, model: PackedModel) -> None:
        self._settings: ForecastSettings = forecast_settings(
            model.cell.header.get("payload"), "this packed model"
        )
        if not self._settings.covariates.plain:
            raise ModelError(
                "the model sees a calendar, columns that are known in advance, or which series it is, and the rows of "
                "a stream say nothing of them: ask for forecasts of windows."
            )
        super().__init__(model)
        columns = {name: place for place, name in enumerate(self._settings.scaler.columns)}
        reading = self._settings.reading
        self._features = [columns[name] for name in reading["features"]]
        self._targets = [columns[name] for name in reading["targets"]]
        # Where each target is among the features; none of them for a target that is read nowhere.
        places = {name: place for place, name in enumerate(reading["features"])}
        self._known = [places.get(name, -1) for name in reading["targets"]]
        self._middle = len(self._settings.quantiles) // 2
        # The scaled forecast of each stream's next row, a part of what it remembers.
        self._expected = np.empty((0, len(self._targets)), np.float32)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what a push gives."""
        return "forecast", "score"

    @property
    def initial_state(self) -> np.ndarray:
        """(S,) float32; nothing is expected of the first row."""
        return np.concatenate([super().initial_state, np.full(len(self._targets), np.nan, np.float32)])

    def grow(self, count: int) -> None:
        """Adds streams."""
        super().grow(count)
        more = np.full((count, len(self._targets)), np.nan, np.float32)
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
            DataError: The rows have another number of features, or are no numbers.
        """
        (name,) = self._model.inputs
        given = by_name(inputs, [name]).get(name, np.empty(0))
        if given.ndim != 3 or given.shape[2] != len(self._features) or given.dtype.kind not in "fiu":
            features = ", ".join(self._settings.reading["features"])
            raise DataError(
                f"each step must be {len(self._features)} numbers, {features:.200}; got {given.dtype} "
                f"{given.shape[1:]}."
            )
        # A number too large for float32 is as good as an infinite one, which spoils this stream alone.
        with np.errstate(over="ignore"):
            scaled = self._settings.scaler.transform(given, self._features)
        before = self.states_of(rows)
        try:
            made, scores = self._stepped(name, scaled, rows)
        except Exception:
            # Of a push that fails nothing was read.
            self.set_states(rows, before)
            raise
        forecast = self._settings.scaler.inverse_transform(
            made, self._targets, quantiles=bool(self._settings.quantiles)
        )
        return {"forecast": forecast, "score": scores}

    def _stepped(self, name: str, scaled: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The forecast after the last of (N, k, F) rows, and the scores (N, k) of all."""
        scores = np.empty(scaled.shape[:2], np.float32)
        made = np.empty(0)
        for step in range(scaled.shape[1]):
            scores[:, step] = self._score(scaled[:, step], self._expected[rows])
            # One by one, for each row is compared with the forecast made before it.
            (made,) = super().push({name: scaled[:, step : step + 1]}, rows).values()
            made = self._shaped(made)
            self._expected[rows] = made[:, 0, :, self._middle] if self._settings.quantiles else made[:, 0]
        return made, scores

    def _shaped(self, made: np.ndarray) -> np.ndarray:
        """(N, horizon, targets), with quantiles (..., Q); a model may leave out the axis of a single target."""
        quantiles = self._settings.quantiles
        row = (self._settings.horizon, len(self._targets), *([len(quantiles)] if quantiles else []))
        if made[0].size != np.prod(row):
            raise ModelError(
                f"this packed model gives {made.shape[1:]}, but its record says {row}: pack it with the record that "
                "it was trained with."
            )
        return made.reshape(len(made), *row)

    def _score(self, row: np.ndarray, expected: np.ndarray) -> np.ndarray:
        """(N,) the distance of (N, F) rows from the (N, targets) that were expected."""
        if -1 in self._known:
            return np.full(len(row), np.nan, np.float32)
        error: np.ndarray = np.sqrt(np.mean(np.square(row[:, self._known] - expected), axis=1))
        return error
