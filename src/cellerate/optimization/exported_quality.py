"""Judges an exported model beside the original at its task, in the runtime of the export."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from cellerate.compress.record import QualityGate
from cellerate.data.settings import TableOptions
from cellerate.exports.exported_model import ExportedModel
from cellerate.optimization.judging import paired_loss
from cellerate.optimization.workloads.opening import open_workload
from cellerate.tasks.exporting import Quality, check_judged
from cellerate.tasks.settings import ReadingOptions


def quality_judge(
    model: str | os.PathLike[str],
    data: Sequence[str | Path],
    *,
    max_loss: float = 0.01,
    seed: int = 0,
    reading: ReadingOptions = ReadingOptions(),  # noqa: B008 (frozen)
    table: TableOptions = TableOptions(),  # noqa: B008 (frozen)
) -> Callable[[ExportedModel], Quality]:
    """Return a judge of an exported model, which `cellerate.export` calls before it keeps the file.

    It judges both models on the held-out part of the data that `optimize` uses for its verdicts.

    Args:
        model: The `.keras` file that is exported; Cellerate trained it.
        data: Data of its task, such as the training data.
        max_loss: The allowed loss of quality, as a share.
        seed: The seed that splits the data into parts.
        reading: Options of reading tables that differ from the training.
        table: The format of tables, where it cannot be detected.

    Raises:
        ConfigError: The model is not a `.keras` file, there are no data, `max_loss` is below 0, or there are options of
            tables for another task.
        DataError: The data cannot be used.
        ModelError: The model cannot be opened, or its task is unknown.

    Example:
        >>> judge = quality_judge("book.keras", ["book.txt"])
        >>> cellerate.export("book.keras", "book.tflite", to="litert", precision="int8", judge=judge).quality
        Quality(metric='bits per character', before=1.871, after=1.879, loss=0.0043, max_loss=0.01)
    """
    path = Path(model)
    check_judged(path)
    QualityGate(max_loss)
    work = open_workload(path, data, seed=seed, reading=reading, table=table)

    def judge(exported: ExportedModel) -> Quality:
        before, after = (work.judge(each, "test") for each in (work.model, exported))
        loss = paired_loss(before, after, higher_is_better=work.metric.higher_is_better)
        return Quality(work.metric.name, before.mean, after.mean, loss.value, max_loss)

    return judge
