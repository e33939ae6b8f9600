"""Intervals around forecasts that hold a promised share of the truth: split conformal calibration in plain NumPy.

A conformity score is the distance of the truth from a forecast. A quantile of the scores on windows outside the
training is the reach of an interval. This module has the arithmetic, and the calibration that a model stores;
`calibrating` takes scores from a series.

Source:
    V. Vovk, A. Gammerman and G. Shafer, "Algorithmic Learning in a Random World", 2005. Y. Romano, E. Patterson and
    E. Candès, "Conformalized Quantile Regression", 2019. R. Barber et al., "Conformal prediction beyond
    exchangeability", 2023, for calibrating on the newest data where they drift.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cellerate.errors import ConfigError
from cellerate.messages import argument

LEVELS = (0.8, 0.95)
"""The default levels of intervals."""

# The levels whose quantiles are stored. If the density of scores falls towards large scores, a straight line between
# two levels lies above the true quantiles, so it errs on the safe side.
_GRID = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)
_COARSE = (0.5, 0.8, 0.9, 0.95, 0.99)
_MOST_NUMBERS = 100_000
_LARGEST = 1e30
# Added to the scale of a window, in medians of all scales: a calm window does not promise a calm future.
_FLOOR = 0.1
_ROUNDING = 4 * float(np.finfo(np.float64).eps)


@dataclasses.dataclass(frozen=True, eq=False)
class Calibration:
    """The quantiles of the conformity scores of the validation part, as a model keeps them.

    Attributes:
        grid: (G,) rising levels.
        reach: (G, horizon, targets) the reach of an interval of each level, in the units of the data or, with a
            `floor`, in scales of the window.
        rows: (G, targets) the reach around the median of all forecasts of one row.
        windows: The number of windows scored.
        scored_rows: The number of rows scored.
        floor: (targets,) added to the scale of a window; None if scores are not scaled.
        non_negative: (targets,) whether training and validation held no value below 0.
        until: The time of the last row that the model was trained on (microseconds since 1970, or a number as in the
            data); None if the data have no times.
    """

    grid: np.ndarray
    reach: np.ndarray
    rows: np.ndarray
    windows: int
    scored_rows: int
    floor: np.ndarray | None
    non_negative: np.ndarray
    until: int | float | None

    @classmethod
    def of(
        cls,
        scores: np.ndarray,
        row_scores: np.ndarray,
        *,
        floor: np.ndarray | None,
        non_negative: np.ndarray,
        until: int | float | None,
    ) -> Calibration | None:
        """Return the calibration for scores.

        Args:
            scores: (windows, horizon, targets).
            row_scores: (rows, targets).
            floor: See the attributes.
            non_negative: See the attributes.
            until: See the attributes.

        Returns:
            The calibration; None if there are too few scores for any level.
        """
        most = min(len(scores), len(row_scores))
        levels = _GRID if len(_GRID) * scores[0].size <= _MOST_NUMBERS else _COARSE
        grid = [level for level in levels if _rank(most, level) <= most]
        if not grid:
            return None
        return cls(
            np.array(grid),
            np.stack([conformal_quantile(scores, level) for level in grid]),
            np.stack([conformal_quantile(row_scores, level) for level in grid]),
            len(scores),
            len(row_scores),
            floor,
            non_negative,
            until,
        )

    def reach_at(self, level: float, *, rows: bool = False) -> np.ndarray:
        """Return the reach of an interval of a level: (horizon, targets), or (targets,) with `rows`.

        Raises:
            ConfigError: The validation part was too short for this level.
        """
        check_level(level)
        last = self.grid[-1]
        if level > last:
            count = self.scored_rows if rows else self.windows
            raise ConfigError(
                f"{argument('level')} is {level:g}, but the model was calibrated on {count:,} held-out "
                f"{'rows' if rows else 'windows'}, enough for levels up to {last:g}: give a lower level, or train with "
                f"a longer validation part ({argument('validation_fraction')} of `cellerate train series`)."
            )
        kept = self.rows if rows else self.reach
        after = int(np.searchsorted(self.grid, level))
        if after == 0 or self.grid[after] == level:
            return kept[after]
        share = (level - self.grid[after - 1]) / (self.grid[after] - self.grid[after - 1])
        return kept[after - 1] + share * (kept[after] - kept[after - 1])

    def p_values(self, row_scores: np.ndarray) -> np.ndarray:
        """Return, for (N, targets) scores of rows, the share of held-out rows with as large a score or a larger one.

        The stored quantiles bound the share: it is never below the least that their number of rows can show.
        """
        found = np.empty(row_scores.shape)
        for target in range(row_scores.shape[1]):
            kept = np.concatenate([[0.0], np.maximum.accumulate(self.rows[:, target])])
            inside = np.interp(row_scores[:, target], kept, [0.0, *self.grid])
            # The calibration knows nothing about scores beyond its last quantile.
            found[:, target] = 1 - inside
        return np.maximum(found, 1 / (self.scored_rows + 1))

    def divisor(self, spread: np.ndarray) -> np.ndarray:
        """The divisor of scores, (B, targets): `window_scale` of their windows plus the floor, or ones."""
        return np.ones(spread.shape) if self.floor is None else spread + self.floor

    def to_config(self) -> dict[str, Any]:
        """A description for `from_config`, ready for JSON; distances have six digits."""
        return {
            "grid": self.grid.tolist(),
            "reach": _rounded_up(self.reach),
            "rows": _rounded_up(self.rows),
            "windows": self.windows,
            "scored_rows": self.scored_rows,
            "floor": None if self.floor is None else self.floor.tolist(),
            "non_negative": self.non_negative.tolist(),
            "until": self.until,
        }

    @classmethod
    def from_config(cls, config: Any, horizon: int, targets: int) -> Calibration:
        """The calibration that `to_config` described.

        Raises:
            ValueError: The description is not valid; a model file may hold anything.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(config, Mapping) or set(config) != set(names):
            raise ValueError(f"its calibration must have {', '.join(names)}")
        given = config["grid"]
        if not isinstance(given, list) or not 1 <= len(given) <= len(_GRID):
            raise ValueError(f"the grid of its calibration must be a list of 1 to {len(_GRID)} levels")
        grid = _numbers(given, (len(given),), "grid")
        if not (np.diff(grid) > 0).all() or not 0 < grid[0] <= grid[-1] < 1:
            raise ValueError("the grid of its calibration must rise between 0 and 1")
        counts = [config[name] for name in ("windows", "scored_rows")]
        if not all(type(count) is int and 1 <= count < 1 << 53 for count in counts):
            raise ValueError(f"its calibration counts windows and rows as {counts!r:.60}")
        signs = config["non_negative"]
        if (
            not isinstance(signs, list)
            or len(signs) != targets
            or not all(type(sign) is bool for sign in signs)
        ):
            raise ValueError(f"non_negative of its calibration must be {targets} times true or false")
        until = config["until"]
        if until is not None and (type(until) not in (int, float) or not abs(until) < 1 << 63):
            raise ValueError(f"until of its calibration must be a time as a number, not {until!r:.40}")
        floor = None if config["floor"] is None else _numbers(config["floor"], (targets,), "floor")
        if floor is not None and not (floor > 0).all():
            raise ValueError("the floor of its calibration must be positive")
        return cls(
            grid,
            _numbers(config["reach"], (len(given), horizon, targets), "reach"),
            _numbers(config["rows"], (len(given), targets), "rows"),
            windows=counts[0],
            scored_rows=counts[1],
            floor=floor,
            non_negative=np.array(signs),
            until=until,
        )


def check_level(level: float) -> None:
    """Raises `ConfigError` for a level that is not a number between 0 and 1."""
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
        raise ConfigError(
            f"{argument('level')} must be between 0 and 1, such as 0.95 for 95 %, not {level!r:.40}."
        )


def conformal_quantile(scores: np.ndarray, level: float) -> np.ndarray:
    """The bound that a new, exchangeable score does not exceed with at least the probability `level`.

    It is the ceil((n + 1) level)-th smallest of n scores; infinite if that rank exceeds n, so that n is too few.

    Args:
        scores: (n, ...).
        level: Between 0 and 1.

    Returns:
        (...) float64.
    """
    rank, count = _rank(len(scores), level), len(scores)
    if rank > count:
        return np.full(scores.shape[1:], np.inf)
    return np.asarray(np.partition(scores, rank - 1, axis=0)[rank - 1], np.float64)


def conformity_scores(truth: np.ndarray, forecast: np.ndarray, quantiles: Sequence[float]) -> np.ndarray:
    """The distance of the truth from forecasts, (B, horizon, targets).

    Args:
        truth: (B, horizon, targets).
        forecast: (B, horizon, targets), or with quantiles (B, horizon, targets, Q).
        quantiles: The Q quantiles, or empty.

    Returns:
        The distance from a point forecast; with two quantiles or more, the distance outside the outermost quantiles,
        negative inside.
    """
    low, high = _edges(np.asarray(forecast, np.float64), quantiles)
    return np.maximum(low - truth, truth - high)


def window_scale(past: np.ndarray) -> np.ndarray:
    """(B, targets): the standard deviation of windows (B, window, targets)."""
    return np.asarray(past, np.float64).std(axis=1)


def scale_floor(scales: np.ndarray) -> np.ndarray:
    """Return the (targets,) floor to add to scales (B, targets): a calm window does not promise a calm future."""
    middle = np.median(scales, axis=0)
    usual = np.where(middle > 0, middle, scales.mean(axis=0))
    return np.where(usual > 0, _FLOOR * usual, 1.0)


def interval(
    forecast: np.ndarray, quantiles: Sequence[float], reach: np.ndarray, non_negative: np.ndarray
) -> np.ndarray:
    """The interval around forecasts.

    Args:
        forecast: (..., horizon, targets), or (..., horizon, targets, Q).
        quantiles: The Q quantiles, or empty.
        reach: (..., horizon, targets) the reach beyond the forecast, or beyond the outermost quantiles; a negative
            reach makes the interval narrower than those.
        non_negative: (..., targets) the targets whose intervals end at 0.

    Returns:
        (..., horizon, targets, 2): low and high.
    """
    low, high = _edges(np.asarray(forecast, np.float64), quantiles)
    # A truth whose score is the reach lies on the edge, and rounding must not put it outside.
    reach = reach + _ROUNDING * (np.abs(low) + np.abs(high) + np.abs(reach))
    low, high = low - reach, high + reach
    # An interval narrowed by more than half its width becomes its middle.
    low, high = np.minimum(low, (low + high) / 2), np.maximum(high, (low + high) / 2)
    both = np.stack([low, high], axis=-1)
    floors = np.where(non_negative, 0.0, -np.inf)[..., None, :, None]
    return np.maximum(both, floors)


def interval_coverage(
    truth: np.ndarray, intervals: Mapping[float, np.ndarray]
) -> dict[str, dict[str, float]]:
    """Return the share of the truth that intervals hold, and their width.

    Args:
        truth: (..., targets).
        intervals: By level (..., targets, 2): low and high, in the same units.

    Returns:
        By level, such as "0.8": `coverage`, a share, and of a single target `width`, the mean in the units of the
        data; several targets may have several units.
    """
    found = {}
    for level, both in intervals.items():
        low, high = both[..., 0], both[..., 1]
        figures = found[f"{level:g}"] = {"coverage": float(((truth >= low) & (truth <= high)).mean())}
        if truth.shape[-1] == 1:
            figures["width"] = float((high - low).mean())
    return found


def median_places(quantiles: Sequence[float]) -> tuple[int, int]:
    """Return the indices of the quantiles below and above 0.5; twice the same if one of them stands for the median.

    That is 0.5 itself, or the nearest where all are on one side.
    """
    above = min(bisect.bisect_left(quantiles, 0.5), len(quantiles) - 1)
    alone = above == 0 or quantiles[above] <= 0.5
    return (above if alone else above - 1), above


def point_of(forecast: np.ndarray, quantiles: Sequence[float]) -> np.ndarray:
    """Return a point forecast (..., targets): the forecast itself, or the median, interpolated between quantiles."""
    if not quantiles:
        return forecast
    low, high = median_places(quantiles)
    if low == high:
        return forecast[..., low]
    share = (0.5 - quantiles[low]) / (quantiles[high] - quantiles[low])
    return forecast[..., low] + share * (forecast[..., high] - forecast[..., low])


def _edges(forecast: np.ndarray, quantiles: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    if not quantiles:
        return forecast, forecast
    low, high = forecast[..., 0], forecast[..., -1]
    # A model's quantiles may cross.
    return np.minimum(low, high), np.maximum(low, high)


def _rank(count: int, level: float) -> int:
    # 0.95 * 20 is a little more than 19 in float64.
    return max(1, math.ceil((count + 1) * level - 1e-9))


def _rounded_up(values: np.ndarray) -> Any:
    """Return lists of numbers rounded up to six digits."""
    digits = [float(f"{value + 5e-6 * abs(value):.6g}") for value in values.ravel()]
    return np.array(digits).reshape(values.shape).tolist()


def _numbers(values: Any, shape: tuple[int, ...], name: str) -> np.ndarray:
    wanted = f"{name} of its calibration must be numbers of shape {shape}"
    _check_lists(values, shape, wanted)
    found = np.array(values, np.float64)
    if not np.isfinite(found).all() or (np.abs(found) > _LARGEST).any():
        raise ValueError(f"{wanted}, all finite")
    return found


def _check_lists(values: Any, shape: tuple[int, ...], wanted: str) -> None:
    if not shape:
        if type(values) not in (int, float):
            raise ValueError(wanted)
        return
    if not isinstance(values, list) or len(values) != shape[0]:
        raise ValueError(wanted)
    for value in values:
        _check_lists(value, shape[1:], wanted)
