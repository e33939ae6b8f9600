"""The real passes on a small text model, once from the baseline to the verdict, and some of them alone."""

import dataclasses
import json
import time
import types
from pathlib import Path

import keras
import numpy as np
import pytest

import cellerate
from cellerate.compress.student import smaller
from cellerate.models.storage import TaskRecord, load_model, save_model
from cellerate.optimization import workflow
from cellerate.optimization.passes import shrinking, sweeps
from cellerate.optimization.probe_client import ProbeError
from cellerate.optimization.settings import OptimizeSettings
from cellerate.optimization.state import load_state
from cellerate.report.record import Verdict
from support.rounding import allowed

from .conftest import HereProbe, answer_here, filled, make_quick, optimized, text_payload

pytestmark = [pytest.mark.keras, pytest.mark.usefixtures("here_probe", "quick")]


@pytest.fixture(scope="module")
def whole(made, tmp_path_factory):
    """A run of all that shrinks, and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CELLERATE_CACHE", str(folder / "cache"))
        answer_here(patch, HereProbe)
        make_quick(patch)
        # By size, as timings of a model so small differ by chance.
        found = optimized(
            made,
            folder / "out",
            objective="size",
            only=["pack", "quantize", "prune", "distill"],
            keep=[0.5],
        )
    return found, folder / "out"


@pytest.mark.backends
def test_every_pass_is_done_and_every_candidate_is_measured(whole):
    found, folder = whole
    assert {one.name: (one.status, one.reason) for one in found.passes} == dict.fromkeys(
        ("baseline", "pack", "quantize", "prune", "distill"), ("done", "")
    )
    assert [one.id for one in found.candidates] == [
        "original",
        "float32",
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
    float32, int8, control, pruned, student, twin = packed
    assert [one.is_control for one in packed] == [False] * 2 + [True] + [False] * 3
    assert [one.control for one in packed] == [None] * 3 + [control.id] * 3
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
    assert original.file_bytes > float32.file_bytes > int8.file_bytes > pruned.file_bytes
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


def test_models_to_choose_are_timed_in_turns_with_the_original(made, tmp_path, here_probe):
    found = optimized(made, tmp_path / "out", only=["pack", "quantize"])
    used = [[Path(file).stem for file in with_["files"]] for kind, with_ in here_probe.asked if kind == "use"]
    # One of the baseline, and those of the verdict: six turns, and as many more where they leave a doubt.
    assert used[0] == []
    turns = len(used) // 2
    assert used[1:] == [[], ["float32", "int8"]] * turns
    assert 6 <= turns <= 12
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


def test_no_pass_judges_on_the_test_part_and_the_verdict_does_once_each(made, tmp_path, monkeypatch):
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


def test_models_that_take_long_to_judge_are_judged_on_less(made, tmp_path, monkeypatch):
    from cellerate.optimization import context as contexts
    from cellerate.optimization.workloads import text

    monkeypatch.setattr(text, "_ROWS", 2)
    monkeypatch.setattr(HereProbe, "opened", {})
    judged, batches = text.TextWorkload.judge, []

    def judge(work, model, part, *, brief=False):
        if not isinstance(model, keras.Model):
            if brief:
                # As if a batch of a packed model took 4 ninths of what may be spent on all of them.
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
    # The original, too, or they could not be compared.
    original, packed = found.candidates
    assert (original.loss, original.control_loss) == (None, None)
    assert packed.loss.value == pytest.approx(0, abs=1e-5)
    assert packed.quality.value == pytest.approx(original.quality.value, rel=1e-5)
    # A later call goes on with the same.
    batches.clear()
    again = optimized(made, out, only=["pack", "quantize"], **some)
    assert {count for part, count in batches} == {2}
    assert again.metric == found.metric


@pytest.fixture
def differing(monkeypatch):
    """Makes every packed model differ on a part, by a factor for each block."""
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


def test_a_promise_broken_on_the_test_part_keeps_the_original_and_says_so(
    made, tmp_path, monkeypatch, differing
):
    from cellerate.optimization.passes import verdict as module

    differing("test", [1.05])
    out, hold = tmp_path / "out", module.hold
    before = []
    monkeypatch.setattr(
        module, "hold", lambda *given: before.append((out / "optimized.cell").read_bytes()) or hold(*given)
    )
    found = optimized(made, out, max_quality_loss=0.01, only=["pack"])
    # It was there while nothing better was known, and a verdict against it takes it away.
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
    # What the report says of the model is of the one that is kept.
    for row in verdict.rows:
        assert row.quantity == "training" or row.before == row.after
    assert [(one.role, one.candidate) for one in verdict.tested] == [
        ("before", "original"),
        ("rejected", "float32"),
    ]
    assert verdict.tested[1].loss.value == pytest.approx(0.05, rel=1e-3)
    assert verdict.tested[1].loss.low > 0.01
    assert not any(one.kept for one in found.passes)


def test_a_promise_that_only_the_mean_breaks_is_kept_with_a_warning(made, tmp_path, differing):
    differing("test", [0.8, 1.3])
    found = optimized(made, tmp_path / "out", max_quality_loss=0.01, only=["pack"])
    assert (found.verdict.chosen, found.verdict.rejected) == ("float32", None)
    loss = found.verdict.tested[-1].loss
    assert loss.low <= 0.01 < loss.value
    (warning,) = (one for one in found.verdict.warnings if "test part" in one)
    assert "packed in float32 is " in warning
    assert "and 1 % is allowed. That may be chance, so it is kept." in warning


def test_a_second_verdict_on_another_model_says_that_the_test_part_is_known(made, tmp_path, differing):
    out = tmp_path / "out"
    differing("test", [1.05])
    first = optimized(made, out, max_quality_loss=0.05, only=["pack"], objective="size")
    assert not any("An earlier verdict" in one for one in first.verdict.warnings)
    found = optimized(made, out, max_quality_loss=0.05, only=["pack", "quantize"], objective="size")
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
    again = {"only": ["pack", "prune"], "keep": [0.5]}
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


@pytest.mark.slow
def test_a_model_that_cannot_be_packed_gets_a_verdict_on_keras(made, tmp_path):
    inputs = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(len_of_text(), 4)(inputs)
    x = keras.layers.RMSNormalization()(keras.layers.GRU(5, return_sequences=True)(x))
    model = filled(keras.Model(inputs, keras.layers.Dense(len_of_text())(x)))
    save_model(model, tmp_path / "gru.keras", TaskRecord("text", text_payload()))
    found = optimized(
        made,
        tmp_path / "out",
        model=tmp_path / "gru.keras",
        only=["pack", "quantize", "prune", "distill"],
    )
    assert {one.name: one.status for one in found.passes} == {
        "baseline": "done",
        "pack": "done",
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
def test_the_other_tasks_come_to_a_verdict(made, tmp_path, task, data):
    found = optimized(made, tmp_path / "out", task, data, only=["pack", "kernels"])
    assert {one.name: one.status for one in found.passes} == dict.fromkeys(
        ("baseline", "pack", "kernels"), "done"
    )
    assert found.verdict.chosen == "float32"
    assert found.training_steps[0].length is None
    assert found.metric.higher_is_better is (task == "embed")


def test_training_settings_have_a_learning_rate_that_fits_the_batch(made, tmp_path):
    out = tmp_path / "out"
    found = optimized(made, out, only=["pipeline"])
    assert "--optimizer adam --learning-rate 0.01 " in found.verdict.training
    state = json.loads((out / "state.json").read_text())
    state["choices"]["batch_size"] = 32
    (out / "state.json").write_text(json.dumps(state))
    found = optimized(made, out, only=["pipeline"])
    assert "--batch-size 32" in found.verdict.training
    assert "--learning-rate 0.02 " in found.verdict.training


def test_a_verdict_on_the_original_takes_the_packed_file_of_an_earlier_run_away(made, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "optimized.cell").write_bytes(b"of a run before")
    found = optimized(made, out, only=["pipeline"])
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
    found = optimized(made, tmp_path / "out", only=["pack"])
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
def test_prune_of_shares_that_rounding_leaves_whole_tells_and_goes_on(made, tmp_path, pruned):
    # 16 units: 90 % of them are 16 again, in whole eights.
    options = {"only": ["pack", "prune"], "max_quality_loss": 0.0}
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
    again = {"only": ["pack", "prune"], "keep": [0.3, 0.5], "max_quality_loss": 0.0}
    found = optimized(made, tmp_path / "out", **again)
    assert found.passes[-1].status == "skipped"
    assert "no time" in found.passes[-1].reason
    assert pruned == [0.3]
    time.append("enough")
    found = optimized(made, tmp_path / "out", **again)
    assert found.passes[-1].status == "done"
    assert pruned == [0.3, 0.5]
    assert [name for name, _ in found.passes[-1].facts][:2] == ["30 % of the units", "50 % of the units"]


def test_passes_that_shrink_without_a_packed_model_do_what_they_can(made, tmp_path, monkeypatch):
    monkeypatch.setattr(workflow, "verdict", no_verdict)
    found = optimized(made, tmp_path / "out", only=["distill"])
    assert found.passes[1].status == "skipped"
    assert "run the stage pack, too" in found.passes[1].reason
    found = optimized(made, tmp_path / "out", only=["quantize"])
    assert [one.id for one in found.candidates] == ["original", "int8"]


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
