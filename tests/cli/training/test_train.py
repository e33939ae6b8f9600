"""`train`: its output, its next commands and charts, and what is left when it fails."""

import csv
import errno
import io
import json
import re
import shlex

import pytest

from cellerate.errors import OutputError
from cellerate.models.storage import load_model
from support.error_lines import one_error
from support.report.charts import shown

pytestmark = pytest.mark.keras


@pytest.mark.parametrize(("task", "data"), [("text", "t.txt"), ("series", "s.csv"), ("embed", "l.txt")])
def test_train_json_is_the_only_stdout_and_names_the_written_files(cellerate, here, small, task, data):
    code, out, err = cellerate("train", task, data, "-o", "m.keras", *small[task], "--json", "-q")
    assert (code, err) == (0, "")
    found = json.loads(out)
    training = found["training"]
    assert training["status"] == "finished"
    assert training["output"] == "m.keras"
    assert training["epochs"] == len(training["history"]) == 1
    after = training["history"][0].get("val_loss", training["history"][0]["loss"])
    # A forecaster is also evaluated before its first epoch.
    assert training["best_epoch"] == 1 or task == "series"
    assert training["best_loss"] == after or (training["best_epoch"] == 0 and training["best_loss"] > 0)
    assert (here / "m.keras").exists()
    assert (here / training["run_folder"] / "history.csv").exists()


@pytest.mark.parametrize("task", ["text", "series", "embed"])
def test_train_without_its_data_says_so_before_a_framework_starts(cellerate, here, task):
    code, out, err = cellerate("train", task, "none.txt", "-o", "m.keras")
    assert (code, out) == (3, "")
    assert one_error(err) == "error: none.txt not found: expected an existing file, a folder or a glob."
    assert "starting" not in err
    assert not (here / "m.run").exists()


def test_train_text_reports_its_work_and_the_next_commands(cellerate, here, small):
    code, out, err = cellerate(
        "train", "text", "t.txt", "-o", "my book.keras", *small["text"], "--sample", "the "
    )
    assert code == 0
    assert re.fullmatch(r"held-out: \d\.\d{3} bits per character\n", out)
    facts = r"\d+ characters, vocabulary of \d+, [\d,]+ weights"
    for expected in (
        facts,
        "--- sample before training ---\nthe ",
        "--- sample after training ---\nthe ",
        r"epoch 1/1  loss \d",
        r"bits/character",
        r"model: my book\.keras   history: my book\.run/history\.csv",
        r"cellerate generate 'my book\.keras' ",
    ):
        assert re.search(expected, err), expected


def test_train_that_ends_on_a_falling_loss_says_how_to_continue(cellerate, here, small):
    words = ["train", "text", "t.txt", "-o", "m.keras", *small["text"], "--learning-rate", "0.01"]
    code, _, err = cellerate(*words, "--epochs", "3")
    assert code == 0
    told = err.partition("the last epoch was the best by far, so more epochs will help. To go on:\n")[2]
    assert told.splitlines()[0].endswith("--resume --epochs 6")
    assert told.splitlines()[0].count("--epochs") == 1
    code, _, err = cellerate(*words, "--epochs", "3", "--resume", "--epochs", "6")
    assert (code, "epoch 6/6" in err) == (0, True)
    code, _, err = cellerate(*words, "--overwrite", "--epochs", "3", "--learning-rate", "1e-6")
    assert (code, "more epochs will help" in err) == (0, False)


def test_train_series_draws_a_chart_and_compares_with_naive(cellerate, here, small):
    code, out, err = cellerate("train", "series", "s.csv", "-o", "m.keras", *small["series"])
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("test part, ")
    assert [line.split()[0] for line in lines[2:-2]] == ["the", "last", "NLinear"]
    assert lines[-2].startswith("calibrated 80 % interval: holds ")
    assert re.match(r"(Better than|Not better than|As good as) ", lines[-1])
    assert (here / "m.run" / "forecast.png").read_bytes().startswith(b"\x89PNG")
    assert "chart: m.run/forecast.png" in err
    assert "cellerate forecast m.keras s.csv" in err


def test_train_series_writes_the_chart_to_the_plot_path(cellerate, here, small):
    code, out, _ = cellerate(
        "train", "series", "s.csv", "-o", "m.keras", *small["series"], "--plot", "c.svg", "--json", "-q"
    )
    assert code == 0
    assert json.loads(out)["chart"] == "c.svg"
    assert "m: forecasts on the test part" in shown(here / "c.svg").texts


def test_train_series_with_quantiles_forecasts_each_of_them_in_order(cellerate, here, small):
    quantiles = ["--quantile", "0.1", "--quantile", "0.5", "--quantile", "0.9"]
    code, out, _ = cellerate(
        "train", "series", "s.csv", "-o", "m.keras", *small["series"], *quantiles, "--json"
    )
    assert code == 0
    assert set(json.loads(out)["test"]["coverage"]) == {"q0.1", "q0.5", "q0.9"}
    code, out, _ = cellerate("forecast", "m.keras", "s.csv", "--no-intervals")
    assert code == 0
    columns, *rows = csv.reader(io.StringIO(out))
    assert columns == ["time", "load_q0.1", "load_q0.5", "load_q0.9"]
    assert all(sorted(values) == values for values in ([float(v) for v in row[1:]] for row in rows))


def test_train_series_without_a_test_part_says_that_no_chart_was_drawn(cellerate, here, small):
    words = ["--train-fraction", "0.9", "--validation-fraction", "0.1", "--plot", "c.png"]
    code, out, err = cellerate("train", "series", "s.csv", "-o", "m.keras", *small["series"], *words)
    assert (code, out) == (0, "")
    assert "no chart was drawn" in err
    assert not (here / "c.png").exists()


def test_train_embed_reports_how_well_lines_are_reconstructed(cellerate, here, small):
    words = ["--validation-fraction", "0.3", "--max-length", "5"]
    code, out, err = cellerate("train", "embed", "l.txt", "-o", "m.keras", *small["embed"], *words)
    assert code == 0
    assert re.match(r"held-out lines: \d", out)
    assert re.search(r"\d lines are longer than 5 characters and were cut \(--max-length\)", err)
    assert "cellerate embed m.keras l.txt -o vectors.npy" in err


def test_train_embed_names_a_next_command_that_reads_the_same_lines(cellerate, here, small):
    lines = (here / "l.txt").read_text().splitlines()
    records = "".join(json.dumps({"id": n, "title": line}) + "\n" for n, line in enumerate(lines))
    (here / "l.jsonl").write_text(records, encoding="utf-16")
    words = ["--field", "title", "--encoding", "utf-16"]
    code, _, err = cellerate("train", "embed", "l.jsonl", "-o", "m.keras", *small["embed"], *words)
    assert code == 0, err
    told = next(line for line in err.splitlines() if "cellerate embed" in line)
    code, out, err = cellerate(*shlex.split(told)[1:])
    assert code == 0, err
    assert f"{len(lines)} vectors" in out


def test_full_disk_ends_training_with_6_and_no_partial_file(cellerate, here, small, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    words = ["train", "text", "t.txt", "-o", "m.keras", *small["text"], "-q"]
    assert cellerate(*words)[0] == 0
    kept = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    monkeypatch.setattr("os.fsync", full)
    code, out, err = cellerate(*words, "--overwrite")
    assert (code, out) == (6, "")
    assert "the disk is full" in one_error(err)
    # The telemetry of the failed run stays and says that the run failed.
    live = here / "m.run" / "telemetry.jsonl"
    assert json.loads(live.read_text().splitlines()[-1])["status"] == "failed"
    kept[live] = live.read_bytes()
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == kept


def test_disk_full_during_training_keeps_the_checkpoint_and_names_the_resume_command(
    cellerate, here, small, monkeypatch
):
    from cellerate.training import checkpoint

    write, written = checkpoint._write, []

    def full_after_the_first(path, parts):
        if written:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(path)
        write(path, parts)

    monkeypatch.setattr(checkpoint, "_write", full_after_the_first)
    words = ["train", "text", "t.txt", "-o", "m.keras", *small["text"], "--epochs", "2", "-q"]
    code, out, err = cellerate(*words)
    assert (code, out) == (6, "")
    message = one_error(err)
    assert "the disk is full; free some space" in message
    assert "The last checkpoint is kept in m.run." in message
    command = message.rpartition("go on with: ")[2]
    assert command.endswith(" --resume")
    monkeypatch.setattr(checkpoint, "_write", write)
    code, _, err = cellerate(*shlex.split(command)[1:])
    assert (code, err) == (0, "")
    assert (here / "m.keras").exists()


def test_disk_full_after_the_last_epoch_names_a_command_that_writes_the_model(
    cellerate, here, small, monkeypatch
):
    from cellerate.tasks.series import train as series

    def full(*arguments):
        raise OutputError("cannot write m.keras: the disk is full; free some space.")

    words = ["train", "series", "s.csv", "-o", "m.keras", *small["series"], "-q"]
    with monkeypatch.context() as patch:
        patch.setattr(series, "save_model", full)
        code, _, err = cellerate(*words)
    assert code == 6
    command = one_error(err).rpartition("go on with: ")[2]
    code, _, err = cellerate(*shlex.split(command)[1:])
    assert (code, err) == (0, "")
    assert "calibration" in load_model(here / "m.keras")[1].payload


@pytest.mark.parametrize(("task", "judge"), [("series", "judge_windows"), ("text", "_evaluate")])
def test_ctrl_c_while_judging_says_what_is_kept_and_names_a_command_that_goes_on(
    cellerate, here, small, monkeypatch, task, judge
):
    import importlib

    def interrupted(*arguments, **keywords):
        raise KeyboardInterrupt

    data = {"series": "s.csv", "text": "t.txt"}[task]
    with monkeypatch.context() as patch:
        patch.setattr(importlib.import_module(f"cellerate.tasks.{task}.train"), judge, interrupted)
        code, out, err = cellerate("train", task, data, "-o", "m.keras", *small[task], "-q")
    assert (code, out) == (130, "")
    said, _, command = err.partition(" To go on:\n")
    assert said == "interrupted; the last checkpoint is kept in m.run."
    code, _, err = cellerate(*shlex.split(command)[1:])
    assert (code, err) == (0, "")


def test_series_too_short_to_train_on_are_told_as_a_note(cellerate, here):
    rows = [
        f"2024-01-{day + 1:02},{shop},{day % 5}"
        for shop, days in (("a", 30), ("b", 9))
        for day in range(days)
    ]
    (here / "shops.csv").write_text("\n".join(["date,shop,y", *rows]))
    options = (
        "--target y --series-column shop --series-embedding 2 --window 6 --horizon 1 --units 4 --epochs 1"
    )
    code, _, err = cellerate("train", "series", "shops.csv", *options.split(), "-o", "m.keras", "-q")
    assert (code, err) == (
        0,
        "the model was not trained on the series 'b': they are forecast as unknown series.\n",
    )


def test_diverged_training_exits_with_7(cellerate, here, small):
    code, _, err = cellerate(
        "train", "text", "t.txt", "-o", "m.keras", *small["text"], "-q", "--learning-rate", "1e38"
    )
    assert code == 7
    assert "diverged" in one_error(err)
    assert "Try --clipnorm 1 or --learning-rate 0.001." in err
    assert not list(here.glob("m.keras"))


def test_training_far_above_its_first_loss_exits_with_7_and_a_remedy(cellerate, here, small):
    words = ["train", "text", "t.txt", "-o", "m.keras", *small["text"]]
    code, out, err = cellerate(*words, "--learning-rate", "5000", "--optimizer", "sgd")
    assert (code, out) == (7, "")
    assert "best so far" not in err
    error = err.splitlines()[-1]
    assert error.startswith("error: training diverged: the loss of epoch 1 is ")
    assert "Try --clipnorm 1 or --learning-rate 0.01." in error
    assert not (here / "m.keras").exists()
    assert json.loads((here / "m.run" / "history.jsonl").read_text())["gradient_norm"] > 0
    # A short run that hardly learned is not an error.
    code, out, err = cellerate(*words, "--learning-rate", "1e-9", "--overwrite")
    assert code == 0
    assert "Worse than counting: " in err
    assert (
        "It has not learned enough yet: train for longer, or, if the loss falls no more, try --clipnorm 1"
        in err
    )


def test_time_limits_are_reported_with_the_evaluated_share(cellerate, here, small):
    words = ["train", "series", "s.csv", "-o", "m.keras", *small["series"]]
    code, out, err = cellerate(*words, "--max-seconds", "60", "--time-budget", "600")
    assert code == 0
    assert "time: at most 1 min 00 s of training, about 10 min 00 s in all" in err
    assert "for lack of time" not in out
    code, out, _ = cellerate(*words, "--max-seconds", "60", "--overwrite", "--json", "-q")
    assert json.loads(out)["training"]["judged"] is None


def test_unfinished_run_is_not_overwritten_nor_resumed_with_other_settings(cellerate, here, small):
    words = ["train", "text", "t.txt", "-o", "m.keras", *small["text"], "-q"]
    code, _, err = cellerate(*words, "--epochs", "500", "--max-seconds", "0.2")
    assert code == 0
    code, _, err = cellerate(*words)
    assert code == 2
    assert "has not ended" in one_error(err)
    code, _, err = cellerate(*words, "--epochs", "900", "--learning-rate", "0.5", "--resume")
    assert code == 4
    assert "--learning-rate was 0.001, now 0.5" in one_error(err)
    (here / "t.txt").write_text("other " * 200)
    code, _, err = cellerate(*words, "--epochs", "900", "--resume")
    assert code == 4
    one_error(err)


@pytest.mark.backends
def test_config_file_alone_starts_a_training(cellerate, here, small):
    (here / "c.toml").write_text(
        'quiet = true\n[train.text]\npaths = ["t.txt"]\noutput = "m.keras"\nembedding = 4\nunits = 5\nlength = 6\n'
        'epochs = 2\nbatch-size = 8\njit-compile = false\ninclude = ["*.txt"]\n'
    )
    code, out, err = cellerate("train", "text", "--config", "c.toml", "--epochs", "1", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["training"]["epochs"] == 1


def test_series_without_a_window_between_its_gaps_names_options(cellerate, here, small):
    rows = (here / "s.csv").read_text().splitlines()
    (here / "holes.csv").write_text(
        "\n".join(row for number, row in enumerate(rows) if number % 5 or not number)
    )
    code, _, said = cellerate("train", "series", "holes.csv", "-o", "m.keras", *small["series"])
    assert code == 3
    assert "--gaps ignore" in said and "(--window, --horizon)" in said
