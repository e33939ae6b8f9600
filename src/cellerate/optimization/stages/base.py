"""The base class of stages."""

from __future__ import annotations

import abc
from typing import ClassVar

from cellerate.errors import CellerateError
from cellerate.optimization.context import Context
from cellerate.report.record import Quantity, StageRecord


class NotNeededError(CellerateError):
    """A stage has nothing to do here; the message says why."""


class Stage(abc.ABC):
    """A stage of the run: it measures something, and stores and reports the changes that help.

    Attributes:
        name: The name in options and records.
        title: The name in words.
        improves: The quantities that it may improve.
        first: True if it runs before all others.
        always: True if it runs however little time there is.
        after: The stages that it builds on, which run before it.
        changes_model: True if its candidates compute other results than the original. Such a stage is left out of a
            run for training alone, and is kept only if the model chosen in the end has its change.
        inherited: True if the candidates of later stages have its change too, so that it gets part of the credit for
            them. A pruned model is also quantised; a student is not pruned.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    improves: ClassVar[tuple[Quantity, ...]] = ()
    first: ClassVar[bool] = False
    always: ClassVar[bool] = False
    after: ClassVar[tuple[str, ...]] = ()
    changes_model: ClassVar[bool] = False
    inherited: ClassVar[bool] = False

    @abc.abstractmethod
    def cost_s(self, context: Context) -> float:
        """Return the least seconds that the stage takes; it does not start with less time left."""

    def most_s(self, context: Context) -> float:
        """Return the most seconds that the stage can use."""
        return self.cost_s(context)

    def expected_s(self, context: Context, share_s: float) -> float:
        """Return the seconds that the stage is expected to take if it gets `share_s`."""
        return min(share_s, self.most_s(context))

    def gain(self, context: Context) -> float:
        """Return about the logarithm of the factor that the stage gains, from facts on the machine and the model."""
        return 0.1

    def pointless(self, context: Context) -> str:
        """Return the reason why the stage cannot help here, from facts known already; "" if it may help."""
        return ""

    @abc.abstractmethod
    def run(self, context: Context) -> StageRecord:
        """Runs the stage.

        Raises:
            NotNeededError: There is nothing to do.
            OutOfTimeError: There is no time for it.
            CellerateError: It failed; the state is unchanged.
        """
