"""`cellerate watch`."""

from pathlib import Path
from typing import Annotated

import typer

from cellerate.cli.options import operand
from cellerate.cli.output import notify


def watch(
    runs: Annotated[
        list[Path] | None,
        operand(
            "Runs (book.run), their models (book.keras), or folders of runs; this folder if none is named."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for a free one.")] = 8100,
) -> None:
    """Show trainings as they go on, and compare them, on a page on this machine.

    Examples:
        cellerate watch book.run

        cellerate watch small.run large.run
    """
    from cellerate.machine.environment import require

    for package in ("starlette", "uvicorn"):
        require(package, "serve", "watching runs")
    from cellerate.observe.watch import watch as run

    run(
        runs or [Path()],
        host=host,
        port=port,
        started=lambda address: notify(f"watching at {address}  (Ctrl-C to end)"),
    )
