"""Processes that measure nothing: they answer by a rule, and log the requests that they get."""

import itertools
from collections.abc import Callable
from typing import Any

from cellerate.optimization.processes import Workers

TRAINER = {"batch_size": 8, "length": 10, "items": 80, "step_s": 0.15, "compile_s": 5.0}


def usual(number: int, kind: str, options: dict[str, Any]) -> Any:
    """Answers of a training of 80 items a step, which expects 0.15 s a step and takes 0.1 s."""
    if kind == "turn":
        return {"seconds": [0.1] * options["steps"], "loss": 2.0, "peak_memory_bytes": None}
    return TRAINER if kind == "trainer" else 1.5


class Noting:
    """A process that adds each event to a shared log: its number, the event and the kind of request."""

    def __init__(self, number: int, log: list[tuple[int, str, Any]], rule: Callable[..., Any]) -> None:
        self.number, self.log, self.rule = number, log, rule
        self.patience_s, self.has_ended = 0.0, True
        self._told: list[tuple[str, dict[str, Any]]] = []

    def start(self):
        self.has_ended = False
        self.log.append((self.number, "start", None))

    def close(self):
        self.has_ended = True
        self.log.append((self.number, "close", None))

    def tell(self, kind, **options):
        self._told.append((kind, options))
        self.log.append((self.number, "tell", kind))

    def answer(self, timeout_s=None):
        kind, options = self._told.pop(0)
        self.log.append((self.number, "answer", kind))
        answer = self.rule(self.number, kind, options)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ask(self, kind, *, timeout_s=None, **options):
        self.tell(kind, **options)
        return self.answer()


class Noted:
    """A pool of `Noting` processes.

    Args:
        rule: What a process answers, by its number, the kind of question and the options; an exception is raised.

    Attributes:
        log: The events of all processes.
        all: The processes.
    """

    def __init__(self, rule: Callable[..., Any] = usual) -> None:
        self.log: list[tuple[int, str, Any]] = []
        self.all: list[Noting] = []
        self._numbers = itertools.count()
        self._rule = rule

    def probe(self):
        self.all.append(Noting(next(self._numbers), self.log, self._rule))
        return self.all[-1]

    def processes(self):
        return Workers(self.probe)

    def of(self, event):
        """The numbers of the processes with an event, in order."""
        return [number for number, what, _ in self.log if what == event]
