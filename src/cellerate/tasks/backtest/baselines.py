"""The baselines of a backtest, fitted on the rows before its first fold, or before each of its folds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from cellerate.data.series import SeriesData, SeriesPart
from cellerate.errors import DataError
from cellerate.messages import argument
from cellerate.tasks.backtest.folds import FoldWindows
from cellerate.tasks.judging import Baselines, SeriesForecaster, Statistical, fit_linear, season_rows


def baselines_before(
    forecaster: SeriesForecaster,
    before: SeriesPart,
    windows: FoldWindows,
    *,
    linear: bool,
    statistical: Sequence[str],
) -> Baselines:
    """The baselines, fitted on the rows before the first fold of each series."""
    settings, options = forecaster.settings, forecaster.options
    found = Baselines.fit(
        before,
        settings.window,
        settings.horizon,
        options.season,
        why_not_linear=None if linear else "it was not asked for",
    )
    if not statistical:
        return found
    # The windows are in the order of the folds, so the first window of a series has its first origin.
    firsts = np.unique(windows.series, return_index=True)[1]
    fitted = _statistical(statistical, before.data, windows.origins[firsts], forecaster)
    return dataclasses.replace(found, statistical=fitted)


def _statistical(
    names: Sequence[str], data: SeriesData, origins: np.ndarray, forecaster: SeriesForecaster
) -> Statistical:
    """Statistical baselines, fitted on the rows before one origin of each stretch."""
    firsts = np.array([first for first, _, _ in data.segments])
    begins = firsts[np.searchsorted(firsts, origins, side="right") - 1]
    starts = zip(begins.tolist(), origins.tolist(), strict=True)
    return Statistical.fit(names, data, starts, season_rows(forecaster.options.season, data))


def fitted_again(
    baselines: Baselines, known: SeriesPart, forecaster: SeriesForecaster, origins: np.ndarray
) -> Baselines:
    """The baselines of a fold that begins at these origins, fitted on the rows that are known there."""
    linear, statistical = baselines.linear, baselines.statistical
    if linear is not None:
        settings = forecaster.settings
        linear = fit_linear(known, settings.window, settings.horizon, baselines.scales)
    if statistical is not None:
        names = list(statistical.models)
        fitted = _statistical(names, known.data, origins, forecaster)
        for reason in fitted.left_out.values():
            raise DataError(f"{reason}. Leave it out of {argument('statistical')}, or take fewer folds.")
        statistical = dataclasses.replace(fitted, left_out=statistical.left_out)
    return dataclasses.replace(baselines, linear=linear, statistical=statistical)
