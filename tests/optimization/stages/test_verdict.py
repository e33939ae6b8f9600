"""The verdict takes only as many turns as it needs for certainty."""

import math
from typing import ClassVar

import pytest

from cellerate.optimization import workflow
from cellerate.optimization.clocks import Speed
from support.optimization.here import HereProbe, answer_here, optimized

pytestmark = [pytest.mark.keras, pytest.mark.usefixtures("here_probe", "quick")]


class Raced(HereProbe):
    """Answers that a packed model takes so many ms a call in each turn of the verdict, and Keras 10."""

    latencies: ClassVar[list[float]] = []
    turns: ClassVar[list[float]] = []

    def ask(self, kind, **options):
        if kind != "use":
            return super().ask(kind, **options)
        latency = 10.0
        if options["files"]:
            latency = self.latencies[len(self.turns)]
            self.turns.append(latency)
        return [vars(Speed("w", latency, latency, 1e3 / latency, None, 1))]


@pytest.mark.parametrize(
    ("latencies", "spare", "turns", "chosen", "said"),
    [
        ([1.0] * 6, math.inf, 6, "float32", ""),
        ([20.0] * 6, math.inf, 6, "original", ""),
        # Two of twelve turns may be outliers.
        ([1.0] + [20.0] * 11, math.inf, 12, "original", ""),
        # The timings contradict each other, so the verdict takes the smaller model and says so.
        ([1.0, 20.0, 20.0] * 4, math.inf, 12, "float32", "but only in 8 of 12 turns, which is noise"),
        ([1.0, 20.0, 20.0] * 2, 0.0, 6, "float32", "but only in 4 of 6 turns, which is noise"),
        # Equally fast: the choice does not depend on which one is ahead.
        ([10.1, 9.8] * 3, math.inf, 6, "float32", ""),
    ],
    ids=["faster", "slower", "one spoiled", "noise", "noise and no time", "alike"],
)
def test_verdict_takes_more_turns_only_while_in_doubt(
    made, tmp_path, monkeypatch, latencies, spare, turns, chosen, said
):
    answer_here(monkeypatch, Raced)
    monkeypatch.setattr(Raced, "latencies", latencies)
    monkeypatch.setattr(Raced, "turns", [])
    verdict = workflow.verdict

    def with_time(context):
        context.spare_s = spare
        return verdict(context)

    monkeypatch.setattr(workflow, "verdict", with_time)
    found = optimized(made, tmp_path / "out", only=["pack"])
    assert len(Raced.turns) == turns == len(latencies)
    assert found.verdict.chosen == chosen
    doubts = [one for one in found.verdict.warnings if "which is noise" in one]
    assert len(doubts) == bool(said)
    assert all(said in one for one in doubts)
    # The figures are the medians of the turns.
    middle = sorted(latencies)[turns // 2]
    packed = found.candidates[1].speeds[0].latency_p50_ms
    assert packed == pytest.approx(middle, rel=0.05)
    assert found.candidates[0].speeds[0].latency_p50_ms == 10.0


def test_verdict_judges_each_model_on_the_test_part_once(made, tmp_path, monkeypatch):
    from cellerate.optimization.workloads.text import TextWorkload

    judged, judge = [], TextWorkload.judge

    def noting(work, model, part, **brief):
        judged.extend([type(model).__name__] if part == "test" else [])
        return judge(work, model, part, **brief)

    monkeypatch.setattr(TextWorkload, "judge", noting)
    found = optimized(made, tmp_path / "out", only=["pack"], objective="size")
    assert found.verdict.chosen == "float32"
    # The original while the processes get ready, and then the packed one.
    assert judged == ["Functional", "PackedModel"]
