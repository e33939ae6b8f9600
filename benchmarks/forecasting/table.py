"""The tables of the forecasting cases, and the sentence that says where we lose."""

from collections.abc import Iterator
from statistics import fmean, median
from typing import Any

from benchmarks.forecasting.data import of_ours
from cellerate.format import percent, rounded, short

Result = dict[str, Any]

NAMES = {
    "cellerate-torch": "**Cellerate** on torch",
    "cellerate-jax": "**Cellerate** on jax",
    "darts-lstm": "Darts, `BlockRNNModel`, LSTM",
    "darts-nlinear": "Darts, `NLinearModel`",
    "neuralforecast-lstm": "NeuralForecast, `LSTM`",
    "neuralforecast-nlinear": "NeuralForecast, `NLinear`",
}
WORDS = {"OT": "`OT` from itself", "all": "all seven columns"}
WAYS = {
    ("darts", "historical_forecasts"): "Darts, `historical_forecasts`, nothing judged",
    ("darts", "backtest"): "Darts, `backtest`, MAE",
    ("cellerate-torch", "keras"): "**Cellerate** on torch, MAE",
    ("cellerate-jax", "keras"): "**Cellerate** on jax, MAE",
    ("cellerate-torch", "packed"): "**Cellerate**, packed, MAE",
    ("cellerate-torch", "backtest"): "`cellerate.backtest` on torch, from the file",
    ("cellerate-torch", "backtest packed"): "`cellerate.backtest`, packed, from the file",
}


def contests(result: Result) -> Iterator[tuple[str, int, dict[str, list[dict[str, Any]]]]]:
    """Each task and horizon with the records of each contestant, a record a seed."""
    every = [*result["records"], *result["naive"]]
    for task, horizon in dict.fromkeys((one["task"], one["horizon"]) for one in result["records"]):
        found: dict[str, list[dict[str, Any]]] = {}
        for one in every:
            if (one["task"], one["horizon"]) == (task, horizon):
                found.setdefault(one["contestant"], []).append(one)
        yield task, horizon, found


def mean_of(records: list[dict[str, Any]], name: str = "scaled_mse") -> float:
    """The mean of a figure over the seeds."""
    return fmean(one[name] for one in records)


def ranked(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The strongest opponent, then ours, then the others; each by the mean squared error."""
    order = sorted(found, key=lambda name: mean_of(found[name]))
    others = [name for name in order if not of_ours(name)]
    return [*others[:1], *filter(of_ours, order), *others[1:]]


def forecasting(result: Result) -> list[list[str]]:
    """A row for each model and horizon: its errors, and the amount of training in the same time."""
    head = f"ETTh1, window {result['window']}, {result['budget_s']:g} s of training each"
    rows = [[head, "MSE, scaled", "of its seeds", "MAE, scaled", "Windows/s trained", "Best after", "In all"]]
    for task, horizon, found in contests(result):
        rows.append([f"{WORDS[task]}, {horizon} hours ahead", *[""] * 6])
        for name in ranked(found):
            records = found[name]
            mse, mae = mean_of(records), mean_of(records, "scaled_mae")
            if name not in NAMES:
                rows.append([name, f"{mse:.4f}", "", f"{mae:.4f}", "", "", ""])
                continue
            each = [one["scaled_mse"] for one in records]
            batches = [one["windows"] / one["steps"] for one in records]
            reached = fmean(one["best_step"] * size for one, size in zip(records, batches, strict=True))
            rows.append(
                [
                    NAMES[name],
                    f"{mse:.4f}",
                    f"{min(each):.4f} to {max(each):.4f}",
                    f"{mae:.4f}",
                    short(median(one["windows_per_s"] for one in records)),
                    f"{short(reached)} windows",
                    f"{mean_of(records, 'seconds'):.1f} s",
                ]
            )
    rows += [[NAMES[name], reason, *[""] * 5] for name, reason in result["refused"].items()]
    return rows


def where_we_lose(result: Result) -> str:
    """A sentence on the tasks and horizons where a peer has a smaller error, the worst first."""
    lost = []
    for task, horizon, found in contests(result):
        order = sorted(found, key=lambda name: mean_of(found[name]))
        ours, other = next(filter(of_ours, order)), next(name for name in order if not of_ours(name))
        mine, theirs = mean_of(found[ours]), mean_of(found[other])
        if theirs < mine:
            told = f"{WORDS[task]}, {horizon} hours ahead, by {percent(mine / theirs - 1)} to {_plain(other)}"
            lost.append((mine / theirs, told))
    who = f"Peers: {_versions(result)}."
    if not lost:
        return f"In mean squared error Cellerate loses nowhere. {who}"
    where = "; ".join(told for _, told in sorted(lost, reverse=True))
    return f"Cellerate loses in mean squared error on {where}. {who}"


def backtest(result: Result) -> list[list[str]]:
    """A row for each contestant and way, a column for each backtest: times, and the factor to Darts's fastest way."""
    columns = [
        f"{one['what']}, {one['forecasts']:,} forecasts of {result['horizon']} hours"
        for one in result["backtests"]
    ]
    rows = [[f"Backtest, an LSTM of {result['units']} units, not trained again", *columns]]
    best = [fastest(one["records"]) for one in result["backtests"]]
    for (who, way), label in WAYS.items():
        cells = []
        for theirs, found in zip(best, result["backtests"], strict=True):
            one = min(_of(found["records"], who, way), key=lambda each: each["median_s"])
            times = f" ({rounded(theirs['median_s'] / one['median_s'])}x)" if of_ours(who) else ""
            batch = f", {one['batch']} at a time" if one["batch"] else ""
            cells.append(f"{1e3 * one['median_s']:.3g} ms{batch}{times}")
        rows.append([label, *cells])
    return rows


def equal_models(result: Result) -> str:
    """A sentence on the difference between our forecasts and the peer's."""
    apart = max(value for one in result["backtests"] for value in one["apart"].values())
    return (
        f"The models have the same weights; their forecasts are {apart:.0e} standard deviations apart at most. "
        f"In brackets: times as fast as Darts's fastest way. Peers: {_versions(result)}."
    )


def fastest(records: list[dict[str, Any]]) -> dict[str, Any]:
    """The fastest time of Darts."""
    return min((one for one in records if not of_ours(one["contestant"])), key=lambda one: one["median_s"])


def _of(records: list[dict[str, Any]], who: str, way: str) -> list[dict[str, Any]]:
    return [one for one in records if (one["contestant"], one["way"]) == (who, way)]


def _plain(name: str) -> str:
    return NAMES.get(name, name)


def _versions(result: Result) -> str:
    versions: dict[str, str] = {}
    for name, about in result["about"].items():
        if not of_ours(name):
            versions |= about["versions"]
    return ", ".join(f"{name} {version}" for name, version in versions.items())
