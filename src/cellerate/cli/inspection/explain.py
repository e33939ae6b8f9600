"""`cellerate explain`: which kernel each recurrent layer runs on, what it takes, and what to change."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cellerate.cli.backend import start_backend_for
from cellerate.cli.options import Backend, Json, operand, option
from cellerate.cli.output import print_json, print_result
from cellerate.settings import check_counts

if TYPE_CHECKING:
    from cellerate.models.storage import TaskRecord


def explain(
    model: Annotated[Path, operand("A .keras file, of Cellerate or of anyone, or a .cell.")],
    batch_size: Annotated[int, typer.Option(help="Rows of the call that is measured, for a .cell.")] = 1,
    steps: Annotated[int | None, option("Its time steps, where they are free. Default: 100.")] = None,
    backend: Backend = None,
    json: Json = False,
) -> None:
    """Say which kernel runs every recurrent layer here, and what would make it faster.

    A model that `cellerate train` accelerated is explained as it is trained. Of a packed model it also measures what
    each operation takes, beside the machine's peak.

    Examples:
        cellerate explain book.keras --backend jax

        cellerate explain book.cell --batch-size 32 --steps 200
    """
    # A packed model calls the number `batch`.
    check_counts(batch_size=batch_size)
    if model.suffix == ".cell":
        from cellerate.runtime.packed import load

        explanation: Any = load(model).explain(batch_size, steps)
    else:
        start_backend_for(model, backend)
        from cellerate.layers.accelerate import accelerate
        from cellerate.layers.explain import explain as explain_model
        from cellerate.models.storage import load_model

        loaded, record = load_model(model)
        note = _as_trained(record)
        if note is not None:
            # As `training.loop` does.
            accelerate(loaded, sum_embedding_gradients=True)
        explanation = explain_model(loaded)
        if note is not None:
            explanation = dataclasses.replace(explanation, notes=(note, *explanation.notes))
    if json:
        print_json(explanation.to_dict())
    else:
        print_result(str(explanation))


def _as_trained(record: "TaskRecord | None") -> str | None:
    """The changes of `cellerate train` to the model beside training it; None if it left the layers to Keras."""
    training = None if record is None else record.payload.get("training")
    if not isinstance(training, dict) or training.get("implementation", "keras") == "keras":
        return None
    return "accelerated by `cellerate train`, and explained so; in your own program call cellerate.accelerate(model)"
