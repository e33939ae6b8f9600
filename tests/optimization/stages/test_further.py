"""The length of further training: decided once, so that all candidates share one control, as far as time allows."""

import dataclasses
from types import SimpleNamespace

import pytest

from cellerate.optimization.context import Context, OutOfTimeError
from cellerate.optimization.settings import OptimizeSettings
from cellerate.optimization.stages.further import (
    DISTILLING,
    GENTLE_RATE,
    LEARNING_RATE,
    fine_tuning_steps,
    further_steps,
    least_s,
    least_steps,
    most_s,
    plain_training,
    trainings,
    trainings_s,
)
from cellerate.optimization.state import Choices, State
from cellerate.report.quality import Interval
from cellerate.report.record import CONTROL, Candidate, TrainingStep

pytestmark = pytest.mark.keras

COMPILE, JUDGE, CONSIDER = 2.0, 0.5, 3.0
# The time of a training beside its steps: compiling, four evaluations, packing, evaluating and timing the model.
REST = COMPILE + 4 * JUDGE + CONSIDER
START = 1.0

# A step takes a tenth of a second on the fastest kernels.
STEPS = [
    TrainingStep("Keras", 8, None, 500.0, 1.0, 1.0, 1.0),
    TrainingStep("fused", 8, None, 100.0, 1.0, 1.0, 1.0),
]
CONTROLLED = Candidate(
    id="",
    title="the original trained 9 steps further",
    made_by=CONTROL,
    precision="float32",
    parameters=1,
    file_bytes=1,
    quality=None,
    loss=Interval(-0.03, -0.04, -0.02),
    passes_gate=True,
    speeds=(),
)


class Clocked(Context):
    """A context with a given number of seconds left."""

    left = 0.0

    def seconds_left(self):
        return self.left


@pytest.fixture
def context():
    choices = Choices("auto", "float32", 8, 1, None, "int8")
    state = State(identity={}, choices=choices, started="", training_steps=list(STEPS))
    state.compile_s, state.judge_s, state.consider_s = COMPILE, JUDGE, CONSIDER
    return Clocked(SimpleNamespace(shapes=1), OptimizeSettings(), None, None, (), "", state, None, None)


def train_control(context, steps):
    name = context.control_id(steps, LEARNING_RATE)
    context.state.candidates.append(dataclasses.replace(CONTROLLED, id=name))


def test_further_steps_are_planned_for_all_trainings_and_their_control(context):
    context.left = 5 * REST + 1000
    # Two prunings, a distilling and the control: 5.5 trainings in nine tenths of the time.
    assert further_steps(context, 1, 1 + DISTILLING) == int(900 / 5.5 / 0.1) == context.state.further_steps


def test_further_steps_do_not_exceed_the_setting(context):
    context.left = 1e6
    assert further_steps(context, 1) == 2000
    context.left = float("inf")
    assert further_steps(context, 1) == fine_tuning_steps(context) == 2000


def test_further_steps_stay_fixed_so_that_the_control_is_reused(context):
    context.left = 1000 + 4 * REST
    steps = further_steps(context, 1, DISTILLING)
    train_control(context, steps)
    # After the control and a pruned model, the time left allows more steps, or slightly fewer.
    for left in (1000 + 2 * REST - 2 * steps * 0.1, 2 * REST + 0.1 + DISTILLING * steps * 0.1):
        context.left = left
        assert further_steps(context, DISTILLING) == steps


def test_further_steps_are_cut_to_the_time_left(context):
    context.left = 1000 + 2 * REST
    steps = further_steps(context, 1)
    train_control(context, steps)
    context.left = REST - 1 + steps * 0.1
    found = further_steps(context, 1)
    # Fewer steps need a control of their own.
    assert found == int(0.9 * (context.left - 2 * REST) / 2 / 0.1) < steps


def test_further_steps_grow_in_a_later_call_with_far_more_time(context):
    context.left = 60
    few = further_steps(context, 1, 1)
    train_control(context, few)
    context.left = 2000
    assert further_steps(context, 1, 1) == 2000 > 4 * few


def test_few_further_steps_by_setting_are_not_a_lack_of_time(context):
    context.settings = OptimizeSettings(steps=4)
    context.left = 1e6
    assert further_steps(context, 1) == fine_tuning_steps(context) == least_steps(context) == 4
    assert least_s(context, 1) == pytest.approx(START + 2 * REST + 4 * 0.1 * 2 / 0.9) == most_s(context, 1)
    context.left = 2 * REST
    with pytest.raises(OutOfTimeError, match="no time for 4 steps of training"):
        further_steps(context, 1)


@pytest.mark.parametrize("decided", [None, 400])
def test_further_training_without_time_for_a_control_is_refused(context, decided):
    context.state.further_steps = decided
    # 50 steps of each take 10 s, in nine tenths of what is left; a fifth less is let pass.
    context.left = 2 * REST + 0.8 * 11.0
    with pytest.raises(OutOfTimeError, match="no time for 50 steps of training and as many of a control"):
        further_steps(context, 1)
    assert context.state.further_steps == decided
    context.left = 2 * REST + 0.8 * 11.2
    assert further_steps(context, 1) == 50


def test_further_steps_use_spare_time_after_their_share(context):
    context.left = -3.0
    assert fine_tuning_steps(context) == 0
    with pytest.raises(OutOfTimeError):
        further_steps(context, 1)
    context.spare_s = 3.0 + 300 + 2 * REST
    assert fine_tuning_steps(context) == further_steps(context, 1) == int(270 / 2 / 0.1)


def test_stage_costs_its_training_and_that_of_a_missing_control(context):
    assert least_s(context, 1) == pytest.approx(START + 2 * REST + 50 * 0.1 * 2 / 0.9)
    context.state.further_steps = 300
    assert least_s(context, DISTILLING) == pytest.approx(START + 3 * REST + 50 * 0.1 * 3.5 / 0.9)
    assert most_s(context, DISTILLING) == pytest.approx(START + 3 * REST + 2000 * 0.1 * 3.5 / 0.9)
    train_control(context, 300)
    assert least_s(context, DISTILLING) == pytest.approx(START + 2 * REST + 50 * 0.1 * 2.5 / 0.9)


def test_training_compiles_for_each_batch_shape_and_for_evaluation(context):
    before = least_s(context, 1)
    context.workload.shapes, context.state.first_judge_s = 3, 0.7
    assert least_s(context, 1) == pytest.approx(before + 2 * (2 * COMPILE + 0.7))


def test_largest_cost_of_a_stage_is_enough_for_all_its_steps(context):
    # Up to one second passes before the first step.
    context.state.training_steps[:] = [dataclasses.replace(STEPS[0], step_ms=1.0)]
    for steps in (4, 50, 2000):
        context.settings, context.state.further_steps = OptimizeSettings(steps=steps), None
        context.left = most_s(context, 1) - 0.9
        assert further_steps(context, 1) == steps
        context.left = trainings_s(context, 2, steps) - 0.9
        assert fine_tuning_steps(context) == steps


def test_least_cost_of_a_stage_is_enough_for_its_fewest_steps(context):
    # A second passes before its first training begins.
    for own, later in ((1, 0), (1, 1), (DISTILLING, 0)):
        context.left, context.state.further_steps = least_s(context, own) - 1.0, None
        assert further_steps(context, own, later) == 50


def test_fine_tuning_leaves_time_for_its_control(context):
    context.left = 2 * REST + 61
    assert fine_tuning_steps(context) == int(0.9 * 61 / 2 / 0.1)
    context.left = 5
    assert fine_tuning_steps(context) == 0


def test_share_of_the_time_counts_all_trainings_and_a_missing_control(context):
    assert trainings(context, 2.5) == 3.5
    context.state.further_steps = 300
    train_control(context, 300)
    assert trainings(context, 2.5) == 2.5


def test_plain_training_is_recommended_only_if_a_control_is_certainly_better():
    (note,) = plain_training([CONTROLLED, dataclasses.replace(CONTROLLED, made_by="prune")])
    assert note.startswith(
        "Plain further training is the better buy: the original trained 9 steps further is 3 % better on the "
        "validation part (95 % interval 2 % to 4 % better)"
    )
    doubtful = dataclasses.replace(CONTROLLED, loss=Interval(-0.03, -0.07, 0.01))
    assert plain_training([doubtful]) == ()


def test_learning_rates_equal_the_defaults_of_compress():
    # The defaults of the functions in `compress`, found there by experiment.
    import inspect

    from cellerate.compress.distill import distill
    from cellerate.compress.prune import prune
    from cellerate.compress.quantize import quantize

    for function, rate in ((prune, LEARNING_RATE), (distill, LEARNING_RATE), (quantize, GENTLE_RATE)):
        assert inspect.signature(function).parameters["learning_rate"].default == rate
