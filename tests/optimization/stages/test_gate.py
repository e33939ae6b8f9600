"""The verdict on a small text model: the model it keeps, and its report of a broken promise."""

import dataclasses
import time
import types
from pathlib import Path

import keras
import numpy as np
import pytest

from cellerate.optimization import workflow
from cellerate.optimization.probe_client import ProbeError
from cellerate.optimization.settings import OptimizeSettings
from cellerate.optimization.stages import sweeps
from cellerate.optimization.state import load_state
from support.optimization.here import HereProbe, optimized

pytestmark = [pytest.mark.keras, pytest.mark.usefixtures("here_probe", "quick")]


def test_candidates_are_timed_in_turns_with_the_original(made, tmp_path, here_probe):
    found = optimized(made, tmp_path / "out", only=["pack", "quantize"])
    used = [[Path(file).stem for file in with_["files"]] for kind, with_ in here_probe.asked if kind == "use"]
    # One turn of the baseline and six of the verdict, which doubles them in doubt.
    assert used[0] == []
    turns = len(used) // 2
    assert used[1:] == [[], ["float32", "int8"]] * turns
    assert 6 <= turns <= 12
    # The verdict compares figures of its own turns, not of the baseline's.
    original = found.candidates[0]
    first = next(row for row in found.verdict.rows if row.quantity == "use")
    assert first.before == original.speeds[0].per_s


def test_gate_that_no_candidate_passes_keeps_the_original(made, tmp_path, monkeypatch):
    class Worse:
        """Make packed models seem one hundredth worse than they are."""

        def __get__(self, work, kind):
            def found(model, part, **brief):
                one = judged(work, model, part, **brief)
                if isinstance(model, keras.Model):
                    return one
                return dataclasses.replace(one, values=tuple(1.01 * value for value in one.values))

            return found

    from cellerate.optimization.workloads.text import TextWorkload

    judged = TextWorkload.judge
    monkeypatch.setattr(TextWorkload, "judge", Worse())
    found = optimized(made, tmp_path / "out", max_quality_loss=0.005, only=["pack"])
    assert [(one.id, one.passes_gate) for one in found.candidates] == [("original", True), ("float32", False)]
    assert found.candidates[1].loss.value == pytest.approx(0.01, rel=1e-3)
    assert found.verdict.chosen == "original"
    assert [path for _, path in found.verdict.files] == ["optimized.keras"]
    assert (tmp_path / "out" / "optimized.keras").read_bytes() == (made / "text.keras").read_bytes()
    assert "No other model is within the allowed loss" in found.verdict.warnings[0]
    quality = next(row for row in found.verdict.rows if row.quantity is None)
    assert quality.before == quality.after


def test_only_the_verdict_uses_the_test_part_once_for_each_model(made, tmp_path, monkeypatch):
    from cellerate.optimization.listener import StageListener
    from cellerate.optimization.workloads.text import TextWorkload

    asked = []

    class Heard(StageListener):
        def begin(self, title):
            self.title = title

    heard, judged = Heard(), TextWorkload.judge

    def judge(work, model, part, **brief):
        asked.append((heard.title, part))
        return judged(work, model, part, **brief)

    monkeypatch.setattr(TextWorkload, "judge", judge)
    monkeypatch.setattr(sweeps.SequenceLength, "_CHARACTERS_S", 0.01)
    settings = OptimizeSettings(
        time_budget=100_000.0, steps=4, max_quality_loss=10.0, keep=[0.5], skip=["batch", "precision"]
    )
    found = workflow.run(made / "text.keras", made / "t.txt", tmp_path / "out", settings, listener=heard)
    assert {one.status for one in found.passes} == {"done"}
    assert {title for title, part in asked if part == "validation"} == {
        one.title for one in found.passes if one.name not in ("kernels", "pipeline")
    }
    # The original, the control and the chosen model.
    assert [title for title, part in asked if part == "test"] == ["Verdict"] * 3
    assert {part for _, part in asked} == {"validation", "test"}


def test_slow_evaluations_use_less_data(made, tmp_path, monkeypatch):
    from cellerate.optimization import context as contexts
    from cellerate.optimization.workloads import text

    monkeypatch.setattr(text, "_ROWS", 2)
    monkeypatch.setattr(HereProbe, "opened", {})
    judged, batches = text.TextWorkload.judge, []

    def judge(work, model, part, *, brief=False):
        if not isinstance(model, keras.Model):
            if brief:
                # A simulated packed model takes 4/9 of the allowed time for one batch.
                now[0] += contexts._JUDGING * 100_000.0 / 2.25
            batches.append((part, 1 if brief else len(work.held_out[part])))
        return judged(work, model, part, brief=brief)

    now = [0.0]
    monkeypatch.setattr(
        contexts, "time", types.SimpleNamespace(perf_counter=lambda: time.perf_counter() + now[0])
    )
    monkeypatch.setattr(text.TextWorkload, "judge", judge)
    out, some = tmp_path / "out", {"max_quality_loss": 10.0}
    found = optimized(made, out, only=["pack"], **some)
    # Five batches a part; the first packed model is looked at, and two of them can be judged in the time there is.
    assert batches == [("validation", 1), ("validation", 2), ("test", 2)]
    assert load_state(out, {}).judged_share == pytest.approx(0.45, rel=0.01)
    # The first and the last, which has one window of ten characters in place of two.
    assert found.metric.source.startswith("30 characters of the validation part")
    # The original gets the same batches, so that the two are comparable.
    original, packed = found.candidates
    assert (original.loss, original.control_loss) == (None, None)
    assert packed.loss.value == pytest.approx(0, abs=1e-5)
    assert packed.quality.value == pytest.approx(original.quality.value, rel=1e-5)
    # A later call keeps these batches.
    batches.clear()
    again = optimized(made, out, only=["pack", "quantize"], **some)
    assert {count for part, count in batches} == {2}
    assert again.metric == found.metric


@pytest.fixture
def differing(monkeypatch):
    """Scale the loss of every packed model on one part by a factor for each block."""
    from cellerate.optimization.workloads.text import TextWorkload

    judged = TextWorkload.judge

    def differing(where, factors):
        def judge(work, model, part, **brief):
            one = judged(work, model, part, **brief)
            if isinstance(model, keras.Model) or part != where:
                return one
            by = np.resize(factors, len(one.values))
            return dataclasses.replace(one, values=tuple(by * one.values))

        monkeypatch.setattr(TextWorkload, "judge", judge)

    return differing


def test_promise_broken_on_the_test_part_keeps_the_original_and_says_so(
    made, tmp_path, monkeypatch, differing
):
    from cellerate.optimization.stages import verdict as module

    differing("test", [1.05])
    out, hold = tmp_path / "out", module.hold
    before = []
    monkeypatch.setattr(
        module, "hold", lambda *given: before.append((out / "optimized.cell").read_bytes()) or hold(*given)
    )
    found = optimized(made, out, max_quality_loss=0.01, only=["pack"])
    # The packed file existed as the best so far, and the verdict for the original removes it.
    assert before == [(out / "candidates" / "float32.cell").read_bytes()]
    packed = found.candidates[1]
    assert packed.passes_gate
    verdict = found.verdict
    assert (verdict.chosen, verdict.rejected) == ("original", "float32")
    assert verdict.sentence.startswith(
        "The promise is broken: on the test part, packed in float32 is 5 % worse than the original (95 % interval "
    )
    assert "and 1 % is allowed. The original is kept." in verdict.sentence
    assert [path for _, path in verdict.files] == ["optimized.keras"]
    assert (out / "optimized.keras").read_bytes() == (made / "text.keras").read_bytes()
    assert not (out / "optimized.cell").exists()
    # The report describes the kept model.
    for row in verdict.rows:
        assert row.quantity == "training" or row.before == row.after
    assert [(one.role, one.candidate) for one in verdict.tested] == [
        ("before", "original"),
        ("rejected", "float32"),
    ]
    assert verdict.tested[1].loss.value == pytest.approx(0.05, rel=1e-3)
    assert verdict.tested[1].loss.low > 0.01
    assert not any(one.kept for one in found.passes)


def test_promise_broken_only_by_the_mean_keeps_the_candidate_with_a_warning(made, tmp_path, differing):
    differing("test", [0.8, 1.3])
    found = optimized(made, tmp_path / "out", max_quality_loss=0.01, only=["pack"])
    assert (found.verdict.chosen, found.verdict.rejected) == ("float32", None)
    loss = found.verdict.tested[-1].loss
    assert loss.low <= 0.01 < loss.value
    (warning,) = (one for one in found.verdict.warnings if "test part" in one)
    assert "packed in float32 is " in warning
    assert "and 1 % is allowed. That may be chance, so it is kept." in warning


def test_second_verdict_warns_that_the_test_part_was_used_before(made, tmp_path, differing):
    out = tmp_path / "out"
    differing("test", [1.05])
    first = optimized(made, out, max_quality_loss=0.05, only=["pack"], objective="size")
    assert not any("An earlier verdict" in one for one in first.verdict.warnings)
    found = optimized(made, out, max_quality_loss=0.05, only=["pack", "quantize"], objective="size")
    assert found.verdict.chosen == "int4"
    assert any(
        "An earlier verdict of this run judged float32 on the test" in one for one in found.verdict.warnings
    )


def test_verdict_for_the_original_removes_an_earlier_packed_file(made, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "optimized.cell").write_bytes(b"of a run before")
    found = optimized(made, out, only=["pipeline"])
    assert found.verdict.chosen == "original"
    assert not (out / "optimized.cell").exists()
    assert (out / "optimized.keras").exists()


@pytest.mark.slow
def test_verdict_that_cannot_be_measured_keeps_the_figures_of_the_search(made, tmp_path, monkeypatch):
    def ask(self, kind, **options):
        if kind == "use" and options["files"]:
            raise ProbeError("it took more than 600 s", memory=False)
        return answered(self, kind, **options)

    answered = HereProbe.ask
    monkeypatch.setattr(HereProbe, "ask", ask)
    found = optimized(made, tmp_path / "out", only=["pack"])
    assert found.status == "finished"
    assert "could not be timed in turns: it took more than 600 s" in found.verdict.warnings[0]
    packed = next(one for one in found.candidates if one.id == "float32")
    assert next(row for row in found.verdict.rows if row.quantity == "use").after == packed.speeds[0].per_s
