"""The base class of passes."""

import abc
from typing import ClassVar

from cellerate.errors import CellerateError
from cellerate.optimization.context import Context
from cellerate.report.record import Pass


class NotNeededError(CellerateError):
    """A pass has nothing to do here; the message says why."""


class OptimizerPass(abc.ABC):
    """A pass, which users know as a stage of the run: it measures something, and stores and tells what helps.

    Attributes:
        name: The name to choose it by.
        title: The name in words.
        reads: The parts of the state it builds on: names from `State` and `Choices`.
        writes: The parts of the state it may change.
        changes_model: Whether its candidates compute something other than the original does. Such a pass is
            left out of a run for training alone, and is kept only if the model chosen in the end has its
            change.
        inherited: Whether the candidates of later passes have its change too, so that it gets part of the
            credit for them. A pruned model is also a quantised one; a student is not a pruned one.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    reads: ClassVar[tuple[str, ...]]
    writes: ClassVar[tuple[str, ...]]
    changes_model: ClassVar[bool] = False
    inherited: ClassVar[bool] = False

    @abc.abstractmethod
    def cost_s(self, context: Context) -> float:
        """The seconds it takes at least; with less time left it is not started."""

    def weight(self, context: Context) -> float:
        """Its share of the time that is over once all have what they need at least; 0 if more time is of no use."""
        return 0.0

    @abc.abstractmethod
    def run(self, context: Context) -> Pass:
        """Runs the pass.

        Raises:
            NotNeededError: There is nothing to do.
            OutOfTimeError: There is no time for it.
            CellerateError: It failed; the state is unchanged.
        """
