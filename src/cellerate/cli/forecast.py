"""`cellerate forecast`."""

from pathlib import Path
from typing import Annotated

import typer

from cellerate.cli.options import Backend, Config, Json
from cellerate.cli.output import emit, emit_json, note


def forecast(
    model: Annotated[Path, typer.Argument(help="A model of `train series`.", show_default=False)],
    data: Annotated[
        list[str], typer.Argument(help="The series so far: CSV, Parquet or .npy.", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Also write the forecasts as CSV.", show_default=False),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw past and forecast as a PNG.", show_default=False)
    ] = None,
    backend: Backend = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Forecast what comes after the end of each series.

    Examples:
        cellerate forecast ett.keras ETTh1.csv

        cellerate forecast ett.keras ETTh1.csv -o tomorrow.csv --plot tomorrow.png
    """
    from cellerate.environment import select_backend
    from cellerate.files import check_writable, write_csv

    select_backend(backend)
    from cellerate.tasks.forecasts import example_record, forecast_table
    from cellerate.tasks.series import forecast_series, load_series_model

    for target in filter(None, (output, plot)):
        check_writable(target)
    examples = forecast_series(load_series_model(model), data)
    columns, rows = forecast_table(examples)
    if output is not None:
        write_csv(output, columns, rows)
    if plot is not None:
        from cellerate.report.charts import draw_forecasts

        draw_forecasts(plot, examples, f"{model.stem}: the next {len(examples[0].times)} rows")
    if json:
        emit_json({"forecasts": [example_record(example) for example in examples]})
    else:
        emit(",".join(columns))
        for row in rows:
            emit(",".join(f"{v:.6g}" if isinstance(v, float) else str(v) for v in row))
    for target in filter(None, (output, plot)):
        note(f"written: {target}")
