"""Twenty series, each made by its own rule, to see how a forecaster does on series that it was not built for."""

import dataclasses
from collections.abc import Callable

import numpy as np

Random = np.random.Generator


@dataclasses.dataclass(frozen=True)
class Rule:
    """The rule of a series, and the settings to forecast it.

    Attributes:
        make: Random numbers → the columns of a table. All columns but "series" and "price" are targets.
        window: Rows that the forecaster sees.
        horizon: Rows that it forecasts.
        options: Other options of `train_series`.
    """

    make: Callable[[Random], dict[str, np.ndarray]]
    window: int = 48
    horizon: int = 12
    options: dict[str, object] = dataclasses.field(default_factory=dict)

    @property
    def targets(self) -> list[str]:
        """The columns to forecast."""
        made = self.make(np.random.default_rng(0))
        return [name for name in made if name not in ("series", "price")]


def _one(values: np.ndarray) -> dict[str, np.ndarray]:
    return {"value": values}


def _steps(rows: int) -> np.ndarray:
    return np.arange(rows, dtype=np.float64)


def _autoregressive(draw: Random, weights: list[float], rows: int, noise: float = 1.0) -> np.ndarray:
    values = np.zeros(rows + 100)
    shocks = draw.normal(0, noise, rows + 100)
    for row in range(len(weights), rows + 100):
        values[row] = np.dot(weights, values[row - len(weights) : row][::-1]) + shocks[row]
    return values[100:]


def noise(draw: Random) -> dict[str, np.ndarray]:
    """Independent draws."""
    return _one(draw.normal(10, 2, 3000))


def random_walk(draw: Random) -> dict[str, np.ndarray]:
    """A sum of independent draws."""
    return _one(draw.normal(0, 1, 3000).cumsum())


def drifting_walk(draw: Random) -> dict[str, np.ndarray]:
    """A random walk that rises."""
    return _one(draw.normal(0.1, 1, 3000).cumsum())


def autoregressive(draw: Random) -> dict[str, np.ndarray]:
    """AR(2), which swings."""
    return _one(50 + _autoregressive(draw, [1.5, -0.8], 3000))


def seasonal(draw: Random) -> dict[str, np.ndarray]:
    """A day with two humps, and noise."""
    turn = 2 * np.pi * _steps(4000) / 24
    return _one(20 + 5 * np.sin(turn) + 3 * np.sin(2 * turn + 1) + draw.normal(0, 1, 4000))


def trend_and_season(draw: Random) -> dict[str, np.ndarray]:
    """A season on a straight line."""
    row = _steps(4000)
    return _one(0.01 * row + 4 * np.sin(2 * np.pi * row / 24) + draw.normal(0, 1, 4000))


def multiplied_season(draw: Random) -> dict[str, np.ndarray]:
    """A season that grows with the level, as does the noise."""
    row = _steps(4000)
    level = np.exp(0.0004 * row + draw.normal(0, 0.01, 4000).cumsum())
    return _one(10 * level * (1 + 0.4 * np.sin(2 * np.pi * row / 24)) * np.exp(draw.normal(0, 0.05, 4000)))


def level_changes(draw: Random) -> dict[str, np.ndarray]:
    """A level that jumps now and then."""
    changes = np.where(draw.random(4000) < 0.01, draw.normal(0, 5, 4000), 0).cumsum()
    return _one(changes + draw.normal(0, 0.5, 4000))


def heavy_tails(draw: Random) -> dict[str, np.ndarray]:
    """AR(1) with shocks of Student's t."""
    values = np.zeros(4000)
    shocks = draw.standard_t(2.5, 4000)
    for row in range(1, 4000):
        values[row] = 0.8 * values[row - 1] + shocks[row]
    return _one(values)


def intermittent(draw: Random) -> dict[str, np.ndarray]:
    """Demand that is mostly zero."""
    return _one(np.where(draw.random(3000) < 0.2, draw.poisson(4, 3000) + 1, 0).astype(np.float64))


def logistic_map(draw: Random) -> dict[str, np.ndarray]:
    """Chaos in one step."""
    values = np.empty(3000)
    values[0] = draw.uniform(0.2, 0.8)
    for row in range(1, 3000):
        values[row] = 3.9 * values[row - 1] * (1 - values[row - 1])
    return _one(values)


def mackey_glass(draw: Random) -> dict[str, np.ndarray]:
    """Chaos with a delay."""
    values = np.full(4200, 1.2) + draw.normal(0, 0.01, 4200)
    for row in range(17, 4199):
        late = values[row - 17]
        values[row + 1] = values[row] + 0.2 * late / (1 + late**10) - 0.1 * values[row]
    return _one(values[200:])


def drifting_sine(draw: Random) -> dict[str, np.ndarray]:
    """A sine whose pace wanders."""
    pace = 2 * np.pi / 20 * np.exp(draw.normal(0, 0.01, 4000).cumsum() * 0.3)
    return _one(np.sin(pace.cumsum()) + draw.normal(0, 0.1, 4000))


def changing_noise(draw: Random) -> dict[str, np.ndarray]:
    """Quiet and wild times (GARCH)."""
    values, variance = np.zeros(4000), 1.0
    for row in range(1, 4000):
        variance = 0.05 + 0.15 * values[row - 1] ** 2 + 0.8 * variance
        values[row] = draw.normal(0, np.sqrt(variance))
    return _one(values.cumsum() * 0.2 + 3 * np.sin(2 * np.pi * _steps(4000) / 24))


def two_regimes(draw: Random) -> dict[str, np.ndarray]:
    """AR(1) whose weight has one sign above zero and the other below."""
    values, shocks = np.zeros(4000), draw.normal(0, 1, 4000)
    for row in range(1, 4000):
        values[row] = (0.9 if values[row - 1] > 0 else -0.6) * values[row - 1] + shocks[row]
    return _one(values)


def pulses(draw: Random) -> dict[str, np.ndarray]:
    """A pulse every 30 to 40 rows, which dies away."""
    values, row = np.zeros(4000), 0
    while row < 4000:
        span = min(35, 4000 - row)
        values[row : row + span] += 10 * np.exp(-_steps(span) / 5)
        row += int(draw.integers(30, 41))
    return _one(values + draw.normal(0, 0.3, 4000))


def short(draw: Random) -> dict[str, np.ndarray]:
    """Few rows."""
    row = _steps(260)
    return _one(100 + 0.1 * row + 8 * np.sin(2 * np.pi * row / 12) + draw.normal(0, 2, 260))


def several_series(draw: Random) -> dict[str, np.ndarray]:
    """Eight series of different size in one table, each with its own daily pattern."""
    row = _steps(700)
    names, values = [], []
    for number in range(8):
        size, phase = 10.0 ** draw.uniform(0, 2), draw.uniform(0, 6)
        names += [f"s{number}"] * len(row)
        day = 1 + 0.5 * np.sin(2 * np.pi * row / 24 + phase)
        values.append(size * (day + _autoregressive(draw, [0.7], 700, 0.1)))
    return {"series": np.array(names), "value": np.concatenate(values)}


def with_missing_values(draw: Random) -> dict[str, np.ndarray]:
    """A season with stretches that are missing."""
    values = seasonal(draw)["value"]
    for start in draw.integers(0, 3900, 6):
        values[start : start + int(draw.integers(1, 30))] = np.nan
    return _one(values)


def several_targets(draw: Random) -> dict[str, np.ndarray]:
    """Three columns; the second follows the first, the third is by itself."""
    first = _autoregressive(draw, [0.95], 4000)
    second = 2 * np.roll(first, 6) + draw.normal(0, 0.5, 4000)
    second[:6] = second[6]
    third = 5 * np.sin(2 * np.pi * _steps(4000) / 24) + draw.normal(0, 1, 4000)
    return {"first": first, "second": second, "third": third}


RULES: dict[str, Rule] = {
    "noise": Rule(noise),
    "random walk": Rule(random_walk),
    "drifting walk": Rule(drifting_walk),
    "autoregressive": Rule(autoregressive),
    "seasonal": Rule(seasonal),
    "trend and season": Rule(trend_and_season),
    "multiplied season": Rule(multiplied_season),
    "level changes": Rule(level_changes),
    "heavy tails": Rule(heavy_tails),
    "intermittent demand": Rule(intermittent),
    "logistic map": Rule(logistic_map),
    "Mackey-Glass": Rule(mackey_glass),
    "drifting sine": Rule(drifting_sine),
    "changing noise": Rule(changing_noise),
    "two regimes": Rule(two_regimes),
    "pulses": Rule(pulses),
    "short": Rule(short, 24, 6),
    "several series": Rule(several_series, options={"series_column": "series", "scaling": "series"}),
    "missing values": Rule(with_missing_values, options={"missing": "drop"}),
    "several targets": Rule(several_targets),
}
