"""The table of Keras beside Cellerate: which figures stand in it, which are left out, and its sentence."""

import dataclasses

import pytest

from cellerate.report import html, markdown, quality, view
from cellerate.report.gains import gains
from cellerate.report.record import Change

NOISE = "(noise: the turns contradict each other)"


def texts(run):
    return [[cell.text for cell in row] for row in gains(run).words]


def labels(run):
    return [row[0] for row in texts(run)]


def with_candidate(run, name, **changes):
    """The run with one of its models changed."""
    candidates = (dataclasses.replace(one, **changes) if one.id == name else one for one in run.candidates)
    return dataclasses.replace(run, candidates=tuple(candidates))


def without(run, name):
    return dataclasses.replace(run, candidates=tuple(one for one in run.candidates if one.id != name))


def with_speeds(run, name, **changes):
    """The run with all speeds of one of its models changed."""
    (speeds,) = (one.speeds for one in run.candidates if one.id == name)
    return with_candidate(run, name, speeds=tuple(dataclasses.replace(one, **changes) for one in speeds))


def test_each_row_has_keras_the_same_precision_and_int8_with_their_factors(beside_run):
    found = gains(beside_run)
    assert [head for head, _ in found.table.heads] == [
        "What", "Keras on jax 0.10.2", "Cellerate", "Gain", "With int8", "int8 adds"
    ]  # fmt: skip
    assert texts(beside_run) == [
        ["training", "25.6 k/s", "64.0 k/s", "2.50x", "—", "—"],
        ["generating one text", "1.92 k/s", "19.2 k/s", "10.0x", "48.0 k/s", "2.50x"],
        ["generating 64 texts", "12.0 k/s", "262 k/s", "21.8x", "688 k/s", "2.63x"],
        ["latency of a call", "500 µs", "50.0 µs", "10.0x", "20.0 µs", "2.50x"],
        ["file", "19.9 MB", "6.59 MB", "3.01x", "1.7 MB", "3.87x"],
        ["bits per character", "1.947", "1.947", "equal", "1.951", "0.18 % worse"],
    ]  # fmt: skip
    assert found.sentence == (
        "Beside Keras on jax 0.10.2, in the same precision, Cellerate trains 2.50x faster and generates 10.0x faster; "
        "with int8 it generates 2.50x faster still."
    )


def test_keras_is_called_in_the_way_that_is_fastest_for_each_figure_and_the_way_is_named(beside_run):
    assert gains(beside_run).table.remark == (
        "Speeds are characters a second. Keras: the faster of predict and predict_on_batch, which is predict_on_batch "
        "for generating one text, latency of a call; predict for generating 64 texts. Cellerate: its kernels for "
        "training, and the model packed in float32. Quality: on 160,231 characters of the held-out part."
    )
    slow = with_candidate(
        beside_run,
        "original",
        speeds=tuple(
            dataclasses.replace(one, throughput_per_s=one.per_s) for one in beside_run.candidates[0].speeds
        ),
    )
    assert (
        "Keras: called by predict_on_batch, the faster of predict and predict_on_batch."
        in gains(slow).table.remark
    )
    single = with_candidate(beside_run, "original", speeds=beside_run.candidates[0].speeds[:1])
    assert "Keras: called by predict. " in gains(single).table.remark
    assert texts(single)[1][1] == "240/s"


def test_table_is_plain_lines_with_aligned_figures(beside_run):
    lines = list(gains(beside_run).lines())
    assert len(lines) == 7
    assert lines[0].split("  ")[0] == "" and "Keras on jax 0.10.2" in lines[0]
    assert lines[2].startswith("generating one text  ")
    assert {
        line.index(figure) + len(figure)
        for line, figure in zip(lines[1:3], ["25.6 k/s", "1.92 k/s"], strict=True)
    } == {lines[0].index("0.10.2") + len("0.10.2")}


def test_what_was_not_measured_has_no_row_or_column(beside_run):
    alone = dataclasses.replace(beside_run, training_steps=beside_run.training_steps[:2])
    assert "training" not in labels(alone)
    assert gains(alone).sentence.startswith(
        "Beside Keras on jax 0.10.2, in the same precision, Cellerate generates 10.0x"
    )
    single = with_speeds(beside_run, "original", throughput_per_s=None)
    assert [label for label in labels(single) if "64" in label] == []
    one = with_speeds(beside_run, "int8", throughput_per_s=None)
    assert texts(one)[2][3:] == ["21.8x", "—", "—"]
    judged = with_candidate(beside_run, "float32", quality=None)
    assert "bits per character" not in labels(judged)
    without_int8 = without(beside_run, "int8")
    assert len(gains(without_int8).table.heads) == 4
    assert gains(without_int8).sentence.endswith("and generates 10.0x faster.")
    trained = without(beside_run, "float32")
    assert labels(trained) == ["training"]
    assert gains(trained).sentence.endswith("Cellerate trains 2.50x faster.")
    assert "packed" not in gains(trained).table.remark


def test_run_without_figures_on_both_sides_or_without_a_verdict_has_no_table(
    beside_run, text_run, series_run
):
    assert gains(text_run) is None and gains(series_run) is None
    assert gains(dataclasses.replace(beside_run, verdict=None, status="interrupted")) is None
    page = html.html(dataclasses.replace(beside_run, verdict=None, status="interrupted"))
    assert "Keras beside Cellerate" not in page


def test_steps_of_other_batches_precisions_or_races_are_not_compared(beside_run):
    stock, ours = beside_run.training_steps[1:3]
    for changes in (
        {"batch_size": 256},
        {"length": 50},
        {"way": "fused kernels, mixed_bfloat16"},
        {"race": "batch"},
    ):
        other = dataclasses.replace(ours, **changes)
        assert "training" not in labels(dataclasses.replace(beside_run, training_steps=(stock, other)))
    # A stage that ran again has newer steps.
    newer = dataclasses.replace(ours, items_per_s=51_200.0)
    again = dataclasses.replace(beside_run, training_steps=(stock, ours, newer))
    assert texts(again)[0][2:4] == ["51.2 k/s", "2.00x"]
    halves = tuple(
        dataclasses.replace(one, way=one.way.replace("float32", "mixed_bfloat16")) for one in (stock, ours)
    )
    assert labels(dataclasses.replace(beside_run, training_steps=halves))[0] == "training in mixed_bfloat16"


@pytest.mark.parametrize(
    ("ours", "credited", "words", "told"),
    [
        ((480.0, 460.0, 530.0), False, "1.04x (noise)", f"1.04x faster {NOISE} and"),
        ((480.0, 460.0, 530.0), True, "1.04x", "1.04x faster and"),
        ((550.0, 515.0, 560.0), False, "0.909x (noise)", f"1.10x slower {NOISE} and"),
        ((600.0, 580.0, 620.0), False, "0.833x", "1.20x slower and"),
        ((200.0, 190.0, 210.0), False, "2.50x", "2.50x faster and"),
        ((500.0, 480.0, 520.0), True, "1.00x", "as fast and"),
    ],
)
def test_training_whose_turns_contradict_each_other_is_called_noise(beside_run, ours, credited, words, told):
    middle, low, high = ours
    stock, fused = beside_run.training_steps[1:3]
    fused = dataclasses.replace(
        fused, step_ms=middle, step_p20_ms=low, step_p80_ms=high, items_per_s=12_800_000 / middle
    )
    passes = tuple(
        one if credited or one.name != "kernels" else dataclasses.replace(one, gains=())
        for one in beside_run.passes
    )
    run = dataclasses.replace(beside_run, training_steps=(stock, fused), passes=passes)
    assert texts(run)[0][3] == words
    assert f"Cellerate trains {told} generates" in gains(run).sentence


def test_int8_that_loses_more_than_allowed_is_told_so(beside_run):
    run = with_candidate(beside_run, "int8", passes_gate=False)
    assert gains(run).sentence.endswith("generates 2.50x faster still, but loses more quality than allowed.")
    assert gains(run).table.remark.endswith(
        "In int8 it loses more than the 1 % allowed, so it was not timed in turns with the others."
    )
    slower = with_speeds(beside_run, "int8", per_s=9_600.0)
    assert gains(slower).sentence.endswith("with int8 it generates 2.00x slower.")


def test_model_that_cannot_be_packed_is_measured_on_keras_and_told_so(beside_run):
    run = with_candidate(
        without(beside_run, "int8"),
        "float32",
        error="it cannot be packed",
        speeds=beside_run.candidates[0].speeds,
    )
    assert "Cellerate: its kernels in Keras, as the model could not be packed." in gains(run).table.remark
    assert texts(run)[1] == ["generating one text", "1.92 k/s", "1.92 k/s", "1.00x"]


def test_quality_is_of_the_test_part_if_all_models_were_judged_there(beside_run):
    def judged(*names):
        tested = tuple(
            quality.Tested(
                name, "before", dataclasses.replace(beside_run.candidates[0].quality, value=2.0 + n / 10)
            )
            for n, name in enumerate(names)
        )
        metric = dataclasses.replace(beside_run.metric, test_source="the test part")
        verdict = dataclasses.replace(beside_run.verdict, tested=tested)
        return dataclasses.replace(beside_run, metric=metric, verdict=verdict)

    whole = judged("original", "float32", "int8")
    assert texts(whole)[-1][1:] == ["2", "2.1", "5 % worse", "2.2", "4.8 % worse"]
    assert "Quality: on the test part." in gains(whole).table.remark
    part = judged("original", "int8")
    assert texts(part)[-1] == texts(beside_run)[-1]
    assert "Quality: on 160,231 characters of the held-out part." in gains(part).table.remark


@pytest.mark.parametrize(
    ("name", "unit", "label"),
    [
        ("bits per character", "bits", "bits per character"),
        ("mean absolute error", "°C", "mean absolute error (°C)"),
    ],
)
def test_quality_is_named_with_its_unit_once(beside_run, name, unit, label):
    run = dataclasses.replace(beside_run, metric=dataclasses.replace(beside_run.metric, name=name, unit=unit))
    assert texts(run)[-1][:2] == [label, "1.947"]


@pytest.mark.parametrize(
    ("item", "first", "told"),
    [
        (
            "forecasts",
            "forecasting 64 windows",
            "forecasts one window 10.0x faster; with int8 it forecasts one window 2.50x faster still.",
        ),
        (
            "lines",
            "embedding 64 lines",
            "embeds one line 10.0x faster; with int8 it embeds one line 2.50x faster still.",
        ),
        (
            "things",
            "using the model 64 items",
            "answers a call 10.0x faster; with int8 it answers a call 2.50x faster still.",
        ),
    ],
)
def test_other_tasks_have_their_own_words_and_no_row_that_says_the_latency_again(
    beside_run, item, first, told
):
    run = dataclasses.replace(beside_run, item=item, training_steps=())
    assert labels(run) == ["latency of a call", first, "file", "bits per character"]
    assert told in gains(run).sentence


def test_page_and_markdown_have_table_and_sentence_once_before_the_figures_of_the_verdict(beside_run, parse):
    (section,) = parse(html.html(beside_run)).all("section", id="verdict")
    captions = [found.text for found in section.all("caption")]
    assert captions == [
        "Keras beside Cellerate, measured in this run",
        "Before and after, measured in this run",
    ]
    sentence = gains(beside_run).sentence
    assert section.text.count(sentence) == 1
    text = markdown.markdown(beside_run)
    assert text.count(sentence) == 1
    assert text.index("Keras beside Cellerate") < text.index("Before and after, measured")


def test_verdict_does_not_repeat_what_stands_beside_keras(beside_run):
    left = [row[0].text for row in view.verdict_table(beside_run).rows]
    assert left == ["generation, one text, from predict", "bits per character on the test part"]
    stays = tuple(dataclasses.replace(one, after=one.before) for one in beside_run.verdict.rows)
    kept = dataclasses.replace(beside_run, verdict=dataclasses.replace(beside_run.verdict, rows=stays))
    assert len(view.verdict_table(kept).rows) == len(stays)
    packed = Change("size", "file", 19_850_331, 6_590_112, "bytes", False)
    assert gains(beside_run).contains(packed)
    assert not gains(beside_run).contains(dataclasses.replace(packed, after=5))
