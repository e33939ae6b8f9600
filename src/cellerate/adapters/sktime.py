"""`SktimeLSTM`: a forecaster of Cellerate for sktime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from sktime.datatypes import update_data
from sktime.forecasting.base import BaseForecaster, ForecastingHorizon

from cellerate.adapters.trained import Rows, Trained
from cellerate.errors import ConfigError, DataError
from cellerate.messages import argument

_TYPES = ["pd.DataFrame", "pd-multiindex", "pd_multiindex_hier"]


class SktimeLSTM(BaseForecaster):
    """An LSTM that forecasts all steps at once, on Cellerate's kernels.

    It trains one model on all series of a panel or a hierarchy. X holds the columns known in advance, up to the last
    row of the horizon; `predict` takes them by name and by the index. Rows count as consecutive, whatever their index,
    unless there is a calendar. A fitted forecaster holds a packed model: it can be pickled and needs no Keras.

    Args:
        window: Rows of the input.
        units: Units of each LSTM layer.
        layers: LSTM layers.
        dropout: Dropout on the outputs of each layer.
        epochs: Passes over the data.
        batch_size: Windows per batch.
        learning_rate: The peak learning rate of Adam.
        calendar: Features of the times: "hour", "weekday", "day", "month". Needs a DatetimeIndex or a PeriodIndex.
        validation_fraction: The share of rows at the end that decides which epoch is best and calibrates intervals. An
            interval whose level needs more rows has no bounds.
        seed: Seeds the weights, the dropout and the order of the data.
        options: Further arguments of `cellerate.train_series`; with `quantile`, the median is forecast, and intervals
            are around the outer quantiles.

    Attributes:
        trained_: The packed model, once it is fitted.

    Example:
        >>> from cellerate.adapters import SktimeLSTM
        >>> from sktime.datasets import load_airline
        >>> forecaster = SktimeLSTM(window=12, units=8, epochs=1)
        >>> forecaster.fit(load_airline(), fh=[1, 2, 3]).predict().shape
        (3,)
    """

    _tags = {  # noqa: RUF012 (as sktime reads it)
        "authors": ["Cellerate"],
        "maintainers": ["Cellerate"],
        "y_inner_mtype": _TYPES,
        "X_inner_mtype": _TYPES,
        "capability:multivariate": True,
        "capability:exogenous": True,
        "capability:categorical_in_X": False,
        "capability:insample": False,
        "capability:pred_int": True,
        "capability:pred_int:insample": False,
        "capability:missing_values": False,
        "capability:non_contiguous_X": False,
        "capability:update": True,
        "requires-fh-in-fit": True,
        "X-y-must-have-same-index": True,
    }

    def __init__(
        self,
        window: int = 96,
        units: int = 64,
        layers: int = 1,
        dropout: float = 0.1,
        epochs: int = 10,
        batch_size: int = 64,
        learning_rate: float = 0.001,
        calendar: Sequence[str] = (),
        validation_fraction: float = 0.1,
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.window = window
        self.units = units
        self.layers = layers
        self.dropout = dropout
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.calendar = calendar
        self.validation_fraction = validation_fraction
        self.seed = seed
        self.options = options
        super().__init__()

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Settings for sktime's own tests."""
        small = {"window": 2, "units": 4, "epochs": 1, "validation_fraction": 0.4}
        return [small, {**small, "layers": 2, "options": {"residual": False}}]

    def _fit(self, y: pd.DataFrame, X: pd.DataFrame | None, fh: ForecastingHorizon) -> SktimeLSTM:
        # `_update` adds rows to these; the base class need not keep its own.
        self._cur_y, self._cur_X = y, X
        horizon = int(fh.to_relative(self.cutoff).to_numpy().max())
        self.trained_ = Trained.on(
            list(self._series(y, X)),
            window=self.window,
            horizon=horizon,
            settings={
                "units": self.units,
                "layers": self.layers,
                "dropout": self.dropout,
                "epochs": self.epochs,
                "batch_size": self.batch_size,
                "learning_rate": self.learning_rate,
                "calendar": tuple(self.calendar),
                "validation_fraction": self.validation_fraction,
                "seed": self.seed,
                **(self.options or {}),
            },
        )
        return self

    def _update(
        self, y: pd.DataFrame, X: pd.DataFrame | None = None, update_params: bool = True
    ) -> SktimeLSTM:
        y = update_data(self._cur_y, y)
        if X is not None:
            X = X if self._cur_X is None else update_data(self._cur_X, X)
        self._cur_y, self._cur_X = y, X
        return self._fit(y, X, self._fh) if update_params else self

    def _predict(self, fh: ForecastingHorizon, X: pd.DataFrame | None) -> pd.DataFrame:
        return self._frame(fh, self.trained_.forecast(self._so_far(X)), self._cur_y.columns)

    def _predict_quantiles(
        self, fh: ForecastingHorizon, X: pd.DataFrame | None, alpha: Sequence[float]
    ) -> pd.DataFrame:
        levels = [abs(1 - 2 * one) for one in alpha]
        wanted = [level for level in levels if level]
        made, around = self.trained_.forecast_with_bounds(self._so_far(X), wanted)
        sides = iter(around)
        each = [
            next(sides)[..., 0 if one < 0.5 else 1] if level else made
            for one, level in zip(alpha, levels, strict=True)
        ]
        # (N, horizon, targets, alphas): the alphas of a target are neighbouring columns.
        values = np.stack(each, axis=-1)
        columns = pd.MultiIndex.from_product([self._get_varnames(), alpha])
        return self._frame(fh, values.reshape(*values.shape[:2], -1), columns)

    def _so_far(self, X: pd.DataFrame | None) -> list[Rows]:
        """The series so far, with the columns known in advance."""
        return list(self._series(self._cur_y, self._cur_X, X, self.trained_.model.horizon or 0))

    def _series(
        self, y: pd.DataFrame, X: pd.DataFrame | None, later: pd.DataFrame | None = None, horizon: int = 0
    ) -> Iterator[Rows]:
        """The series of a frame, with the columns known in advance for its own rows and for the horizon."""
        for key, own in _parts(y):
            known = [] if X is None else [_part(X, key).loc[: own.index[-1]]]
            if later is not None:
                names = later.columns[:0] if X is None else X.columns
                known.append(_ahead(later, names, key, _following(own.index, horizon)))
            values = (
                np.empty((len(own), 0)) if not known else np.concatenate([one.to_numpy() for one in known])
            )
            times = _clock(own.index, horizon) if self.calendar else None
            name = "" if key is None else str(key)
            targets = own.to_numpy(np.float64)
            yield Rows(name, targets, np.empty((len(own), 0)), values.astype(np.float64), times)

    def _frame(self, fh: ForecastingHorizon, made: np.ndarray, columns: pd.Index) -> pd.DataFrame:
        """The steps of the horizon out of (N, horizon, C) values, as a frame."""
        steps = fh.to_relative(self.cutoff).to_numpy().astype(int) - 1
        parts = {}
        for (key, own), values in zip(_parts(self._cur_y), made, strict=True):
            index = (
                fh.to_absolute_index(self.cutoff)
                if key is None
                else _following(own.index, steps.max() + 1)[steps]
            )
            parts[key] = pd.DataFrame(values[steps], index=index, columns=columns)
        if None in parts:
            return parts[None]
        found = pd.concat(parts)
        return found.set_axis(found.index.set_names(self._cur_y.index.names), axis=0)


def _parts(frame: pd.DataFrame) -> Iterator[tuple[Any, pd.DataFrame]]:
    """Each series of a frame with its key, without the levels of the key; one alone has the key None."""
    if not isinstance(frame.index, pd.MultiIndex):
        yield None, frame
        return
    levels = list(range(frame.index.nlevels - 1))
    for key, own in frame.groupby(level=levels if len(levels) > 1 else 0, sort=False):
        yield key, own.droplevel(levels)


def _clock(index: pd.Index, ahead: int) -> np.ndarray:
    """The local times of rows and of `ahead` rows that follow: datetime64."""
    if not isinstance(index, pd.PeriodIndex | pd.DatetimeIndex):
        raise ConfigError(
            f"{argument('calendar')} needs an index of times, and that of y is a {type(index).__name__}: leave it out."
        )
    every = index.append(_following(index, ahead)) if ahead else index
    return (every.to_timestamp() if isinstance(every, pd.PeriodIndex) else every.tz_localize(None)).to_numpy()


def _following(index: pd.Index, count: int) -> pd.Index:
    """The index of `count` rows after the last one."""
    last = index[-1]
    if isinstance(index, pd.PeriodIndex):
        return pd.period_range(last + 1, periods=count, freq=index.freq)
    if not isinstance(index, pd.DatetimeIndex):
        return last + 1 + pd.RangeIndex(count)
    step = index.freq or pd.infer_freq(index)
    if step is None:
        raise ConfigError(
            f"the index of y has no frequency, so the times after {last} are not known: set one (freq)."
        )
    return pd.date_range(last, periods=count + 1, freq=step)[1:]


def _ahead(later: pd.DataFrame, names: pd.Index, key: Any, times: pd.Index) -> pd.DataFrame:
    """The rows of X at the times of the horizon, with the columns that X had in `fit`."""
    lacking = [name for name in names if name not in later.columns]
    unknown = [name for name in later.columns if name not in names]
    if lacking or unknown:
        found = (
            (f"X has no column {lacking}", lacking),
            (f"fit had none of the columns {unknown} of X", unknown),
        )
        raise DataError(
            f"{' and '.join(words for words, there in found if there)}: give the columns that X had in fit."
        )
    own = _part(later, key)
    missing = times[~times.isin(own.index)]
    if len(missing):
        whose = "" if key is None else f" of the series {key!r}"
        raise DataError(
            f"the model needs X for the {len(times):,} rows after the last one{whose}, and got "
            f"{len(times) - len(missing):,}: the row of {missing[0]} is missing. Give all rows of the horizon."
        )
    return own.reindex(index=times, columns=names)


def _part(frame: pd.DataFrame, key: Any) -> pd.DataFrame:
    """The series of one key."""
    if key is None:
        return frame
    if key not in frame.index:
        raise DataError(f"X has no rows of the series {key!r}: give those of each series.")
    return frame.xs(key)
