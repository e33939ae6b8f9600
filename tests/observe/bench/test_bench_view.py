"""What is said of a run and of two: the strongest opponent by name, and nothing that flatters."""

import dataclasses

import pytest

from cellerate.observe.bench.compare import compare
from cellerate.observe.bench.compare_view import comparison_lines, comparison_page
from cellerate.observe.bench.record import LeftOut, Load
from cellerate.observe.bench.view import lines, page_of, races

HOSTILE = "<script>\x1b[2J\u202e\n"


@pytest.fixture
def quiet(made):
    """A record without noise, so that its figures can be told."""
    return made(0, noise=dict.fromkeys(("drift", "wander", "start", "memory", "bursts", "call"), 1e-9))


@pytest.fixture
def said(quiet):
    return {race.title: race.sentence for race in races(quiet)}


def test_strongest_opponent_is_named_with_the_ratio(said):
    # 100 characters a call: 45 ms beside the 62 ms of torch and the 135 ms of Keras.
    assert said["train, float32"] == (
        "train, float32: Cellerate on jax makes 2.22 k characters/s, 1.38 times as fast as torch.nn.LSTM (1.61 k), the "
        "strongest opponent."
    )


def test_call_of_many_characters_is_not_passed_off_as_the_same_as_a_call_a_character(said):
    # 1.6 ms for 500 beside 0.02 ms for one; and 0.03 ms by the same call.
    assert "6.25 times as fast as LiteRT (50.0 k)" in said["generate, one stream, int8"]
    assert "0.667 times as fast as LiteRT (50.0 k)" in said["generate, one stream, a call a character, int8"]


def test_precisions_are_never_mixed(quiet):
    for race in races(quiet):
        assert {entry.precision for entry in (*race.ours, *race.peers)} == {race.precision}
    assert [race.title for race in races(quiet)] == [
        "train, float32",
        "infer, 1 row, float32",
        "infer, 1 row, int8",
        "generate, one stream, int8",
        "generate, one stream, a call a character, int8",
    ]


def test_terminal_lists_ours_first_then_others_by_speed_then_who_was_left_out(quiet):
    shown = list(lines(quiet))
    place = next(n for n, line in enumerate(shown) if line.startswith("train, float32"))
    assert [line.split("  ")[1] for line in shown[place + 2 : place + 5]] == [
        "Cellerate on jax", "torch.nn.LSTM", "Keras on jax"
    ]  # fmt: skip
    assert "1.38 times as fast" in shown[place + 3] and "3.00 times as fast" in shown[place + 4]
    assert shown[-2:] == ["not timed:", "  infer: OpenVINO: not installed: 'openvino'"]


def slowed(record, *titles):
    """The record, with the entries of some titles ten times as slow."""
    entries = (
        dataclasses.replace(entry, median_s=10 * entry.median_s) if entry.title in titles else entry
        for entry in record.entries
    )
    return dataclasses.replace(record, entries=tuple(entries))


def test_lost_race_is_said_and_its_tile_is_bad_news(quiet):
    page = page_of(slowed(quiet, "Cellerate on jax"))
    assert "in 3 of 5 races: from 0.138 times as fast as torch.nn.LSTM (train, float32)" in page.sentence
    assert [tile.tone for tile in page.tiles] == ["bad", "good", "good", "good", "bad"]
    assert page.tone == "good"
    assert page_of(slowed(quiet, "Cellerate on jax", "Cellerate")).tone == "bad"


def test_keras_is_also_set_beside_ours_on_its_own_backend(quiet):
    keras, torch = quiet.entries[1], quiet.entries[0]
    keras = dataclasses.replace(keras, contestant="keras-torch", title="Keras on torch")
    ours = dataclasses.replace(
        torch, contestant="cellerate-torch", title="Cellerate on torch", median_s=0.054
    )
    record = dataclasses.replace(quiet, entries=(*quiet.entries[:3], keras, ours))
    rows = {row[0].text: row[-1] for row in page_of(record).sections[0].figures[0].table.rows}
    assert (rows["Keras on torch"].text, rows["Keras on torch"].note) == (
        "3.00 times as fast",
        "2.50 on the same backend",
    )
    assert rows["Keras on jax"].note == rows["torch.nn.LSTM"].note == ""


def test_warnings_say_when_not_to_rely_on_it(made):
    left = LeftOut("infer", "Cellerate", True, "1 row, int8", True, "off by 1; 0.03 is allowed")
    said = " ".join(lines(made(quick=True, load=Load(0.5, 0.2, 0.1), left_out=(left,))))
    for words in (
        "quick run",
        "Before the run other processes took 50 %",
        "During the run other virtual machines took 10 %",
        "Cellerate's own result was wrong (infer, 1 row, int8)",
    ):
        assert words in said


def test_record_with_nobody_else_and_one_with_nothing_are_shown(made):
    alone = made(only_ours=True)
    assert page_of(alone).sentence == "There was nobody to stand beside Cellerate here."
    assert "nobody else is there to run it" in "\n".join(lines(alone))
    peers = dataclasses.replace(alone, entries=tuple(one for one in made().entries if not one.ours))
    assert "Cellerate takes no part" in "\n".join(lines(peers))
    nothing = dataclasses.replace(alone, entries=(), left_out=(), machine={}, versions={}, peaks={}, sizes={})
    assert list(lines(nothing)) == []
    assert page_of(nothing).tiles == ()


def test_hostile_names_stay_on_their_line(made):
    record = made()
    hostile = dataclasses.replace(
        record,
        entries=tuple(dataclasses.replace(one, title=HOSTILE, call=HOSTILE) for one in record.entries),
        left_out=(LeftOut("infer", HOSTILE, False, HOSTILE, False, HOSTILE),),
    )
    shown = [*lines(hostile), *comparison_lines(compare(hostile, dataclasses.replace(hostile, run=HOSTILE)))]
    assert not any(character in line for line in shown for character in "\x1b\u202e\n")


def test_comparison_lists_regressions_first_and_says_what_they_rest_on(made):
    found = compare(made(0), made(1, slower={("infer", "Cellerate"): 1.5}))
    shown = list(comparison_lines(found))
    assert shown[:2] == [
        "before: cellerate 0.1.0, 2026-11-24 02:57",
        "after:  cellerate 0.1.0, 2026-11-24 02:57",
    ]
    rows = shown[shown.index("") + 2 :]
    assert all("REGRESSION" in row for row in rows[:2]) and "REGRESSION" not in "".join(rows[2:])
    assert shown[-1].startswith("2 regressions; of Cellerate's jobs 0 became faster")
    page = comparison_page(found)
    assert page.tone == "bad"
    assert [section.heading for section in page.sections] == ["Cellerate", "Peers", "How they were compared"]
    assert [bar.ours for bar in page.sections[0].figures[0].chart.bars] == [True, True, False, False, False]


def test_comparison_of_the_same_code_is_good_news(made):
    page = comparison_page(compare(made(0), made(1)))
    assert page.tone == "good" and page.sentence.startswith("Nothing regressed;")
