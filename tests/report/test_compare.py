import dataclasses
import json

import pytest

from cellerate.report import compare_page
from cellerate.report.compare import compare
from cellerate.report.record import Pass, TrainingStep


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
    assert found.sentence.startswith("Nothing regressed; 0 improvements, ")


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


@pytest.mark.parametrize(("more", "outcome"), [(1, "regression"), (0, "same"), (-1, "improvement")])
def test_size_differs_by_a_byte(text_run, more, outcome):
    size = text_run.candidates[3].file_bytes + more
    found = compare(text_run, with_model(text_run, "int8", file_bytes=size))
    (row,) = [row for row in found.rows if row.label == "Packed, int8: file"]
    assert row.outcome == outcome


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
    assert found.lost[1].startswith("Packed: the pass was done before, and now failed: ModelError")
    changed = with_model(text_run, "int8", passes_gate=False)
    changed = with_model(changed, "packed", error="no space")
    assert compare(text_run, changed).lost == (
        "Packed, float32: it could be measured before, and now not: no space",
        "Packed, int8: it passed the gate before, and now fails.",
    )
    assert compare(text_run, changed).regressions == 2
    assert compare(changed, text_run).lost == ()


def test_pass_that_failed_before_too_is_no_regression(text_run):
    failed = (*text_run.passes, Pass("more", "More", "failed"))
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


def test_models_of_another_task_or_quality_are_not_judged(text_run):
    other = dataclasses.replace(text_run, task="series")
    assert {row.group for row in compare(text_run, other).rows} == {"result"}
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
    assert "▼\N{NO-BREAK SPACE}5.29x largerregression" in first.text


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
