import dataclasses
import json

import pytest

from cellerate.report import compare_page
from cellerate.report.compare import compare
from cellerate.report.quality import Interval
from cellerate.report.record import StageRecord, TrainingStep


def with_model(run, name, **changes):
    models = tuple(dataclasses.replace(m, **changes) if m.id == name else m for m in run.candidates)
    return dataclasses.replace(run, candidates=models)


def outcomes(found, outcome="regression"):
    return [row.label for row in found.rows if row.outcome == outcome]


def test_run_compared_with_itself_has_only_the_same(any_run):
    found = compare(any_run, any_run)
    assert {row.outcome for row in found.rows} <= {"same"}
    assert found.regressions == 0
    assert found.differences == () and found.lost == ()
    said = "Nothing regressed; 0 improvements, " if found.rows else "Nothing could be compared."
    assert found.sentence.startswith(said)


@pytest.mark.parametrize(
    ("factor", "outcome"), [(1.04, "same"), (0.96, "same"), (1.06, "regression"), (0.94, "improvement")]
)
def test_latency_differs_beyond_five_percent(text_run, factor, outcome):
    (speed,) = text_run.candidates[3].speeds
    changed = dataclasses.replace(speed, latency_p50_ms=factor * speed.latency_p50_ms)
    found = compare(text_run, with_model(text_run, "int8", speeds=(changed,)))
    (row,) = [row for row in found.rows if row.label == "Packed, int8: latency by packed"]
    assert row.outcome == outcome
    assert row.change.factor == pytest.approx(1 / factor)


@pytest.mark.parametrize(
    ("shift", "outcome"), [(0.02, "same"), (0.023, "regression"), (-0.023, "improvement")]
)
def test_quality_differs_where_its_intervals_do_not_meet(text_run, shift, outcome):
    before = text_run.candidates[3].quality
    moved = {name: getattr(before, name) + shift for name in ("value", "low", "high")}
    found = compare(text_run, with_model(text_run, "int8", quality=dataclasses.replace(before, **moved)))
    (row,) = [row for row in found.rows if row.label == "Packed, int8: bits per character"]
    assert row.outcome == outcome


@pytest.mark.parametrize(
    ("factor", "outcome", "said"),
    [
        (1 + 1e-6, "same", "unchangedwithin 0.5 %"),
        (1.004, "same", "unchangedwithin 0.5 %"),
        (0.996, "same", "unchangedwithin 0.5 %"),
        (1.006, "regression", "▼\N{NO-BREAK SPACE}1.01x largerregression, beyond 0.5 %"),
        (0.994, "improvement", "▲\N{NO-BREAK SPACE}1.01x smallerimprovement, beyond 0.5 %"),
    ],
)
def test_size_differs_beyond_half_a_percent(text_run, parse, factor, outcome, said):
    size = round(factor * text_run.candidates[3].file_bytes)
    found = compare(text_run, with_model(text_run, "int8", file_bytes=size))
    (row,) = [row for row in found.rows if row.label == "Packed, int8: file"]
    assert row.outcome == outcome
    page = parse(compare_page.comparison_html(found))
    (shown,) = [row for row in page.all("tr") if row.text.strip().startswith("Packed, int8: file")]
    assert [cell.text for cell in shown.all("td")][-1] == said


@pytest.mark.parametrize(
    ("share", "outcome"), [(3e-5, "same"), (-3e-5, "same"), (1e-4, "regression"), (-1e-4, "improvement")]
)
@pytest.mark.parametrize("reach", [None, 0.0])
def test_quality_that_is_said_to_be_unchanged_is_no_regression(text_run, reach, share, outcome):
    last = text_run.verdict.rows[-1]
    rows = (dataclasses.replace(last, after=last.after * (1 + share)),)
    chosen = "nobody" if reach is None else text_run.verdict.chosen
    runs = []
    for row in (last, *rows):
        of_both = {"value": row.after, "low": row.after, "high": row.after}
        quality = dataclasses.replace(text_run.candidates[4].quality, **of_both)
        verdict = dataclasses.replace(text_run.verdict, rows=(row,), chosen=chosen)
        run = with_model(text_run, "pruned-75-int8", quality=quality)
        runs.append(dataclasses.replace(run, verdict=verdict))
    (row,) = [row for row in compare(*runs).rows if row.group == "result"]
    assert row.outcome == outcome
    assert row.margin == ("0.005 %" if reach is None else "95 % intervals")


def test_quality_of_the_verdict_is_judged_by_the_intervals_of_the_chosen(text_run):
    rows = text_run.verdict.rows
    worse = dataclasses.replace(rows[-1], after=rows[-1].after + 0.01)
    verdict = dataclasses.replace(text_run.verdict, rows=(*rows[:-1], worse))
    changed = dataclasses.replace(text_run, verdict=verdict)
    # No model has that quality: nothing is known of its interval, so that any difference counts.
    assert outcomes(compare(text_run, changed)) == ["bits per character"]
    quality = dataclasses.replace(text_run.candidates[4].quality, value=worse.after)
    changed = with_model(changed, "pruned-75-int8", quality=quality)
    assert outcomes(compare(text_run, changed)) == []


def test_quality_of_the_verdict_is_judged_by_the_intervals_of_the_test_part(tested_run):
    def with_quality(value, reach):
        rows = (*tested_run.verdict.rows[:-1], dataclasses.replace(tested_run.verdict.rows[-1], after=value))
        first, *others = tested_run.verdict.tested
        first = dataclasses.replace(first, quality=Interval(value, value - reach, value + reach))
        verdict = dataclasses.replace(tested_run.verdict, rows=rows, tested=(first, *others))
        return dataclasses.replace(tested_run, verdict=verdict)

    for reach, outcome in ((0.03, "same"), (0.001, "regression")):
        found = compare(tested_run, with_quality(1.98, reach))
        (row,) = [row for row in found.rows if row.group == "result" and row.label == "bits per character"]
        assert (row.outcome, row.margin) == (outcome, "95 % intervals")


def test_control_that_learnt_less_is_no_model_that_was_lost(tested_run):
    found = compare(tested_run, with_model(tested_run, "control-300-4e-03", passes_gate=False))
    assert found.lost == ()


def test_models_are_compared_where_only_the_test_part_differs(tested_run):
    metric = dataclasses.replace(tested_run.metric, test_source="something else")
    found = compare(tested_run, dataclasses.replace(tested_run, metric=metric))
    assert any(row.label == "Packed, int8: bits per character" for row in found.rows)
    assert "The runs have different test parts: 79 k of the test part and something else." in found.warnings


def test_training_is_compared_by_way_batch_and_length(text_run):
    first, *others = text_run.training_steps
    slower = dataclasses.replace(
        first, items_per_s=first.items_per_s / 2, peak_memory_bytes=first.peak_memory_bytes * 2
    )
    other = TrainingStep("Keras, float32", 64, 100, 1.0, 1.0, 1.0, 1.0)
    found = compare(text_run, dataclasses.replace(text_run, training_steps=(other, slower, *others)))
    assert outcomes(found) == ["Keras, float32, 128 x 100: speed", "Keras, float32, 128 x 100: peak memory"]
    assert [row.change.factor for row in found.rows[:2]] == [0.5, 0.5]


def test_what_was_lost_is_a_regression_told_in_a_sentence(text_run, failed_run):
    found = compare(text_run, failed_run)
    assert found.lost[0] == "The first run came to a verdict, the second did not."
    assert found.lost[1].startswith("Packed: the stage was done before, and now failed: ModelError")
    changed = with_model(text_run, "int8", passes_gate=False)
    changed = with_model(changed, "packed", error="no space", quality=None)
    assert compare(text_run, changed).lost == (
        "Packed, float32: it could be measured before, and now not: no space",
        "Packed, int8: it was within the allowed loss before, and now is not.",
    )
    assert compare(text_run, changed).regressions == 2
    assert compare(changed, text_run).lost == ()


def on_keras(run, name):
    return with_model(run, name, error="it cannot be packed and runs on Keras: no packed form of 'gru'")


def test_model_that_runs_on_keras_is_compared(text_run):
    changed = with_model(on_keras(text_run, "int8"), "int8", file_bytes=9_000_000, passes_gate=False)
    found = compare(on_keras(text_run, "int8"), changed)
    assert outcomes(found) == ["Packed, int8: file"]
    assert found.lost == ("Packed, int8: it was within the allowed loss before, and now is not.",)


def test_model_that_can_be_packed_no_longer_is_a_regression(text_run):
    found = compare(text_run, on_keras(text_run, "int8"))
    assert found.lost == (
        "Packed, int8: it could be packed before; now it cannot be packed and runs on Keras: no packed form of 'gru'",
    )
    assert "Packed, int8: file" in outcomes(found, "same")
    assert compare(on_keras(text_run, "int8"), on_keras(text_run, "int8")).lost == ()
    assert compare(on_keras(text_run, "int8"), text_run).lost == ()


def test_model_that_was_on_keras_and_is_not_measured_now_is_lost(text_run):
    changed = with_model(text_run, "int8", error="no space", quality=None)
    assert compare(on_keras(text_run, "int8"), changed).lost == (
        "Packed, int8: it could be measured before, and now not: no space",
    )


def test_gate_of_another_width_is_not_judged(text_run):
    changed = dataclasses.replace(with_model(text_run, "int8", passes_gate=False), max_quality_loss=0.001)
    found = compare(text_run, changed)
    assert found.lost == () and found.rows
    assert "The runs have different limits of the loss of quality: 1 % and 0.1 %." in found.warnings


@pytest.mark.parametrize("name", ["series_run", "failed_run", "empty_run"])
def test_runs_of_different_tasks_are_not_judged_at_all(lines_run, request, name, parse):
    other = request.getfixturevalue(name)
    found = compare(lines_run, other)
    assert found.rows == () and found.lost == ()
    assert found.sentence == "Nothing could be compared."
    assert found.warnings[0] == f"The runs have different tasks: embed and {other.task}."
    assert list(compare_page.comparison_lines(found))[-1] == "Nothing could be compared."
    (sentence,) = parse(compare_page.comparison_html(found)).all("p", class_="verdict")
    assert sentence.has("class_", "bad")


def test_training_of_forecasters_is_compared_in_windows(series_run):
    (row,) = [row for row in compare(series_run, series_run).rows if row.label.endswith("64: speed")]
    assert row.change.unit == "windows/s"


def test_student_and_its_one_without_a_teacher_are_compared_each_with_its_own(text_run):
    student, twin = "A student of 25 % of the weights", "The same student of 25 %, trained without a teacher"
    changed = with_model(text_run, "untaught-int8", file_bytes=9_000_000)
    assert outcomes(compare(text_run, changed)) == [f"{twin}, int8: file"]
    without = tuple(one for one in text_run.candidates if one.id != "untaught-int8")
    found = compare(dataclasses.replace(text_run, candidates=without), changed)
    assert found.warnings == (f"Only the second run made: {twin}, int8.",)
    assert found.regressions == 0
    assert f"{student}, int8: file" in outcomes(found, "same")


def test_stage_that_failed_before_too_is_no_regression(text_run):
    failed = (*text_run.passes, StageRecord("more", "More", "failed"))
    assert (
        compare(
            dataclasses.replace(text_run, passes=failed), dataclasses.replace(text_run, passes=failed)
        ).lost
        == ()
    )


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"task": "series"}, "The runs have different tasks: text and series."),
        ({"model": "other"}, "The runs have different models: war-and-peace and other."),
        (
            {"data": "none"},
            "The runs have different data: 3,227,580 characters of war-and-peace.txt and none.",
        ),
        ({"max_quality_loss": 0.1}, "The runs have different limits of the loss of quality: 1 % and 10 %."),
        (
            {"environment": (("Processor", "another"),)},
            "The machines differ, and so do timings: Processor: AMD EPYC 9R45, 2 cores and another.",
        ),
        ({"status": "failed"}, "The second run did not come to its end (failed)."),
    ],
)
def test_runs_that_are_no_comparison_are_told_at_the_top(text_run, changes, warning, parse):
    found = compare(text_run, dataclasses.replace(text_run, **changes))
    assert warning in found.warnings
    assert f"warning: {warning}" in list(compare_page.comparison_lines(found))
    page = parse(compare_page.comparison_html(found))
    texts = [item.text for item in page.all("li")]
    assert warning in texts


def test_models_of_another_quality_are_not_judged_by_it(text_run):
    other = dataclasses.replace(text_run, metric=dataclasses.replace(text_run.metric, name="error"))
    labels = [row.label for row in compare(text_run, other).rows]
    assert "Packed, int8: file" in labels
    assert not [label for label in labels if label.startswith("Packed, int8: bits")]


def test_model_that_only_one_run_made_is_told_and_not_judged(text_run):
    found = compare(text_run, dataclasses.replace(text_run, candidates=text_run.candidates[1:]))
    assert "Only the first run made: Original, Keras." in found.warnings
    assert found.regressions == 0


def test_other_version_of_a_package_is_a_difference_and_no_warning(text_run):
    environment = tuple((a, "3.16.0" if a == "Keras" else b) for a, b in text_run.environment)
    found = compare(text_run, dataclasses.replace(text_run, environment=environment, settings={"seed": 1}))
    assert found.warnings == ()
    assert ("Keras", "3.15.1", "3.16.0") in found.differences
    assert ("seed", "0", "1") in found.differences


@pytest.fixture
def worse(text_run):
    """A comparison with a regression, an improvement and much that is the same."""
    changed = with_model(text_run, "int8", file_bytes=9_000_000)
    return compare(text_run, with_model(changed, "bfloat16", file_bytes=1))


def test_regressions_come_first_and_are_marked_in_words(worse, parse):
    assert [row.outcome for row in worse.rows[:3]] == ["regression", "improvement", "same"]
    lines = list(compare_page.comparison_lines(worse))
    assert lines[2] == ""
    assert lines[4].split()[:4] == ["regression", "Packed,", "int8:", "file"]
    assert lines[4].endswith("5.29x larger")
    assert lines[-1].startswith("1 regression; 1 improvement, ")
    page = parse(compare_page.comparison_html(worse))
    assert [found.text for found in page.all("h2")] == [
        "Verdict", "Regressions", "Improvements", "The same within the noise"
    ]  # fmt: skip
    first = next(iter(page.all("tbody")))
    assert "▼\N{NO-BREAK SPACE}5.29x largerregression, beyond 0.5 %" in first.text


def test_comparison_is_written_in_three_forms(worse, tmp_path):
    html, markdown, content = compare_page.write_comparison(worse, tmp_path / "new")
    assert [path.name for path in (html, markdown, content)] == ["compare.html", "compare.md", "compare.json"]
    found = json.loads(content.read_text())
    assert found["regressions"] == 1
    assert found["rows"][0]["outcome"] == "regression"
    assert found["rows"][0]["factor"] == pytest.approx(1_702_880 / 9_000_000)
    assert found["rows"][0]["label"] == "Packed, int8: file"
    assert "## Regressions" in markdown.read_text()


def test_comparison_of_hostile_runs_shows_them_and_nothing_more(text_run, hostile_run, parse):
    for found in (compare(text_run, hostile_run), compare(hostile_run, hostile_run)):
        page = parse(compare_page.comparison_html(found))
        assert not list(page.all("script")) and not list(page.all("img"))
        for line in compare_page.comparison_lines(found):
            assert line.isprintable() or line.replace("￾", "").isprintable()
        json.dumps(found.to_json(), allow_nan=False)
        compare_page.comparison_markdown(found)
