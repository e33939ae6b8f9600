"""The program `cellerate`: its verbs, and the one place where an error becomes an exit code.

Every verb's file is imported when the program starts. None of them may import anything heavy at the top, or
`cellerate --help` gets slow.
"""

import atexit
import contextlib
import functools
import gc
import io
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, NoReturn

import typer

from cellerate import __version__
from cellerate.cli.inference import backtest, detect, embed, evaluate, forecast, generate
from cellerate.cli.inspection import bench, doctor, env, explain, info, profile, report
from cellerate.cli.options import with_config
from cellerate.cli.output import INTERRUPTED
from cellerate.cli.running import Tasks
from cellerate.cli.shipping import export, optimize, pack, serve
from cellerate.cli.training import (
    data,
    embed as train_embed,
    plan,
    series as train_series,
    sweep,
    sweep_running,
    text as train_text,
    watch,
)
from cellerate.cli.words import in_options, speak_for
from cellerate.errors import CellerateError
from cellerate.files import interrupted_by_sigterm

app = typer.Typer(
    name="cellerate",
    help="Fast LSTMs for Keras: train, explain, generate, forecast, embed.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)
train_app = typer.Typer(
    cls=Tasks, help="Train a model on text, on time series, or to embed lines.", no_args_is_help=True
)
train_app.command("text")(with_config(train_text.train_text))
train_app.command("series")(with_config(train_series.train_series))
train_app.command("embed")(with_config(train_embed.train_embed))
data_app = typer.Typer(help="Prepare data.", no_args_is_help=True)
data_app.command("pack")(with_config(data.pack))
sweep_app = typer.Typer(
    cls=sweep_running.TaskOrModel,
    help="Train with several settings beside each other, and say what each brings.",
    no_args_is_help=True,
)
sweep_app.command("text")(with_config(sweep.sweep_text))
sweep_app.command("series")(with_config(sweep.sweep_series))
sweep_app.command("embed")(with_config(sweep.sweep_embed))
sweep_app.command("model")(with_config(sweep.sweep_model))
app.add_typer(train_app, name="train", rich_help_panel="Train")
app.add_typer(sweep_app, name="sweep", rich_help_panel="Train")
app.add_typer(data_app, name="data", rich_help_panel="Train")

PANELS: Mapping[str, Sequence[Callable[..., None]]] = {
    "Train": (plan.plan, watch.watch),
    "Use a model": (
        generate.generate,
        forecast.forecast,
        detect.detect,
        embed.embed,
        evaluate.evaluate,
        backtest.backtest,
    ),
    "Make it fast and small, and ship it": (optimize.optimize, pack.pack, export.export, serve.serve),
    "Look at models, runs and this machine": (
        explain.explain,
        info.info,
        profile.profile,
        report.report,
        bench.bench,
        env.env,
        doctor.doctor,
    ),
}
"""The verbs by the panels of `cellerate --help`, in its order. A new verb is a file of its own and a place here."""


# Made of all functions once; `app` would be made of them anew at each call.
_command = functools.cache(functools.partial(typer.main.get_command, app))


def add_verbs(panels: Mapping[str, Sequence[Callable[..., None]]]) -> None:
    """Make commands of functions, which Typer reads for their options; a command has the name of its function."""
    for panel, verbs in panels.items():
        for verb in verbs:
            app.command(verb.__name__, rich_help_panel=panel)(with_config(verb))
    _command.cache_clear()


add_verbs(PANELS)


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

    Typer itself exits with 2 for a wrong option, 130 for Ctrl-C.
    """
    # The processes of a joint training end at once: one that loads its data while JAX waits for the others must end.
    with contextlib.nullcontext() if "RANK" in os.environ else interrupted_by_sigterm():
        _run()


def _run() -> None:
    """Runs the verb, and turns its errors into exit codes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal cannot encode must not stop the program.
        sys.stdout.reconfigure(errors="backslashreplace")
    # At its end Python would look through all objects for circles, which takes most of a second after a framework.
    atexit.register(gc.freeze)
    speak_for(_command)
    try:
        # With its name: run as a module, its name would have several words, which no table of --config has.
        _command()(prog_name="cellerate")
    except KeyboardInterrupt:
        # A second Ctrl-C, while the first one was being answered.
        _end_interrupted()
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            _end_interrupted()
        raise
    except CellerateError as error:
        _end(in_options(error), error.exit_code)
    except Exception as error:
        # Anything that no check foresaw (a backend out of memory, a bug) still ends in a readable line.
        if os.environ.get("CELLERATE_TRACEBACK"):
            raise
        first = next(iter(str(error).splitlines()), "").rstrip(".")
        _end(
            f"unexpected {type(error).__name__}: {first}. To see where, run it again with CELLERATE_TRACEBACK=1; "
            "`cellerate env` has what a bug report needs.",
            1,
        )


def _end_interrupted() -> NoReturn:
    """Ends the process; a further signal kills it, for Python would answer it with a traceback."""
    with contextlib.suppress(ValueError):  # in another thread than the main one
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
    raise SystemExit(INTERRUPTED)


def _end(message: str, code: int) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:
        # Stdout itself failed; at exit Python would try again and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if "RANK" in os.environ:
        # JAX would first wait for the other processes, which wait for this one.
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)
