"""The choice of a precision; the tests of training and of `optimize` run the trials themselves."""

import math

import pytest

from cellerate.measure import as_timing
from cellerate.training import precision
from cellerate.training.precision import PrecisionTrial, fastest_precision
from cellerate.training.settings import TrainingSettings
from cellerate.training.trial import Trial

pytestmark = pytest.mark.keras
BASE = PrecisionTrial("float32", 10.0, 2.0)


@pytest.mark.parametrize(
    ("step_ms", "loss", "chosen"),
    [
        (5.0, 2.0, True),
        (9.5, 2.0, True),
        (9.6, 2.0, False),
        (5.0, 2.02, True),
        (5.0, 2.03, False),
        (5.0, math.nan, False),
        (None, None, False),
        (5.0, None, False),
        (None, 1.0, False),
    ],
    ids=["faster", "5 %", "hardly", "1 % worse", "worse", "diverged", "cannot run", "no loss", "no time"],
)
def test_precision_is_chosen_only_if_faster_with_an_equal_loss(step_ms, loss, chosen):
    trial = PrecisionTrial("mixed_bfloat16", step_ms, loss)
    assert fastest_precision([BASE, trial]).policy == ("mixed_bfloat16" if chosen else "float32")


def test_fastest_precision_is_chosen_and_none_without_a_reference():
    trials = [PrecisionTrial(name, ms, 2.0) for name, ms in (("a", 6.0), ("b", 4.0), ("c", 5.0))]
    assert fastest_precision([BASE, *trials]).policy == "b"
    assert (
        fastest_precision([PrecisionTrial("float32", None, None, "no memory"), *trials]).policy == "float32"
    )


def test_trial_of_a_precision_reports_its_median_step_in_milliseconds(monkeypatch):
    steps = as_timing([0.004, 0.002, 0.003])
    monkeypatch.setattr(precision, "try_training", lambda *_, **__: Trial(steps, 1.5))
    monkeypatch.setattr(precision, "with_dtype_policy", lambda model, _: model)
    monkeypatch.setattr(precision, "accelerate", lambda model, _, **__: model)
    chosen, trials = precision.choose_precision(
        None, None, loss=None, settings=TrainingSettings(), candidates=["mixed_bfloat16"]
    )
    assert (chosen, [(trial.step_ms, trial.loss) for trial in trials]) == ("float32", [(3.0, 1.5)] * 2)


def test_precision_that_cannot_run_is_reported_and_failing_float32_raises(monkeypatch):
    def fail(*_, policy, **__):
        if policy in failing:
            raise NotImplementedError("no kernel for this type\nand much more")
        return Trial(as_timing([0.004]), 1.5)

    monkeypatch.setattr(precision, "try_training", fail)
    monkeypatch.setattr(precision, "with_dtype_policy", lambda model, _: model)
    monkeypatch.setattr(precision, "accelerate", lambda model, _, **__: model)
    options = {"loss": None, "settings": TrainingSettings(), "candidates": ["mixed_float16"]}
    failing = ["mixed_float16"]
    chosen, trials = precision.choose_precision(None, None, **options)
    assert chosen == "float32"
    assert trials[1] == PrecisionTrial(
        "mixed_float16", None, None, "NotImplementedError: no kernel for this type"
    )
    failing = ["float32"]
    with pytest.raises(NotImplementedError):
        precision.choose_precision(None, None, **options)


@pytest.mark.parametrize(
    ("gpu", "names"), [(True, ("mixed_bfloat16", "mixed_float16")), (False, ("mixed_bfloat16",))]
)
def test_half_precision_is_tried_on_a_gpu_only(monkeypatch, gpu, names):
    monkeypatch.setattr(precision, "gpu_visible", lambda: gpu)
    assert precision.precision_candidates() == names


@pytest.mark.parametrize(("step_ms", "loss"), [(None, 2.0), (10.0, None)])
def test_no_precision_is_chosen_without_a_complete_reference(step_ms, loss):
    trials = [PrecisionTrial("float32", step_ms, loss), PrecisionTrial("mixed_bfloat16", 5.0, 2.0)]
    assert fastest_precision(trials).policy == "float32"
