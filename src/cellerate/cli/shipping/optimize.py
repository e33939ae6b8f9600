"""`cellerate optimize`."""

from dataclasses import replace
from json import loads
from pathlib import Path
from typing import Annotated

import typer

from cellerate.cli.backend import start_backend_for
from cellerate.cli.gains import print_gains
from cellerate.cli.options import Backend, Json, Quiet, operand, option, with_settings
from cellerate.cli.output import command_to_repeat, notify, print_json, print_result
from cellerate.cli.words import in_options
from cellerate.data.settings import TableOptions
from cellerate.machine.environment import require
from cellerate.optimization.settings import NESTED, OptimizeSettings
from cellerate.tasks.settings import ReadingOptions


@with_settings("reading", ReadingOptions, panel="Reading of series")
@with_settings("table", TableOptions, panel="Tables")
@with_settings("settings", OptimizeSettings, leave_out=NESTED, panel="Optimizing")
def optimize(
    model: Annotated[Path, operand("A model that `train` wrote.")],
    data: Annotated[
        list[str],
        option(
            "Data of the model's task: what it was trained on, or more like it. May be repeated.",
            "--data",
            "-d",
        ),
    ],
    settings: OptimizeSettings,
    reading: ReadingOptions,
    table: TableOptions,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder of the run and its report.")
    ] = Path("optimized"),
    restart: Annotated[
        bool, typer.Option("--restart", help="Throw away what an earlier run left in the folder.")
    ] = False,
    backend: Backend = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Tune and shrink a model within an allowed loss of quality, and report every decision with its measurement.

    Examples:
        cellerate optimize book.keras --data book.txt -o out/

        cellerate optimize book.keras --data book.txt --max-quality-loss 0.02 --time-budget 3600

        cellerate optimize ett.keras --data ETTh1.csv --objective throughput --skip distill
    """
    for package in ("jinja2", "pydantic"):
        require(package, "report", "the report of optimize")
    start_backend_for(model, backend, data, packed=False)
    from cellerate.optimization.listener import StageListener, TerminalListener
    from cellerate.optimization.workflow import run

    listener = StageListener() if quiet else TerminalListener()
    settings = replace(settings, reading=reading, table=table)
    found = run(model, data, output, settings, restart=restart, listener=listener)
    if found.status == "interrupted":
        notify(f"interrupted; every stage that had ended is kept. To go on:\n  {command_to_repeat()}")
        raise typer.Exit(130)
    if json:
        print_json(loads((output / "report.json").read_bytes()))
        return
    assert found.verdict is not None  # noqa: S101 (a finished run has one)
    print_result(found.verdict.sentence)
    for warning in found.verdict.warnings:
        notify(f"note: {in_options(warning)}")
    if not quiet:
        files = "   ".join(str(output / path) for _, path in found.verdict.files)
        notify(f"report: {output / 'report.html'}   files: {files}")
        print_gains(found)
