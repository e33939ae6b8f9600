"""The gains of a run as verbs print them: the table of Keras beside Cellerate, and its sentence."""

import sys
from typing import TYPE_CHECKING

from cellerate.cli.output import print_result, show

if TYPE_CHECKING:
    from cellerate.report.gains import Gains
    from cellerate.report.record import Run


def print_gains(run: "Run") -> None:
    """Prints what a run measured of Keras and Cellerate: in colour on a terminal, as plain lines elsewhere."""
    from cellerate.report.gains import gains

    found = gains(run)
    if found is None:
        return
    print_result("")
    if sys.stdout.isatty():
        show(_coloured(found))
        return
    print_result(f"{found.table.caption}:")
    for line in found.lines():
        print_result(line)
    for line in found.remarks:
        print_result(line)


def _coloured(found: "Gains") -> str:
    """The same within the width of the terminal: good news is green, bad news red, the sentence bold."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # With a column apart from the next by two spaces, the table of a text fits 80 columns.
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for n, (head, figures) in enumerate(found.table.heads):
        table.add_column(head if n else "", justify="right" if figures else "left")
    styles = {"good": "green", "bad": "red", "": ""}
    for row in found.words:
        table.add_row(*(Text(cell.text, styles[cell.tone]) for cell in row))
    console = Console(highlight=False)
    with console.capture() as captured:
        console.print(Text(found.table.caption, "bold"))
        console.print(table)
        for line in found.remarks:
            console.print(Text(line, "bold" if line == found.sentence else ""))
    return captured.get()
