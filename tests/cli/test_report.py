import dataclasses
import json

import pytest

from cellerate.cli import report
from cellerate.errors import BackendError
from cellerate.report.record import Change, Metric, Pass, Run, Verdict, write_run

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
    passes=(Pass("quantize", "Quantised", "done"),),
    verdict=Verdict(
        "The file is 4x smaller.\x1b[2J",
        "int8",
        (Change("size", "file", 4000, 1000, "bytes", False),),
        (),
        "",
    ),
)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Two runs, of which the second has a larger file."""
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


def test_report_draws_a_run_again_beside_its_json(cellerate, folders):
    assert cellerate("report", "before") == (
        0,
        "The file is 4x smaller. [2J\nbefore/report.html\nbefore/report.md\n",
        "",
    )
    assert (folders / "before" / "report.html").read_text().startswith("<!doctype html>")
    assert (folders / "before" / "report.md").read_text().startswith("# book: ")


def test_report_takes_the_file_and_writes_elsewhere(cellerate, folders):
    code, out, _ = cellerate("report", "before/report.json", "-o", "new", "--json")
    assert code == 0
    assert json.loads(out)["html"] == "new/report.html"
    assert (folders / "new" / "report.md").exists()
    assert not (folders / "before" / "report.html").exists()


def test_report_of_two_runs_prints_what_changed(cellerate, folders):
    code, out, err = cellerate("report", "before", "after")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "before: book, 2026-11-21 10:03 UTC"
    assert lines[4].split() == ["regression", "file", "1", "kB", "2", "kB", "2.00x", "larger"]
    assert lines[-1] == "1 regression; 0 improvements, 0 figures the same within the noise."
    assert not list(folders.glob("compare.*"))


def test_report_of_two_runs_is_written_where_it_is_asked_to(cellerate, folders):
    code, out, _ = cellerate("report", "before", "after", "-o", "compared", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["regressions"] == 1
    assert found["files"] == ["compared/compare.html", "compared/compare.md", "compared/compare.json"]
    assert sorted(path.name for path in (folders / "compared").iterdir()) == [
        "compare.html", "compare.json", "compare.md"
    ]  # fmt: skip


@pytest.mark.parametrize(("order", "code"), [(("before", "after"), 1), (("after", "before"), 0)])
def test_fail_on_regression_ends_with_1_only_if_something_became_worse(cellerate, folders, order, code):
    ended, out, err = cellerate("report", *order, "--fail-on-regression")
    assert (ended, err) == (code, "")
    assert "the same within the noise." in out


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


def test_damaged_report_ends_with_3(cellerate, folders):
    (folders / "before" / "report.json").write_text("{")
    code, _, err = cellerate("report", "before")
    assert code == 3
    assert "is damaged" in err


def test_missing_package_ends_with_5_and_names_the_extra(cellerate, folders, monkeypatch):
    def require(package, extra, purpose):
        raise BackendError(f"{purpose} needs {package!r}: cellerate[{extra}]")

    monkeypatch.setattr(report, "require", require)
    code, _, err = cellerate("report", "before")
    assert (code, err) == (5, "error: a report needs 'jinja2': cellerate[report]\n")
