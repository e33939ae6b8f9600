"""`cellerate sweep`, with real processes that train tiny models for a few steps."""

import json
import shlex
import signal

import keras
import pytest

from support.optimization.sweeps import made_up

pytestmark = pytest.mark.keras

QUICK = ["--steps", "8", "--rounds", "2"]
SERIES = ["--target", "load", "--window", "6", "--horizon", "2", "--units", "4"]


@pytest.fixture(autouse=True)
def _this_backend(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", keras.backend.backend())


def test_sweep_of_a_series_ends_with_a_table_a_verdict_and_a_command_that_trains(cellerate, here):
    code, out, err = cellerate(
        "sweep", "series", "s.csv", *SERIES, "--batch-size", "4,16", "--no-beside-stock", *QUICK, "-o", "out"
    )
    assert code == 0, err
    assert (
        "3 points: 3 of batch size" in err or "3 points: 2 of batch size; the control is batch size 64" in err
    )
    assert max(map(len, out.splitlines()[:5])) <= 79
    record = json.loads((here / "out" / "sweep.json").read_text())
    by_rows = {point["values"]["batch_size"]: point for point in record["points"]}
    assert [by_rows[rows]["status"] for rows in (4, 16)] == ["measured", "measured"]
    assert [turn["steps"] for turn in by_rows[4]["turns"]] == [4, 4]
    assert by_rows[4]["peak_memory_bytes"] > 10**7
    assert record["verdict"]["sentence"] in out
    assert (here / "out" / "sweep.html").is_file()
    command = shlex.split(record["verdict"]["command"])
    code, _, err = cellerate(*command[1:], "--epochs", "1", "-q")
    assert code == 0, err
    assert (here / "trained.keras").is_file()


def test_sweep_accepts_a_model_for_a_task_and_json_is_the_record(cellerate, here, made):
    code, out, err = cellerate(
        "sweep", made / "text.keras", "t.txt", "--learning-rate", "0.001,0.01", *QUICK, "--json", "-q"
    )
    assert (code, err) == (0, "")
    record = json.loads(out)
    assert (record["task"], record["status"], record["unit"]) == ("text", "finished", "bits/character")
    assert record["model"].endswith("text.keras")
    assert [point["values"] for point in record["points"]] == [
        {"learning_rate": 0.001},
        {"learning_rate": 0.01},
    ]
    assert [len(point["judged"]) for point in record["points"]] == [3, 3]


def test_ctrl_c_keeps_the_measurements_and_the_command_resumes(cellerate, here, monkeypatch):
    def interrupt(rows, kind):
        if [kind for _, kind in asked].count("turn") == 3:
            raise KeyboardInterrupt

    asked = made_up(monkeypatch, interrupt)
    words = [
        "sweep",
        "series",
        "s.csv",
        *SERIES,
        "--batch-size",
        "4,16",
        "--seconds",
        "1",
        "--no-beside-stock",
    ]
    code, out, err = cellerate(*words)
    assert (code, out) == (130, "")
    said, _, command = err.rpartition("To go on:\n")
    assert "what was measured is kept" in said
    assert shlex.split(command) == ["cellerate", *words, "--resume"]
    made_up(monkeypatch)
    code, out, err = cellerate(*shlex.split(command)[1:], "--seconds", "2")
    assert code == 2
    assert "seconds is 1.0 there, seconds is 2.0 now" in err
    code, out, err = cellerate(*shlex.split(command)[1:])
    assert code == 0, err
    assert "is the fastest" in out


def test_ctrl_c_before_any_measurement_leaves_nothing_to_resume(cellerate, here, monkeypatch):
    def interrupt(rows, kind):
        raise KeyboardInterrupt

    made_up(monkeypatch, interrupt)
    code, out, err = cellerate("sweep", "series", "s.csv", *SERIES, "--batch-size", "4,16", "--seconds", "1")
    assert (code, out) == (130, "")
    assert "nothing is kept" in err
    assert "--resume" not in err
    assert not (here / "sweep").exists()


def test_ctrl_c_ends_the_processes_of_the_points(start_cellerate, here):
    process = start_cellerate(
        "sweep", "series", "s.csv", *SERIES, "--batch-size", "4,16", "--seconds", "300", "--no-beside-stock"
    )
    for line in process.stderr:
        if "from here on" in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (
            ["text", "t.txt"],
            2,
            "nothing is swept: give a setting several values, such as --batch-size 8..256",
        ),
        (["text", "t.txt", "--batch-size", "4..1"], 2, "--batch-size has the range '4..1', which must rise"),
        (["text", "t.txt", "--units", "a..b"], 2, "--units must be whole numbers"),
        (["text", "t.txt", "--batch-size", "0..8"], 2, "--batch-size must be whole numbers of at least 1"),
        (["text", "t.txt", "--units", ""], 2, "--units has an empty entry"),
        (
            ["text", "t.txt", "--units", "1..4096", "--batch-size", "1..4096", "--layers", "1..8"],
            2,
            "676 points",
        ),
        (["text", "t.txt", "--units", "1..999999999999"], 2, "give smaller values"),
        (["text", "t.txt", "--length", "1..999999999999"], 2, "give smaller values"),
        (["series", "s.csv", *SERIES[:-2], "--units", "1..999999999999", "--search"], 2, "smaller values"),
        (
            ["text", "t.txt", "--units", "4,8", "--seconds", "1", "--steps", "2"],
            2,
            "--seconds and --steps cannot",
        ),
        (["text", "t.txt", "--units", "4,8", "--trials", "3"], 2, "--trials is for a search: add --search"),
        (["book.keras", "t.txt", "--batch-size", "4,8"], 2, "neither a task nor the file of a model"),
    ],
)
def test_invalid_sweep_is_refused_before_any_process_starts(
    cellerate, here, monkeypatch, words, code, reason
):
    asked = made_up(monkeypatch)
    found, out, err = cellerate("sweep", *words)
    assert (found, out) == (code, "")
    assert reason in err
    assert asked == []
    assert not (here / "sweep").exists()


def test_unusable_data_exit_with_their_own_error_and_leave_no_files(cellerate, here):
    code, _, err = cellerate("sweep", "series", "s.csv", "--batch-size", "4,16", *QUICK, "-q")
    assert code == 2
    assert "no target is named: give the column to forecast (--target), or several. " in err
    assert "s.csv has: date, load, other." in err
    assert not (here / "sweep").exists()


def test_sweep_accepts_the_options_of_train(cellerate, here, monkeypatch):
    made_up(monkeypatch)
    (here / "c.toml").write_text('[sweep.series]\nbatch-size = "4..16"\nclipnorm = 1.0\n')
    code, out, err = cellerate(
        "sweep",
        "series",
        "s.csv",
        *SERIES,
        "--decimal",
        ".",
        "--config",
        "c.toml",
        "--seconds",
        "1",
        "--no-beside-stock",
        "--json",
    )
    assert code == 0, err
    record = json.loads(out)
    assert record["axes"] == {"batch_size": [4, 8, 16]}
    assert record["parts"]["training"] == {"clipnorm": 1.0}
    assert record["parts"]["table"] == {"decimal": "."}
    assert record["parts"]["data"]["target"] == ["load"]


def test_sweep_of_a_model_reads_tables_with_options_that_differ_from_its_training(
    cellerate, here, made, monkeypatch
):
    made_up(monkeypatch)
    words = ["sweep", made / "series.keras", "s.csv", "--batch-size", "4,16", "--no-beside-stock"]
    words += ["--seconds", "1", "--json", "--missing", "drop", "--separator", ","]
    code, out, err = cellerate(*words)
    assert code == 0, err
    parts = json.loads(out)["parts"]
    assert (parts["reading"]["missing"], parts["table"]["separator"]) == ("drop", ",")
