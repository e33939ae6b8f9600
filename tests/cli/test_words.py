"""Messages of the library in the words of the command line."""

import pytest
import typer

from cellerate.cli.main import app
from cellerate.cli.words import in_options, verb_of

PROGRAM = typer.main.get_command(app)


@pytest.mark.parametrize(
    ("verb", "message", "shown"),
    [
        ("train text", "units must be at least 1, not 0.", "--units must be at least 1, not 0."),
        ("train text", "clipnorm and clipvalue cannot be used", "--clipnorm and --clipvalue cannot be used"),
        ("train text", "Hold out more (validation_fraction).", "Hold out more (--validation-fraction)."),
        ("train text", "Say which field has the text (field).", "Say which field has the text (--field)."),
        ("train text", "no file has JSON lines: leave field out.", "no file has JSON lines: leave --field out."),
        ("train text", "Replace it (overwrite=True), or", "Replace it (--overwrite), or"),
        ("train text", "(carry_states=False)", "(--no-carry-states)"),
        ("train text", "jit_compile=False compiles nothing", "--jit-compile off compiles nothing"),
        ("train text", "pass encoding='windows-1252'. Else", "pass --encoding windows-1252. Else"),
        ("train text", "encoding='utf-16-le' or 'utf-16-be'.", "--encoding utf-16-le or utf-16-be."),
        ("train text", "other: units was 8, now 4; length was 6.", "other: --units was 8, now 4; --length was 6."),
        ("train text", 'exclude=["a b", "c"]', "--exclude 'a b' --exclude c"),
        ("train text", "validation_fraction=0.1.", "--validation-fraction 0.1."),
        ("train series", "targets names a column 'a' that", "--target names a column 'a' that"),
        ("train series", "time_column names a column", "--time-column names a column"),
        ("train series", "every target names a column", "every target names a column"),
        ("generate", "load it with device='cpu', or", "load it with --device cpu, or"),
        ("generate", "top_k and top_p cannot both be given.", "--top-k and --top-p cannot both be given."),
        # Words of the language, other people's names, code and files stay.
        ("train text", "the length of a model is its units: 3", "the length of a model is its units: 3"),
        ("train text", "the column 'batch_size' is not there", "the column 'batch_size' is not there"),
        ("train text", "call keras.layers.LSTM(units=4, dropout=0.1)", "call keras.layers.LSTM(units=4, dropout=0.1)"),
        ("train text", "`train_text(batch_size=3)` in batch_size.py", "`train_text(batch_size=3)` in batch_size.py"),
        ("train text", "cannot read /data/batch_size/a.txt", "cannot read /data/batch_size/a.txt"),
        ("train text", "with drop_last=False every id counts", "with drop_last=False every id counts"),
        ("train text", "model_units of sub.batch_size", "model_units of sub.batch_size"),
        ("train text", "resume=None and resume=False", "resume=None and resume=False"),
        ("explain", "the length (length), batch_size=3", "the length (length), --batch-size 3"),
        ("env", "batch_size=3", "batch_size=3"),
    ],
)  # fmt: skip
def test_message_speaks_of_the_options_of_its_verb_and_leaves_the_rest(verb, message, shown):
    assert in_options(message, verb_of(PROGRAM, verb.split())) == shown


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
def test_verb_is_the_one_that_the_command_line_names(words, name):
    found = verb_of(PROGRAM, words)
    assert found is PROGRAM if name is None else found.name == name


def test_error_of_a_verb_is_shown_in_its_words(cellerate, here):
    (here / "m.keras").write_text("")
    code, _, err = cellerate("train", "text", "t.txt", "-o", "m.keras", "-q")
    assert code == 2
    assert err == "error: m.keras exists. Replace it (--overwrite), or give another name.\n"
