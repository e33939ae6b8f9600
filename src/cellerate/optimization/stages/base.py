"""The base class of stages."""

import abc
from typing import ClassVar

from cellerate.errors import CellerateError
from cellerate.optimization.context import Context
from cellerate.report.record import Quantity, StageRecord


class NotNeededError(CellerateError):
    """A stage has nothing to do here; the message says why."""


class Stage(abc.ABC):
    """A stage of the run: it measures something, and stores and tells what helps.

    Attributes:
        name: The name to choose it by.
        title: The name in words.
        improves: What it may improve.
        first: Whether it runs before all others.
        always: Whether it runs however little time there is.
        after: The stages that it builds on: where they run, they run before it.
        changes_model: Whether its candidates compute something other than the original does. Such a stage is
            left out of a run for training alone, and is kept only if the model chosen in the end has its
            change.
        inherited: Whether the candidates of later stages have its change too, so that it gets part of the
            credit for them. A pruned model is also a quantised one; a student is not a pruned one.
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
        """The seconds it takes at least; with less time left it is not started."""

    def most_s(self, context: Context) -> float:
        """The seconds after which more time is of no use to it."""
        return self.cost_s(context)

    def expected_s(self, context: Context, share_s: float) -> float:
        """The seconds it will take, if it gets so many."""
        return min(share_s, self.most_s(context))

    def gain(self, context: Context) -> float:
        """About the logarithm of the factor that it brings, by what is known of the machine and the model."""
        return 0.1

    def pointless(self, context: Context) -> str:
        """Why it can bring nothing here, by what is known already; "" if it may bring something."""
        return ""

    @abc.abstractmethod
    def run(self, context: Context) -> StageRecord:
        """Runs the stage.

        Raises:
            NotNeededError: There is nothing to do.
            OutOfTimeError: There is no time for it.
            CellerateError: It failed; the state is unchanged.
        """
