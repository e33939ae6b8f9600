"""`cellerate optimize`: its refusals, and real runs that resume after a stop."""

import json
import shlex
import signal

import pytest

from cellerate.optimization.stages import registry
from support.error_lines import one_error

pytestmark = pytest.mark.keras

DATA = {"text": "t.txt", "series": "s.csv", "embed": "l.txt"}
SUFFIX = {"optimize": "", "export": ".onnx", "profile": ".html"}


def test_optimize_help_names_every_setting_and_shows_an_example(cellerate):
    code, out, _ = cellerate("optimize", "--help")
    assert code == 0
    for word in ("--data", "--output", "--objective", "--max-quality-loss", "--time-budget", "--only"):
        assert word in out
    for word in ("--skip", "--keep", "--latency-goal-ms", "--steps", "--seed", "--restart", "--backend"):
        assert word in out
    assert "cellerate optimize book.keras --data book.txt" in out


def test_optimize_without_data_names_the_missing_option(cellerate, made):
    code, out, err = cellerate("optimize", made / "text.keras")
    assert (code, out) == (2, "")
    assert "--data" in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--only", "prunes"], "prune"),
        (["--only", "prune", "--skip", "distill"], "cannot be used together"),
        (["--max-quality-loss", "-1"], "at least 0"),
        (["--keep", "1.5"], "keep"),
        (["--objective", "speed"], "latency"),
    ],
    ids=lambda value: value[1] if isinstance(value, list) else "",
)
def test_optimize_reports_an_invalid_setting_before_opening_the_model(cellerate, here, options, said):
    code, out, err = cellerate("optimize", "no such.keras", "--data", "t.txt", *options)
    assert (code != 0, out) == (True, "")
    assert said in err
    assert "no such.keras" not in err
    assert not (here / "optimized").exists()


def test_optimize_of_a_missing_model_says_so(cellerate, here):
    code, _, err = cellerate("optimize", "no such.keras", "--data", "t.txt", "-o", "out")
    assert code == 4
    assert "there is no model file no such.keras" in one_error(err)


def test_second_optimize_into_the_same_folder_is_refused(cellerate, here, made):
    from cellerate.files import exclusive

    with exclusive(here / "out"):
        code, out, err = cellerate("optimize", made / "text.keras", "--data", made / "t.txt", "-o", "out")
    assert (code, out) == (6, "")
    assert "another process is writing into out" in one_error(err)
    assert not (here / "out" / "report.json").exists()


def test_optimize_of_a_model_without_a_record_says_how_to_get_one(cellerate, here, made):
    from cellerate.models.storage import load_model, save_model

    save_model(load_model(made / "text.keras")[0], here / "plain.keras")
    code, _, err = cellerate("optimize", "plain.keras", "--data", "t.txt", "-o", "out")
    assert code == 4
    assert "cellerate train" in one_error(err)


@pytest.mark.parametrize(
    ("task", "data"), [("text", "s.csv"), ("series", "t.txt"), ("text", "gone.txt"), ("series", "gone.csv")]
)
def test_optimize_with_wrong_or_missing_data_gives_a_one_line_error(cellerate, here, made, task, data):
    code, out, err = cellerate("optimize", made / f"{task}.keras", "--data", data, "-o", "out")
    assert (code != 0, out) == (True, "")
    one_error(err)
    assert not (here / "out").exists()


@pytest.mark.parametrize("verb", ["optimize", "export", "profile"])
def test_data_with_gaps_are_refused_with_an_option_that_the_verb_takes(verb, cellerate, here, made):
    (here / "gaps.csv").write_text((here / "s.csv").read_text() + "2030-01-01,,\n")
    code, _, err = cellerate(verb, made / "series.keras", "--data", "gaps.csv", "-o", f"out{SUFFIX[verb]}")
    assert code != 0
    assert "--missing drop" in one_error(err)
    code, out, _ = cellerate(verb, "--help")
    assert "--missing" in out


def test_optimize_into_a_file_is_refused_and_keeps_the_file(cellerate, here, made):
    (here / "out").write_text("mine")
    code, _, err = cellerate("optimize", made / "text.keras", "--data", "t.txt", "-o", "out")
    assert code != 0
    assert "it is a file" in one_error(err)
    assert (here / "out").read_text() == "mine"


@pytest.mark.slow
@pytest.mark.parametrize("task", DATA)
def test_optimize_resumes_after_ctrl_c_to_the_verdict(start_cellerate, cellerate, here, made, task):
    # `made` has too few lines to hold any out.
    (here / "l.txt").write_text("red hat\nblue\nold cow\nten bees\n" * 20)
    words = ["optimize", str(made / f"{task}.keras"), "--data", DATA[task], "-o", "my out"]
    words += ["--only", "kernels", "--only", "quantize", "--time-budget", "600", "--steps", "20"]
    # In a series without noise, rounding is most of the error.
    words += ["--max-quality-loss", "10"]
    process = start_cellerate(*words)
    for line in process.stderr:
        if "Baseline (" in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert "every stage that had ended is kept" in err
    assert shlex.split(err.rpartition("To go on:\n")[2]) == ["cellerate", *words]
    report = json.loads((here / "my out" / "report.json").read_text())
    assert (report["status"], report["verdict"]) == ("interrupted", None)
    assert report["passes"][0]["name"] == "baseline"
    assert not list((here / "my out").rglob(".*"))

    process = start_cellerate(*words, "--json")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    found = json.loads(out)
    assert found["status"] == "finished"
    assert [(one["name"], one["status"]) for one in found["passes"]] == [
        ("baseline", "done"),
        ("quantize", "done"),
        ("kernels", "done"),
    ]
    # The baseline is the one of the first call; its speeds are measured again, in turns with what may be chosen.
    assert found["passes"][0] == report["passes"][0]
    assert found["candidates"][0] == {
        **report["candidates"][0],
        "on_front": found["candidates"][0]["on_front"],
        "speeds": found["candidates"][0]["speeds"],
    }
    assert found["candidates"][0]["speeds"] != report["candidates"][0]["speeds"]
    assert found["verdict"]["chosen"] in {one["id"] for one in found["candidates"] if one["passes_gate"]}
    for _, path in found["verdict"]["files"]:
        assert (here / "my out" / path).stat().st_size > 0
    assert (here / "my out" / "report.html").stat().st_size > 10_000


def test_optimize_help_names_every_stage(cellerate) -> None:
    _, out, _ = cellerate("optimize", "--help")
    words = set(out.replace(",", " ").replace(".", " ").split())
    assert registry.STAGES.keys() <= words
