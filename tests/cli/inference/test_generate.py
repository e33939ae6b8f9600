"""`generate` without a prompt argument, from plain Keras models, and from models of other tasks."""

import io
import json
import sys

import keras
import pytest

from cellerate.cli.inference import generate

pytestmark = pytest.mark.keras


@pytest.fixture
def typed(monkeypatch):
    """Put lines on the stdin of the program."""

    def give(text):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))

    return give


def test_generate_without_a_prompt_continues_each_line_of_stdin(cellerate, made, typed):
    words = ["generate", made / "text.keras", "-n", "8", "--seed", "1"]
    single = [cellerate(*words, prompt)[1] for prompt in ("the cat", "the dog")]
    typed("the cat\nthe dog\n")
    assert cellerate(*words) == (0, "".join(single), "")
    typed("the cat\n")
    code, out, _ = cellerate(*words, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["prompt"] + found["text"] + "\n" == single[0]


def test_generate_with_nothing_on_stdin_says_that_there_is_no_prompt(cellerate, made, typed):
    typed("")
    code, out, err = cellerate("generate", made / "text.keras")
    assert (code, out) == (2, "")
    assert err.startswith("error: there is no prompt: ")


def test_generate_at_a_terminal_continues_after_a_bad_line(cellerate, made, monkeypatch):
    lines = iter(["the cat", "Q", "the dog"])
    monkeypatch.setattr(generate, "at_terminal", lambda: True)
    monkeypatch.setattr(generate, "prompts", lambda sign: lines)
    code, out, err = cellerate("generate", made / "text.keras", "-n", "5", "--seed", "1")
    assert code == 0
    assert [line[:7] for line in out.splitlines() if line.startswith("the ")] == ["the cat", "the dog"]
    hint, error, *rest = err.splitlines()
    assert "Ctrl-D" in hint
    assert error.startswith("error: character 'Q' (U+0051)")
    assert rest == []


def test_generate_of_unknown_characters_names_the_nearest_and_the_option(cellerate, made):
    code, out, err = cellerate("generate", made / "text.keras", "thé Cat")
    assert (code, out) == (3, "")
    assert "'é' (U+00E9, nearest 'e'), 'C' (U+0043, nearest 'c'), the first at position 2" in err
    assert err.endswith("--errors ignore leaves such characters out.\n")
    assert cellerate("generate", made / "text.keras", "thé Cat", "--errors", "ignore", "-n", "3")[0] == 0


@pytest.mark.parametrize(("task", "verb"), [("series", "forecast"), ("embed", "embed")])
@pytest.mark.parametrize("suffix", ["keras", "cell"])
def test_generate_with_a_model_of_another_task_names_its_verb(cellerate, made, tmp_path, task, verb, suffix):
    model = made / f"{task}.keras"
    if suffix == "cell":
        model = tmp_path / f"{task}.cell"
        assert cellerate("pack", made / f"{task}.keras", "-o", model)[0] == 0
    code, out, err = cellerate("generate", model, "the ")
    assert (code, out) == (4, "")
    assert f"`cellerate {verb}`" in err
    assert "tokenizer" not in err


@pytest.fixture
def own(tmp_path):
    """A folder with a plain Keras model of one-hot vectors, and its text."""
    text = "the cat sat on the mat\n"
    count = len(set(text))
    model = keras.Sequential(
        [
            keras.Input((None, count)),
            keras.layers.LSTM(8, return_sequences=True),
            keras.layers.LSTM(8),
            keras.layers.Dense(count, activation="softmax"),
        ]
    )
    model.save(tmp_path / "mine.keras")
    (tmp_path / "book.txt").write_text(text)
    (tmp_path / "list.json").write_text(json.dumps(sorted(set(text))))
    return tmp_path


def test_generate_from_a_plain_keras_model_accepts_a_vocabulary(cellerate, own):
    words = ["the cat", "-n", "20", "--seed", "1"]
    code, said, err = cellerate("generate", own / "mine.keras", *words, "--vocabulary", own / "book.txt")
    assert (code, err, len(said)) == (0, "", len("the cat") + 20 + 1)
    assert cellerate("generate", own / "mine.keras", *words, "--vocabulary", own / "list.json")[1] == said
    by_keras = ["--vocabulary", own / "book.txt", "--implementation", "keras"]
    assert cellerate("generate", own / "mine.keras", *words, *by_keras)[1] == said
    assert cellerate("pack", own / "mine.keras", "-o", own / "plain.cell")[0] == 0
    assert cellerate("generate", own / "plain.cell", *words, "--vocabulary", own / "book.txt")[1] == said
    packing = ["pack", own / "mine.keras", "-o", own / "mine.cell", "--vocabulary", own / "book.txt"]
    assert cellerate(*packing)[0] == 0
    assert cellerate("generate", own / "mine.cell", *words) == (0, said, "")
    search = ["the cat", "-n", "9", "--beams", "3"]
    found = cellerate("generate", own / "mine.cell", *search)[1]
    assert cellerate("generate", own / "mine.keras", *search, "--vocabulary", own / "book.txt")[1] == found


def test_generate_with_a_missing_or_wrong_vocabulary_names_the_option(cellerate, own, made):
    for words, expected, message in (
        (["mine.keras"], 2, "such as --vocabulary book.txt"),
        (["mine.keras", "--vocabulary", own / "none.txt"], 3, "none.txt' not found"),
        (["mine.keras", "--vocabulary", "bytes"], 4, "bytes has 256 entries, and the model predicts"),
        (
            [made / "text.keras", "--vocabulary", own / "book.txt"],
            2,
            "--vocabulary is for a model without one",
        ),
    ):
        code, out, err = cellerate("generate", own / words[0], "the ", *words[1:])
        assert (code, out) == (expected, "")
        assert message in err
    assert cellerate("pack", own / "mine.keras", "-o", own / "plain.cell")[0] == 0
    code, _, err = cellerate("generate", own / "plain.cell", "the ")
    assert code == 4
    assert "such as --vocabulary book.txt" in err
