"""`cellerate train series`."""

import dataclasses
import shlex
import time
from pathlib import Path
from typing import Annotated

from cellerate.cli.backend import arrow_without_pandas
from cellerate.cli.figures import Rank, judged_on, show_figures
from cellerate.cli.options import Backend, Json, Output, Quiet, Resume, operand, option, with_settings
from cellerate.cli.output import check_plot, notify, print_json, print_result
from cellerate.cli.running import (
    Overwrite,
    finish_training,
    start_training,
    training_display,
    training_report,
)
from cellerate.cli.tables import given_words
from cellerate.data.settings import FILLED_IN, Reading, TableOptions
from cellerate.distributed.settings import ProcessSettings
from cellerate.tasks.settings import ForecastArchitecture, SeriesOptions
from cellerate.training.settings import TrainingSettings


@with_settings("options", SeriesOptions, leave_out=["paths", "reading"], panel="Series")
@with_settings("reading", Reading, leave_out=FILLED_IN, panel="Series")
@with_settings("table", TableOptions, panel="Tables")
@with_settings("architecture", ForecastArchitecture, panel="Model")
@with_settings("training", TrainingSettings, panel="Training")
@with_settings("parallel", ProcessSettings, panel="Processes")
def train_series(
    paths: Annotated[
        list[str], operand("Tables (CSV, Parquet, Arrow, Excel, JSON lines, .npy), or a packed series.")
    ],
    output: Output,
    options: SeriesOptions,
    reading: Reading,
    table: TableOptions,
    architecture: ForecastArchitecture,
    training: TrainingSettings,
    parallel: ProcessSettings,
    model: Annotated[Path | None, option("Train this .keras model instead of building one.")] = None,
    plot: Annotated[
        Path | None,
        option("Where to draw forecasts of the test part: *.png or *.svg; else into the run's folder."),
    ] = None,
    rank: Rank = 10,
    resume: Resume = False,
    overwrite: Overwrite = False,
    backend: Backend = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a forecaster on time series, and judge it against naive forecasts and a linear one.

    Examples:
        cellerate train series ETTh1.csv --target OT --window 96 --horizon 24 -o ett.keras

        cellerate train series umsatz.csv --target umsatz --decimal , --date-order dmy -o umsatz.keras

        cellerate train series sales.parquet --target units --series-column shop --quantile 0.1 --quantile 0.5
        --quantile 0.9 -o sales.keras
    """
    began = time.perf_counter()
    from cellerate.machine.environment import package_version

    check_plot(plot)
    start_training(backend, parallel, paths, output, quiet, resume=resume, overwrite=overwrite)
    draws = plot is not None or package_version("matplotlib") is not None
    if not draws and not quiet:
        notify("no chart will be drawn: pip install 'cellerate[plots]'")
    arrow_without_pandas()
    from cellerate.tasks.series import train_on_series
    from cellerate.training.run import RunOptions

    with training_display(quiet, output, "reading rows") as display:
        run = train_on_series(
            dataclasses.replace(options, paths=paths, reading=reading),
            RunOptions(
                output=output,
                training=training,
                resume=resume,
                overwrite=overwrite,
                display=display,
                began=began,
            ),
            architecture=architecture,
            model=model,
            table=table,
        )
    chart = None
    if plot is not None and not run.examples:
        notify("no chart was drawn: the test part has no window")
    if run.examples and draws:
        from cellerate.report.charts import draw_forecasts

        chart = plot or run.training.folder / "forecast.png"
        draw_forecasts(chart, run.examples, f"{output.stem}: forecasts on the test part")
    if json:
        print_json(
            {"training": training_report(run.training), "test": run.test, "chart": chart and str(chart)}
        )
    elif run.test is not None:
        print_result(f"test part, {judged_on(run.test, 'windows', 'windows')}")
        show_figures(run.test, rank)
    if chart is not None and not quiet:
        notify(f"chart: {chart}")
    finish_training(
        run.training,
        quiet,
        next_steps=[shlex.join(["cellerate", "forecast", str(output), *paths, *given_words(table)])],
    )
