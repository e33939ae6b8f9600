"""Messages of the library with arguments named as options of the command line."""

import pytest
import typer

from cellerate.cli.main import app
from cellerate.cli.words import in_options, verb_of
from cellerate.errors import ConfigError
from cellerate.messages import Message, argument

PROGRAM = typer.main.get_command(app)


@pytest.mark.parametrize(
    ("verb", "message", "shown"),
    [
        ("train text", f"{argument('units')} must be at least 1, not 0.", "--units must be at least 1, not 0."),
        ("train text", f"Hold out more ({argument('validation_fraction')}).", "Hold out more (--validation-fraction)."),
        ("train text", f"no file has JSON lines: leave {argument('field')} out.",
         "no file has JSON lines: leave --field out."),
        ("train text", f"Replace it ({argument('overwrite', True)}), or", "Replace it (--overwrite), or"),
        ("train text", f"({argument('carry_states', False)})", "(--no-carry-states)"),
        ("train text", f"({argument('resume', False)}, {argument('resume', None)})", "(resume=False, resume=None)"),
        ("train text", f"{argument('jit_compile', False)} compiles nothing", "--jit-compile off compiles nothing"),
        ("train text", f"pass {argument('encoding', 'windows-1252')}. Else", "pass --encoding windows-1252. Else"),
        ("train text", f"{argument('encoding', 'utf-16-le', 'utf-16-be')}.", "--encoding utf-16-le or utf-16-be."),
        ("train series", f"{argument('missing', 'drop', 'ffill', 'interpolate')}.",
         "--missing drop, ffill or interpolate."),
        ("train text", f"{argument('exclude', ['a b', 'c'])}", "--exclude 'a b' --exclude c"),
        ("train text", f"{argument('exclude', 'a b')}", "--exclude 'a b'"),
        ("train text", f"{argument('validation_fraction', 0.1)}.", "--validation-fraction 0.1."),
        ("train series", f"{argument('targets')} names a column 'a' that", "--target names a column 'a' that"),
        ("backtest", f"take fewer folds, or {argument('refit', True)}", "take fewer folds, or --refit"),
        ("train series", f"Try {argument('clipnorm', 1)} or {argument('learning_rate', 0.01)}.",
         "Try --clipnorm 1 or --learning-rate 0.01."),
        # An argument that is not an option of the verb keeps its Python name, and unmarked text stays.
        ("train text", f"with {argument('drop_last', False)} every id counts", "with drop_last=False every id counts"),
        ("env", f"{argument('batch_size', 3)}", "batch_size=3"),
        ("train text", "the column 'batch_size' of units=4 in batch_size.py",
         "the column 'batch_size' of units=4 in batch_size.py"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [Message, ConfigError])
def test_message_names_options_of_its_verb_and_keeps_other_arguments(verb, message, shown, kind):
    assert in_options(kind(message), verb_of(PROGRAM, verb.split())) == shown


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["train", "text", "train", "--units", "3"], "text"),
        (["generate", "env"], "generate"),
        (["--version", "env"], "env"),
        (["nothing", "env"], None),
        ([], None),
    ],
)
def test_verb_is_read_from_the_command_line(words, name):
    found = verb_of(PROGRAM, words)
    assert found is PROGRAM if name is None else found.name == name


def test_error_of_a_verb_names_its_options(cellerate, here):
    (here / "m.keras").write_text("")
    code, _, err = cellerate("train", "text", "t.txt", "-o", "m.keras", "-q")
    assert code == 2
    assert err == "error: m.keras exists. Replace it (--overwrite), or give another name.\n"
