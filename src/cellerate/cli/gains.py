"""What verbs print of a run's gains: the table of Keras beside Cellerate, and its sentence."""

import sys
from typing import TYPE_CHECKING

from cellerate.cli.output import emit, show

if TYPE_CHECKING:
    from cellerate.report.gains import Gains
    from cellerate.report.record import Run


def print_gains(run: "Run") -> None:
    """Prints what a run measured of Keras and Cellerate: in colour on a terminal, as plain lines elsewhere."""
    from cellerate.format import one_line
    from cellerate.report.gains import gains

    found = gains(run)
    if found is None:
        return
    emit("")
    if sys.stdout.isatty():
        show(_coloured(found))
    else:
        emit(f"{found.table.caption}:")
        for line in found.lines():
            emit(line)
    if found.table.remark:
        emit(one_line(found.table.remark))
    if found.sentence:
        emit(f"\n{one_line(found.sentence)}")


def _coloured(found: "Gains") -> str:
    """The table as wide as the terminal, its good news green and its bad news red."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=found.table.caption, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for n, (head, figures) in enumerate(found.table.heads):
        table.add_column(head if n else "", justify="right" if figures else "left")
    styles = {"good": "green", "bad": "red", "": ""}
    for row in found.words:
        table.add_row(*(Text(cell.text, styles[cell.tone]) for cell in row))
    console = Console(highlight=False)
    with console.capture() as captured:
        console.print(table)
    return captured.get()
