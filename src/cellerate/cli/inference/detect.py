"""`cellerate detect`."""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cellerate.cli.backend import start_backend_for
from cellerate.cli.options import Backend, Json, Quiet, operand, option, with_settings
from cellerate.cli.output import check_plot, outputs, print_json, print_result, written
from cellerate.cli.running import progress_bar
from cellerate.cli.tables import check_table, notes_at_end
from cellerate.data.settings import TableOptions
from cellerate.files import atomic_write, write_csv, write_parquet
from cellerate.format import aligned
from cellerate.tasks.settings import ReadingOptions

if TYPE_CHECKING:
    from cellerate.tasks.detect import Anomalies


@with_settings("reading", ReadingOptions, panel="Reading")
@with_settings("table", TableOptions, panel="Tables")
def detect(
    model: Annotated[Path, operand("A model of `train series`, or packed.")],
    data: Annotated[list[str], operand("The series: tables of any format, or a packed series.")],
    reading: ReadingOptions,
    table: TableOptions,
    output: Annotated[
        Path | None, option("Write every row and its score: *.csv, *.parquet or *.json.", "--output", "-o")
    ] = None,
    level: Annotated[
        float | None,
        option(
            "The share of usual rows that are not to be found. Default: 0.99, or the highest that a short "
            "validation part allows."
        ),
    ] = None,
    worst: Annotated[int, typer.Option(min=0, help="How many anomalies to show.")] = 10,
    plot: Annotated[Path | None, option("Draw the series and its anomalies: *.png or *.svg.")] = None,
    backend: Backend = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Find rows of a series that the model did not expect.

    A row is an anomaly if it is further from what was forecast for it than the share --level of the rows that were held
    out in training.

    Examples:
        cellerate detect ett.keras ETTh1.csv -o anomalies.csv

        cellerate detect ett.cell ETTh1.csv --level 0.999 --plot anomalies.png
    """
    from cellerate.tasks.detect import check_anomalies_path

    if output is not None:
        check_anomalies_path(output)
        check_table(output, data)
    check_plot(plot)
    start_backend_for(model, backend, data)
    say_written = outputs(output, plot)
    from cellerate.tasks import detect as task

    with notes_at_end(quiet) as collect, progress_bar("judging rows", quiet) as progress:
        found = task.detect(
            model,
            data,
            level=level,
            progress=progress,
            notify=collect,
            **vars(reading),
            **vars(table),
        )
    if output is not None:
        _write(output, found)
    if plot is not None:
        _draw(plot, found, f"{model.stem}: what was not expected")
    shown = _rows(found, found.worst(worst))
    count = int(found.anomaly.sum())
    if json:
        print_json({"level": found.level, "rows": len(found), "anomalies": count, "worst": shown})
    else:
        print_result(
            f"{count:,} of {len(found):,} rows ({count / len(found):.2%}) are further from their forecast than "
            f"{found.level:.6g} of the held-out rows were"
        )
        if shown:
            _show(shown)
    say_written()


def _show(rows: list[dict[str, Any]]) -> None:
    names = [name for name in rows[0] if name != "anomaly"]
    cells = [names] + [
        [written(row[name], 5) if isinstance(row[name], float) else str(row[name]) for name in names]
        for row in rows
    ]
    for line in aligned(cells, range(len(names))):
        print_result(f"  {line}")


def _rows(found: "Anomalies", places: Any) -> list[dict[str, Any]]:
    """Some rows as values for people and JSON."""
    columns = {name: column[places].tolist() for name, column in found.columns().items()}
    columns["time"] = found.form.write(found.time[places])
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _write(path: Path, found: "Anomalies") -> None:
    if path.suffix.lower() == ".parquet":
        columns: dict[str, Any] = {
            name: one.tolist() if one.dtype.kind == "O" else one for name, one in found.columns().items()
        }
        write_parquet(path, columns | {"time": found.form.column(found.time)})
        return
    import numpy as np

    rows = _rows(found, np.arange(len(found)))
    if path.suffix.lower() == ".csv":
        write_csv(path, list(rows[0]), [list(row.values()) for row in rows])
        return
    import json

    with atomic_write(path) as beside:
        beside.write_text(json.dumps({"level": found.level, "rows": rows}) + "\n")


def _draw(path: Path, found: "Anomalies", title: str) -> None:
    """One panel for each series and target."""
    import numpy as np

    from cellerate.data.times import to_local
    from cellerate.report.charts import AnomalyPanel, draw_anomalies

    same = (found.series[1:] == found.series[:-1]) & (found.target[1:] == found.target[:-1])
    edges = [0, *(np.flatnonzero(~same) + 1).tolist(), len(found)]
    times = found.time if found.time.dtype.kind != "M" else to_local(found.time, found.form.zone)
    panels = []
    for first, stop in itertools.pairwise(edges):
        rows = slice(first, stop)
        panels.append(
            AnomalyPanel(
                " · ".join(filter(None, [found.series[first], found.target[first]])),
                times[rows],
                found.value[rows],
                found.expected[rows],
                found.low[rows],
                found.high[rows],
                found.anomaly[rows],
                level=found.level,
            )
        )
    draw_anomalies(path, panels, title)
