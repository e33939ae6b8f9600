"""`optimize`: one call that tunes and shrinks a trained model, keeps what helps, and proves it.

The package has the same name as its function, `cellerate.optimize(model, data=...)`; so it is callable.
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
    """Tunes and shrinks a trained model within an allowed loss of quality, and reports every decision.

    First the model is measured as it runs today: a process that uses nothing but Keras trains it, judges it
    and uses it. The passes follow, and each is kept if it helps: kernels, batch size, sequence length,
    pipeline, precision, quantising, pruning, distilling. The best model that passes the gate is written as
    `optimized.cell` and `optimized.keras`, and measured again in a new process. Each finished pass is saved
    to disk, so the same call continues a run that was interrupted.

    Args:
        model: A `.keras` file that Cellerate wrote, or a Keras model together with its `record`.
        data: Files for its task: the data it was trained on, or more of the kind.
        output: The folder of the run.
        record: The record of a model that is not given as a file, as `load_model` returns it.
        restart: Whether to throw away what an earlier run left in the folder.
        settings: The fields of `OptimizeSettings`, such as `max_quality_loss=0.01` and `time_budget=600`.

    Returns:
        The run; the folder has it as `report.json`, `report.html` and `report.md`.

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
