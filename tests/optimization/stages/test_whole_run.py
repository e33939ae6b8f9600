"""The real stages on a small model of each task, once from the baseline to the verdict."""

import json

import keras
import numpy as np
import pytest

import cellerate
from cellerate.models.storage import TaskRecord, load_model, save_model
from support.optimization.here import HereProbe, answer_here, make_quick, optimized
from support.optimization.small_models import filled, text_payload
from support.rounding import allowed

pytestmark = [pytest.mark.keras, pytest.mark.usefixtures("here_probe", "quick")]


@pytest.fixture(scope="module")
def whole(made, tmp_path_factory):
    """A run of all that shrinks, and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CELLERATE_CACHE", str(folder / "cache"))
        answer_here(patch, HereProbe)
        make_quick(patch)
        # The choice is by size, because timings of such a small model vary by chance.
        found = optimized(
            made,
            folder / "out",
            objective="size",
            only=["pack", "quantize", "prune", "distill"],
            keep=[0.5],
        )
    return found, folder / "out"


@pytest.mark.backends
def test_every_stage_is_done_and_every_candidate_is_measured(whole):
    found, folder = whole
    assert {one.name: (one.status, one.reason) for one in found.passes} == dict.fromkeys(
        ("baseline", "pack", "quantize", "prune", "distill"), ("done", "")
    )
    assert [one.id for one in found.candidates] == [
        "original",
        "float32",
        "int8",
        "int4",
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
    float32, int8, int4, control, pruned, student, twin = packed
    assert [one.is_control for one in packed] == [False] * 3 + [True] + [False] * 3
    assert [one.control for one in packed] == [None] * 4 + [control.id] * 3
    for one in (pruned, student, twin):
        assert one.control_loss.low <= one.control_loss.value <= one.control_loss.high
        # The control learnt something, so the reference of a comparison matters.
        assert one.control_loss.value > one.loss.value
        assert one.worst_loss == one.control_loss.value
    assert (control.parameters, control.precision) == (original.parameters, "float32")
    assert control.loss.value < 0
    assert not control.on_front
    assert abs(float32.loss.value) < 2e-5
    assert float32.sample.text == original.sample.text
    assert original.file_bytes > float32.file_bytes > int8.file_bytes > pruned.file_bytes
    assert int8.file_bytes > int4.file_bytes
    assert float32.parameters == int8.parameters > pruned.parameters
    assert student.parameters == twin.parameters < float32.parameters
    assert student.quality != twin.quality
    # What a stage brought is told of the same way of using a model before and after it.
    speeds = {one.speeds[0].per_s for one in found.candidates}
    used = [gain for one in found.passes for gain in one.gains if gain.quantity == "use"]
    assert used
    assert {gain.before for gain in used} | {gain.after for gain in used} <= speeds
    # Both of the true labels: what a teacher says is not part of what is compared.
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
    # Different data from those of the choice.
    assert after.quality != chosen.quality
    assert (before.loss, before.control_loss, control.control_loss) == (None, None, None)
    assert after.control_loss.value > after.loss.value
    assert found.verdict.rejected is None
    size = next(row for row in found.verdict.rows if row.quantity == "size")
    assert (size.before, size.after) == (found.candidates[0].file_bytes, chosen.file_bytes)
    assert any(one.on_front for one in found.candidates)


def test_each_gain_has_the_same_figure_everywhere(whole):
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
        # The gains of the stages multiply to the total, because all were timed in the same turns.
        gains = [
            next(g for g in one.gains if g.quantity == quantity)
            for one in found.passes
            if one.gains and one.kept
        ]
        assert np.prod([gain.factor for gain in gains]) == pytest.approx(headlines[quantity].factor)
    # The line of a stage does not state the gain of another stage.
    assert not any("x as fast" in one.decision for one in found.passes)


def test_run_writes_its_report_in_three_formats(whole):
    found, folder = whole
    assert json.loads((folder / "report.json").read_text())["verdict"]["chosen"] == found.verdict.chosen
    assert found.verdict.sentence.replace("_", r"\_") in (folder / "report.md").read_text()
    assert " than predict_on_batch" in found.verdict.sentence
    card = (folder / "card.md").read_text()
    assert f"on {found.metric.test_source}" in card and "; of the original " in card
    assert "<html" in (folder / "report.html").read_text()
    assert "cellerate optimize" in found.command
    assert "--steps 4" in found.command
    assert "--only pack --only quantize" in found.command


def test_original_model_stays_unchanged(whole, made):
    found, folder = whole
    model, _ = load_model(made / "text.keras")
    assert found.candidates[0].file is None
    float32, _ = load_model(folder / "candidates" / "float32.keras")
    for one, other in zip(model.get_weights(), float32.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_model_that_cannot_be_packed_gets_a_verdict_on_keras(made, tmp_path):
    inputs = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(len_of_text(), 4)(inputs)
    x = keras.ops.arctan(keras.layers.GRU(5, return_sequences=True)(x))
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


def len_of_text():
    return len(text_payload()["tokenizer"]["characters"])


@pytest.mark.parametrize(
    ("task", "data"), [("series", "s.csv"), pytest.param("embed", "l.txt", marks=pytest.mark.slow)]
)
def test_other_tasks_reach_a_verdict(made, tmp_path, task, data):
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
