import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.core import TyperOption

import cellerate as package
from cellerate.cli import main, options, output
from cellerate.cli.inference import generate
from cellerate.training.settings import TrainingSettings

VERBS = [
    "train text", "train series", "train embed", "generate", "forecast", "embed", "evaluate", "backtest", "explain",
    "env", "profile", "doctor",
]  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_every_verb_explains_its_options_and_has_an_example(cellerate, verb):
    code, out, err = cellerate(*verb.split(), "--help")
    assert (code, err) == (0, "")
    assert f"cellerate {verb}" in out.partition("Usage:")[2].splitlines()[0]
    example = out.partition("Example")[2].partition("Options")[0]
    assert f"cellerate {verb} " in example
    assert "--json" in out


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["train", "-h"]])
def test_help_lists_the_verbs(cellerate, words):
    code, out, _ = cellerate(*words)
    assert code == 0
    for verb in VERBS:
        if words[0] != "train" or verb.startswith("train"):
            assert verb.split()[-1] in out


@pytest.mark.parametrize(
    ("words", "example"),
    [(["train", "t.txt", "-o", "m.keras"], "train text t.txt"), (["sweep", "t.txt"], "sweep text t.txt")],
)
def test_file_instead_of_a_task_is_refused_with_a_list_of_tasks(cellerate, here, words, example):
    code, out, err = cellerate(*words)
    assert (code, out) == (2, "")
    said = " ".join(err.replace("│", " ").split())
    assert "Say what to train on t.txt: text, series" in said
    assert f"cellerate {example}" in said


def test_help_of_a_verb_breaks_paragraphs_only_where_the_terminal_does():
    shown = options.with_config(documented).__doc__
    assert shown == "Do it.\n\nOne thought in two lines.\n\nExamples:\n    " + "\n    ".join(
        ["cellerate do it --well --often", "cellerate do that"]
    )


def documented() -> None:
    """Do it.

    One thought
    in two lines.

    Examples:
        cellerate do it --well
        --often
        cellerate do that
    """


def test_every_setting_has_help_from_its_docstring():
    helps = options.attribute_docs(TrainingSettings)
    assert set(helps) == set(TrainingSettings.__dataclass_fields__)
    assert helps["plateau_patience"].endswith('Needs `schedule="constant"`.')


def test_help_of_recurrent_dropout_states_its_cost_in_cellerate(cellerate):
    code, out, _ = cellerate("train", "text", "--help")
    assert code == 0
    found = out.partition("--recurrent-dropout")[2].partition("--layer-norm")[0]
    # Its lines stand in a box.
    words = " ".join(found.replace("│", " ").split())
    assert "Cellerate's kernels" in words and "slow on every backend" not in words


def test_version_is_that_of_the_package(cellerate):
    assert cellerate("--version") == (0, f"cellerate {package.__version__}\n", "")


@pytest.mark.parametrize(
    "words",
    [
        ["train", "text", "--wrong"],
        ["train", "text"],
        ["train", "text", "t.txt"],
        ["train", "text", "t.txt", "-o", "m.keras", "--units", "many"],
        ["train", "text", "t.txt", "-o", "m.keras", "--optimizer", "best"],
        ["generate"],
        ["evaluate", "m.keras", "t.txt", "--part", "some"],
        ["nothing"],
    ],
)
def test_wrong_usage_exits_with_2_and_points_to_help(cellerate, words):
    code, out, err = cellerate(*words)
    assert (code, out) == (2, "")
    assert "--help" in err or "-h" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--length", "0"], "--length must be"),
        (["--batch-size", "-3"], "--batch-size must be"),
        (["--epochs", "0"], "--epochs must be"),
        (["--learning-rate", "nan"], "--learning-rate must be"),
        (["--validation-fraction", "1.5"], "--validation-fraction must be"),
        (["--clipnorm", "1", "--clipvalue", "1"], "--clipnorm and --clipvalue cannot be used together"),
    ],
)
def test_value_out_of_range_exits_with_2_before_heavy_imports(cellerate, words, message):
    code, out, err = cellerate("train", "text", "t.txt", "-o", "m.keras", *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1


def test_unknown_backend_exits_with_5_and_names_the_three(cellerate, monkeypatch):
    code, _, err = cellerate("explain", "m.keras", "--backend", "pytorch")
    assert code == 5
    assert "tensorflow, jax, torch" in err
    monkeypatch.setenv("KERAS_BACKEND", "theano")
    code, _, err = cellerate("explain", "m.keras")
    assert code == 5
    assert "KERAS_BACKEND" in err


def test_unexpected_error_is_one_line_with_a_traceback_on_request(cellerate, monkeypatch):
    def broken(**_):
        raise RuntimeError("out of memory\nin many words")

    monkeypatch.setattr(main, "_command", lambda: broken)
    code, _, err = cellerate("env")
    assert code == 1
    assert err.startswith("error: unexpected RuntimeError: out of memory. ")
    assert err.count("\n") == 1
    monkeypatch.setenv("CELLERATE_TRACEBACK", "1")
    with pytest.raises(RuntimeError, match="out of memory"):
        main.main()


def test_stdout_on_a_full_disk_exits_with_6(start_cellerate):
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with Path("/dev/full").open("w") as full:
        process = start_cellerate("env", stdout=full)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 6
    assert err == "error: cannot write stdout: the disk is full; free some space or choose another folder.\n"


def test_closed_stdout_ends_quietly(start_cellerate):
    process = start_cellerate("env")
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert process.stderr.read() == ""


# --- configuration files


@pytest.fixture
def seen(monkeypatch):
    """The arguments of `generate`, without running it."""
    found = {}

    monkeypatch.setattr(generate, "start_backend_for", lambda _, backend: found.update(backend=backend))
    monkeypatch.setattr("cellerate.runtime.text.sampling_rules", lambda **values: found.update(values))
    return found


CONFIGS = {
    "flat": 'temperature = 0.25\ntop-k = 3\nbackend = "jax"\n',
    "table": '[generate]\ntemperature = 0.25\ntop_k = 3\nbackend = "jax"\n[train.text]\nunits = 3\n',
    "both": 'backend = "jax"\ntemperature = 9.0\n[generate]\ntemperature = 0.25\ntop-k = 3\n',
}


@pytest.mark.keras
@pytest.mark.parametrize("text", CONFIGS.values(), ids=CONFIGS)
def test_config_fills_options_and_the_command_line_wins(cellerate, seen, tmp_path, text):
    (tmp_path / "c.toml").write_text(text)
    cellerate("generate", "none.keras", "x", "--config", tmp_path / "c.toml", "--top-k", "7")
    rest = {"top_p": None, "min_p": 0.0, "repetition_penalty": 1.0, "seed": None}
    assert seen == {"backend": "jax", "temperature": 0.25, "top_k": 7} | rest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("unitz = 3", "'unitz' is not an option of 'cellerate train text'"),
        ("[train.text]\nunitz = 3", "'unitz' is not an option"),
        ("[train.series]\nwindow = 3", "'train' is not an option"),
        ("units = {a = 1}", "'units' is not an option"),
        ("config = 'other.toml'", "'config' is not an option"),
        ("units = true", "'units' takes a value, not true"),
        ("units = ", "not valid TOML"),
        ("units = 'many'", "Invalid value for '--units'"),
        ("units = [1, 2]", "--units"),
        ("optimizer = 'best'", "--optimizer"),
        ("carry-states = 'perhaps'", "--carry-states"),
    ],
)
def test_invalid_config_exits_with_2_and_names_the_error(cellerate, tmp_path, text, message):
    (tmp_path / "c.toml").write_text(text)
    code, out, err = cellerate("train", "text", "t.txt", "-o", "m.keras", "--config", tmp_path / "c.toml")
    assert (code, out) == (2, "")
    assert message in err


def test_unreadable_config_exits_with_2(cellerate, tmp_path):
    (tmp_path / "c.toml").write_bytes(b"\xff\xfe")
    for path, message in (
        (tmp_path / "no.toml", "there is no configuration file"),
        ("/dev/zero", "not a regular file"),
        (tmp_path / "c.toml", "not valid TOML"),
    ):
        code, _, err = cellerate("generate", "m.keras", "x", "--config", path)
        assert code == 2
        assert message in err


# --- what is printed


def test_json_has_null_for_nan_and_infinity(capsys):
    output.print_json({"a": float("nan"), "b": [float("inf"), (1.5, {"c": -float("inf")})], "d": Path("x")})
    assert capsys.readouterr().out == (
        '{\n  "a": null,\n  "b": [\n    null,\n    [\n      1.5,\n      {\n        "c": null\n      }\n    ]\n  ],\n'
        '  "d": "x"\n}\n'
    )


def test_command_to_resume_is_the_command_line_quoted_with_resume_once(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/cellerate", "train", "text", "my book.txt", "-o", "m.keras"])
    assert output.command_to_resume() == "cellerate train text 'my book.txt' -o m.keras --resume"
    monkeypatch.setattr("sys.argv", ["cellerate", "train", "--resume"])
    assert output.command_to_resume() == "cellerate train --resume"


def test_help_of_all_verbs_words_the_same_option_the_same_way():
    found = [
        (path, one)
        for path, command in _verbs(typer.main.get_command(main.app))
        for one in command.params
        if isinstance(one, TyperOption)
    ]
    assert len(found) > 200
    for path, one in found:
        said = one.help or ""
        if one.name == "data":
            assert {"--data", "-d"} <= set(one.opts), path
            assert "be repeated" in said, path
        if one.name == "plot":
            assert "*.png or *.svg" in said, path
        for other in ("several times", "given again", "repeat it"):
            assert other not in said, (path, one.name)


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_program_runs_with_a_closed_stream(closed):
    words = [sys.executable, "-m", "cellerate", "env"]
    done = subprocess.run(words, capture_output=True, text=True, preexec_fn=lambda: os.close(closed))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("" if closed == 1 else "machine")


def _verbs(command, path=()):
    """Each verb below a command, with its path."""
    commands = getattr(command, "commands", None)
    if commands is None:
        yield " ".join(path), command
        return
    for name, below in commands.items():
        yield from _verbs(below, (*path, name))
