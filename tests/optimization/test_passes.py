"""The real passes on a small text model, once from the baseline to the verdict, and some of them alone."""

import dataclasses
import json
import types
from pathlib import Path
from typing import ClassVar

import keras
import numpy as np
import pytest

import cellerate
from cellerate.compress.student import smaller
from cellerate.models.storage import TaskRecord, load_model, save_model
from cellerate.optimization import workflow
from cellerate.optimization.passes import racing, shrinking, sweeps
from cellerate.optimization.passes.pipeline import Pipeline
from cellerate.optimization.probe_client import ProbeError
from cellerate.optimization.settings import OptimizeSettings
from cellerate.report.record import TrainingStep, Verdict
from support.rounding import allowed

from .conftest import HereProbe, filled, text_payload

pytestmark = [pytest.mark.keras, pytest.mark.usefixtures("here_probe", "quick")]


def optimized(made, folder, task="text", data="t.txt", *, patch, model=None, **settings):
    given = {"time_budget": 100_000.0, "steps": 4, "max_quality_loss": 10.0} | settings
    return workflow.run(model or made / f"{task}.keras", made / data, folder, OptimizeSettings(**given))


@pytest.fixture(scope="module")
def whole(made, tmp_path_factory):
    """A run of all that shrinks, and its folder."""
    from cellerate.optimization import clocks, context

    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CELLERATE_CACHE", str(folder / "cache"))
        patch.setattr(context, "Probe", HereProbe)
        patch.setattr(workflow, "Probe", HereProbe)
        patch.setattr(clocks, "MEASURED_S", 0.01)
        patch.setattr(clocks, "_WARM_S", 0.0)
        # By size, as timings of a model so small differ by chance.
        found = optimized(
            made,
            folder / "out",
            patch=patch,
            objective="size",
            only=["pack", "quantize", "prune", "distill"],
            keep=[0.5],
        )
    return found, folder / "out"


@pytest.mark.backends
def test_every_pass_is_done_and_every_candidate_is_measured(whole):
    found, folder = whole
    assert {one.name: (one.status, one.reason) for one in found.passes} == dict.fromkeys(
        ("baseline", "kernels", "quantize", "prune", "distill"), ("done", "")
    )
    assert [one.id for one in found.candidates] == [
        "original",
        "float32",
        "bfloat16",
        "int8",
        "control-4-4e-03",
        "pruned-50-int8",
        "student-int8",
        "untaught-int8",
    ]
    original, *packed = found.candidates
    assert original.loss is None
    assert original.parameters == packed[0].parameters
    for one in packed:
        assert one.error == ""
        assert one.file_bytes == (folder / one.file).stat().st_size
        assert one.speeds[0].way == "packed"
        assert one.loss.low <= one.loss.value <= one.loss.high
        assert one.sample.prompt == original.sample.prompt
        assert (folder / one.file).with_suffix(".keras").exists()
    float32, bfloat16, int8, control, pruned, student, twin = packed
    assert [one.is_control for one in packed] == [False] * 3 + [True] + [False] * 3
    assert [one.control for one in packed] == [None] * 4 + [control.id] * 3
    for one in (pruned, student, twin):
        assert one.control_loss.low <= one.control_loss.value <= one.control_loss.high
        # It learnt something, so that it makes a difference what a model is held against.
        assert one.control_loss.value > one.loss.value
        assert one.worst_loss == one.control_loss.value
    assert (control.parameters, control.precision) == (original.parameters, "float32")
    assert control.loss.value < 0
    assert not control.on_front
    assert abs(float32.loss.value) < 2e-5
    assert float32.sample.text == original.sample.text
    assert (
        original.file_bytes > float32.file_bytes > bfloat16.file_bytes > int8.file_bytes > pruned.file_bytes
    )
    assert float32.parameters == int8.parameters > pruned.parameters
    assert student.parameters == twin.parameters < float32.parameters
    assert student.quality != twin.quality
    # What a pass brought is told of the same way of using a model before and after it.
    speeds = {one.speeds[0].per_s for one in found.candidates}
    used = [gain for one in found.passes for gain in one.gains if gain.quantity == "use"]
    assert used
    assert {gain.before for gain in used} | {gain.after for gain in used} <= speeds
    # Both of the true labels: what a teacher says is no part of what is compared.
    first, second = found.passes[-1].curves
    assert first.y[0] == pytest.approx(second.y[0], rel=1e-4)


@pytest.mark.backends
def test_verdict_files_are_the_chosen_model_and_predict_alike(whole):
    found, folder = whole
    chosen = next(one for one in found.candidates if one.id == found.verdict.chosen)
    assert chosen.passes_gate
    assert [path for _, path in found.verdict.files] == ["optimized.cell", "optimized.keras"]
    assert (folder / "optimized.cell").read_bytes() == (folder / chosen.file).read_bytes()
    packed, (model, record) = (
        cellerate.load(folder / "optimized.cell"),
        load_model(folder / "optimized.keras"),
    )
    assert record.task == packed.task == "text"
    ids = np.arange(8)[None] % 5
    expected = np.asarray(model.predict_on_batch(ids))
    # The packed model's weights are rounded, to int8 at the coarsest: those of two products of the LSTM and the head's.
    error = np.sqrt(((packed.predict(ids) - expected) ** 2).mean() / (expected**2).mean())
    assert error <= allowed("int8", roundings=3, terms=16)
    quality = next(row for row in found.verdict.rows if row.quantity is None)
    before, control, after = found.verdict.tested
    assert [(one.role, one.candidate) for one in found.verdict.tested] == [
        ("before", "original"),
        ("control", chosen.control),
        ("after", chosen.id),
    ]
    assert (quality.before, quality.after) == (before.quality.value, after.quality.value)
    # Other data than what it was chosen by.
    assert after.quality != chosen.quality
    assert (before.loss, before.control_loss, control.control_loss) == (None, None, None)
    assert after.control_loss.value > after.loss.value
    assert found.verdict.rejected is None
    size = next(row for row in found.verdict.rows if row.quantity == "size")
    assert (size.before, size.after) == (found.candidates[0].file_bytes, chosen.file_bytes)
    assert any(one.on_front for one in found.candidates)


def test_one_gain_has_one_figure_wherever_it_is_told(whole):
    found, folder = whole
    from cellerate.report.figures import waterfalls
    from cellerate.report.view import tiles

    verdict = found.verdict
    headlines = {row.quantity: row for row in reversed(verdict.rows)}
    shown = {tile.label: f"{tile.big} {tile.word}" for tile in tiles(found)}
    totals = {one.chart.title: one.chart.total for one in waterfalls(found)}
    page = (folder / "report.html").read_text()
    for quantity, title in (("use", "Use, stage by stage"), ("size", "Size, stage by stage")):
        figure = shown[headlines[quantity].label]
        assert figure in verdict.sentence
        assert totals[title] == figure
        assert figure.split()[0] in page
        # What the stages brought multiplies to it: all were timed in the same turns.
        gains = [
            next(g for g in one.gains if g.quantity == quantity)
            for one in found.passes
            if one.gains and one.kept
        ]
        assert np.prod([gain.factor for gain in gains]) == pytest.approx(headlines[quantity].factor)
    # And no stage tells another one in its own line.
    assert not any("x as fast" in one.decision for one in found.passes)


def test_models_to_choose_are_timed_in_turns_with_the_original(made, tmp_path, monkeypatch, here_probe):
    found = optimized(made, tmp_path / "out", patch=monkeypatch, only=["pack", "quantize"])
    used = [[Path(file).stem for file in with_["files"]] for kind, with_ in here_probe.asked if kind == "use"]
    # Three of the baseline, and those of the verdict.
    assert used[:3] == [[]] * 3
    assert used[3:] == [[], ["float32", "bfloat16", "int8"]] * 3
    # What the verdict compares is of those turns, and not of the baseline's.
    original = found.candidates[0]
    first = next(row for row in found.verdict.rows if row.quantity == "use")
    assert first.before == original.speeds[0].per_s


def test_the_run_is_on_disk_as_a_report_in_three_forms(whole):
    found, folder = whole
    assert json.loads((folder / "report.json").read_text())["verdict"]["chosen"] == found.verdict.chosen
    assert found.verdict.sentence in (folder / "report.md").read_text()
    assert "<html" in (folder / "report.html").read_text()
    assert "cellerate optimize" in found.command
    assert "--steps 4" in found.command
    assert "--only pack --only quantize" in found.command


def test_the_original_stays_as_it_was(whole, made):
    found, folder = whole
    model, _ = load_model(made / "text.keras")
    assert found.candidates[0].file is None
    float32, _ = load_model(folder / "candidates" / "float32.keras")
    for one, other in zip(model.get_weights(), float32.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_gate_that_nothing_passes_keeps_the_original(made, tmp_path, monkeypatch):
    class Worse:
        """Makes what was packed seem a hundredth worse than it is."""

        def __get__(self, work, kind):
            def found(model, part):
                one = judged(work, model, part)
                if isinstance(model, keras.Model):
                    return one
                return dataclasses.replace(one, values=tuple(1.01 * value for value in one.values))

            return found

    from cellerate.optimization.workloads.text import TextWorkload

    judged = TextWorkload.judge
    monkeypatch.setattr(TextWorkload, "judge", Worse())
    found = optimized(made, tmp_path / "out", patch=monkeypatch, max_quality_loss=0.005, only=["pack"])
    assert [(one.id, one.passes_gate) for one in found.candidates] == [("original", True), ("float32", False)]
    assert found.candidates[1].loss.value == pytest.approx(0.01, rel=1e-3)
    assert found.verdict.chosen == "original"
    assert [path for _, path in found.verdict.files] == ["optimized.keras"]
    assert (tmp_path / "out" / "optimized.keras").read_bytes() == (made / "text.keras").read_bytes()
    assert "No other model is within the allowed loss" in found.verdict.warnings[0]
    quality = next(row for row in found.verdict.rows if row.quantity is None)
    assert quality.before == quality.after


def test_kernels_that_compute_something_else_fail_and_change_nothing(made, tmp_path, monkeypatch):
    from cellerate.optimization.context import Context

    original = Context.original

    def damaged(self):
        model = original(self)
        model.set_weights([1.1 * weights for weights in model.get_weights()])
        return model

    monkeypatch.setattr(Context, "original", damaged)
    found = optimized(made, tmp_path / "out", patch=monkeypatch, only=["pack"])
    assert found.passes[1].status == "failed"
    assert "more than rounding" in found.passes[1].reason
    assert [one.id for one in found.candidates] == ["original"]
    assert found.verdict.chosen == "original"


def test_no_pass_judges_on_the_test_part_and_the_verdict_does_once_each(made, tmp_path, monkeypatch):
    from cellerate.optimization.listener import Listener
    from cellerate.optimization.workloads.text import TextWorkload

    asked = []

    class Heard(Listener):
        def begin(self, title):
            self.title = title

    heard, judged = Heard(), TextWorkload.judge

    def judge(work, model, part):
        asked.append((heard.title, part))
        return judged(work, model, part)

    monkeypatch.setattr(TextWorkload, "judge", judge)
    monkeypatch.setattr(sweeps.SequenceLength, "_CHARACTERS_S", 0.01)
    settings = OptimizeSettings(
        time_budget=100_000.0, steps=4, max_quality_loss=10.0, keep=[0.5], skip=["batch", "precision"]
    )
    found = workflow.run(made / "text.keras", made / "t.txt", tmp_path / "out", settings, listener=heard)
    assert {one.status for one in found.passes} == {"done"}
    assert {title for title, part in asked if part == "validation"} == {
        one.title for one in found.passes if one.title != "Pipeline"
    }
    # The original, the control and the chosen model.
    assert [title for title, part in asked if part == "test"] == ["Verdict"] * 3
    assert {part for _, part in asked} == {"validation", "test"}


@pytest.fixture
def differing(monkeypatch):
    """Makes every packed model differ on a part, by a factor for each block."""
    from cellerate.optimization.workloads.text import TextWorkload

    judged = TextWorkload.judge

    def differing(where, factors):
        def judge(work, model, part):
            one = judged(work, model, part)
            if isinstance(model, keras.Model) or part != where:
                return one
            by = np.resize(factors, len(one.values))
            return dataclasses.replace(one, values=tuple(by * one.values))

        monkeypatch.setattr(TextWorkload, "judge", judge)

    return differing


def test_a_promise_broken_on_the_test_part_keeps_the_original_and_says_so(
    made, tmp_path, monkeypatch, differing
):
    differing("test", [1.05])
    out = tmp_path / "out"
    found = optimized(made, out, patch=monkeypatch, max_quality_loss=0.01, only=["pack"])
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
    # What the report says of the model is of the one that is kept.
    for row in verdict.rows:
        assert row.quantity == "training" or row.before == row.after
    assert [(one.role, one.candidate) for one in verdict.tested] == [
        ("before", "original"),
        ("rejected", "float32"),
    ]
    assert verdict.tested[1].loss.value == pytest.approx(0.05, rel=1e-3)
    assert verdict.tested[1].loss.low > 0.01
    assert not any(one.kept for one in found.passes if one.name != "kernels")


def test_a_promise_that_only_the_mean_breaks_is_kept_with_a_warning(made, tmp_path, monkeypatch, differing):
    differing("test", [0.8, 1.3])
    found = optimized(made, tmp_path / "out", patch=monkeypatch, max_quality_loss=0.01, only=["pack"])
    assert (found.verdict.chosen, found.verdict.rejected) == ("float32", None)
    loss = found.verdict.tested[-1].loss
    assert loss.low <= 0.01 < loss.value
    (warning,) = (one for one in found.verdict.warnings if "test part" in one)
    assert "packed in float32 is " in warning
    assert "and 1 % is allowed. That may be chance, so it is kept." in warning


def test_a_second_verdict_on_another_model_says_that_the_test_part_is_known(
    made, tmp_path, monkeypatch, differing
):
    out = tmp_path / "out"
    differing("test", [1.05])
    first = optimized(made, out, patch=monkeypatch, max_quality_loss=0.05, only=["pack"], objective="size")
    assert not any("An earlier verdict" in one for one in first.verdict.warnings)
    found = optimized(
        made, out, patch=monkeypatch, max_quality_loss=0.05, only=["pack", "quantize"], objective="size"
    )
    assert found.verdict.chosen == "int8"
    assert any(
        "An earlier verdict of this run judged float32 on the test" in one for one in found.verdict.warnings
    )


def test_control_is_trained_once_and_kept_where_the_run_is_interrupted(made, tmp_path, monkeypatch):
    from cellerate.optimization import context as module
    from cellerate.optimization.passes import shrinking
    from cellerate.optimization.state import load_state

    out, trained = tmp_path / "out", []

    def train(*given, **named):
        trained.append(named["steps"])
        return train_further(*given, **named)

    def interrupt(*_, **__):
        # Before the run itself writes anything: a crash here would find it on disk, too.
        trained.append([one.id for one in load_state(out, {}).candidates])
        raise KeyboardInterrupt

    train_further = module.train_further
    monkeypatch.setattr(module, "train_further", train)
    again = {"patch": monkeypatch, "only": ["pack", "prune"], "keep": [0.5]}
    with monkeypatch.context() as patch:
        patch.setattr(shrinking, "prune", interrupt)
        assert optimized(made, out, **again).status == "interrupted"
    assert trained == [4, ["original", "float32", "control-4-4e-03"]]
    found = optimized(made, out, **again)
    assert found.status == "finished"
    assert trained[2:] == []
    assert found.candidates[-1].control == "control-4-4e-03"
    (note, *_) = found.passes[-1].notes
    assert note.startswith("Each model is held against the original and against a control")


def test_quantised_model_that_was_trained_has_a_control_trained_like_it(made, tmp_path, monkeypatch):
    from cellerate.optimization.passes import shrinking

    told = []
    quantize = shrinking.quantize

    def tuned(*given, **named):
        model, record = quantize(*given, **named)
        told.append(named)
        return model, dataclasses.replace(record, details=record.details | {"kept": "fine-tuned"})

    monkeypatch.setattr(shrinking, "quantize", tuned)
    found = optimized(made, tmp_path / "out", patch=monkeypatch, only=["pack", "quantize"])
    # One control for both precisions.
    assert [(one.id, one.control) for one in found.candidates[2:]] == [
        ("control-4-1e-04", None),
        ("bfloat16", "control-4-1e-04"),
        ("int8", "control-4-1e-04"),
    ]
    assert {(one["steps"], one["learning_rate"]) for one in told} == {(4, 1e-4)}
    assert found.candidates[2].title == "the original trained 4 steps further from a rate of 0.0001"


@pytest.mark.slow
def test_a_model_that_cannot_be_packed_gets_a_verdict_on_keras(made, tmp_path, monkeypatch):
    inputs = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(len_of_text(), 4)(inputs)
    x = keras.layers.RMSNormalization()(keras.layers.GRU(5, return_sequences=True)(x))
    model = filled(keras.Model(inputs, keras.layers.Dense(len_of_text())(x)))
    save_model(model, tmp_path / "gru.keras", TaskRecord("text", text_payload()))
    found = optimized(
        made,
        tmp_path / "out",
        patch=monkeypatch,
        model=tmp_path / "gru.keras",
        only=["pack", "quantize", "prune", "distill"],
    )
    assert {one.name: one.status for one in found.passes} == {
        "baseline": "done",
        "kernels": "done",
        "quantize": "skipped",
        "prune": "skipped",
        "distill": "skipped",
    }
    one = found.candidates[1]
    assert "cannot be packed" in one.error
    assert one.file == "candidates/float32.keras"
    assert not (tmp_path / "out" / "candidates" / "float32.cell").exists()
    assert found.status == "finished"
    assert [path for _, path in found.verdict.files] == ["optimized.keras"]


def no_verdict(context):
    return Verdict(sentence="", chosen="original", rows=(), files=(), training="")


def len_of_text():
    return len(text_payload()["tokenizer"]["characters"])


@pytest.mark.parametrize(
    ("task", "data"), [("series", "s.csv"), pytest.param("embed", "l.txt", marks=pytest.mark.slow)]
)
def test_the_other_tasks_come_to_a_verdict(made, tmp_path, monkeypatch, task, data):
    found = optimized(made, tmp_path / "out", task, data, patch=monkeypatch, only=["pack"])
    assert {one.status for one in found.passes} == {"done"}
    assert found.verdict.chosen == "float32"
    assert found.training_steps[0].length is None
    assert found.metric.higher_is_better is (task == "embed")


def test_layers_inside_a_bidirectional_are_fused(made, tmp_path, monkeypatch):
    model, record = load_model(made / "series.keras")
    inputs = keras.Input(tuple(model.inputs[0].shape[1:]))
    x = keras.layers.Bidirectional(keras.layers.LSTM(4))(inputs)
    built = filled(keras.Model(inputs, keras.layers.Dense(2)(x)))
    save_model(built, tmp_path / "b.keras", record)
    found = optimized(
        made,
        tmp_path / "out",
        "series",
        "s.csv",
        patch=monkeypatch,
        model=tmp_path / "b.keras",
        only=["pack"],
    )
    assert dict(found.passes[1].facts)["fused layers"] == "2"
    # The baseline's, and those of the kernels' turns.
    assert [(step.way, step.race) for step in found.training_steps] == [
        ("Keras, float32", ""),
        ("Keras, float32", "kernels"),
        ("fused kernels, float32", "kernels"),
    ]


class Fused(HereProbe):
    """Answers that a step on the fused kernels takes so many ms in each turn, and on Keras's 10."""

    turns: ClassVar[list[float]] = []

    def ask(self, kind, **options):
        found = super().ask(kind, **options)
        if kind == "trainer":
            self._turns = iter(self.turns if options["implementation"] != "keras" else [10.0] * 6)
        if kind == "turn":
            found |= {"seconds": [next(self._turns) / 1e3]}
        return found


@pytest.mark.parametrize(
    ("turns", "kept", "said"),
    [
        ([2.0] * 6, True, "a training step in 2.00 ms on them, in 10.0 ms on Keras's"),
        ([2.0, 2.0, 2.0, 2.0, 2.0, 30.0], True, "a training step in 2.00 ms on them"),
        ([12.5] * 6, False, "in 10.0 ms on Keras's, which stay"),
        # A burst of other work in some turns only: faster by the median, and it means nothing.
        ([2.0, 2.0, 2.0, 2.0, 30.0, 30.0], False, "they were faster in 4 of 6 turns, which is noise"),
    ],
    ids=["faster", "one spoiled turn", "slower", "noise"],
)
def test_kernels_are_for_training_only_where_they_are_faster_in_turn_after_turn(
    made, tmp_path, monkeypatch, turns, kept, said
):
    from cellerate.optimization import context

    monkeypatch.setattr(context, "Probe", Fused)
    monkeypatch.setattr(Fused, "turns", turns)
    found = optimized(made, tmp_path / "out", patch=monkeypatch, only=["pack"])
    assert said in found.passes[1].decision
    gains = [gain for gain in found.passes[1].gains if gain.quantity == "training"]
    assert len(gains) == kept
    assert ("--implementation keras" in found.verdict.training) is not kept
    assert any(row.quantity == "training" for row in found.verdict.rows) is kept


def test_kernels_are_measured_on_batches_of_the_baseline_whatever_was_chosen_since(
    made, tmp_path, monkeypatch, here_probe
):
    out = tmp_path / "out"
    optimized(made, out, patch=monkeypatch, only=["pipeline"])
    state = json.loads((out / "state.json").read_text())
    state["choices"]["batch_size"] = 32
    (out / "state.json").write_text(json.dumps(state))
    here_probe.asked.clear()
    optimized(made, out, patch=monkeypatch, only=["pack"])
    sizes = [options["batch_size"] for kind, options in here_probe.asked if kind == "trainer"]
    assert sizes[:2] == [8, 8]
    # The verdict is on both: the way of the baseline, and what was chosen since.
    assert sizes[2:] == [8, 32]


def test_training_settings_have_a_learning_rate_that_fits_the_batch(made, tmp_path, monkeypatch):
    out = tmp_path / "out"
    found = optimized(made, out, patch=monkeypatch, only=["pipeline"])
    assert "--optimizer adam --learning-rate 0.01 " in found.verdict.training
    state = json.loads((out / "state.json").read_text())
    state["choices"]["batch_size"] = 32
    (out / "state.json").write_text(json.dumps(state))
    found = optimized(made, out, patch=monkeypatch, only=["pipeline"])
    assert "--batch-size 32" in found.verdict.training
    assert "--learning-rate 0.02 " in found.verdict.training


def test_a_verdict_on_the_original_takes_the_packed_file_of_an_earlier_run_away(made, tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    (out / "optimized.cell").write_bytes(b"of a run before")
    found = optimized(made, out, patch=monkeypatch, only=["pipeline"])
    assert found.verdict.chosen == "original"
    assert not (out / "optimized.cell").exists()
    assert (out / "optimized.keras").exists()


@pytest.mark.slow
def test_a_verdict_that_cannot_be_measured_again_has_the_figures_of_the_search(made, tmp_path, monkeypatch):
    def ask(self, kind, **options):
        if kind == "use" and options["files"]:
            raise ProbeError("it took more than 600 s", memory=False)
        return answered(self, kind, **options)

    answered = HereProbe.ask
    monkeypatch.setattr(HereProbe, "ask", ask)
    found = optimized(made, tmp_path / "out", patch=monkeypatch, only=["pack"])
    assert found.status == "finished"
    assert "could not be timed in turns, it took more than 600 s" in found.verdict.warnings[0]
    packed = next(one for one in found.candidates if one.id == "float32")
    assert next(row for row in found.verdict.rows if row.quantity == "use").after == packed.speeds[0].per_s


@pytest.fixture
def pruned(monkeypatch):
    """The shares that were pruned to; what comes out is spoilt, so that no gate lets it through."""
    from cellerate.optimization.passes import shrinking

    shares, prune = [], shrinking.prune

    def spoilt(*given, keep, **named):
        model, record = prune(*given, keep=keep, **named)
        shares.append(keep)
        model.set_weights([-3 * weights for weights in model.get_weights()])
        return model, record

    monkeypatch.setattr(shrinking, "prune", spoilt)
    return shares


@pytest.mark.slow
def test_prune_of_shares_that_rounding_leaves_whole_tells_and_goes_on(made, tmp_path, monkeypatch, pruned):
    # 16 units: 90 % of them are 16 again, in whole eights.
    options = {"patch": monkeypatch, "only": ["pack", "prune"], "max_quality_loss": 0.0}
    found = optimized(made, tmp_path / "out", keep=[0.5, 0.9], **options)
    prune = found.passes[-1]
    assert pruned == [0.5]
    assert (prune.status, prune.reason) == ("done", "")
    assert [name for name, _ in prune.facts] == [
        "50 % of the units",
        "90 % of the units",
        "control: the original trained 4 steps further",
    ]
    assert "leave all units" in prune.facts[1][1]
    found = optimized(made, tmp_path / "all", keep=[0.9], **options)
    assert found.passes[-1].status == "skipped"
    assert "leave all units" in found.passes[-1].reason


@pytest.mark.slow
def test_prune_whose_time_ends_goes_on_with_the_shares_that_are_left(made, tmp_path, monkeypatch, pruned):
    from cellerate.optimization.context import OutOfTimeError
    from cellerate.optimization.passes import shrinking

    def steps(*_):
        if len(pruned) == 1 and not time:
            raise OutOfTimeError("there was no time for 50 steps of training", 12.0)
        return 4

    time = []
    monkeypatch.setattr(shrinking, "further_steps", steps)
    again = {"patch": monkeypatch, "only": ["pack", "prune"], "keep": [0.3, 0.5], "max_quality_loss": 0.0}
    found = optimized(made, tmp_path / "out", **again)
    assert found.passes[-1].status == "skipped"
    assert "no time" in found.passes[-1].reason
    assert pruned == [0.3]
    time.append("enough")
    found = optimized(made, tmp_path / "out", **again)
    assert found.passes[-1].status == "done"
    assert pruned == [0.3, 0.5]
    assert [name for name, _ in found.passes[-1].facts][:2] == ["30 % of the units", "50 % of the units"]


def test_passes_that_shrink_without_kernels_do_what_they_can(made, tmp_path, monkeypatch):
    monkeypatch.setattr(workflow, "verdict", no_verdict)
    found = optimized(made, tmp_path / "out", patch=monkeypatch, only=["distill"])
    assert found.passes[1].status == "skipped"
    assert "run the stage kernels too" in found.passes[1].reason
    found = optimized(made, tmp_path / "out", patch=monkeypatch, only=["quantize"])
    assert [one.id for one in found.candidates] == ["original", "bfloat16", "int8"]


# --- those that tune, each asked of a machine that is made up


class MadeUp(HereProbe):
    """Answers for training by a rule."""

    rule = staticmethod(lambda options: {})

    def ask(self, kind, *, timeout_s=None, **options):
        self.asked.append((kind, options))
        if kind == "load":
            return {"batch_ms": 0.5}
        if kind == "turn":
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
    """Runs one pass over a state that a baseline of 8 rows in 1 ms left; gives it and the state."""
    from cellerate.optimization import context as module
    from cellerate.optimization.listener import Listener
    from cellerate.optimization.state import Choices, State
    from cellerate.optimization.workloads.opening import open_workload

    monkeypatch.setattr(module, "Probe", MadeUp)

    def tuned(one, rule=lambda options: {}, *, first=8, **choices):
        monkeypatch.setattr(MadeUp, "rule", staticmethod(rule))
        usual = Choices("auto", "float32", first, 1, 10, "float32")
        state = State(
            identity={},
            choices=dataclasses.replace(usual, **choices),
            started="",
            training_steps=[TrainingStep("Keras, float32", first, 10, 1.0, 0.9, 1.1, 80_000.0)],
        )
        context = module.Context(
            workload=open_workload(made / "text.keras", [made / "t.txt"], seed=0),
            settings=OptimizeSettings(),
            folder=tmp_path,
            model_file=made / "text.keras",
            data=[str(made / "t.txt")],
            backend=keras.config.backend(),
            state=state,
            listener=Listener(),
        )
        return one.run(context), state

    return tuned


class OfTraining:
    """What the verdict says of training."""

    name, title = "verdict", "Verdict"

    def __init__(self, *known):
        self._known = known

    def run(self, context):
        from cellerate.optimization.passes import verdict

        context.state.training_steps += self._known
        found, doubt = racing.training_before_and_after(context)
        return None if found is None else verdict._training_row(context, *found), doubt


def test_training_before_and_after_are_timed_in_turns_from_the_first_way_to_the_last(tuned):
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


def test_training_that_a_stage_has_timed_in_turns_has_the_figures_of_those_turns(tuned):
    steps = (
        TrainingStep("Keras, float32", 8, 10, 1.5, 1.4, 1.6, 53_000.0, race="kernels"),
        TrainingStep("fused kernels, float32", 8, 10, 0.5, 0.4, 0.6, 160_000.0, race="kernels"),
        # By itself, in another minute: to be compared with nothing.
        TrainingStep("fused kernels, float32", 8, 10, 0.1, 0.1, 0.1, 800_000.0),
    )
    MadeUp.asked.clear()
    (row, doubt), _ = tuned(OfTraining(*steps))
    assert (row.before, row.after, doubt) == (1.5, 0.5, [])
    assert MadeUp.asked == []


def test_training_whose_turns_contradict_each_other_is_said_to_be_noise(tuned):
    def rule(options):
        return {
            "step_ms": 5.0
            if options["implementation"] == "auto" and options["turn"] % 3 == 2
            else 1.0 + (options["implementation"] == "keras")
        }

    (_, doubt), _ = tuned(OfTraining(), rule)
    assert "2.00x as fast as before, in 4 of 6 turns: that is noise" in doubt[0]


def test_a_machine_that_is_busy_is_told_once_by_how_much():
    steps = [
        TrainingStep("Keras, float32", 8, 10, step_ms, 1.0, 1.0, 1.0, race=race)
        for race, step_ms in (("", 189.0), ("kernels", 82.5), ("verdict", 536.0))
    ]
    steps.append(TrainingStep("fused kernels, float32", 8, 10, 27.0, 1.0, 1.0, 1.0))
    (told,) = racing.busy_machine(steps)
    assert "the same training step took 82.5 ms in one minute and 536 ms in another" in told
    # Another batch is another step.
    steps = [dataclasses.replace(step, batch_size=number + 1) for number, step in enumerate(steps)]
    assert racing.busy_machine(steps) == []


def test_training_that_nothing_was_chosen_for_has_no_figure(tuned):
    (row, doubt), _ = tuned(OfTraining(), implementation="keras")
    assert (row, doubt) == (None, [])


def test_batch_size_that_is_faster_is_chosen_with_a_word_on_the_rate(tuned):
    found, state = tuned(
        sweeps.BatchSize(), lambda options: {"items_per_s": 1e3 * min(options["batch_size"], 32)}
    )
    assert found.kept
    assert found.decision == "32 instead of 8: 32.0 k characters/s instead of 8.00 k"
    assert (state.choices.batch_size, state.choices.accumulate) == (32, 1)
    assert [(s.batch_size, s.race) for s in state.training_steps[1:]] == [(8, "batch"), (32, "batch")]
    # Adam's rate goes with the square root: 0.01 times 2.
    assert any("--learning-rate 0.02 instead of 0.01" in note for note in found.notes)
    (speed,) = found.curves
    assert speed.x == (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
    assert speed.marks == ((4, "chosen"),)


@pytest.mark.parametrize("usual", [8, 50])
def test_batch_size_that_is_hardly_faster_stays(tuned, usual):
    found, state = tuned(
        sweeps.BatchSize(), lambda options: {"items_per_s": 1e3 + options["batch_size"]}, first=usual
    )
    assert not found.kept
    assert state.choices.batch_size == usual
    assert len(state.training_steps) == 1
    assert found.decision.startswith(f"{usual} stays")


def test_batch_size_that_is_faster_in_the_sweep_and_not_in_turns_stays(tuned):
    def rule(options):
        if "turn" in options:
            return {"items_per_s": 4e3, "step_ms": options["batch_size"] / 8}
        # Other work kept the machine busy while the smaller ones were measured.
        return {"items_per_s": 125.0 * min(options["batch_size"], 32)}

    found, state = tuned(sweeps.BatchSize(), rule)
    assert not found.kept
    assert state.choices.batch_size == 8
    assert found.decision == "8 stays: 32 was 1.00x as fast in turns with it"
    assert len(state.training_steps) == 1


def test_batch_size_that_cannot_be_timed_beside_the_usual_one_stays(tuned):
    def rule(options):
        if "turn" in options:
            raise ProbeError("MemoryError: no memory", memory=True)
        return {"items_per_s": 1e3 * options["batch_size"]}

    found, state = tuned(sweeps.BatchSize(), rule)
    assert state.choices.batch_size == 8
    assert "could not be timed beside it (MemoryError: no memory)" in found.decision


def test_batch_size_that_is_smaller_accumulates_to_the_same_update(tuned):
    found, state = tuned(sweeps.BatchSize(), lambda options: {"items_per_s": 1e5 / options["batch_size"]})
    assert (state.choices.batch_size, state.choices.accumulate) == (2, 4)
    assert any("--accumulate" in note for note in found.notes)
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


def test_batch_size_where_no_batch_fits_raises(tuned):
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
def test_precision_is_kept_only_if_faster_and_the_loss_holds(tuned, monkeypatch, bfloat16, chosen):
    from cellerate.optimization.passes import precision as module

    monkeypatch.setattr(module, "precision_candidates", lambda: ("mixed_bfloat16",))
    found, state = tuned(
        module.Precision(), lambda options: bfloat16 if options["policy"] == "mixed_bfloat16" else {}
    )
    assert state.choices.training_precision == chosen
    assert found.kept is (chosen != "float32")
    # Both, from the same turns.
    assert len(state.training_steps) == 1 + 2 * found.kept
    assert [name for name, _ in found.facts] == ["float32", "mixed_bfloat16"]


@pytest.mark.parametrize(
    ("turns", "chosen", "said"),
    [
        # A busy machine: float32 takes 11.6 ms in some turns and 3.6 ms in others, bfloat16 as long in all.
        (
            [11.6, 3.6, 11.6, 3.6, 11.6, 11.6],
            "float32",
            "mixed_bfloat16 was 2.32x as fast, but only in 4 of 6 turns",
        ),
        (
            [11.6, 11.6, 11.6, 3.6, 11.6, 11.6],
            "mixed_bfloat16",
            "mixed_bfloat16: a step in 5.00 ms instead of 11.6 ms",
        ),
    ],
    ids=["noise", "one spoiled turn"],
)
def test_precision_whose_turns_contradict_each_other_is_noise(tuned, monkeypatch, turns, chosen, said):
    from cellerate.optimization.passes import precision as module

    monkeypatch.setattr(module, "precision_candidates", lambda: ("mixed_bfloat16",))
    found, state = tuned(
        module.Precision(),
        lambda options: {"step_ms": turns[options["turn"]] if options["policy"] == "float32" else 5.0},
    )
    assert state.choices.training_precision == chosen
    assert said in found.decision
    words = dict(found.facts)["mixed_bfloat16"]
    assert words.endswith("in 4 of 6 turns, which is noise" if chosen == "float32" else "in 5 of 6 turns")


def test_precision_that_cannot_run_is_told(tuned, monkeypatch):
    from cellerate.optimization.passes import precision as module

    monkeypatch.setattr(module, "precision_candidates", lambda: ("mixed_bfloat16",))

    def rule(options):
        if options["policy"] == "mixed_bfloat16":
            raise ProbeError("Unknown output type bfloat16", memory=False)
        return {}

    found, state = tuned(module.Precision(), rule)
    assert state.choices.training_precision == "float32"
    assert dict(found.facts)["mixed_bfloat16"] == "Unknown output type bfloat16"


def test_pipeline_tells_what_share_of_a_step_a_batch_takes(tuned):
    found, _ = tuned(Pipeline())
    # Half a millisecond of one.
    assert dict(found.facts) == {"a batch": "0.5 ms", "a step": "1 ms"}
    assert "waits for data" in found.decision


def test_pipeline_counts_the_ids_of_a_batch_where_rows_became_longer(tuned):
    # Half as many rows, twice as long: as much work.
    found, _ = tuned(Pipeline(), batch_size=4, length=20)
    assert dict(found.facts)["a step"] == "1 ms"


def test_length_trains_from_new_weights_on_as_many_characters_each(tuned, monkeypatch):
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


def test_length_that_takes_all_of_its_time_says_what_it_needs(tuned, monkeypatch):
    from cellerate.optimization.context import OutOfTimeError

    class Given:
        """Gives the stage ten seconds, of which each length takes so many."""

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
    # Of three there was time for two: the usual one, and half of it.
    assert found.curves[0].x == (8.0, 10.0)


@pytest.mark.parametrize(("rows", "better", "after"), [(8, 20, (20, 4)), (8, 8, (8, 10)), (1, 20, (10, 1))])
def test_length_that_is_surely_better_is_chosen_with_as_many_characters_a_batch(
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
        lambda *_: Judged(tuple(values * (0.9 if tried[-1] == better else 1)), (1.0,) * 20),
    )
    found, state = tuned(sweeps.SequenceLength(), batch_size=rows)
    assert (state.choices.length, state.choices.batch_size) == after
    assert found.kept is (after[0] != 10)
    # Of one row there is none twice as long with as many characters.
    assert tried == ([10, 8] if rows == 1 else [10, 8, 20])


def test_student_without_a_goal_is_to_save_half_of_what_is_computed():
    teacher = keras.Sequential(
        [keras.Input((5, 3)), keras.layers.LSTM(64, return_sequences=True), keras.layers.Dense(2)]
    )
    # Of 3 ms a call, 2 ms are for computing.
    speed = types.SimpleNamespace(way="packed", latency_p50_ms=3.0, per_s=500.0)
    now = types.SimpleNamespace(error="", speeds=[speed], is_control=False, parameters=7, precision="float32")
    context = types.SimpleNamespace(
        state=types.SimpleNamespace(
            candidates=[now], choices=types.SimpleNamespace(packed_precision="float32")
        ),
        before=types.SimpleNamespace(parameters=7),
        settings=types.SimpleNamespace(latency_goal_ms=None, seed=0),
        candidate=lambda _: None,
    )
    student, goal = shrinking._student(context, teacher)
    assert goal == 2.0
    # Sixteenths of 64 units, a multiple of 8 each.
    sizes = [smaller(teacher, part / 16, seed=0).count_params() for part in range(2, 15)]
    assert student.count_params() == min(sizes, key=lambda size: abs(size - teacher.count_params() / 2))
