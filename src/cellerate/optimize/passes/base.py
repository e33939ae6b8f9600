"""What a pass is."""

import abc
from typing import ClassVar

from cellerate.errors import CellerateError
from cellerate.optimize.context import Context
from cellerate.report.record import Pass


class NotNeededError(CellerateError):
    """A pass has nothing to do here; the message says why."""


class OptimizerPass(abc.ABC):
    """A pass: it measures something, keeps what helps in the state, and says what it found.

    Attributes:
        name: As it is chosen.
        title: In words.
        reads: What of the state it builds on: names of `State` and `Choices`.
        writes: What of the state it may change.
        changes_model: Whether its candidates compute something else than the original. Such a pass is left out of a
            run for training alone, and is kept only if what is chosen in the end has its change.
        inherited: Whether the candidates of later passes have its change too, so that part of what they are worth is
            credited to it. A pruned model is a quantised one; a student is no pruned one.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    reads: ClassVar[tuple[str, ...]]
    writes: ClassVar[tuple[str, ...]]
    changes_model: ClassVar[bool] = False
    inherited: ClassVar[bool] = False

    @abc.abstractmethod
    def cost_s(self, context: Context) -> float:
        """Seconds that it takes at least: with less time left it is not begun."""

    @abc.abstractmethod
    def run(self, context: Context) -> Pass:
        """Does it.

        Raises:
            NotNeededError: There is nothing to do.
            CellerateError: It failed; the state is as it was.
        """
