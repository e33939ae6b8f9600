"""`cellerate bench` as users call it: its files and output, and one clear error before any work."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cellerate.cli.inspection import bench
from cellerate.errors import BackendError
from cellerate.observe.bench import load, race
from cellerate.observe.bench.cases import Contestant

PROGRAM = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); sys.argv[0] = 'cellerate'; "
    "from cellerate.cli.main import main; main()"
)


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch, tmp_path):
    """Works in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(load, "_WATCHED_S", 0.0)


@pytest.fixture
def alone(monkeypatch):
    """Race packed models only: others take seconds to start, and other tests cover them."""
    ours = Contestant("cellerate", "Cellerate", ours=True)

    def table(case, backends, against=""):
        here = [ours] if case != "train" else []
        there = [Contestant("cellerate", "Cellerate", ours=True, python=against)] if against else []
        return (*here, *there, Contestant("gone", "Gone", packages=("no_such_package",)))

    monkeypatch.setattr(race, "contestants", table)


@pytest.fixture
def records(cellerate, alone, tmp_path):
    """Two records of this machine."""
    assert cellerate("bench", "--quick", "--only", "infer", "-o", "a.json")[0] == 0
    (tmp_path / "b.json").write_text(
        json.dumps(json.loads((tmp_path / "a.json").read_text()) | {"run": "another"})
    )


def test_help_of_bench_explains_its_options_and_has_an_example(cellerate):
    code, out, err = cellerate("bench", "--help")
    assert (code, err) == (0, "")
    assert "cellerate bench -o today.json" in out
    for option in ("--only", "--backend", "--quick", "--compare", "--against", "--threshold", "--json"):
        assert option in out


def test_bench_prints_a_table_and_writes_the_record_and_its_page(cellerate, alone, tmp_path):
    code, out, err = cellerate("bench", "--quick", "--only", "infer", "--only", "generate", "-o", "now.json")
    assert code == 0
    assert "infer, 1 row, int8: Cellerate makes " in out and "generate, one stream, float32" in out
    assert "  infer: Gone: not installed: 'no_such_package'" in out
    assert out.splitlines()[-2:] == ["now.json", "now.html"]
    assert "session 1, infer: Cellerate" in err and "Traceback" not in err
    record = json.loads((tmp_path / "now.json").read_text())
    assert record["quick"] and {entry["case"] for entry in record["entries"]} == {"infer", "generate"}
    assert record["command"] == "cellerate bench --quick --only infer --only generate -o now.json"
    assert (tmp_path / "now.html").read_text().startswith("<!doctype html>")
    assert {path.name for path in tmp_path.iterdir()} == {"now.json", "now.html"}


def test_json_is_the_record_and_an_unnamed_file_gets_a_timestamp(cellerate, alone, tmp_path):
    code, out, _ = cellerate("bench", "--quick", "--only", "infer", "--json")
    assert code == 0
    told = json.loads(out)
    assert told["schema"] == 1 and len(told["entries"]) == 4
    (written,) = tmp_path.glob("bench-20*.json")
    assert told["files"] == [written.name, written.with_suffix(".html").name]


def test_wrong_result_of_cellerate_exits_with_1(cellerate, alone, monkeypatch, tmp_path):
    monkeypatch.setattr(race, "command_of", race.command_of)
    start = race.command_of

    def wrong(one, told):
        words = start(one, told)
        spoilt = "from cellerate.observe.bench import contestant as c; c.BOUNDS['float32'] = -1.0; c.main()"
        return [words[0], "-P", "-c", spoilt, words[-1]] if one.ours else words

    original = race.Race.__init__
    monkeypatch.setattr(
        race.Race, "__init__", lambda self, *given, **more: original(self, *given, command=wrong, **more)
    )
    code, out, _ = cellerate("bench", "--quick", "--only", "infer", "-o", "a.json")
    assert code == 1
    assert "warning: Cellerate's own result was wrong (infer, 1 row, float32, infer, 4 rows, float32)." in out
    record = json.loads((tmp_path / "a.json").read_text())
    assert {entry["precision"] for entry in record["entries"]} == {"int8"}


def test_comparison_of_quick_runs_gives_no_verdict(cellerate, records, tmp_path):
    code, out, err = cellerate("bench", "--compare", "a.json", "b.json")
    assert (code, err) == (0, "")
    assert out.startswith("before: cellerate ") and out.endswith("Nothing could be judged.\n")
    assert "too few sessions to tell" in out
    code, _, err = cellerate("bench", "--compare", "a.json", "b.json", "--fail-on-regression")
    assert code == 1 and err.startswith("error: --fail-on-regression: nothing could be judged")
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".html"}


def slowed(path, factor):
    """Make the int8 jobs of a record slower, over more sessions than were measured."""
    record = json.loads(path.read_text())
    record["sessions"], record["run"] = 4, f"slowed {factor}"
    for entry in record["entries"]:
        entry["turns"] = [
            dict(entry["turns"][0], session=session, round=turn) for session in range(4) for turn in range(3)
        ]
        for turn in entry["turns"] if entry["precision"] == "int8" else ():
            turn["seconds"] = [factor * one for one in turn["seconds"]]
    return record


@pytest.mark.parametrize(
    ("factor", "words", "code"),
    [(1.08, "2 regressions", 1), (1.02, "Nothing regressed", 0), (0.5, "Nothing regressed", 0)],
)
def test_fail_on_regression_exits_with_1_only_after_a_slowdown(
    cellerate, records, tmp_path, factor, words, code
):
    for name, by in (("a.json", 1.0), ("b.json", factor)):
        (tmp_path / name).write_text(json.dumps(slowed(tmp_path / "a.json", by)))
    assert cellerate("bench", "--compare", "a.json", "b.json")[0] == 0
    ended, out, _ = cellerate(
        "bench", "--compare", "a.json", "b.json", "--fail-on-regression", "-o", "both.json", "--json"
    )
    assert ended == code
    told = json.loads(out)
    assert told["sentence"].startswith(words) and told["files"] == ["both.json", "both.html"]
    assert told["regressions"] == json.loads((tmp_path / "both.json").read_text())["regressions"]
    assert "Two runs compared" in (tmp_path / "both.html").read_text()
    assert cellerate("bench", "--compare", "a.json", "b.json", "--fail-on-regression", "--threshold", "0.01")[
        0
    ] == (factor > 1)


def test_against_measures_two_versions_in_turn(cellerate, alone, tmp_path):
    code, out, err = cellerate(
        "bench", "--quick", "--only", "infer", "--against", sys.executable, "-o", "now.json"
    )
    assert code == 0
    assert "session 1, infer: Cellerate, Cellerate" in err
    here, there = (json.loads((tmp_path / name).read_text()) for name in ("now.json", "now-against.json"))
    assert here["run"] == there["run"] and here["entries"] != there["entries"]
    assert [entry["call"] for entry in here["entries"]] == [entry["call"] for entry in there["entries"]]
    assert out.splitlines()[-5:] == [
        "now.json",
        "now.html",
        "now-against.json",
        "now-against.html",
        "now-compared.html",
    ]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--only", "sleep"], 2, "--only must be one of train, infer, generate, not 'sleep'"),
        (["--backend", "mxnet"], 5, "unknown backend 'mxnet': expected one of tensorflow, jax, torch"),
        (["--time-budget", "0"], 2, "--time-budget must be a number above 0"),
        (["--threshold", "0"], 2, "--threshold must be a number above 0"),
        (["-o", "a.html"], 2, "--output is 'a.html'; expected a name that ends in '.json'"),
        (["-o", "file/a.json"], 6, "cannot write file/a.json: a part of the path is a file"),
        (["--fail-on-regression"], 2, "--fail-on-regression needs a comparison"),
        (["--compare", "no.json", "b.json"], 3, "there is no no.json"),
        (
            ["--compare", "a.json", "b.json", "-o", "./b.json"],
            2,
            "--output is 'b.json', one of the records to compare",
        ),
        (["--compare", "file", "file"], 3, "file is not a record of `cellerate bench`"),
        (["--compare", "file", "file", "--quick"], 2, "--compare reads two records and measures nothing"),
        (["--against", "/no/python"], 2, "/no/python cannot be run as an interpreter"),
    ],
)
def test_wrong_options_give_one_error_before_any_work(cellerate, monkeypatch, tmp_path, words, code, message):
    monkeypatch.setattr(race.Race, "run", lambda *_: pytest.fail("it began"))
    (tmp_path / "file").write_text("{")
    ended, out, err = cellerate("bench", *words)
    assert (ended, out) == (code, "")
    assert err.startswith(f"error: {message}") and err.count("\n") == 1


def test_missing_backend_exits_with_5(cellerate, monkeypatch):
    monkeypatch.setattr(bench, "installed_backends", lambda: ["jax"])
    code, _, err = cellerate("bench", "--backend", "torch")
    assert (code, err) == (5, "error: backend 'torch' is not installed (installed here: jax).\n")


def test_missing_package_exits_with_5_and_names_the_extra(cellerate, monkeypatch):
    def require(package, extra, purpose):
        raise BackendError(f"{purpose} needs {package!r}: cellerate[{extra}]")

    monkeypatch.setattr(bench, "require", require)
    assert cellerate("bench")[::2] == (5, "error: bench needs 'jinja2': cellerate[report]\n")


def test_ctrl_c_ends_all_contestants_and_writes_nothing(tmp_path):
    (tmp_path / "temporary").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "bench", "--only", "infer", "-o", "a.json"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"TMPDIR": str(tmp_path / "temporary")},
    )  # fmt: skip
    with process:
        for line in process.stderr:
            if line.startswith("making the model"):
                break
        # The first contestant runs or is about to start.
        end = time.monotonic() + 60
        while not (found := contestants_in(tmp_path)) and time.monotonic() < end:
            time.sleep(0.01)
        assert found
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == "" and "Traceback" not in err
    assert contestants_in(tmp_path) == []
    assert list(tmp_path.rglob("*.*")) == []


def contestants_in(folder: Path) -> list[int]:
    """The processes whose command line names a folder below this one."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdecimal() and int(place.name) != os.getpid():
            try:
                words = (place / "cmdline").read_bytes()
            except OSError:  # the process has just ended
                continue
            if b"observe.bench.contestant" in words and str(folder).encode() in words:
                found.append(int(place.name))
    return found
