import dataclasses

import pytest

from cellerate.report import figures, view
from cellerate.report.record import Change, SampleOutput, StageRecord
from cellerate.report.samples import samples


def texts(table):
    return [[cell.text for cell in row] for row in table.rows]


def test_waterfall_multiplies_the_first_gain_of_each_stage_that_was_kept(text_run):
    training, use, size = figures.waterfalls(text_run)
    assert [training.chart.title, use.chart.title, size.chart.title] == [
        "Training, stage by stage", "Use, stage by stage", "Size, stage by stage"
    ]  # fmt: skip
    assert texts(use.table)[:3] == [
        ["Packed", "2.31 ms", "61.4 µs", "37.6x faster", "37.6x faster"],
        ["Quantised to int8", "61.4 µs", "19.8 µs", "3.10x faster", "117x faster"],
        ["Pruned", "19.8 µs", "15.1 µs", "1.31x faster", "153x faster"],
    ]
    # The peak memory is the second gain of its stage, and the pipeline was not kept.
    assert [step.name for step in training.chart.steps] == ["Fused kernels", "Batch size"]
    assert [step.words for step in size.chart.steps] == ["3.01x smaller", "3.87x smaller", "1.65x smaller"]


def test_waterfall_of_a_stage_that_makes_worse_says_so(text_run):
    gain = Change("use", "one character", 1.0, 2.0, "ms", False)
    passes = (StageRecord("a", "A", "done", kept=True, gains=(gain,)),)
    run = dataclasses.replace(text_run, passes=passes, verdict=None)
    (use,) = figures.waterfalls(run)
    assert use.chart.total == "2.00x slower"
    assert use.chart.steps[0].factor == use.chart.factor == 0.5


def test_total_of_a_waterfall_is_the_figure_of_the_verdict_and_not_a_product(text_run):
    training, use, _ = figures.waterfalls(text_run)
    # The stages multiply to 5.77, as they were measured at other times; a page has one figure for one gain.
    headline = view.tiles(text_run)[0]
    assert (headline.big, headline.word) == ("7.09x", "faster")
    assert training.chart.total == "7.09x faster"
    assert training.chart.factor == pytest.approx(186_400 / 26_300)
    assert texts(training.table)[-1] == [
        "In all",
        "26.3 k characters/s",
        "186 k characters/s",
        "—",
        "7.09x faster",
    ]
    assert use.chart.total == texts(use.table)[-1][-1] == "153x faster"
    assert "In all: 7.09x faster." in training.chart.description


@pytest.mark.parametrize(("before", "after"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (0.0, 0.0)])
def test_waterfall_leaves_out_what_has_no_factor(text_run, before, after):
    gain = Change("use", "one character", before, after, "ms", False)
    run = dataclasses.replace(text_run, passes=(StageRecord("a", "A", "done", kept=True, gains=(gain,)),))
    assert figures.waterfalls(run) == []


def test_gate_lies_on_the_worse_side_of_the_original(text_run, lines_run):
    assert figures.gate_of(text_run) == pytest.approx(1.9473 * 1.01)
    assert figures.gate_of(lines_run) == pytest.approx(0.981 * 0.99)
    first = dataclasses.replace(text_run.candidates[0], quality=None)
    assert figures.gate_of(dataclasses.replace(text_run, candidates=(first,))) is None


def test_scatter_marks_the_original_the_chosen_and_what_fails(text_run):
    front = figures.front(text_run)
    kinds = {dot.name: dot.kind for dot in front.chart.dots}
    assert kinds == {
        "Original, Keras": "original",
        "Packed, float32": "passes",
        "Packed, bfloat16": "passes",
        "Packed, int8": "passes",
        "Pruned to 75 %, int8": "chosen",
        "Pruned to 50 %, int8": "fails",
        "A student of 25 % of the weights, int8": "fails",
        "The same student of 25 %, trained without a teacher, int8": "fails",
    }
    assert [dot.latency_ms for dot in front.chart.dots][:2] == [41.3, 0.0614]
    assert "Best quality: Original, Keras, 1.947." in front.chart.description
    assert texts(front.table)[5] == [
        "Pruned to 50 %, int8",
        "10.4 µs",
        "2.131",
        "beyond the allowed loss",
        "no",
    ]


def test_scatter_marks_a_control_and_says_why_what_it_beats_fails(tested_run):
    front = figures.front(tested_run)
    kinds = {dot.name: dot.kind for dot in front.chart.dots}
    assert kinds["the original trained 300 steps further"] == "control"
    assert kinds["Pruned to 75 %, int8"] == "fails"
    assert "A model that was trained further must also hold beside its control" in front.chart.description
    assert texts(front.table)[1][3] == "control"
    assert (
        "control"
        not in figures.front(
            dataclasses.replace(tested_run, candidates=tested_run.candidates[2:4])
        ).chart.description
    )


def test_scatter_of_models_without_speeds_is_left_out(text_run):
    models = tuple(dataclasses.replace(one, speeds=()) for one in text_run.candidates)
    assert figures.front(dataclasses.replace(text_run, candidates=models)) is None


def test_curves_of_one_chart_are_drawn_together(text_run):
    speed, memory = figures.curves(text_run.passes[2])
    assert [line.name for line in speed.chart.lines] == ["Keras", "cellerate"]
    assert [line.name for line in memory.chart.lines] == ["peak"]
    assert texts(speed.table)[4] == ["256", "27,700", "186,400", "proposed"]
    assert "proposed at 256" in speed.chart.description


def test_table_of_models_tells_gate_choice_and_errors(text_run):
    rows = view.candidates_table(text_run).rows
    chosen, fails, broken = rows[4], rows[5], rows[8]
    assert [cell.text for cell in chosen] == [
        "Pruned to 75 %, int8", "prune", "981 k", "1.03 MB", "1.962", "0.77 % worse",
        "✓\N{NO-BREAK SPACE}yes", "15.1 µs", "63.6 k", "models/pruned-75-int8.cell",
    ]  # fmt: skip
    assert chosen[0].note == "pruned-75-int8, chosen, best trade-off"
    assert chosen[5].note == "0.61 % to 0.93 % worse"
    assert fails[6].text == "✗\N{NO-BREAK SPACE}no"
    assert broken[6].text == "✗ not measured"
    assert broken[6].note == "The packed file could not be written: no space was left on the device."


def test_table_of_models_shows_the_gate_of_one_that_runs_on_keras(text_run):
    note = "it cannot be packed and runs on Keras: no packed form of 'gru'"
    models = tuple(dataclasses.replace(one, error=note) for one in text_run.candidates[4:6])
    rows = view.candidates_table(dataclasses.replace(text_run, candidates=models)).rows
    assert [row[6].text for row in rows] == ["✓\N{NO-BREAK SPACE}yes", "✗\N{NO-BREAK SPACE}no"]
    assert [row[6].note for row in rows] == [note, note]


def test_table_of_models_shows_both_losses_and_marks_the_control(tested_run, text_run):
    table = view.candidates_table(tested_run)
    assert table.columns[5:8] == (">Against the original", ">Against its control", "Within the allowed loss")
    original, control, *_, pruned, _, _, _, _ = table.rows
    assert [cell.text for cell in original[5:8]] == ["—", "—", "✓\N{NO-BREAK SPACE}yes"]
    assert [cell.text for cell in control[5:8]] == ["1.4 % better", "—", "control"]
    assert control[5].note == "1.2 % to 1.6 % better"
    assert control[1].text == "control"
    assert [cell.text for cell in pruned[5:8]] == ["0.77 % worse", "2.2 % worse", "✗\N{NO-BREAK SPACE}no"]
    assert "may not be worse than either by more than is allowed" in table.remark
    assert ">Against its control" not in view.candidates_table(text_run).columns


def test_table_of_the_test_part_has_before_control_and_after_with_their_intervals(tested_run, text_run):
    table = view.tested_table(tested_run)
    assert table.columns == (
        "When", ">Bits per character", ">Against the original", ">Against the control"
    )  # fmt: skip
    assert [[(cell.text, cell.note) for cell in row] for row in table.rows] == [
        [("Before", "Original, Keras"), ("1.951", "1.931 to 1.971"), ("—", ""), ("—", "")],
        [
            ("Control", "the original trained 300 steps further"),
            ("1.930", "1.910 to 1.950"),
            ("1.1 % better", "0.98 % to 1.2 % better"),
            ("—", ""),
        ],
        [
            ("Chosen, and not kept", "Packed, int8"),
            ("1.990", "1.970 to 2.010"),
            ("2 % worse", "1.9 % to 2.1 % worse"),
            ("3.1 % worse", "3 % to 3.2 % worse"),
        ],
    ]
    assert "on 79 k of the test part. No choice of this run has seen it" in table.remark
    assert "candidates were chosen on 80 k of the validation part" in table.remark
    assert view.tested_table(text_run) is None


def test_outcome_of_a_broken_promise_is_bad_news(tested_run):
    assert view.outcome(tested_run) == (tested_run.verdict.sentence, "bad")


def test_speed_of_a_text_says_which_calls_it_is_of(text_run, series_run):
    said = "A packed model draws many characters of a text in a call; every other way takes a call for each."
    for table in (view.verdict_table, view.candidates_table, view.speeds_table):
        assert said in table(text_run).remark
        assert table(series_run) is None or said not in table(series_run).remark
    assert ">A call for one character, median" in view.candidates_table(text_run).columns


def test_table_of_stages_tells_status_time_and_reason(text_run):
    rows = texts(view.stages_table(text_run))
    assert rows[2][1:] == [
        "✓\N{NO-BREAK SPACE}done", "2 min 03 s", "256 rows train 9 % faster than 128; 512 rows gain nothing more."
    ]  # fmt: skip
    assert rows[3][1:] == ["○\N{NO-BREAK SPACE}skipped", "—", "The model keeps its state between windows."]
    assert rows[8][1:] == [
        "✗\N{NO-BREAK SPACE}failed", "3 min 21 s", "TrainingError: the loss is no longer a number."
    ]  # fmt: skip


def test_table_of_stages_tells_what_a_stage_was_expected_to_take(text_run):
    passes = [
        dataclasses.replace(one, expected_s=100.0 if one.name == "batch" else None) for one in text_run.passes
    ]
    table = view.stages_table(dataclasses.replace(text_run, passes=tuple(passes)))
    took = [row[2] for row in table.rows]
    assert [(cell.text, cell.note) for cell in took[:4]] == [
        ("48 s", ""), ("1 min 02 s", ""), ("2 min 03 s", "1 min 40 s expected"), ("—", "")
    ]  # fmt: skip


def test_table_of_training_has_every_way(text_run):
    rows = texts(view.training_table(text_run))
    assert rows[0] == ["Keras, float32", "128", "100", "506 ms", "26.3 k", "1.42 GB", "1.310"]
    assert rows[2][-1] == "—"


def test_table_of_training_counts_what_training_reads(text_run, series_run, lines_run):
    heads = [view.training_table(run).columns[4] for run in (text_run, series_run, lines_run)]
    assert heads == [">Characters a second", ">Windows a second", ">Lines a second"]
    # In use, a forecaster makes forecasts.
    assert ">Forecasts a second, one after another" in view.candidates_table(series_run).columns


def test_samples_begin_with_the_original_and_the_chosen(text_run):
    found = samples(text_run)
    assert [one.model for one in found.texts][:3] == [
        "Original, Keras",
        "Pruned to 75 %, int8",
        "Packed, float32",
    ]
    assert [one.role for one in found.texts][:3] == ["original", "chosen", ""]
    assert [one.model for one in found.texts][-2:] == [
        "A student of 25 % of the weights, int8",
        "The same student of 25 %, trained without a teacher, int8",
    ]
    assert found.left_out == ""
    assert found.prompt.startswith("Well, Prince")
    assert {one.prompt for one in found.texts} == {""}


def test_samples_of_different_prompts_keep_theirs(text_run):
    first, second = text_run.candidates[:2]
    models = (
        dataclasses.replace(first, sample=SampleOutput("a", "b")),
        dataclasses.replace(second, sample=SampleOutput("c", "d")),
    )
    found = samples(dataclasses.replace(text_run, candidates=models))
    assert found.prompt == ""
    assert [(one.prompt, one.text) for one in found.texts] == [("a", "b"), ("c", "d")]


def test_samples_of_many_models_are_cut_and_said(text_run):
    first = text_run.candidates[0]
    models = tuple(dataclasses.replace(first, id=f"m{n}") for n in range(20))
    found = samples(dataclasses.replace(text_run, candidates=models))
    assert len(found.texts) == 8
    assert found.left_out == "8 of 20 models are shown; report.json has all samples."
