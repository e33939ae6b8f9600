"""`cellerate backtest`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cellerate.cli.backend import start_backend_for
from cellerate.cli.figures import Rank, Statistics, show_figures, shown
from cellerate.cli.options import Backend, Json, Quiet, operand, option, with_settings
from cellerate.cli.output import check_plot, json_text, outputs, print_json, print_result
from cellerate.cli.running import progress_bar
from cellerate.cli.tables import Level, WithIntervals, check_table, levels_of, notes_at_end
from cellerate.cli.words import in_options
from cellerate.data.settings import TableOptions
from cellerate.errors import ConfigError
from cellerate.tasks.settings import ReadingOptions

# Of more folds only the first ones are shown; --json has all.
_MOST_FOLDS = 40


@with_settings("reading", ReadingOptions, panel="Reading")
@with_settings("table", TableOptions, panel="Tables")
def backtest(
    model: Annotated[Path, operand("A model of `train series`, or packed.")],
    data: Annotated[list[str], operand("The series: tables of any format, or a packed series.")],
    reading: ReadingOptions,
    table: TableOptions,
    folds: Annotated[
        int, typer.Option(help="Origins to forecast from; the last fold ends with the data.", min=1)
    ] = 20,
    step: Annotated[
        int | None, option("Rows from one origin to the next. Default: the horizon.", min=1)
    ] = None,
    refit: Annotated[
        bool,
        typer.Option("--refit", help="Train a model for each fold anew, on the rows before its origin only."),
    ] = False,
    epochs: Annotated[
        int | None, option("With --refit: epochs a fold. Default: those of the training.", min=1)
    ] = None,
    max_seconds: Annotated[
        float | None, option("With --refit: the most seconds of training a fold. Default: 60.")
    ] = None,
    baselines: Annotated[
        bool, typer.Option(help="Also judge a linear forecast; the naive ones cost nothing.")
    ] = True,
    statistical: Statistics = None,
    level: Level = None,
    intervals: WithIntervals = True,
    output: Annotated[
        Path | None,
        option("Also write the forecasts (*.csv, *.parquet) or all figures (*.json).", "--output", "-o"),
    ] = None,
    plot: Annotated[Path | None, option("Draw the folds, past, forecast and truth: *.png or *.svg.")] = None,
    rank: Rank = 10,
    backend: Backend = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Judge a forecaster at many times of the past: each fold forecasts from the rows before its origin only.

    Examples:
        cellerate backtest ett.keras ETTh1.csv --folds 20

        cellerate backtest ett.cell ETTh1.csv --folds 100 --step 1 -o folds.csv --plot folds.png

        cellerate backtest ett.keras ETTh1.csv --folds 5 --refit --epochs 3

        cellerate backtest ett.keras ETTh1.csv --statistical theta --statistical arima
    """
    levels = levels_of(level, intervals)
    if output is not None:
        if output.suffix not in (".csv", ".parquet", ".json"):
            raise ConfigError(f"the output ends in .csv, .parquet or .json, and {output} does not.")
        check_table(output, data)
    check_plot(plot)
    start_backend_for(model, backend, data)
    say_written = outputs(output, plot)
    from cellerate.tasks.backtest import backtest as run_backtest

    with notes_at_end(quiet) as collect, progress_bar("forecasting folds", quiet) as progress:
        found = run_backtest(
            model,
            data,
            folds=folds,
            step=step,
            refit=refit,
            epochs=epochs,
            max_seconds=max_seconds,
            baselines=baselines,
            statistical=statistical or (),
            levels=levels,
            progress=progress,
            notify=collect,
            **vars(reading),
            **vars(table),
        )
    if output is not None:
        _write(output, found)
    if plot is not None:
        from cellerate.report.charts import draw_backtest

        draw_backtest(plot, [fold.examples for fold in found.folds], f"{model.stem}: backtest")
    if json:
        print_json(found.record())
    else:
        _show(found, rank)
    say_written()


def _write(output: Path, found: Any) -> None:
    from cellerate.files import atomic_write, write_csv, write_parquet

    if output.suffix == ".csv":
        write_csv(output, *found.table())
    elif output.suffix == ".parquet":
        write_parquet(output, found.columns())
    else:
        with atomic_write(output) as beside:
            beside.write_text(json_text(found.record()))


def _show(found: Any, rank: int) -> None:
    from cellerate.format import aligned
    from cellerate.tasks.judging import LABELS

    figures = found.folds[0].figures
    figure, unit = (
        ("mae", "MAE") if "mae" in figures["model"] else ("scaled_mae", "MAE in standard deviations")
    )
    names = [name for name in LABELS if name in figures]
    rows = [["fold", "from", *(LABELS[name] for name in names)]]
    for fold in found.folds[:_MOST_FOLDS]:
        values = [shown(fold.figures[name][figure]) for name in names]
        rows.append([str(fold.number), str(fold.origin), *values])
    print_result(
        f"{len(found.folds)} folds of {found.horizon} rows, every {found.step} rows: {in_options(found.told)}"
    )
    print_result(f"{unit} of each fold")
    for line in aligned(rows, [0, *range(2, len(rows[0]))]):
        print_result(line)
    if len(found.folds) > _MOST_FOLDS:
        print_result(f"and {len(found.folds) - _MOST_FOLDS} more folds (all of them: --json)")
    if found.left_out:
        print_result(f"left out, too short for any fold: {len(found.left_out):,} series")
    print_result(f"\nall folds, {found.figures['windows']:,} forecasts")
    show_figures(found.figures, rank)
