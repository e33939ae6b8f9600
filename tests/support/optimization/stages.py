"""Stages of a run of `optimize` whose behaviour a test sets."""

from collections.abc import Callable
from typing import Any

from cellerate.optimization.stages.base import Stage
from cellerate.report.record import StageRecord


class Stand(Stage):
    """A stage that runs `does`, and records that it began."""

    begun: list[str] = []  # noqa: RUF012 (set anew by each test)
    does: Callable[[Any], object] = staticmethod(lambda context: None)
    cost = 0.0
    most: float | None = None
    keeps = True

    def cost_s(self, context):
        return self.cost

    def most_s(self, context):
        return self.cost if self.most is None else self.most

    def run(self, context):
        self.begun.append(self.name)
        type(self).does(context)
        return StageRecord(name=self.name, title=self.title, status="done", decision="kept", kept=self.keeps)


def statuses(run):
    return {one.name: one.status for one in run.passes}
