"""The stages that tune training, on a simulated machine."""

import contextlib
import dataclasses
import types

import keras
import numpy as np
import pytest

from cellerate.optimization.probe_client import ProbeError
from cellerate.optimization.processes import Workers
from cellerate.optimization.settings import OptimizeSettings
from cellerate.optimization.stages import racing, sweeps
from cellerate.optimization.stages.pipeline import Pipeline
from cellerate.report.record import TrainingStep
from support.optimization.here import HereProbe, answer_here

pytestmark = [pytest.mark.keras, pytest.mark.usefixtures("here_probe", "quick")]


class MadeUp(HereProbe):
    """A simulated training whose times follow a rule."""

    rule = staticmethod(lambda options: {})

    def ask(self, kind, *, timeout_s=None, **options):
        self.asked.append((kind, options))
        if kind == "open":
            return 0.1
        if kind == "load":
            return {"batch_ms": 0.5}
        if kind == "turn":
            self._turn = 0 if options["restart"] else self._turn
            rule = type(self).rule(self._trained | {"turn": self._turn})
            self._turn += 1
            seconds = [rule.get("step_ms", 1.0) / 1e3] * options["steps"]
            return {"seconds": seconds, "loss": rule.get("loss", 2.0), "peak_memory_bytes": None}
        if kind == "trainer":
            self._trained, self._turn = options, 0
            rule = type(self).rule(options | {"turn": 0})
            items = rule["items_per_s"] * rule.get("step_ms", 1.0) / 1e3 if "items_per_s" in rule else 1.0
            return {
                "batch_size": options["batch_size"],
                "length": options["length"],
                "items": items,
                "step_s": 0.3,
                "compile_s": 0.5,
            }
        step = {
            "way": options["way"],
            "batch_size": options["batch_size"],
            "length": options["length"],
            "step_ms": 1.0,
            "step_p20_ms": 0.9,
            "step_p80_ms": 1.1,
            "items_per_s": 1000.0,
            "peak_memory_bytes": None,
            "loss": 2.0,
        }
        return step | type(self).rule(options)


@pytest.fixture
def tuned(made, tmp_path, monkeypatch):
    """Run one stage after a baseline of 8 rows in 1 ms; return its record and the state."""
    from cellerate.optimization import context as module
    from cellerate.optimization.listener import StageListener
    from cellerate.optimization.state import Choices, State
    from cellerate.optimization.workloads.opening import open_workload

    answer_here(monkeypatch, MadeUp)

    def tuned(one, rule=lambda options: {}, *, first=8, **choices):
        monkeypatch.setattr(MadeUp, "rule", staticmethod(rule))
        usual = Choices("auto", "float32", first, 1, 10, "float32")
        state = State(
            identity={},
            choices=dataclasses.replace(usual, **choices),
            started="",
            training_steps=[TrainingStep("Keras, float32", first, 10, 1.0, 0.9, 1.1, 80_000.0)],
        )
        processes = Workers(lambda: context.probe())
        context = module.Context(
            workload=open_workload(made / "text.keras", [made / "t.txt"], seed=0),
            settings=OptimizeSettings(),
            folder=tmp_path,
            model_file=made / "text.keras",
            data=[str(made / "t.txt")],
            backend=keras.config.backend(),
            state=state,
            listener=StageListener(),
            processes=processes,
        )
        with contextlib.closing(processes):
            return one.run(context), state

    return tuned


class OfTraining:
    """The training row of the verdict."""

    name, title = "verdict", "Verdict"

    def __init__(self, *known):
        self._known = known

    def run(self, context):
        from cellerate.optimization.stages import verdict

        context.state.training_steps += self._known
        found, doubt = racing.training_before_and_after(context)
        return None if found is None else verdict._training_row(context, *found), doubt


def test_training_before_and_after_is_timed_in_alternating_turns(tuned):
    def rule(options):
        # Twice as fast on the fused kernels, and a batch of 32 rows takes twice as long as one of 8.
        step_ms = (2.0 if options["implementation"] == "auto" else 4.0) * (options["batch_size"] / 8) ** 0.5
        return {"step_ms": step_ms, "items_per_s": 10 * options["batch_size"] / step_ms * 1e3}

    (row, doubt), state = tuned(OfTraining(), rule, batch_size=32)
    assert (row.label, row.unit) == ("training, batches of 32 instead of 8", "characters/s")
    assert (row.before, row.after) == (pytest.approx(20_000), pytest.approx(80_000))
    assert doubt == []
    assert [(s.race, s.batch_size) for s in state.training_steps[1:]] == [("verdict", 8), ("verdict", 32)]
    (row, _), _ = tuned(OfTraining(), rule)
    assert (row.label, row.before, row.after) == (
        "training step, batch of 8",
        pytest.approx(4),
        pytest.approx(2),
    )


def test_training_already_timed_in_turns_keeps_those_figures(tuned):
    steps = (
        TrainingStep("Keras, float32", 8, 10, 1.5, 1.4, 1.6, 53_000.0, race="kernels"),
        TrainingStep("fused kernels, float32", 8, 10, 0.5, 0.4, 0.6, 160_000.0, race="kernels"),
        # A timing alone, at another time, cannot be compared.
        TrainingStep("fused kernels, float32", 8, 10, 0.1, 0.1, 0.1, 800_000.0),
    )
    MadeUp.asked.clear()
    (row, doubt), _ = tuned(OfTraining(*steps))
    assert (row.before, row.after, doubt) == (1.5, 0.5, [])
    assert MadeUp.asked == []


def test_training_with_contradicting_turns_is_reported_as_noise(tuned):
    def rule(options):
        return {
            "step_ms": 5.0
            if options["implementation"] == "auto" and options["turn"] % 3 == 2
            else 1.0 + (options["implementation"] == "keras")
        }

    (_, doubt), _ = tuned(OfTraining(), rule)
    assert "2.00x as fast as the original one, in 8 of 12 turns: that is noise" in doubt[0]


def test_busy_machine_is_reported_once_with_its_slowdown():
    steps = [
        TrainingStep("Keras, float32", 8, 10, step_ms, 1.0, 1.0, 1.0, race=race)
        for race, step_ms in (("", 189.0), ("kernels", 82.5), ("verdict", 536.0))
    ]
    steps.append(TrainingStep("fused kernels, float32", 8, 10, 27.0, 1.0, 1.0, 1.0))
    (told,) = racing.busy_machine(steps)
    assert "the same training step took 82.5 ms in one minute and 536 ms in another" in told
    # Another batch size changes the step.
    steps = [dataclasses.replace(step, batch_size=number + 1) for number, step in enumerate(steps)]
    assert racing.busy_machine(steps) == []


def test_training_without_a_choice_has_no_figure(tuned):
    (row, doubt), _ = tuned(OfTraining(), implementation="keras")
    assert (row, doubt) == (None, [])


def test_faster_batch_size_is_chosen_with_advice_on_the_learning_rate(tuned):
    found, state = tuned(
        sweeps.BatchSize(), lambda options: {"items_per_s": 1e3 * min(options["batch_size"], 32)}
    )
    assert found.kept
    assert found.decision == "32 instead of 8: 32.0 k characters/s instead of 8.00 k"
    assert (state.choices.batch_size, state.choices.accumulate) == (32, 1)
    assert [(s.batch_size, s.race) for s in state.training_steps[1:]] == [(8, "batch"), (32, "batch")]
    # Adam's rate goes with the square root: 0.01 times 2.
    assert any("learning_rate=0.02 instead of 0.01" in note for note in found.notes)
    (speed,) = found.curves
    assert speed.x == (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
    assert speed.marks == ((4, "chosen"),)


@pytest.mark.parametrize("usual", [8, 50])
def test_hardly_faster_batch_size_is_not_chosen(tuned, usual):
    found, state = tuned(
        sweeps.BatchSize(), lambda options: {"items_per_s": 1e3 + options["batch_size"]}, first=usual
    )
    assert not found.kept
    assert state.choices.batch_size == usual
    assert len(state.training_steps) == 1
    assert found.decision.startswith(f"{usual} stays")


@pytest.mark.parametrize(
    ("faster", "said"),
    [
        (1.0, "32 was no faster in turns with it"),
        (0.9, "32 was 0.900x as fast in turns with it"),
        (1.08, "32 was 1.08x as fast in turns with it"),
    ],
)
def test_batch_size_faster_only_in_the_sweep_is_not_chosen(tuned, faster, said):
    def rule(options):
        if "turn" in options:
            rows = options["batch_size"]
            step_ms = rows / 8 / (faster if rows == 32 else 1.0)
            return {"items_per_s": rows / step_ms * 1e3, "step_ms": step_ms}
        # Other load slowed the machine while the smaller ones were measured.
        return {"items_per_s": 125.0 * min(options["batch_size"], 32)}

    found, state = tuned(sweeps.BatchSize(), rule)
    assert not found.kept
    assert state.choices.batch_size == 8
    assert found.decision == f"8 stays: {said}"
    assert len(state.training_steps) == 1


def test_batch_size_that_cannot_be_timed_in_turns_is_not_chosen(tuned):
    def rule(options):
        if "turn" in options:
            raise ProbeError("MemoryError: no memory", memory=True)
        return {"items_per_s": 1e3 * options["batch_size"]}

    found, state = tuned(sweeps.BatchSize(), rule)
    assert state.choices.batch_size == 8
    assert "could not be timed beside it (MemoryError: no memory)" in found.decision


def test_smaller_batch_size_accumulates_to_the_same_update(tuned):
    found, state = tuned(sweeps.BatchSize(), lambda options: {"items_per_s": 1e5 / options["batch_size"]})
    assert (state.choices.batch_size, state.choices.accumulate) == (2, 4)
    assert any("(accumulate)" in note for note in found.notes)
    assert found.curves[0].marks == ((0, "chosen"),)


def test_batch_size_beyond_four_fifths_of_the_memory_is_not_chosen(tuned, monkeypatch):
    monkeypatch.setattr(sweeps, "available_memory_bytes", lambda: 1000)

    def rule(options):
        rows = options["batch_size"]
        return {"items_per_s": 1e3 * rows, "peak_memory_bytes": 100 + 20 * rows}

    found, state = tuned(sweeps.BatchSize(), rule)
    assert state.choices.batch_size <= 35
    assert "would take about" in found.notes[0]
    assert [curve.chart for curve in found.curves] == ["Training speed by batch size", "Memory by batch size"]


def test_batch_size_stage_raises_if_no_batch_fits(tuned):
    def rule(options):
        raise ProbeError("MemoryError: no memory", memory=True)

    with pytest.raises(ProbeError, match="no batch fits"):
        tuned(sweeps.BatchSize(), rule)


@pytest.mark.parametrize(
    ("bfloat16", "chosen"),
    [
        ({"step_ms": 0.5}, "mixed_bfloat16"),
        ({"step_ms": 0.97}, "float32"),
        ({"step_ms": 0.5, "loss": 2.1}, "float32"),
        ({"step_ms": 0.5, "loss": None}, "float32"),
    ],
    ids=["faster", "hardly faster", "learns worse", "diverges"],
)
def test_precision_is_chosen_only_if_faster_with_an_equal_loss(tuned, monkeypatch, bfloat16, chosen):
    from cellerate.optimization.stages import precision as module

    monkeypatch.setattr(module, "precision_candidates", lambda: ("mixed_bfloat16",))
    found, state = tuned(
        module.Precision(), lambda options: bfloat16 if options["policy"] == "mixed_bfloat16" else {}
    )
    assert state.choices.training_precision == chosen
    assert found.kept is (chosen != "float32")
    # Both figures come from the same turns.
    assert len(state.training_steps) == 1 + 2 * found.kept
    assert [name for name, _ in found.facts] == ["float32", "mixed_bfloat16"]


@pytest.mark.parametrize(
    ("turns", "chosen", "said"),
    [
        # A busy machine: float32 takes 11.6 ms in some turns and 3.6 ms in others, bfloat16 as long in all.
        (
            [11.6, 3.6, 11.6, 3.6, 11.6, 11.6] * 2,
            "float32",
            "mixed_bfloat16 was 2.32x as fast, but only in 8 of 12 turns",
        ),
        (
            [11.6, 11.6, 11.6, 3.6, 11.6, 11.6] + [11.6] * 6,
            "mixed_bfloat16",
            "mixed_bfloat16: a step in 5.00 ms instead of 11.6 ms",
        ),
    ],
    ids=["noise", "one spoiled turn"],
)
def test_precision_with_contradicting_turns_is_reported_as_noise(tuned, monkeypatch, turns, chosen, said):
    from cellerate.optimization.stages import precision as module

    monkeypatch.setattr(module, "precision_candidates", lambda: ("mixed_bfloat16",))
    found, state = tuned(
        module.Precision(),
        lambda options: {"step_ms": turns[options["turn"]] if options["policy"] == "float32" else 5.0},
    )
    assert state.choices.training_precision == chosen
    assert said in found.decision
    words = dict(found.facts)["mixed_bfloat16"]
    assert words.endswith("in 8 of 12 turns, which is noise" if chosen == "float32" else "in 11 of 12 turns")


def test_precision_that_cannot_run_is_reported(tuned, monkeypatch):
    from cellerate.optimization.stages import precision as module

    monkeypatch.setattr(module, "precision_candidates", lambda: ("mixed_bfloat16",))

    def rule(options):
        if options["policy"] == "mixed_bfloat16":
            raise ProbeError("Unknown output type bfloat16", memory=False)
        return {}

    found, state = tuned(module.Precision(), rule)
    assert state.choices.training_precision == "float32"
    assert dict(found.facts)["mixed_bfloat16"] == "Unknown output type bfloat16"


def test_pipeline_reports_the_share_of_a_step_spent_on_the_batch(tuned):
    found, _ = tuned(Pipeline())
    # Half a millisecond of one.
    assert dict(found.facts) == {"a batch": "0.5 ms", "a step": "1 ms"}
    assert "waits for data" in found.decision


def test_pipeline_counts_the_ids_of_a_batch_where_rows_became_longer(tuned):
    # Half as many rows of twice the length are the same work.
    found, _ = tuned(Pipeline(), batch_size=4, length=20)
    assert dict(found.facts)["a step"] == "1 ms"


def test_each_length_trains_new_weights_on_equally_many_characters(tuned, monkeypatch):
    tried = []

    def train(model, source, *, steps, **_):
        tried.append((source.batch_size, source.batch(0, 0)[0].shape[1], steps))
        return trial

    from cellerate.measure import Timing
    from cellerate.training.trial import Trial

    trial = Trial(Timing((0.001,)), 2.0)
    monkeypatch.setattr(sweeps, "try_training", train)
    found, state = tuned(sweeps.SequenceLength())
    assert [(rows * length, steps) for rows, length, steps in tried] == [(80, 6000)] * 3
    assert [length for _, length, _ in tried] == [10, 8, 20]
    assert [curve.x for curve in found.curves] == [(8.0, 10.0, 20.0)]
    assert (state.choices.length, state.choices.batch_size) == (10, 8)


def test_length_that_runs_out_of_time_reports_the_time_it_needs(tuned, monkeypatch):
    from cellerate.optimization.context import OutOfTimeError

    class Given:
        """Give the stage ten seconds, and each length a simulated duration."""

        name, title = "length", "Sequence length"

        def __init__(self, takes):
            self.takes = takes

        def run(self, context):
            now = [0.0]
            monkeypatch.setattr(
                "cellerate.optimization.context.time", types.SimpleNamespace(perf_counter=lambda: now[0])
            )

            def train(*_, **__):
                now[0] += self.takes

            monkeypatch.setattr(sweeps, "try_training", train)
            context.give(10.0)
            return sweeps.SequenceLength().run(context)

    with pytest.raises(
        OutOfTimeError, match="one length took 6 s, and there was no time for another"
    ) as raised:
        tuned(Given(6.0))
    assert raised.value.needs_s == pytest.approx(18.0)
    found, _ = tuned(Given(4.0))
    # The time was enough for two of three lengths: the usual one and half of it.
    assert found.curves[0].x == (8.0, 10.0)


@pytest.mark.parametrize(("rows", "better", "after"), [(8, 20, (20, 4)), (8, 8, (8, 10)), (1, 20, (10, 1))])
def test_certainly_better_length_is_chosen_with_equal_characters_a_batch(
    tuned, monkeypatch, rows, better, after
):
    from cellerate.measure import Timing
    from cellerate.optimization.judging import Judged
    from cellerate.optimization.workloads.text import TextWorkload
    from cellerate.training.trial import Trial

    tried = []

    def train(model, source, **_):
        tried.append(source.batch(0, 0)[0].shape[1])
        return Trial(Timing((0.001,)), 2.0)

    monkeypatch.setattr(sweeps, "try_training", train)
    values = np.linspace(1.9, 2.1, 20)
    monkeypatch.setattr(
        TextWorkload,
        "judge",
        lambda *_, **__: Judged(tuple(values * (0.9 if tried[-1] == better else 1)), (1.0,) * 20),
    )
    found, state = tuned(sweeps.SequenceLength(), batch_size=rows)
    assert (state.choices.length, state.choices.batch_size) == after
    assert found.kept is (after[0] != 10)
    # A batch of one row cannot have rows of twice the length with as many characters.
    assert tried == ([10, 8] if rows == 1 else [10, 8, 20])


@pytest.mark.parametrize(
    ("ratios", "pointless"),
    [
        ((), False),  # not measured
        ((0.7, 0.72, 0.69, 0.7, 0.71, 0.7), True),
        # Hardly faster: no policy less than 5 % faster is chosen.
        ((1.02, 1.03, 1.01, 1.02, 1.04, 1.02), True),
        # Five of six turns are enough to skip a stage.
        ((0.7, 0.72, 0.69, 0.7, 0.71, 1.1), True),
        ((1.06, 1.03, 1.06, 1.07, 1.06, 1.06), False),
        ((1.8, 1.9, 1.8, 1.7, 1.8, 1.8), False),
    ],
)
def test_precision_is_skipped_only_if_bfloat16_is_not_faster_here(made, monkeypatch, ratios, pointless):
    from cellerate.models.storage import load_model
    from cellerate.optimization.stages import precision as module

    model, _ = load_model(made / "text.keras")
    context = types.SimpleNamespace(
        state=types.SimpleNamespace(bfloat16=ratios, units=16), workload=types.SimpleNamespace(model=model)
    )
    monkeypatch.setattr(module, "precision_candidates", lambda: ("mixed_bfloat16",))
    said = module.Precision().pointless(context)
    assert bool(said) is pointless
    if pointless:
        order = module.Order(ratios)
        assert said == (
            f"on this machine an LSTM layer of 16 units trains {order.reach} times as fast in bfloat16 as in float32"
        )
    # The speed of bfloat16 does not say anything about another policy.
    monkeypatch.setattr(module, "precision_candidates", lambda: ("mixed_float16", "mixed_bfloat16"))
    assert module.Precision().pointless(context) == ""


def test_batch_and_length_are_skipped_for_a_model_of_fixed_shape(made):
    inputs = keras.Input((10,), batch_size=4, dtype="int32")
    context = types.SimpleNamespace(
        state=types.SimpleNamespace(choices=types.SimpleNamespace(length=10)),
        workload=types.SimpleNamespace(model=keras.Model(inputs, keras.layers.Embedding(5, 4)(inputs))),
    )
    assert sweeps.BatchSize().pointless(context) == "the model is built for a batch of 4"
    assert sweeps.SequenceLength().pointless(context) == "the model is built for rows of 10"
    inputs = keras.Input((None,), dtype="int32")
    context.workload.model = keras.Model(inputs, keras.layers.Embedding(5, 4)(inputs))
    assert sweeps.BatchSize().pointless(context) == sweeps.SequenceLength().pointless(context) == ""
    context.state.choices.length = None
    assert sweeps.SequenceLength().pointless(context) == "the length of a row belongs to the model"
