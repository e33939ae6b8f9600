"""The baseline: its duration, and the agreement of our kernels with Keras on the model's quality."""

import numpy as np
import pytest

from cellerate.kernels import native
from cellerate.optimization import hardware, workflow
from cellerate.optimization.clocks import BRIEFLY_S
from cellerate.optimization.context import Context
from cellerate.optimization.probe_client import ProbeError
from cellerate.optimization.settings import OptimizeSettings
from cellerate.optimization.stages import baseline, registry
from cellerate.optimization.state import load_state
from cellerate.optimization.workloads.opening import open_workload
from cellerate.report.record import Verdict
from support.optimization.here import HereProbe, answer_here, optimized

pytestmark = [pytest.mark.keras, pytest.mark.usefixtures("here_probe", "quick")]


@pytest.fixture
def alone(monkeypatch):
    """Run neither stages nor a verdict."""
    monkeypatch.setattr(registry, "STAGES", {})
    no_verdict = Verdict(sentence="", chosen="original", rows=(), files=(), training="")
    monkeypatch.setattr(workflow, "verdict", lambda _: no_verdict)


def asked_of(probe, wanted):
    return [options for kind, options in probe.asked if kind == wanted]


@pytest.mark.parametrize(("budget", "seconds", "least"), [(100_000.0, BRIEFLY_S, False), (1e-3, 0.0, True)])
def test_baseline_takes_a_sixth_of_the_budget_or_its_minimum(
    made, tmp_path, alone, here_probe, budget, seconds, least
):
    found = optimized(made, tmp_path / "out", time_budget=budget)
    # With too little time, each figure gets one call and training gets three steps.
    (used,), (turn,) = asked_of(here_probe, "use"), asked_of(here_probe, "turn")
    assert (used["files"], used["seconds"]) == ([], pytest.approx(seconds))
    assert ((turn["steps"] == 3), turn["restart"]) == (least, True)
    assert found.passes[0].status == "done"
    assert found.candidates[0].quality is not None


def test_baseline_steps_fit_into_half_of_the_time_left(monkeypatch):
    class Left:
        def seconds_left(self):
            return self.left

    class Training:
        step_s = 0.1

        def turn(self, steps, *, restart):
            return steps

        def step(self, turns):
            return turns

    context, training = Left(), Training()
    for left, steps in ((3.0, 15), (100.0, 20), (0.2, 3), (-5.0, 3)):
        context.left = left
        assert baseline._trained(context, training) == [steps]
        assert baseline._brief(context) == pytest.approx(max(0.0, min(BRIEFLY_S, 0.05 * left)))
    training.step_s, context.left = 1e-3, 100.0
    assert baseline._trained(context, training) == [100]
    training.step_s = float("inf")
    assert baseline._trained(context, training) == [3]


def test_baseline_is_evaluated_on_our_kernels_after_a_check_against_keras(made, tmp_path, alone, here_probe):
    out = tmp_path / "out"
    threads, found = native.num_threads(), optimized(made, out)
    labels = [f"{threads} threads beside one"] if threads > 1 else []
    assert [label for label, _ in found.passes[0].facts] == [*labels, "bfloat16 beside float32"]
    assert all(value.startswith("an LSTM layer of 16 units trains ") for _, value in found.passes[0].facts)
    assert asked_of(here_probe, "judge") == [{"part": "validation", "brief": True}]
    state = load_state(out, {})
    assert 0 < state.apart < 1e-4
    work = open_workload(made / "text.keras", [made / "t.txt"], seed=0)
    np.testing.assert_allclose(
        state.judged["original"].values, work.judge(work.model, "validation").values, rtol=1e-4
    )
    # What it knows of the machine and of what things take.
    assert state.units == 16
    assert len(state.bfloat16) >= 2
    assert min(state.judge_s, state.first_judge_s, state.process_s, state.compile_s) > 0
    assert state.consider_s is None


@pytest.fixture
def damaged(monkeypatch):
    """Make our kernels give wrong results."""
    original = Context.original

    def damaged(self):
        model = original(self)
        model.set_weights([1.1 * weights for weights in model.get_weights()])
        return model

    monkeypatch.setattr(Context, "original", damaged)


def test_kernels_with_wrong_results_fail_and_change_nothing(made, tmp_path, monkeypatch, here_probe, damaged):
    def measure(*_):
        raise AssertionError("what wrong kernels take is of no use")

    monkeypatch.setattr(baseline, "measure_hardware", measure)
    out = tmp_path / "out"
    found = optimized(made, out, only=["pack", "kernels"])
    for stage in found.passes[1:]:
        assert stage.status == "failed"
        assert "apart on a stretch of the held-out data, which is more than rounding" in stage.reason
    assert [one.id for one in found.candidates] == ["original"]
    assert (found.status, found.verdict.chosen) == ("finished", "original")
    assert len(found.training_steps) == 1
    # Keras evaluates both parts.
    assert asked_of(here_probe, "judge") == [{"part": "validation", "brief": True}, {"part": "validation"}]
    state = load_state(out, {})
    assert state.apart > 1e-3
    work = open_workload(made / "text.keras", [made / "t.txt"], seed=0)
    for judged, part in ((state.judged, "validation"), (state.tested, "test")):
        expected = work.judge(work.model, part).values
        np.testing.assert_allclose(judged["original"].values, expected, rtol=1e-6)
    assert (out / "optimized.keras").read_bytes() == (made / "text.keras").read_bytes()


@pytest.mark.parametrize(("policy", "apart", "right"), [
    ("float32", 0.9e-3, True), ("float32", 1.1e-3, False),
    ("mixed_bfloat16", 1.1e-3, True), ("mixed_bfloat16", 2.1e-2, False),
])  # fmt: skip
def test_rounding_tolerance_is_larger_for_16_bit_models(made, policy, apart, right):
    from types import SimpleNamespace

    from cellerate.models.rewrite import with_dtype_policy
    from cellerate.models.storage import load_model

    model = with_dtype_policy(load_model(made / "text.keras")[0], policy)
    context = Context(
        SimpleNamespace(model=model), None, None, None, (), "", SimpleNamespace(apart=apart), None, None
    )
    assert context.kernels_are_right is right


def test_baseline_that_cannot_train_ends_the_run(made, tmp_path, monkeypatch):
    class Untrained(HereProbe):
        def ask(self, kind, **options):
            if kind == "trainer":
                raise ProbeError("MemoryError: no memory", memory=True)
            return super().ask(kind, **options)

    answer_here(monkeypatch, Untrained)
    with pytest.raises(ProbeError, match="no memory"):
        workflow.run(made / "text.keras", made / "t.txt", tmp_path / "out", OptimizeSettings())
    assert not (tmp_path / "out" / "state.json").exists()


def test_model_without_supported_kernels_has_a_baseline(made, tmp_path, alone, monkeypatch):
    monkeypatch.setattr(hardware, "is_accelerated", lambda layer: False)
    optimized(made, tmp_path / "out")
    state = load_state(tmp_path / "out", {})
    assert (state.bfloat16, state.units) == ((), 0)
