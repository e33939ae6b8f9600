"""`generate`: every rule of drawing, beams, and refusals, for models and packed files."""

import json
import subprocess
import sys
import time

import pytest

from cellerate.runtime.packed import load
from support.error_lines import one_error

pytestmark = pytest.mark.keras


def test_generate_prints_prompt_and_continuation_and_repeats_by_seed(cellerate, made):
    words = ["generate", made / "text.keras", "the ", "-n", "30", "--seed", "3"]
    code, out, err = cellerate(*words)
    assert (code, err) == (0, "")
    assert out.startswith("the ")
    assert out.endswith("\n")
    assert len(out) == 4 + 30 + 1
    code, as_json, _ = cellerate(*words, "--json")
    found = json.loads(as_json)
    assert found["prompt"] + found["text"] + "\n" == out
    stop = found["text"][10:12]
    _, short, _ = cellerate(*words, "--stop", stop, "--stop", "never")
    assert short == "the " + found["text"][: found["text"].find(stop)] + "\n"


@pytest.mark.parametrize("suffix", ["keras", "cell"])
def test_generate_accepts_every_sampling_rule_for_keras_and_packed_models(cellerate, made, tmp_path, suffix):
    model = made / "text.keras"
    if suffix == "cell":
        model = tmp_path / "t.cell"
        assert cellerate("pack", made / "text.keras", "-o", model)[0] == 0
    words = ["generate", model, "the ", "-n", "80", "-t", "1.3", "--seed", "5", "--json"]

    def text(*more):
        code, out, err = cellerate(*words, *more)
        assert (code, err) == (0, "")
        found = json.loads(out)
        assert found.keys() == {"prompt", "text", "seconds"}
        return found["text"]

    plain = text()
    assert plain == text("--implementation", "cellerate-cpu") == text("--min-p", "0")
    rules = ["--top-k", "4"], ["--top-p", "0.7"], ["--min-p", "0.8"], ["--repetition-penalty", "3"]
    assert plain not in (different := {text(*rule) for rule in rules})
    assert len(different) == len(rules)
    assert len(text("--min-p", "1", "--seed", "6")) == 80
    if suffix == "keras":
        everything = [word for rule in rules for word in rule]
        assert text(*everything, "--implementation", "keras") == text(*everything)
        assert text("--implementation", "keras") == plain


@pytest.mark.parametrize("suffix", ["keras", "cell"])
def test_generate_with_beams_prints_the_best_continuation(cellerate, made, tmp_path, suffix):
    cellerate("pack", made / "text.keras", "-o", tmp_path / "t.cell")
    model = made / "text.keras" if suffix == "keras" else tmp_path / "t.cell"
    best = load(tmp_path / "t.cell").beam_search("the ", beams=3, max_tokens=12)[0].text
    code, out, err = cellerate("generate", model, "the ", "-n", "12", "--beams", "3")
    assert (code, out, err) == (0, f"the {best}\n", "")
    began = time.perf_counter()
    code, out, err = cellerate("generate", model, "the ", "-n", "40", "--beams", "30", "--json")
    # The search takes most of the time of the command.
    assert 1e-4 < json.loads(out)["seconds"] < time.perf_counter() - began
    code, out, err = cellerate("generate", model, "the ", "--beams", "0")
    assert (code, out) == (2, "")
    assert "beams" in one_error(err)
    code, out, err = cellerate("generate", model, "the ", "--beams", "2", "--implementation", "keras")
    assert (code, out) == (2, "")
    assert "keras" in one_error(err)


@pytest.mark.parametrize("suffix", ["keras", "cell"])
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["-t", "1"], "--temperature"),  # the default, given explicitly
        (["--top-k", "3"], "--top-k"),
        (["--top-p", "0.9"], "--top-p"),
        (["--min-p", "0.1", "--implementation", "cellerate-cpu"], "--min-p"),
        (["--repetition-penalty", "1.1"], "--repetition-penalty"),
        (["--seed", "1", "--temperature", "1"], "--temperature and --seed"),
    ],
)
def test_generate_with_beams_and_a_sampling_option_is_refused(
    cellerate, made, tmp_path, suffix, words, named
):
    cellerate("pack", made / "text.keras", "-o", tmp_path / "t.cell")
    model = made / "text.keras" if suffix == "keras" else tmp_path / "t.cell"
    code, out, err = cellerate("generate", model, "the ", "--beams", "2", *words)
    assert (code, out) == (2, "")
    assert f"would ignore {named}." in one_error(err)


def test_generate_with_beams_ignores_sampling_options_of_a_config_file(cellerate, made, tmp_path):
    (tmp_path / "c.toml").write_text("seed = 3\n[generate]\ntemperature = 0.5\n")
    words = ["generate", made / "text.keras", "the ", "-n", "12", "--beams", "2"]
    assert cellerate(*words, "--config", tmp_path / "c.toml") == cellerate(*words)


def test_generate_with_beams_on_a_gpu_that_is_not_there_is_refused(cellerate, made, monkeypatch):
    monkeypatch.setattr("cellerate.kernels.cuda.launch.why_unavailable", lambda device: "there is none")
    words = ["--beams", "2", "--implementation", "cellerate-cuda"]
    code, out, err = cellerate("generate", made / "text.keras", "the ", *words)
    assert (code, out) == (5, "")
    assert "there is none" in one_error(err)


@pytest.mark.parametrize("suffix", ["keras", "cell"])
def test_generate_skips_unknown_characters_on_request(cellerate, made, tmp_path, suffix):
    cellerate("pack", made / "text.keras", "-o", tmp_path / "t.cell")
    model = made / "text.keras" if suffix == "keras" else tmp_path / "t.cell"
    words = ["-n", "9", "--seed", "1"]
    _, wanted, _ = cellerate("generate", model, "the ", *words)
    code, out, err = cellerate("generate", model, "t\u2603he ", *words, "--errors", "ignore")
    assert (code, out, err) == (0, wanted, "")
    code, out, err = cellerate("generate", model, "t\u2603he ", *words)
    assert (code, out) == (3, "")
    assert "U+2603" in one_error(err)
    code, out, err = cellerate("generate", model, "\u2603", *words, "--errors", "ignore")
    assert (code, out) == (2, "")
    assert "prompt is empty" in one_error(err)


def test_generate_from_a_packed_file_imports_no_framework(made, tmp_path, cellerate):
    cellerate("pack", made / "text.keras", "-o", tmp_path / "t.cell")
    program = (
        "import sys; from cellerate.cli.main import app; "
        "app(sys.argv[1:], standalone_mode=False); "
        "print([n for n in ('keras', 'jax', 'torch', 'tensorflow') if n in sys.modules], file=sys.stderr)"
    )
    words = ["generate", str(tmp_path / "t.cell"), "the ", "-n", "5", "--min-p", "0.1"]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
    assert done.stdout.startswith("the ")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["the Z"], 3, "'Z'"),
        ([""], 2, "prompt is empty"),
        (["the", "--min-p", "-1"], 2, "--min-p "),
        (["the", "--seed", "-1"], 2, "seed"),
        (["the", "-n", "-1"], 2, "--max-tokens "),
        (["the", "--implementation", "keras"], 2, "--implementation"),
        (["the", "--implementation", "cellerate-cuda"], 2, "--device cuda"),
        (["the", "--implementation", "cellerate-cpu", "--device", "cuda"], 2, "--device cpu"),
        (["the", "--implementation", "cellerate-cuda", "--beams", "2"], 2, "--device cuda"),
        (["the", "--device", "gpu"], 2, "'cuda:N'"),
    ],
)
def test_generate_from_a_packed_file_gives_one_line_errors(cellerate, made, tmp_path, words, code, message):
    cellerate("pack", made / "text.keras", "-o", tmp_path / "t.cell")
    found, out, err = cellerate("generate", tmp_path / "t.cell", *words)
    assert (found, out) == (code, "")
    assert message in one_error(err)
