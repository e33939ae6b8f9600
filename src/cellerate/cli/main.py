"""The program `cellerate`: its verbs, and the one place where an error becomes an exit code.

A module of its own, and a thin one: a verb's file is imported with the program, so it imports nothing heavy
itself, and `cellerate --help` stays quick.
"""

import io
import os
import sys
from typing import Annotated, NoReturn

import typer

from cellerate import __version__
from cellerate.cli import (
    embed,
    env,
    evaluate,
    explain,
    forecast,
    generate,
    optimize,
    pack,
    report,
    train_embed,
    train_series,
    train_text,
)
from cellerate.errors import CellerateError

app = typer.Typer(
    name="cellerate",
    help="Fast LSTMs for Keras: train, explain, generate, forecast, embed.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)
train_app = typer.Typer(
    help="Train a model on text, on time series, or to embed lines.", no_args_is_help=True
)
train_app.command("text")(train_text.train_text)
train_app.command("series")(train_series.train_series)
train_app.command("embed")(train_embed.train_embed)
app.add_typer(train_app, name="train")
app.command("generate")(generate.generate)
app.command("forecast")(forecast.forecast)
app.command("embed")(embed.embed)
app.command("evaluate")(evaluate.evaluate)
app.command("pack")(pack.pack)
app.command("optimize")(optimize.optimize)
app.command("report")(report.report)
app.command("explain")(explain.explain)
app.command("env")(env.env)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cellerate {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Runs the program. Exit codes: 0 done, 130 interrupted, the rest as listed in `cellerate.errors`.

    Typer itself ends with 2 at a wrong option, with 130 at Ctrl-C, and with 1 when the reader of stdout has gone.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal's encoding does not have is no reason to stop.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        # By name: a run as a module has a name of several words, which the tables of --config have not.
        app(prog_name="cellerate")
    except CellerateError as error:
        _end(str(error), error.exit_code)
    except Exception as error:
        # What no check foresaw (a backend out of memory, a bug) still ends in a line that can be read.
        if os.environ.get("CELLERATE_TRACEBACK"):
            raise
        first = next(iter(str(error).splitlines()), "").rstrip(".")
        _end(
            f"unexpected {type(error).__name__}: {first}. To see where, run it again with CELLERATE_TRACEBACK=1; "
            "`cellerate env` has what a bug report needs.",
            1,
        )


def _end(message: str, code: int) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:
        # Stdout is what failed; Python would try once more at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(code)
