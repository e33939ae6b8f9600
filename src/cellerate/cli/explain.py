"""`cellerate explain`: which kernel each recurrent layer runs on, and what to change."""

from pathlib import Path
from typing import Annotated

import typer

from cellerate.cli.backend import start_backend
from cellerate.cli.options import Backend, Config, Json
from cellerate.cli.output import emit, emit_json


def explain(
    model: Annotated[
        Path, typer.Argument(help="A .keras file, of Cellerate or of anyone.", show_default=False)
    ],
    backend: Backend = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Say which kernel Keras runs for every recurrent layer here, and what would make it faster.

    Example:
        cellerate explain book.keras --backend jax
    """
    start_backend(backend)
    from cellerate.layers.explain import explain as explain_model
    from cellerate.models.storage import load_model

    loaded, _ = load_model(model)
    explanation = explain_model(loaded)
    if json:
        emit_json(explanation.to_dict())
    else:
        emit(str(explanation))
