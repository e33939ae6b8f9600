"""A new verb is a function in a file of its own and a place in `PANELS`: help, options and errors follow."""

from typing import Annotated

import pytest
import typer

from cellerate.cli import main
from cellerate.cli.output import print_result
from cellerate.errors import DataError
from cellerate.messages import argument


def weigh(
    model: Annotated[str, typer.Argument(help="The model.")],
    digits: Annotated[int, typer.Option(min=0, help="Digits of the weight.")] = 1,
) -> None:
    """Weigh a model.

    Example:
        cellerate weigh book.cell
    """
    if model == "air":
        raise DataError(f"air has no weight. Set {argument('digits', 9)}.")
    print_result(f"{1 / 3:.{digits}f}")


@pytest.fixture(autouse=True)
def planted(monkeypatch):
    monkeypatch.setattr(main.app, "registered_commands", [*main.app.registered_commands])
    main.add_verbs({"Use a model": (weigh,)})
    yield
    main._command.cache_clear()


def test_planted_verb_appears_in_its_panel_with_help(cellerate):
    code, out, _ = cellerate("--help")
    assert code == 0
    panel = out[out.index("Use a model") :].split("╰")[0]
    assert "weigh" in panel
    assert "Weigh a model." in panel
    code, out, _ = cellerate("weigh", "--help")
    assert code == 0
    assert "--digits" in out
    assert "cellerate weigh book.cell" in out


def test_planted_verb_runs_and_its_errors_name_options(cellerate):
    assert cellerate("weigh", "book.cell", "--digits", "3") == (0, "0.333\n", "")
    assert cellerate("weigh", "air") == (3, "", "error: air has no weight. Set --digits 9.\n")
    code, out, err = cellerate("weigh", "book.cell", "--digits", "-1")
    assert (code, out) == (2, "")
    assert "--digits" in err
