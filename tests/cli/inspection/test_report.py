import dataclasses
import json
import re
import sys
from types import SimpleNamespace

import pytest

from cellerate.cli.gains import print_gains
from cellerate.cli.inspection import report
from cellerate.cli.shipping import optimize
from cellerate.errors import BackendError
from cellerate.report.quality import Metric
from cellerate.report.record import Change, Run, StageRecord, TrainingStep, Verdict, write_run

RUN = Run(
    schema=1,
    model="book",
    task="text",
    item="characters",
    data="a book",
    started="2026-11-21T10:03:11+00:00",
    seconds=60.0,
    status="finished",
    command="cellerate optimize book.keras --data book.txt -o out/",
    settings={},
    environment=(("Processor", "one"),),
    metric=Metric("bits per character", "", False, "the end of it"),
    max_quality_loss=0.01,
    passes=(StageRecord("quantize", "Quantised", "done"),),
    verdict=Verdict(
        "The file is 4x smaller.\x1b[2J",
        "int8",
        (Change("size", "file", 4000, 1000, "bytes", False),),
        (),
        "",
    ),
)


STEPS = (
    TrainingStep("Keras, float32", 8, 10, 30.0, 29.0, 31.0, 1000.0, race="kernels"),
    TrainingStep("fused kernels, float32", 8, 10, 10.0, 9.0, 11.0, 3000.0, race="kernels"),
)
"""Timings that give a run its table of Keras and Cellerate."""
GAINS = [
    "",
    "Keras beside Cellerate, measured in this run:",
    "             Keras  Cellerate  Gain",
    "training  1.00 k/s   3.00 k/s  3.00x",
    "Speeds are characters a second.",
    "",
    "Beside Keras, in the same precision, Cellerate trains 3.00x faster.",
]


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Two runs; the second has a larger file."""
    monkeypatch.chdir(tmp_path)
    write_run(RUN, "before")
    rows = (Change("size", "file", 4000, 2000, "bytes", False),)
    write_run(dataclasses.replace(RUN, verdict=dataclasses.replace(RUN.verdict, rows=rows)), "after")
    return tmp_path


def test_help_of_report_explains_its_options_and_has_an_example(cellerate):
    code, out, err = cellerate("report", "--help")
    assert (code, err) == (0, "")
    assert "cellerate report out/" in out
    assert "--fail-on-regression" in out and "--json" in out


def test_report_redraws_a_run_beside_its_json(cellerate, folders):
    assert cellerate("report", "before") == (
        0,
        "The file is 4x smaller. [2J\nbefore/report.html\nbefore/report.md\n",
        "",
    )
    assert (folders / "before" / "report.html").read_text().startswith("<!doctype html>")
    assert (folders / "before" / "report.md").read_text().startswith("# book: ")


def test_report_ends_with_the_table_of_keras_and_cellerate(cellerate, folders):
    write_run(dataclasses.replace(RUN, training_steps=STEPS), "before")
    code, out, err = cellerate("report", "before")
    assert (code, err) == (0, "")
    assert out.splitlines()[3:] == GAINS


def test_table_on_a_terminal_is_as_wide_as_the_terminal_and_in_colour(folders, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.delenv("NO_COLOR", raising=False)
    print_gains(dataclasses.replace(RUN, training_steps=STEPS))
    out = capsys.readouterr().out
    assert "\x1b[32m3.00x" in out
    lines = re.sub(r"\x1b\[[\d;]*m", "", out).splitlines()
    assert max(map(len, lines)) <= 40
    assert " ".join(" ".join(lines).split()).startswith(
        "Keras beside Cellerate, measured in this run Keras Cellerate"
    )
    assert " ".join(" ".join(lines).split()).endswith(f"{GAINS[-3]} {GAINS[-1]}")


def test_report_accepts_the_json_file_and_another_output(cellerate, folders):
    code, out, _ = cellerate("report", "before/report.json", "-o", "new", "--json")
    assert code == 0
    assert json.loads(out)["html"] == "new/report.html"
    assert (folders / "new" / "report.md").exists()
    assert not (folders / "before" / "report.html").exists()


def test_report_of_two_runs_prints_the_changes(cellerate, folders):
    code, out, err = cellerate("report", "before", "after")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "before: book, 2026-11-21 10:03 UTC"
    assert lines[4].split() == ["regression", "file", "1", "kB", "2", "kB", "2.00x", "larger"]
    assert lines[-1] == "1 regression; 0 improvements, 0 figures the same within the noise."
    assert not list(folders.glob("compare.*"))


def test_report_of_two_runs_goes_to_the_given_output(cellerate, folders):
    code, out, _ = cellerate("report", "before", "after", "-o", "compared", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["regressions"] == 1
    assert found["files"] == ["compared/compare.html", "compared/compare.md", "compared/compare.json"]
    assert sorted(path.name for path in (folders / "compared").iterdir()) == [
        "compare.html", "compare.json", "compare.md"
    ]  # fmt: skip


@pytest.mark.parametrize(("order", "code"), [(("before", "after"), 1), (("after", "before"), 0)])
def test_fail_on_regression_exits_with_1_only_after_a_regression(cellerate, folders, order, code):
    ended, out, err = cellerate("report", *order, "--fail-on-regression")
    assert (ended, err) == (code, "")
    assert "the same within the noise." in out


def test_fail_on_regression_exits_with_1_if_nothing_is_comparable(cellerate, folders):
    write_run(dataclasses.replace(RUN, task="series"), "other")
    code, out, err = cellerate("report", "before", "other")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "Nothing could be compared."
    code, out, err = cellerate(
        "report", "before", "other", "--fail-on-regression", "--json", "-o", "compared"
    )
    assert code == 1
    assert json.loads(out)["sentence"] == "Nothing could be compared."
    assert err == (
        "error: --fail-on-regression: nothing of before and other could be compared, so that nothing is known of "
        "regressions. Give two runs of one task that measured something.\n"
    )
    assert (folders / "compared" / "compare.json").exists()


@pytest.fixture
def measured(monkeypatch):
    """Replace the measurements of `optimize` by a run: they need Keras, and other tests cover them."""

    def give(run):
        def optimized(model, data, output, settings, **options):
            write_run(run, output)
            return run

        monkeypatch.setattr(optimize, "start_backend_for", lambda *_, **__: None)
        monkeypatch.setitem(sys.modules, "cellerate.optimization.workflow", SimpleNamespace(run=optimized))
        listener = SimpleNamespace(StageListener=object, TerminalListener=lambda *_: None)
        monkeypatch.setitem(sys.modules, "cellerate.optimization.listener", listener)

    return give


def test_optimize_prints_the_table_last_unless_quiet_or_json(cellerate, folders, measured):
    measured(dataclasses.replace(RUN, training_steps=STEPS))
    words = ["optimize", "m.keras", "--data", "t.txt", "-o", "new"]
    code, out, err = cellerate(*words)
    assert code == 0
    assert out.splitlines() == [RUN.verdict.sentence, *GAINS]
    assert err.startswith("report: new/report.html")
    assert cellerate(*words, "--quiet") == (0, f"{RUN.verdict.sentence}\n", "")
    assert json.loads(cellerate(*words, "--json")[1])["status"] == "finished"


def test_json_of_optimize_is_valid_in_any_terminal_encoding(cellerate, folders, measured):
    run = dataclasses.replace(RUN, model="a µ-model", data="“Krieg”")
    measured(run)
    code, out, err = cellerate("optimize", "m.keras", "--data", "t.txt", "-o", "new", "--json")
    assert (code, err) == (0, "")
    assert out.isascii()
    assert json.loads(out) == json.loads((folders / "new" / "report.json").read_bytes())
    assert json.loads(out)["model"] == "a µ-model"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nowhere"], 3, "there is no nowhere"),
        (["before", "nowhere"], 3, "there is no nowhere"),
        (
            ["before", "after", "before"],
            2,
            "report takes the folder of one run, or of two to compare; 3 are given",
        ),
        (["before", "--fail-on-regression"], 2, "--fail-on-regression needs two runs"),
        (["before", "-o", "before/report.json"], 6, "cannot write"),
    ],
)
def test_error_is_one_line_with_its_exit_code(cellerate, folders, words, code, message):
    ended, out, err = cellerate("report", *words)
    assert (ended, out) == (code, "")
    assert err.startswith(f"error: {message}") and err.count("\n") == 1


def test_damaged_report_exits_with_3(cellerate, folders):
    (folders / "before" / "report.json").write_text("{")
    code, _, err = cellerate("report", "before")
    assert code == 3
    assert "is damaged" in err


def test_missing_package_exits_with_5_and_names_the_extra(cellerate, folders, monkeypatch):
    def require(package, extra, purpose):
        raise BackendError(f"{purpose} needs {package!r}: cellerate[{extra}]")

    monkeypatch.setattr(report, "require", require)
    code, _, err = cellerate("report", "before")
    assert (code, err) == (5, "error: a report needs 'jinja2': cellerate[report]\n")
