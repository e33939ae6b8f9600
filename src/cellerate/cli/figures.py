"""Shows the figures of a forecaster: a table beside the baselines, coverage, the worst series, a verdict."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from cellerate.cli.options import option
from cellerate.cli.output import print_result
from cellerate.cli.words import in_options
from cellerate.format import aligned, one_line

Rank = Annotated[
    int,
    typer.Option(
        help="Series: how many of the worst series to list, where there are several; --json has all.", min=0
    ),
]

Statistics = Annotated[
    list[str] | None,
    option("Series: a model of StatsForecast to judge beside it: ets, theta or arima; may be repeated."),
]

# Figures with a unit are shown only for a single target.
_COLUMNS = {
    "mae": "MAE",
    "mse": "MSE",
    "rmse": "RMSE",
    "crps": "CRPS",
    "mase": "MASE",
    "smape": "sMAPE %",
    "scaled_mae": "MAE in standard deviations",
    "scaled_crps": "CRPS in standard deviations",
}
# With more targets only the averages are shown; --json has all.
_MOST_TARGETS = 8
_LONGEST_NAME = 40
_LARGE = 1e7


def show_figures(report: Mapping[str, Any], rank: int = 10) -> None:
    """Prints the figures of a forecaster; see `tasks.judging.forecaster_report`.

    Args:
        report: The figures.
        rank: How many of the worst series to list.
    """
    by_target: Mapping[str, Any] = report["by_target"]
    if len(by_target) == 1:
        ((name, figures),) = by_target.items()
        _table(name, figures)
    else:
        for name, figures in list(by_target.items())[:_MOST_TARGETS]:
            _table(name, figures)
            print_result("")
        if len(by_target) > _MOST_TARGETS:
            print_result(f"and {len(by_target) - _MOST_TARGETS} more targets (all of them: --json)\n")
        _table("all targets", report)
    if coverage := report.get("coverage"):
        below = ", ".join(f"{name} {100 * share:.1f} %" for name, share in coverage.items())
        inside = "; ".join(
            f"the {name.removesuffix('%')} % interval holds {100 * share:.1f} % of the true values"
            for name, share in report["interval_coverage"].items()
        )
        print_result(f"coverage: {f'{inside}; ' if inside else ''}at or below each quantile: {below}")
    for level, found in report.get("intervals", {}).items():
        width = f", {shown(found['width'])} wide on average" if len(by_target) == 1 else ""
        held = f"holds {100 * found['coverage']:.1f} % of the true values"
        print_result(f"calibrated {100 * float(level):g} % interval: {held}{width}")
    for name, why in report.get("left_out", {}).items():
        print_result(f"left out: {_label(name)}, because {in_options(why)}")
    if rank and (rows := report.get("by_series")):
        _worst(rows, rank)
    print_result(in_options(report["verdict"]["sentence"]))


def judged_on(report: Mapping[str, Any], judged: str, unit: str) -> str:
    """Say how much of the held-out data a model was judged on.

    Args:
        report: The figures, with `sampled_from` if they are of a sample.
        judged: The name of the figure that counts the judged items.
        unit: The name of the items, such as "windows".
    """
    if "sampled_from" not in report:
        return f"{report[judged]:,} {unit}"
    return f"{report[judged]:,} of {report['sampled_from']:,} {unit}, spread evenly, for lack of time"


def _table(title: str, figures: Mapping[str, Any]) -> None:
    names = [
        name for name, errors in figures.items() if isinstance(errors, Mapping) and "scaled_mae" in errors
    ]
    columns = [key for key in _COLUMNS if any(key in figures[name] for name in names)]
    if "crps" in columns:
        columns.remove("scaled_crps")
    rows = [[_name(title), *(_COLUMNS[key] for key in columns)]]
    for name in names:
        rows.append([f"  {_label(name)}", *(_cell(key, figures[name].get(key)) for key in columns)])
    for line in aligned(rows, range(1, len(rows[0]))):
        print_result(line)


def _worst(rows: Sequence[Mapping[str, Any]], rank: int) -> None:
    scaled = "mase" if "mase" in rows[0]["model"] else "scaled_mae"
    print_result(f"\nthe worst of {len(rows):,} series, by {_COLUMNS[scaled]}")
    baselines = [name for name, errors in rows[0].items() if isinstance(errors, Mapping) and name != "model"]
    kinds = ["model", *baselines]
    table = [["  series", "windows", *(_label(name) for name in kinds)]]
    for row in rows[:rank]:
        figures = [shown(row[name].get(scaled)) for name in kinds]
        table.append([f"  {_name(row['series'])}", f"{row['windows']:,}", *figures])
    for line in aligned(table, range(1, len(table[0]))):
        print_result(line)
    print_result("")


def _label(name: str) -> str:
    from cellerate.tasks.judging import LABELS

    return LABELS[name]


def _name(text: str) -> str:
    text = one_line(text)
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"


def _cell(key: str, value: float | None) -> str:
    return f"{value:.1f}" if key == "smape" and value is not None else shown(value)


def shown(value: float | None) -> str:
    """A figure of a table."""
    if value is None:
        return "-"
    return f"{value:,.4f}" if abs(value) < _LARGE else f"{value:.4e}"
