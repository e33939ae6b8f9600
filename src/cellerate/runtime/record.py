"""The public facts of a model: the columns and sizes of a forecaster, the vocabulary of a text model.

It reads the task record without trusting it; modules that compute with the record read further fields themselves.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from cellerate.errors import DataError, ModelError
from cellerate.format import whole
from cellerate.runtime.cell import Cell

_NAMED = 4  # columns that a line names


@dataclasses.dataclass(frozen=True)
class TaskFacts:
    """The facts about models of one task; None for models of other tasks.

    Attributes:
        features: The columns that a forecaster reads, in order.
        targets: The columns that it forecasts, in order.
        window: The number of rows that it reads.
        horizon: The number of rows that it forecasts.
        quantiles: Its quantiles; empty for point forecasts.
        vocabulary_size: The number of ids that a text or line model knows.
    """

    features: tuple[str, ...] | None = None
    targets: tuple[str, ...] | None = None
    window: int | None = None
    horizon: int | None = None
    quantiles: tuple[float, ...] | None = None
    vocabulary_size: int | None = None


def task_facts(task: str | None, payload: Any, model: str) -> TaskFacts:
    """Reads a task record.

    Args:
        task: "text", "series" or "embed"; anything else has no facts.
        payload: The record; any JSON.
        model: What messages call the model.

    Raises:
        ModelError: The record is damaged.
    """
    if task == "series":
        from cellerate.runtime.forecast import forecast_settings

        found = forecast_settings(payload, model)
        features, targets = (tuple(some or ()) for some in (found.reading.features, found.reading.targets))
        return TaskFacts(features, targets, found.window, found.horizon, tuple(found.quantiles))
    if task == "embed":
        from cellerate.runtime.embedding import line_settings

        return TaskFacts(vocabulary_size=line_settings(payload, model).vocabulary.size)
    if task != "text":
        return TaskFacts()
    if not isinstance(payload, dict) or "tokenizer" not in payload:
        raise ModelError(
            f"the task record of {model} is damaged: it lacks the tokenizer. Train the model again."
        )
    from cellerate.data.tokenizers import tokenizer_from_config

    return TaskFacts(vocabulary_size=tokenizer_from_config(payload["tokenizer"]).vocabulary_size)


class Recorded:
    """The part of `PackedModel` that describes the model.

    Args:
        cell: What the file of a packed model holds.

    Attributes:
        task: "text", "series" or "embed"; None for a model that Cellerate did not train.
        parameters: The number of its weights; one that is shared counts once.

    Raises:
        DataError: The task in the header is not a string.
    """

    def __init__(self, cell: Cell) -> None:
        task = cell.header.get("task")
        if task is not None and not isinstance(task, str):
            raise DataError(
                f"the packed model's task is {task!r:.40}; expected a string. Pack the model again."
            )
        self.cell = cell
        self.task: str | None = task
        arrays = {id(array): array for node in cell.program.nodes for array in node.arrays.values()}
        self.parameters = sum(array.size for array in arrays.values())

    @functools.cached_property
    def _facts(self) -> TaskFacts:
        return task_facts(self.task, self.cell.header.get("payload"), "this packed model")

    @property
    def features(self) -> tuple[str, ...] | None:
        """The columns that a forecaster reads, in order; None for a model of another task.

        Raises:
            ModelError: The record is damaged; so for the other properties.
        """
        return self._facts.features

    @property
    def targets(self) -> tuple[str, ...] | None:
        """The columns that a forecaster forecasts, in order; None for a model of another task."""
        return self._facts.targets

    @property
    def window(self) -> int | None:
        """The number of rows a forecaster reads; None for a model of another task."""
        return self._facts.window

    @property
    def horizon(self) -> int | None:
        """The number of rows a forecaster forecasts; None for a model of another task."""
        return self._facts.horizon

    @property
    def quantiles(self) -> tuple[float, ...] | None:
        """The quantiles of a forecaster, empty if it gives one number each; None for a model of another task."""
        return self._facts.quantiles

    @property
    def vocabulary_size(self) -> int | None:
        """The number of ids a text or line model knows; None for a model of another task."""
        return self._facts.vocabulary_size

    def __repr__(self) -> str:
        """The model in a line."""
        try:
            facts = self._told()
        except (DataError, ModelError):
            facts = f"{self.task!r:.40} model with a damaged record"
        return f"<PackedModel: {facts}, {whole(self.parameters)} parameters in {self.cell.precision}>"

    def _told(self) -> str:
        if self.features is not None and self.targets is not None:
            levels = f", {len(self.quantiles)} quantiles" if self.quantiles else ""
            return (
                f"forecaster of {_columns(self.targets)} from {_columns(self.features)}, {self.window} rows to "
                f"{self.horizon}{levels}"
            )
        if self.vocabulary_size is not None:
            kind = "text" if self.task == "text" else "line"
            return f"{kind} model, vocabulary of {self.vocabulary_size:,}"
        nodes, program = self.cell.program.nodes, self.cell.program
        inputs = ", ".join(
            f"{name} {_sizes(nodes[at].options['shape'])}" for name, at in program.inputs.items()
        )
        return f"model of {inputs:.200} to {', '.join(program.outputs):.200}"


def _sizes(shape: Any) -> str:
    return f"({', '.join('any' if one < 0 else str(one) for one in shape)})"


def _columns(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) <= _NAMED else f"{len(names)} columns"
