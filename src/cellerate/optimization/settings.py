"""The settings of a run of `optimize`: one frozen record, checked when it is made.

The command line makes its options from this module, so nothing heavy is imported here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, get_args

from cellerate.data.settings import TableOptions
from cellerate.errors import ConfigError
from cellerate.messages import argument
from cellerate.optimization.stages import registry
from cellerate.settings import changed_fields, check_choice, check_number
from cellerate.tasks.settings import ReadingOptions

Objective = Literal["latency", "throughput", "size", "training"]

NESTED = ("reading", "table")
"""The fields of `OptimizeSettings` that are records of options themselves."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizeSettings:
    """The goals of optimizing, and the limits of the run.

    Attributes:
        objective: What counts as best among the models within the allowed loss: "latency" of one item,
            "throughput" of many, "size" of the file, or "training", which tunes only the training and leaves
            the model as it is.
        max_quality_loss: How much worse the model may become, as a share: 0.01 lets 2.00 bits become 2.02.
        time_budget: About how many seconds the run may take. Each stage gets a share; stages that do not fit are
            left out and reported.
        only: The stages to run; if empty, those that the objective needs.
        skip: Stages to leave out.
        batch_size: Rows per training batch, as the model is trained now; if unset, the default of its task.
        keep: Shares of hidden units to keep when pruning, tried from the smallest until one is good enough.
        latency_goal_ms: The time that a call for one item may take, which decides the size of the distilled student;
            if unset, the time of the quantized model with half of its arithmetic.
        steps: The most batches to train a pruned model, a student or their control on; the time left may allow
            fewer.
        seed: The seed of everything random.
        reading: Options of reading tables that differ from the training.
        table: The format of tables, where it cannot be detected.
    """

    objective: Objective = "latency"
    max_quality_loss: float = 0.01
    time_budget: float = 1800.0
    only: Sequence[str] = dataclasses.field(default=(), metadata={"choices": registry.STAGES})
    skip: Sequence[str] = dataclasses.field(default=(), metadata={"choices": registry.STAGES})
    batch_size: int | None = None
    keep: Sequence[float] = (0.5, 0.75)
    latency_goal_ms: float | None = None
    steps: int = 2000
    seed: int = 0
    reading: ReadingOptions = ReadingOptions()  # noqa: RUF009 (frozen)
    table: TableOptions = TableOptions()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            ConfigError: A field cannot be used, or two of them contradict each other.
        """
        check_choice("objective", self.objective, get_args(Objective))
        check_number("max_quality_loss", self.max_quality_loss, at_least=0)
        check_number("time_budget", self.time_budget, above=0)
        check_number("batch_size", self.batch_size, at_least=1, whole=True, optional=True)
        check_number("latency_goal_ms", self.latency_goal_ms, above=0, optional=True)
        check_number("steps", self.steps, at_least=1, whole=True)
        check_number("seed", self.seed, at_least=0, whole=True)
        for name, what in (
            ("only", "stages"),
            ("skip", "stages"),
            ("keep", "shares of units, such as [0.5]"),
        ):
            given = getattr(self, name)
            if isinstance(given, str) or not isinstance(given, Sequence):
                raise ConfigError(f"{argument(name)} is {given!r}; expected a list of {what}.")
        for name in ("only", "skip"):
            for one in getattr(self, name):
                check_choice(name, one, tuple(registry.STAGES))
        if self.only and self.skip:
            raise ConfigError(
                f"{argument('only')} and {argument('skip')} cannot be used together: choose one."
            )
        if not self.keep:
            raise ConfigError(
                f"{argument('keep')} is empty; expected shares of units, such as 0.5. To prune nothing, skip prune."
            )
        for share in self.keep:
            check_number("keep", share, above=0, below=1)

    def record(self) -> dict[str, Any]:
        """All options side by side, for the record of a run; those of tables only where they are given."""
        own = {name: value for name, value in vars(self).items() if name not in NESTED}
        return own | changed_fields(self.reading) | changed_fields(self.table)
