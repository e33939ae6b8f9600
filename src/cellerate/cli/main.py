"""The program `cellerate`: its verbs, and the one place where an error becomes an exit code.

A module of its own, and a thin one: a verb's file is imported with the program, so it imports nothing heavy
itself, and `cellerate --help` stays quick.
"""

import os
import sys
from typing import Annotated

import typer

from cellerate import __version__
from cellerate.cli import (
    embed,
    env,
    evaluate,
    explain,
    forecast,
    generate,
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
    """Runs the program. Exit codes: 0 done, 130 interrupted, the rest as listed in `cellerate.errors`."""
    try:
        app()
    except CellerateError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:
        # The reader of our output (head, less) has gone; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
