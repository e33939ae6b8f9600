"""`DartsLSTM`: a forecaster of Cellerate for Darts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from darts import TimeSeries
from darts.models.forecasting.forecasting_model import GlobalForecastingModel
from darts.utils.serialization import safe_globals
from darts.utils.ts_utils import seq2series, series2seq
from darts.utils.utils import n_steps_between

from cellerate.adapters.trained import Rows, Trained
from cellerate.errors import ConfigError, DataError

_OneOrMore: TypeAlias = TimeSeries | Sequence[TimeSeries]


class DartsLSTM(GlobalForecastingModel):
    """An LSTM that forecasts `output_chunk_length` steps at once, on Cellerate's kernels.

    It learns from one or many series, with past and future covariates, and forecasts any series. Longer horizons are
    forecast chunk after chunk, each from the forecasts before it. A fitted forecaster holds a packed model: it can be
    saved, and forecasts without Keras.

    Args:
        input_chunk_length: Rows of the input.
        output_chunk_length: Rows of a forecast.
        units: Units of each LSTM layer.
        layers: LSTM layers.
        dropout: Dropout on the outputs of each layer.
        n_epochs: Passes over the data.
        batch_size: Windows per batch.
        learning_rate: The peak learning rate of Adam.
        validation_fraction: The share of rows at the end that decides which epoch is best.
        random_state: Seeds the weights, the dropout and the order of the data.
        add_encoders: Covariates computed from the times; see `GlobalForecastingModel` of Darts.
        options: Further arguments of `cellerate.train_series`; with `quantile`, the median is forecast.

    Example:
        >>> model = DartsLSTM(24, 12, units=8, n_epochs=1).fit(AirPassengersDataset().load())
        >>> len(model.predict(12))
        12
    """

    def __init__(
        self,
        input_chunk_length: int = 96,
        output_chunk_length: int = 24,
        *,
        units: int = 64,
        layers: int = 1,
        dropout: float = 0.1,
        n_epochs: int = 10,
        batch_size: int = 64,
        learning_rate: float = 0.001,
        validation_fraction: float = 0.1,
        random_state: int = 0,
        add_encoders: dict[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        # Darts asks for the lengths already in its own constructor.
        self._lengths = input_chunk_length, output_chunk_length
        super().__init__(add_encoders=add_encoders)
        self._cell: bytes | None = None
        self._opened: Trained | None = None
        self._settings = {
            "units": units,
            "layers": layers,
            "dropout": dropout,
            "epochs": n_epochs,
            "batch_size": batch_size,
            "learning_rate": learning_rate,
            "validation_fraction": validation_fraction,
            "seed": random_state,
            **(options or {}),
        }
        self._widths: tuple[int, int, int] = (0, 0, 0)

    def fit(
        self,
        series: _OneOrMore,
        past_covariates: _OneOrMore | None = None,
        future_covariates: _OneOrMore | None = None,
        verbose: bool | None = None,
    ) -> DartsLSTM:
        """Trains the model; the arguments are those of Darts's global models.

        Raises:
            CellerateError: The series cannot be used, or are too short.
        """
        targets = series2seq(series)
        past, known = series2seq(past_covariates), series2seq(future_covariates)
        self.encoders = self.initialize_encoders()
        if self.encoders.encoding_available:
            past, known = self.generate_fit_encodings(
                series=targets, past_covariates=past, future_covariates=known
            )
        super().fit(
            seq2series(targets) if isinstance(series, TimeSeries) else targets,
            seq2series(past) if isinstance(series, TimeSeries) else past,
            seq2series(known) if isinstance(series, TimeSeries) else known,
            verbose=verbose,
        )
        rows = [_rows(*each) for each in _matched(targets, past, known)]
        self._widths = _widths(rows[0])
        named = [
            Rows(str(number) if len(rows) > 1 else "", one.targets, one.past, one.known)
            for number, one in enumerate(rows)
        ]
        told_apart = self._settings.get("scaling") == "series" or self._settings.get("series_embedding")
        if len(rows) > 1 and told_apart:
            raise ConfigError(
                "options has series_embedding, or scaling by series, and Darts does not say which of several series is "
                "forecast: leave it out."
            )
        window, horizon = self._lengths
        trained = Trained.on(named, window=window, horizon=horizon, settings=self._settings)
        self._cell, self._opened = trained.cell, trained
        return self

    def predict(
        self,
        n: int,
        series: _OneOrMore | None = None,
        past_covariates: _OneOrMore | None = None,
        future_covariates: _OneOrMore | None = None,
        num_samples: int = 1,
        verbose: bool | None = None,
        predict_likelihood_parameters: bool = False,
        show_warnings: bool = True,
        random_state: int | None = None,
    ) -> _OneOrMore:
        """Forecasts n rows after the end of each series; the arguments are those of Darts's global models.

        Raises:
            CellerateError: A series or a covariate is too short, or has other components than in training.
            ValueError: As in Darts's own models.
        """
        if series is None:
            if self.training_series is None:
                raise ValueError("the model was trained on several series: give the `series` to forecast.")
            series = self.training_series
        past = self.past_covariate_series if past_covariates is None else past_covariates
        known = self.future_covariate_series if future_covariates is None else future_covariates
        single, targets = isinstance(series, TimeSeries), series2seq(series)
        past, known = series2seq(past), series2seq(known)
        if self._fit_called and self.encoders.encoding_available:
            past, known = self.generate_predict_encodings(
                n=n, series=targets, past_covariates=past, future_covariates=known
            )
        super().predict(
            n,
            targets,
            past,
            known,
            num_samples=num_samples,
            verbose=verbose,
            predict_likelihood_parameters=predict_likelihood_parameters,
            show_warnings=show_warnings,
            random_state=random_state,
        )
        made = self._chunks(n, [_rows(*each, self._lengths[0]) for each in _matched(targets, past, known)])
        found = [
            self._build_forecast_series(values[:n].astype(one.dtype), input_series=one)
            for one, values in zip(targets, made, strict=True)
        ]
        return found[0] if single else found

    def _chunks(self, n: int, rows: Sequence[Rows]) -> np.ndarray:
        """(N, n or more, targets): chunk after chunk, each from the forecasts before it."""
        assert self.trained is not None  # noqa: S101 (Darts has looked)
        for one in rows:
            if _widths(one) != self._widths:
                raise ConfigError(
                    f"the model was trained on {_in_words(self._widths)}, and this series has "
                    f"{_in_words(_widths(one))}: give as many."
                )
        made = self.trained.forecast(rows)
        while (done := made.shape[1]) < n:
            # The last chunk ends with n, as in Darts's own models, because covariates may end there.
            begin = min(done, n - self.output_chunk_length)
            further = [
                dataclasses.replace(one, targets=np.concatenate([one.targets, values[:begin]]))
                for one, values in zip(rows, made, strict=True)
            ]
            chunk = self.trained.forecast(further)
            made = np.concatenate([made, chunk[:, done - begin :]], axis=1)
        return made

    @property
    def trained(self) -> Trained | None:
        """The packed model; None before it is fitted."""
        if self._cell is None:
            return None
        if self._opened is None:
            self._opened = Trained(self._cell)
        return self._opened

    @staticmethod
    def load(path: Any, trusted: bool = False) -> Any:
        """Reads a saved model; the arguments are those of Darts's models."""
        with safe_globals([DartsLSTM]):
            return GlobalForecastingModel.load(path, trusted=trusted)

    def __getstate__(self) -> dict[str, Any]:
        """The pickled state: plain values, which Darts reads without `trusted`."""
        return self.__dict__ | {"_opened": None}

    @property
    def output_chunk_length(self) -> int:
        """Rows of a forecast."""
        return self._lengths[1]

    @property
    def input_chunk_length(self) -> int:
        """Rows of the input."""
        return self._lengths[0]

    # All components are forecast together. The model reads covariates in the window, and future ones after it.
    supports_multivariate = supports_past_covariates = supports_future_covariates = True
    # All windows count alike, and Darts requests each origin separately.
    supports_sample_weight = supports_optimized_historical_forecasts = False
    min_train_samples = 2
    """A window to train on, and one to judge by."""

    @property
    def _target_window_lengths(self) -> tuple[int, int]:
        return self._lengths

    @property
    def extreme_lags(
        self,
    ) -> tuple[int | None, int | None, int | None, int | None, int | None, int | None, int]:
        """The first and last rows of targets and covariates that the model reads, relative to the first forecast."""
        window, horizon = self._lengths
        past = (-window, -1) if self.uses_past_covariates else (None, None)
        known = (-window, horizon - 1) if self.uses_future_covariates else (None, None)
        return (-window, horizon - 1, *past, *known, 0)

    @property
    def _model_encoder_settings(self) -> tuple[int, int, bool, bool, list[int] | None, list[int] | None]:
        return (*self._lengths, True, True, None, None)


def _matched(
    targets: Sequence[TimeSeries],
    past: Sequence[TimeSeries] | None,
    known: Sequence[TimeSeries] | None,
) -> list[tuple[TimeSeries, TimeSeries | None, TimeSeries | None]]:
    """Each series with its covariates."""
    for name, covariates in (("past_covariates", past), ("future_covariates", known)):
        if covariates is not None and len(covariates) != len(targets):
            raise ConfigError(
                f"there are {len(covariates)} {name} for {len(targets)} series: give one for each series."
            )
    nothing = [None] * len(targets)
    return list(zip(targets, past or nothing, known or nothing, strict=True))


def _rows(
    targets: TimeSeries,
    past: TimeSeries | None,
    known: TimeSeries | None,
    window: int | None = None,
) -> Rows:
    """The rows of a series and of its covariates.

    Args:
        targets: The series.
        past: The past covariates, or None.
        known: The covariates known in advance, or None.
        window: The number of last rows needed, with all covariates; None takes all rows that have them.
    """
    if targets.n_samples > 1:
        raise ConfigError("the series is stochastic, and the model reads one value at a time: give its mean.")
    begin = 0 if window is None else max(0, len(targets) - window)
    first = targets.time_index[begin]
    covariates = [one for one in (past, known) if one is not None]
    before = {id(one): n_steps_between(first, one.start_time(), targets.freq) for one in covariates}
    late = max(0, *(-steps for steps in before.values())) if before else 0
    if late and window is not None:
        raise DataError(
            f"a covariate begins {late:,} rows later than the {window:,} rows that the model reads: give those, too."
        )

    def values_of(one: TimeSeries | None, rows: int) -> np.ndarray:
        if one is None:
            return np.empty((rows, 0))
        if one.freq != targets.freq:
            raise ConfigError(f"a covariate has the frequency {one.freq_str}, the series {targets.freq_str}.")
        return one.values(copy=False)[before[id(one)] + late :].astype(np.float64)

    values = targets.values(copy=False)[begin + late :].astype(np.float64)
    beside = [values_of(one, len(values)) for one in (past, known)]
    shortest = min(len(values), *map(len, beside))
    if shortest < len(values) and window is not None:
        raise DataError(
            f"a covariate ends {len(values) - shortest:,} rows before the series: give past covariates up to its end, "
            "and future covariates up to the last row to forecast."
        )
    return Rows("", values[:shortest], *beside)


def _widths(rows: Rows) -> tuple[int, int, int]:
    return rows.targets.shape[1], rows.past.shape[1], rows.known.shape[1]


def _in_words(widths: tuple[int, int, int]) -> str:
    return f"{widths[0]} targets, {widths[1]} past and {widths[2]} future covariates"
