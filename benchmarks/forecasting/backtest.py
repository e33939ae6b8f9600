"""The time of a backtest, Darts's and ours, with equal models: an LSTM and a dense layer with the same weights.

Darts trains its model briefly, and ours takes over the weights, so both must forecast the same, which is checked before
anything is timed. No model is trained again between the folds.
"""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.forecasting.data import ROWS, TEST, TRAIN, VALIDATION, WINDOW, middle, read_series, truth_at
from benchmarks.forecasting.race import Field, open_field

TASK, HORIZON, UNITS = "OT", 24, 64
FOLDS = 20
ROUNDS = 7
PREDICTED_AT_ONCE = (32, 256, 2048)
TRAINED_S = 5.0
MOST_APART = 1e-3
"""The allowed difference in standard deviations: both sides use float32, but add up in different orders."""
OURS = ("cellerate-torch", "cellerate-jax")
OUR_WAYS = ("keras", "packed", "backtest", "backtest packed")
"""Forecasts and MAE from data in memory, with the Keras or the packed model; and the whole call."""
GOAL = 5.0

Questions = dict[str, tuple[str, dict[str, Any]]]


def folds() -> dict[str, int]:
    """Rows between the origins, by the name of a backtest: of 20 folds spread over the test part, and of every hour."""
    return {f"{FOLDS} folds": (TEST - HORIZON) // (FOLDS - 1), "every hour": 1}


def origins_of(stride: int) -> np.ndarray:
    """The first rows to forecast; the last forecast ends with the test part."""
    return np.arange(ROWS - HORIZON, TRAIN + VALIDATION - 1, -stride)[::-1]


def check(name: str, found: Any, theirs: Any, values: np.ndarray, scale: np.ndarray) -> float:
    """The largest difference of two backtests, in standard deviations.

    Raises:
        RuntimeError: Their origins, their true values or their forecasts differ.
    """
    if not np.array_equal(found["origins"], theirs["origins"]):
        raise RuntimeError(f"{name}: forecasts from other rows than Darts's")
    truth = truth_at(values, found["origins"], HORIZON)
    if not np.allclose(found["truth"], truth, rtol=1e-6):
        raise RuntimeError(f"{name}: judged by another truth than what came")
    if found["forecast"].shape != truth.shape or theirs["forecast"].shape != truth.shape:
        raise RuntimeError(f"{name}: forecasts of another shape than {truth.shape}")
    apart = float((np.abs(found["forecast"] - theirs["forecast"]) / scale).max())
    if not apart <= MOST_APART:
        raise RuntimeError(f"{name}: forecasts up to {apart:.1e} standard deviations away from Darts's")
    return apart


def run(source: Path, *, quick: bool) -> dict[str, Any]:
    """Check both, then time them in turns.

    Raises:
        RefusedError: The environment of the peers cannot be made, or Darts can't do it.
        RuntimeError: The two do not forecast the same.
    """
    with open_field(source) as field:
        return compare(field, rounds=2 if quick else ROUNDS)


def compare(field: Field, *, rounds: int = ROUNDS) -> dict[str, Any]:
    """Call `run` with the contestants."""
    weights = str(field.folder / "weights.npz")
    given = {"task": TASK, "horizon": HORIZON, "units": UNITS}
    field.ask("darts", "begin", TRAINED_S, seed=0, budget_s=TRAINED_S, into=weights, **given)
    for one in OURS:
        field.ask(one, "begin", weights=weights, **given)
    backtests = []
    for what, stride in folds().items():
        origins = origins_of(stride).tolist()
        asked = questions(origins, stride)
        apart = _checked(field, asked)
        records = _timed(field, asked, rounds)
        backtests.append({"what": what, "forecasts": len(origins), "records": records, "apart": apart})
        for one in sorted(records, key=lambda each: each["median_s"]):
            print(f"{what:<10} {one['contestant']:<16} {one['way']:<21} {one['batch'] or '':>4} "
                  f"{1e3 * one['median_s']:.1f} ms", flush=True)  # fmt: skip
    return {
        "window": WINDOW,
        "horizon": HORIZON,
        "units": UNITS,
        "about": field.about,
        "backtests": backtests,
        "goal": GOAL,
    }


def questions(origins: list[int], stride: int) -> Questions:
    """The contestant and the request for each way to do a backtest."""
    asked: Questions = {}
    for batch in PREDICTED_AT_ONCE:
        for way in ("historical_forecasts", "backtest"):
            about = {"way": way, "horizon": HORIZON, "first": origins[0], "stride": stride, "batch": batch}
            asked[f"darts {way} {batch}"] = "darts", about
    for one in OURS:
        for way in OUR_WAYS:
            asked[f"{one} {way}"] = one, {"way": way, "horizon": HORIZON, "origins": origins}
    return asked


def _checked(field: Field, asked: Questions) -> dict[str, float]:
    """The difference of each of our ways to Darts's forecasts, in standard deviations; this also warms up all ways."""
    series = read_series(field.folder, TASK)
    results: dict[str, Any] = {}
    for label, (who, question) in asked.items():
        into = field.folder / "backtest.npz"
        judged = label.startswith(("cellerate", "darts historical"))
        field.ask(who, "backtest", repeats=1, into=str(into) if judged else None, **question)
        if judged:
            with np.load(into) as found:
                results[label] = dict(found)
            into.unlink()
    theirs = results[f"darts historical_forecasts {PREDICTED_AT_ONCE[0]}"]
    return {
        label: check(label, found, theirs, series.values, series.scale)
        for label, found in results.items()
        if label.startswith("cellerate")
    }


def _timed(field: Field, asked: Questions, rounds: int) -> list[dict[str, Any]]:
    """The records of all ways, which take turns in changing order."""
    seconds: dict[str, list[float]] = {label: [] for label in asked}
    for turn in range(rounds):
        labels = [*asked]
        for label in labels[turn % len(labels) :] + labels[: turn % len(labels)]:
            who, question = asked[label]
            seconds[label] += field.ask(who, "backtest", repeats=1, **question)["seconds"]
    return [
        {
            "contestant": asked[label][0],
            "way": asked[label][1]["way"],
            "batch": asked[label][1].get("batch"),
            "median_s": middle(times),
            "seconds": times,
        }
        for label, times in seconds.items()
    ]
