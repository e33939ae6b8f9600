"""Generating without a prompt on the command line, for readers that go, and from models that write no text."""

import io
import json
import sys

import pytest

from cellerate.cli import generate

pytestmark = pytest.mark.keras


@pytest.fixture
def typed(monkeypatch):
    """Gives the program lines on stdin."""

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


def test_generate_at_a_terminal_goes_on_after_a_line_that_is_wrong(cellerate, made, monkeypatch):
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
def test_generate_of_another_model_names_its_verb(cellerate, made, tmp_path, task, verb, suffix):
    model = made / f"{task}.keras"
    if suffix == "cell":
        model = tmp_path / f"{task}.cell"
        assert cellerate("pack", made / f"{task}.keras", "-o", model)[0] == 0
    code, out, err = cellerate("generate", model, "the ")
    assert (code, out) == (4, "")
    assert f"`cellerate {verb}`" in err
    assert "tokenizer" not in err
