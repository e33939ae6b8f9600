"""`cellerate serve`: packed models over HTTP."""

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from cellerate.cli.options import Device, operand, option, with_settings
from cellerate.cli.output import notify
from cellerate.errors import ConfigError, DataError
from cellerate.files import home_dir, read_regular
from cellerate.machine.environment import require
from cellerate.serving.limits import Limits
from cellerate.settings import check_number

_LOCAL = ("127.0.0.1", "::1", "localhost")
_KEYS = "CELLERATE_API_KEYS"
_MOST_KEYS = 1 << 20


@with_settings("limits", Limits, panel="Limits")
def serve(
    models: Annotated[
        list[str], operand("Packed models, *.cell, each with a name if you like: book=my.cell.")
    ],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for a free one.")] = 8000,
    key_file: Annotated[
        Path | None,
        option(
            f"A file of API keys, one a line; the variable {_KEYS} holds some, too, with commas between them."
        ),
    ] = None,
    no_key: Annotated[
        bool, typer.Option("--no-key", help="Let in anyone who can reach the address, without a key.")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        option(
            "A further name under which the server is reached, as behind a proxy; * for any. May be repeated."
        ),
    ] = None,
    state: Annotated[
        Path | None,
        option("The folder where sessions are kept over restarts; ~/.local/state/cellerate if not given."),
    ] = None,
    no_state: Annotated[bool, typer.Option("--no-state", help="Keep sessions in memory only.")] = False,
    drain: Annotated[
        float, typer.Option(min=0, help="Seconds that texts may go on when the server is told to end.")
    ] = 30,
    access_log: Annotated[bool, typer.Option(help="Write a line for each request.")] = True,
    device: Device = "cpu",
    *,
    limits: Limits,
) -> None:
    """Serve packed models over HTTP: texts, vectors, forecasts, and sessions that remember.

    Examples:
        cellerate serve book.cell

        cellerate serve book.cell sensors=ett.cell --host 0.0.0.0 --key-file keys.txt
    """
    for package in ("starlette", "uvicorn", "httptools", "msgspec", "prometheus_client"):
        require(package, "serve", "serving models")
    from cellerate.serving.models import Models, named_paths
    from cellerate.serving.server import JsonLines, serve as run

    check_number("drain", drain, at_least=0)
    keys = _keys(key_file)
    if not keys and not no_key and host not in _LOCAL:
        raise ConfigError(
            f"on {host} anyone in the network could use the models: give keys (--key-file, or the variable {_KEYS}), "
            "or --no-key if that is what you want."
        )
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("cellerate.serving").setLevel(logging.INFO)
    logging.getLogger("cellerate.serving.access").setLevel(logging.INFO if access_log else logging.WARNING)
    served = Models(named_paths(models), limits, None if no_state else state or _state_folder(), device)

    def started(address: str) -> None:
        for each in served:
            notify(f"{each.name}: {each.model.task or 'a model'}, {each.model.precision}, from {each.path}")
        notify(f"serving at {address}  (Ctrl-C to end)")

    run(
        served,
        host=host,
        port=port,
        keys=keys,
        names=allow_host or (),
        drain_s=drain,
        started=started,
    )


def _keys(path: Path | None) -> list[bytes]:
    """The API keys of a file, whose lines after # are comments, and of the environment."""
    found = os.fsencode(os.environ.get(_KEYS, "")).split(b",")
    if path is not None:
        lines = read_regular(
            path, _MOST_KEYS, "give a text file with one key a line", "the file of keys"
        ).splitlines()
        found += [line for line in lines if not line.lstrip().startswith(b"#")]
    keys = [key.strip() for key in found if key.strip()]
    if path is not None and not keys:
        raise DataError(f"the file of keys {path} holds none; expected one a line.")
    return keys


def _state_folder() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else home_dir() / ".local" / "state") / "cellerate"
