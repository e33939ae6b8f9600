"""Trains a forecaster anew for each fold of a backtest: the same network from fresh weights, on the rows before it."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import keras

from cellerate.data.series import SeriesPart
from cellerate.data.windows import Scaler, SeriesScaler
from cellerate.errors import DataError
from cellerate.models.storage import TaskRecord
from cellerate.tasks.judging import SeriesForecaster, calibrate
from cellerate.tasks.series import (
    LinearStart,
    count_windows,
    has_linear_map,
    series_loss,
    series_metrics,
    series_sources,
)
from cellerate.training.loop import train
from cellerate.training.run import RunOptions, TrainingRun
from cellerate.training.settings import TrainingSettings


class Refit:
    """Makes the forecaster of a fold.

    Args:
        network: The trained network; its weights are not used.
        payload: The network's task record.
        forecaster: The network as a forecaster.
        epochs: The most epochs; None for those of its training.
        max_seconds: The most seconds of training.
    """

    def __init__(
        self,
        network: keras.Model,
        payload: dict[str, Any],
        forecaster: SeriesForecaster,
        epochs: int | None,
        max_seconds: float,
    ) -> None:
        self._network, self._payload, self._forecaster = network, payload, forecaster
        known = {field.name for field in dataclasses.fields(TrainingSettings)}
        recorded = {name: value for name, value in payload.get("training", {}).items() if name in known}
        settings = TrainingSettings(**recorded)
        self._settings = dataclasses.replace(
            settings, epochs=epochs or settings.epochs, max_seconds=max_seconds, time_budget=None, track=()
        )

    def __call__(self, part: SeriesPart, fold: int) -> SeriesForecaster:
        """Train the forecaster of a fold.

        Args:
            part: The rows before the fold; the share for validation is that of the model's own training.
            fold: The number of the fold.

        Raises:
            DataError: No training window fits.
            KeyboardInterrupt: The training was interrupted.
        """
        options, settings = self._forecaster.options, self._forecaster.settings
        share = options.validation_fraction
        if options.test_size is None:
            share /= options.train_fraction + options.validation_fraction
        split = part.data.split(1 - share, share)
        if not count_windows(split.train, options, options.stride):
            raise DataError(
                f"fold {fold + 1} has {split.train.rows} rows to train on, and no window of {settings.window} and a "
                f"horizon of {settings.horizon} fits: take fewer folds or a smaller step."
            )
        scaler = Scaler.fit(split.train)
        network = keras.models.clone_model(self._network)
        covariates = settings.covariates
        if covariates.scaling is not None:
            covariates = dataclasses.replace(covariates, scaling=SeriesScaler.fit(split.train, scaler))
        source, validation = series_sources(network, split, options, scaler, self._settings.seed, covariates)
        start = None
        if has_linear_map(network):
            start = LinearStart(split.train, options, settings.quantiles, scaler, covariates)
        changed = {"scaler": scaler.to_config()}
        changed |= {} if covariates.plain else {"covariates": covariates.to_config()}
        record = TaskRecord("series", self._payload | changed)
        with tempfile.TemporaryDirectory(prefix="cellerate-") as folder:
            result = train(
                network,
                source,
                TrainingRun(
                    options=RunOptions(output=Path(folder, "fold.keras"), training=self._settings),
                    loss=series_loss(options.loss, settings.quantiles),
                    record=record,
                    metrics=series_metrics(settings.quantiles, validation),
                    begin=start,
                    validation=validation,
                ),
            )
        if result.status == "interrupted":
            # Otherwise the half-trained model would be judged, and the next fold would start.
            raise KeyboardInterrupt
        settings = dataclasses.replace(settings, scaler=scaler, covariates=covariates, calibration=None)
        trained = dataclasses.replace(
            self._forecaster, predict=result.model.predict_on_batch, settings=settings
        )
        made = calibrate(trained, split)
        if made is None:
            return trained
        return dataclasses.replace(trained, settings=dataclasses.replace(settings, calibration=made[0]))
