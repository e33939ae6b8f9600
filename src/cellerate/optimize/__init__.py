"""`optimize`: one call that tunes and shrinks a trained model, keeps what helps, and proves it.

The package is called like the function in it, `cellerate.optimize(model, data=...)`, so the module can be called.
"""

import os
import sys
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cellerate.models.storage import TaskRecord
    from cellerate.report.record import Run


def optimize(
    model: Any,
    data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    output: str | os.PathLike[str] = "optimized",
    record: "TaskRecord | None" = None,
    restart: bool = False,
    **settings: Any,
) -> "Run":
    """Tunes and shrinks a trained model within an allowed loss of quality, and writes a report of every decision.

    The model as it is run now is measured first: a process with nothing but Keras in it trains, judges and uses it.
    Then come the passes, each kept if it helps: kernels, batch size, sequence length, pipeline, precision,
    quantising, pruning, distilling. The best model that passes the gate is written as `optimized.cell` and
    `optimized.keras`, and measured again in a process of its own. Every pass that ends is kept on disk: the same call
    goes on with a run that was interrupted.

    Args:
        model: A `.keras` file that Cellerate wrote, or a Keras model with its `record`.
        data: Files of its task: what it was trained on, or more like it.
        output: The folder of the run.
        record: What belongs to a model that is no file, as `load_model` returns it.
        restart: Throws away what an earlier run left in the folder.
        settings: The fields of `OptimizeSettings`, such as `max_quality_loss=0.01` and `time_budget=600`.

    Returns:
        The run, which is in the folder as `report.json`, `report.html` and `report.md`.

    Raises:
        CellerateError: The model, the data, a setting or the folder cannot be used.

    Example:
        >>> found = cellerate.optimize("book.keras", data="book.txt", max_quality_loss=0.01)
        >>> print(found.verdict.sentence)
    """
    from cellerate.optimize.settings import OptimizeSettings, check_names
    from cellerate.optimize.workflow import run

    check_names(settings)
    return run(model, data, output, OptimizeSettings(**settings), record=record, restart=restart)


class _CallableModule(types.ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> "Run":
        return optimize(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
