"""The promise of the verdict, checked on the test part in the direction of the metric."""

from types import SimpleNamespace

import numpy as np
import pytest

from cellerate.optimization.context import ORIGINAL, Context
from cellerate.optimization.judging import Judged
from cellerate.optimization.listener import StageListener
from cellerate.optimization.settings import OptimizeSettings
from cellerate.optimization.stages import promise
from cellerate.optimization.stages.promise import hold
from cellerate.optimization.state import Choices, State
from cellerate.report.quality import Metric
from cellerate.report.record import CONTROL, Candidate

pytestmark = pytest.mark.keras


def candidate(name, made_by="prune", control=None):
    return Candidate(
        id=name,
        title=f"the {name}",
        made_by=made_by,
        precision="int8",
        parameters=1,
        file_bytes=1,
        quality=None,
        loss=None,
        passes_gate=True,
        speeds=(),
        file=None if name == ORIGINAL else f"{name}.cell",
        control=control,
    )


class Held(Context):
    """A context whose kernels agree with Keras on the original, or do not."""

    kernels_are_right = True

    def original(self):
        return ORIGINAL


@pytest.fixture
def held(monkeypatch, tmp_path):
    """Check a model of a given quality against an original of 2 and a control; `noise` and `unsure` spread blocks."""
    judged = []

    def held(after, *, control=None, higher=False, noise=0.0, unsure=0.0, chosen="pruned", trained=True):
        wave = np.tile([1.0, -1.0], 10)
        qualities = {ORIGINAL: 2 + 0 * wave, "in Keras": 2 + 0 * wave, "pruned": after + noise * wave}
        state = State(identity={}, choices=Choices("auto", "float32", 8, 1, None, "int8"), started="")
        state.candidates.append(candidate(ORIGINAL, "baseline"))
        if control is not None:
            qualities["control"] = control + unsure * wave
            state.candidates.append(candidate("control", CONTROL))
        state.candidates.append(candidate("pruned", control="control" if trained and control else None))
        monkeypatch.setattr(promise, "load", lambda path: path.stem)
        parts = []

        def judge(model, part):
            parts.append(part)
            judged.append(model)
            return Judged(tuple(qualities[model].tolist()), (1.0,) * len(wave))

        metric = Metric("m", "", higher, "")
        workload = SimpleNamespace(metric=metric, judge=judge, model="in Keras")
        settings = OptimizeSettings(max_quality_loss=0.01)
        context = Held(workload, settings, tmp_path, None, (), "", state, StageListener(), None)
        found = hold(context, next(one for one in state.candidates if one.id == chosen))
        assert set(parts) == {"test"}
        assert len(parts) == len(found.tested) == len(state.tested)
        # Repeated requests do not evaluate a model twice.
        assert promise.judge_on_test_part(context, state.candidates[0]) is state.tested[ORIGINAL]
        assert len(parts) == len(state.tested)
        return found

    held.judged = judged
    return held


@pytest.mark.parametrize(("higher", "after"), [(False, 2.01), (True, 1.99), (False, 1.5), (True, 2.5)])
def test_kept_promise_gives_no_message(held, higher, after):
    found = held(after, higher=higher)
    assert (found.broken, found.warnings) == ("", ())
    assert [(one.role, one.candidate) for one in found.tested] == [("before", ORIGINAL), ("after", "pruned")]
    quality = found.tested[1].quality
    assert (quality.low, quality.value, quality.high) == (pytest.approx(after),) * 3


@pytest.mark.parametrize(("higher", "after"), [(False, 2.05), (True, 1.95)])
def test_certainly_broken_promise_is_reported_with_its_figures(held, higher, after):
    found = held(after, higher=higher)
    assert found.broken == (
        "The promise is broken: on the test part, the pruned is 2.5 % worse than the original (95 % interval 2.5 % to "
        "2.5 % worse), and 1 % is allowed. The original is kept."
    )
    assert found.tested[-1].role == "rejected"
    assert found.warnings == ()


@pytest.mark.parametrize(("higher", "after"), [(False, 2.05), (True, 1.95)])
def test_promise_broken_only_by_the_mean_gives_a_warning(held, higher, after):
    found = held(after, higher=higher, noise=0.2)
    assert found.broken == ""
    (warning,) = found.warnings
    # Standard error 0.1 / sqrt(19), Student's t of 19 degrees of freedom 2.093: 4.8 % beside 2.5 %.
    assert warning == (
        "On the test part, the pruned is 2.5 % worse than the original (95 % interval 2.3 % better to 7.3 % worse), "
        "and 1 % is allowed. That may be chance, so it is kept."
    )
    assert found.tested[-1].role == "after"


@pytest.mark.parametrize(("higher", "control", "after"), [(False, 1.8, 1.9), (True, 2.2, 2.1)])
def test_promise_is_checked_against_the_control_too(held, higher, control, after):
    found = held(after, control=control, higher=higher)
    assert "worse than the original trained as long (95 % interval" in found.broken
    assert [one.role for one in found.tested] == ["before", "control", "rejected"]
    assert found.tested[2].loss.value == pytest.approx(-0.05)
    assert found.tested[2].control_loss.value == pytest.approx(0.1 / control)
    assert found.tested[1].loss.value == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("higher", "control", "said"), [(False, 1.8, 1), (True, 2.2, 1), (False, 2.2, 0), (True, 1.8, 0)]
)
def test_better_control_is_recommended_whatever_was_chosen(held, higher, control, said):
    for chosen in ("pruned", ORIGINAL):
        found = held(2.0, control=control, higher=higher, trained=False, chosen=chosen)
        assert found.broken == ""
        assert len(found.warnings) == said
        if said:
            assert found.warnings[0].startswith(
                "Plain further training is the better buy: the control is 10 % better on the test part"
            )
    # A model without further training is compared with the original only.
    assert all(one.control_loss is None for one in found.tested)


@pytest.mark.parametrize(("higher", "control"), [(False, 1.95), (True, 2.05)])
def test_control_that_may_be_better_by_chance_is_not_recommended(held, higher, control):
    found = held(2.0, control=control, higher=higher, unsure=0.2, trained=False)
    assert found.tested[1].loss.value == pytest.approx(-0.025)
    assert found.warnings == ()


def test_promise_always_holds_for_the_original(held):
    found = held(9.0, chosen=ORIGINAL)
    assert (found.broken, found.warnings) == ("", ())
    assert [one.role for one in found.tested] == ["before"]


@pytest.mark.parametrize("right", [True, False])
def test_original_is_evaluated_on_our_kernels_only_if_they_agree_with_keras(held, monkeypatch, right):
    monkeypatch.setattr(Held, "kernels_are_right", right)
    held(2.0)
    assert held.judged == [ORIGINAL if right else "in Keras", "pruned"]
