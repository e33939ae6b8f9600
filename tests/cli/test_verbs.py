"""The verbs that need a backend, run in this process on small models."""

import csv
import io
import json
import re
import shlex
import subprocess
import sys
import zipfile

import numpy as np
import pyarrow.parquet as pq
import pytest

from cellerate.runtime.packed import load
from support.report.charts import shown

pytestmark = pytest.mark.keras


def one_error(err):
    """The single line of an error; nothing else was printed."""
    lines = [line for line in err.splitlines() if line.strip()]
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    return lines[0]


# --- what comes out when all is well


@pytest.mark.parametrize(("task", "data"), [("text", "t.txt"), ("series", "s.csv"), ("embed", "l.txt")])
def test_train_json_is_all_of_stdout_and_names_what_was_written(cellerate, here, small, task, data):
    code, out, err = cellerate("train", task, data, "-o", "m.keras", *small[task], "--json", "-q")
    assert (code, err) == (0, "")
    found = json.loads(out)
    training = found["training"]
    assert training["status"] == "finished"
    assert training["output"] == "m.keras"
    assert training["epochs"] == len(training["history"]) == 1
    after = training["history"][0].get("val_loss", training["history"][0]["loss"])
    # A forecaster is judged before its first epoch, too.
    assert training["best_epoch"] == 1 or task == "series"
    assert training["best_loss"] == after or (training["best_epoch"] == 0 and training["best_loss"] > 0)
    assert (here / "m.keras").exists()
    assert (here / training["run_folder"] / "history.csv").exists()


def test_train_text_says_what_it_does_and_what_comes_next(cellerate, here, small):
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


def test_train_series_writes_the_chart_where_plot_says(cellerate, here, small):
    code, out, _ = cellerate(
        "train", "series", "s.csv", "-o", "m.keras", *small["series"], "--plot", "c.svg", "--json", "-q"
    )
    assert code == 0
    assert json.loads(out)["chart"] == "c.svg"
    assert "m: forecasts on the test part" in shown(here / "c.svg").texts


def test_forecast_of_many_series_draws_twelve_of_them(cellerate, here, small):
    rows = [line.split(",") for line in (here / "s.csv").read_text().splitlines()]
    with (here / "many.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*rows[0], "shop"])
        table.writerows([*row, f"shop {n}"] for n in range(13) for row in rows[1:60])
    settings = [*small["series"], "--series-column", "shop"]
    assert cellerate("train", "series", "many.csv", "-o", "m.keras", *settings, "-q")[0] == 0
    code, _, err = cellerate("forecast", "m.keras", "many.csv", "--plot", "f.svg")
    assert (code, err.count("written: f.svg")) == (0, 1)
    assert shown(here / "f.svg").panels == 12
    assert {"12 of 13 series", "m: the next 2 hours", "shop 0", "shop 12"} <= set(shown(here / "f.svg").texts)


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


def test_packed_series_trains_and_forecasts_as_its_tables_do(cellerate, here, small):
    code, out, _ = cellerate("data", "pack", "s.csv", "-o", "s.series", "--json")
    assert code == 0
    told = json.loads(out)
    assert (told["rows"], told["columns"], told["series"]) == (120, ["load", "other"], 1)
    assert told["bytes"] == sum(path.stat().st_size for path in (here / "s.series").iterdir())
    assert cellerate("data", "pack", "s.csv", "-o", "s.series")[0] == 0, "packed already"
    for data, model in (("s.csv", "a.keras"), ("s.series", "b.keras")):
        assert cellerate("train", "series", data, "-o", model, *small["series"], "-q")[0] == 0
    forecasts = [cellerate("forecast", "a.keras", "s.csv"), cellerate("forecast", "b.keras", "s.series")]
    assert forecasts[0] == forecasts[1]
    # Any of its columns can be the target, in any order and without the others.
    for target, feature in (("other", "load"), ("load", "other"), ("other", "other")):
        words = ["--target", target, "--feature", feature, *small["series"][2:]]
        for data, model in (("s.csv", "a.keras"), ("s.series", "b.keras")):
            assert cellerate("train", "series", data, "-o", model, *words, "-q", "--overwrite")[0] == 0
        shown = [cellerate("forecast", m, d) for m in ("a.keras", "b.keras") for d in ("s.csv", "s.series")]
        assert shown[0][0] == 0 and all(one == shown[0] for one in shown)


def test_model_of_a_packed_series_reads_other_tables_as_that_was_read(cellerate, here, small):
    rows = (here / "s.csv").read_text().splitlines()
    shops = [f"{row},{shop}" for shop in "ab" for row in rows[1:]]
    shops[50] = shops[50].replace(shops[50].split(",")[1], "", 1)
    (here / "shops.csv").write_text("\n".join([rows[0] + ",shop", *shops]) + "\n")
    words = ["--series-column", "shop", "--missing", "ffill"]
    assert cellerate("data", "pack", "shops.csv", "-o", "shops.series", *words)[0] == 0
    assert cellerate("train", "series", "shops.series", "-o", "m.keras", *small["series"], "-q")[0] == 0
    code, out, _ = cellerate("forecast", "m.keras", "shops.csv")
    assert code == 0
    assert {row[0] for row in list(csv.reader(io.StringIO(out)))[1:]} == {"a", "b"}
    assert cellerate("forecast", "m.keras", "shops.series")[1] == out


def test_packed_series_that_cannot_be_used_says_why(cellerate, here, small):
    assert cellerate("data", "pack", "s.csv", "-o", "s.series", "--missing", "ffill")[0] == 0
    for words, said in (
        (["data", "pack", "s.csv", "-o", "s.packed"], "named *.series"),
        (["data", "pack", "s.csv", "-o", "s.series"], "is not what would be packed"),
        (["data", "pack", "s.csv", "-o", "t.series", "--missing", "never"], "'never' is not one of 'error'"),
        (["data", "pack", "s.csv", "-o", "t.series", "--column", "date"], "is not a number"),
        (["data", "pack", "none.csv", "-o", "t.series"], "there is no file none.csv"),
        (["train", "series", "s.series", "s.csv", "-o", "m.keras", *small["series"]], "opened alone"),
        (
            ["train", "series", "s.series", "-o", "m.keras", *small["series"], "--missing", "drop"],
            "packed with",
        ),
        (["train", "series", "s.series", "-o", "m.keras", "--target", "none"], "has no column"),
    ):
        code, out, err = cellerate(*words)
        assert code in (2, 3) and said in err and not out, (words, err)
    assert sorted(path.name for path in here.glob("*.series*")) == ["s.series"]
    for path, content in (
        (here / "s.series" / "values.npy", b"x" * 100),
        (here / "s.series" / "series.json", b"{"),
    ):
        path.write_bytes(content)
        code, _, err = cellerate("train", "series", "s.series", "-o", "m.keras", *small["series"])
        assert code == 3 and "damaged" in err


def test_train_embed_says_how_well_lines_come_back(cellerate, here, small):
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
def test_generate_takes_every_rule_for_a_model_and_for_a_packed_one(cellerate, made, tmp_path, suffix):
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
        (["-t", "1"], "--temperature"),  # the default, but said
        (["--top-k", "3"], "--top-k"),
        (["--top-p", "0.9"], "--top-p"),
        (["--min-p", "0.1", "--implementation", "cellerate-cpu"], "--min-p"),
        (["--repetition-penalty", "1.1"], "--repetition-penalty"),
        (["--seed", "1", "--temperature", "1"], "--temperature and --seed"),
    ],
)
def test_generate_with_beams_and_what_says_how_to_draw_is_refused(
    cellerate, made, tmp_path, suffix, words, named
):
    cellerate("pack", made / "text.keras", "-o", tmp_path / "t.cell")
    model = made / "text.keras" if suffix == "keras" else tmp_path / "t.cell"
    code, out, err = cellerate("generate", model, "the ", "--beams", "2", *words)
    assert (code, out) == (2, "")
    assert f"would ignore {named}." in one_error(err)


def test_generate_with_beams_takes_a_configuration_file_that_says_how_to_draw(cellerate, made, tmp_path):
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
def test_generate_leaves_unknown_characters_out_where_asked(cellerate, made, tmp_path, suffix):
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
def test_generate_from_a_packed_file_refuses_in_one_line(cellerate, made, tmp_path, words, code, message):
    cellerate("pack", made / "text.keras", "-o", tmp_path / "t.cell")
    found, out, err = cellerate("generate", tmp_path / "t.cell", *words)
    assert (found, out) == (code, "")
    assert message in one_error(err)


def test_pack_writes_a_file_that_loads_without_keras_and_says_how_large_it_is(cellerate, made, tmp_path):
    words = ["pack", made / "text.keras", "-o", tmp_path / "t.cell", "--dtype", "int8"]
    code, out, err = cellerate(*words)
    assert (code, err) == (0, "")
    assert re.fullmatch(rf"{re.escape(str(tmp_path))}/t\.cell: [\d.]+ kB \(.*text\.keras: [\d.]+ kB\)\n", out)
    code, out, _ = cellerate(*words, "--json")
    found = json.loads(out)
    assert found["output_bytes"] == (tmp_path / "t.cell").stat().st_size < found["model_bytes"]
    from cellerate.runtime.packed import load

    assert load(tmp_path / "t.cell").task == "text"
    code, out, err = cellerate(*words[:-1], "int4")
    assert (code, out) == (2, "")
    assert "int4" in one_error(err)


@pytest.mark.parametrize("suffix", ["keras", "cell"])
def test_export_says_what_it_wrote_and_how_exact_it_is(cellerate, made, tmp_path, suffix):
    model = made / "text.keras"
    if suffix == "cell":
        cellerate("pack", model, "-o", tmp_path / "t.cell")
        model = tmp_path / "t.cell"
    words = ["export", model, "-o", tmp_path / "t.onnx", "--stateful"]
    code, out, err = cellerate(*words)
    assert (code, err) == (0, "")
    shown = re.sub(r"[\d.]+ kB", "SIZE", re.sub(r"\d\.\de-\d\d", "ERROR", out))
    # Where OpenVINO is installed, what it makes of it is told, too.
    shown = re.sub(r"also     .*\n", "", shown)
    assert shown == (
        f"{tmp_path}/t.onnx: SIZE, onnx, float32\n"
        "inputs   ids, h_0, c_0\n"
        "outputs  logits, h_0_next, c_0_next\n"
        "checked  in ONNX Runtime, batches of 1 and 5 rows, 1, 2, 9 and 40 steps: error ERROR (at most 1e-05)\n"
    )
    code, out, _ = cellerate(*words, "--dtype", "int8", "--json")
    found = json.loads(out)
    assert found["output_bytes"] == (tmp_path / "t.onnx").stat().st_size
    assert (found["precision"], found["tolerance"]) == ("int8", None)
    assert 1e-5 < found["error"] < 0.1
    _, out, _ = cellerate(*words, "--dtype", "int8")
    assert out.splitlines()[-1 - ("also" in out)] == (
        f"exact    on every processor: two products add up to {found['largest_pair']:,} at most, in 16 bits"
    )


def test_export_judges_on_data_and_keeps_nothing_that_is_worse(cellerate, made, tmp_path):
    words = ["export", made / "text.keras", "-o", tmp_path / "t.tflite", "--to", "litert", "--dtype", "int8"]
    words += ["--data", made / "t.txt", "--max-quality-loss"]
    code, out, err = cellerate(*words, "0.5")
    assert (code, err) == (0, "")
    shown = re.sub(r"\d+\.\d+", "N", out.splitlines()[-1])
    assert re.fullmatch(
        r"quality  bits per character N → N, (unchanged|N% (worse|better)) \(at most N% worse\)", shown
    )
    (tmp_path / "t.tflite").unlink()
    code, out, err = cellerate(*words, "-1")
    assert (code, out) == (2, "")
    assert "max_loss is -1" in one_error(err)
    assert not (tmp_path / "t.tflite").exists()


def test_forecast_prints_a_table_and_writes_the_same(cellerate, made, tmp_path):
    code, out, err = cellerate(
        "forecast", made / "series.keras", made / "s.csv", "-o", tmp_path / "f.csv", "--plot", tmp_path / "f.png"
    )  # fmt: skip
    assert code == 0
    rows = list(csv.reader(io.StringIO(out)))
    assert rows[0] == ["time", "load", "load_low80", "load_high80"]
    assert float(rows[1][2]) < float(rows[1][1]) < float(rows[1][3])
    assert [row[0] for row in rows[1:]] == ["2024-01-06 00:00:00", "2024-01-06 01:00:00"]
    written = list(csv.reader(io.StringIO((tmp_path / "f.csv").read_text())))
    assert written[0] == rows[0]
    assert float(written[1][1]) == pytest.approx(float(rows[1][1]), rel=1e-4)
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    assert err.count("written: ") == 2
    _, as_json, _ = cellerate("forecast", made / "series.keras", made / "s.csv", "--json")
    (found,) = json.loads(as_json)["forecasts"]
    assert [row["time"] for row in found["rows"]] == [row[0] for row in rows[1:]]
    _, out, _ = cellerate("forecast", made / "series.keras", made / "s.csv", "--level", "0.5")
    assert out.splitlines()[0] == "time,load,load_low50,load_high50"
    _, out, _ = cellerate("forecast", made / "series.keras", made / "s.csv", "--no-intervals")
    assert out.splitlines()[0] == "time,load"


def test_forecast_table_quotes_the_names_of_series(cellerate, here, small):
    rows = [line.split(",") for line in (here / "s.csv").read_text().splitlines()]
    with (here / "many.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*rows[0], "shop"])
        table.writerows([*row, shop] for shop in ("Bonn, East", 'the "Inn"') for row in rows[1:])
    cellerate(
        "train", "series", "many.csv", "-o", "m.keras", *small["series"], "--series-column", "shop", "-q"
    )
    code, out, _ = cellerate("forecast", "m.keras", "many.csv", "--no-intervals")
    assert code == 0
    found = list(csv.reader(io.StringIO(out)))
    assert {len(row) for row in found} == {3}
    assert [row[0] for row in found[1:]] == ["Bonn, East"] * 2 + ['the "Inn"'] * 2


def test_embed_writes_a_vector_for_every_line_in_both_formats(cellerate, made, tmp_path):
    code, out, err = cellerate("embed", made / "embed.keras", made / "l.txt", "-o", tmp_path / "v.npy")
    assert (code, err) == (0, "")
    assert out == f"{tmp_path / 'v.npy'}: 15 vectors of 6\n"
    code, out, _ = cellerate(
        "embed", made / "embed.keras", made / "l.txt", "-o", tmp_path / "v.parquet", "--json", "--batch-size", "4"
    )  # fmt: skip
    assert json.loads(out) == {"output": str(tmp_path / "v.parquet"), "lines": 15, "dimensions": 6}
    table = pq.read_table(tmp_path / "v.parquet")
    assert table.column("line").to_pylist() == (made / "l.txt").read_text().splitlines()
    np.testing.assert_allclose(
        np.load(tmp_path / "v.npy"), np.array(table.column("vector").to_pylist()), atol=1e-5
    )


def test_packed_models_forecast_and_embed_as_keras_models_do(cellerate, made, tmp_path):
    for task in ("series", "embed"):
        assert cellerate("pack", made / f"{task}.keras", "-o", tmp_path / f"{task}.cell")[0] == 0

    def tables(model, name):
        words = ["forecast", model, made / "s.csv"]
        code, out, err = cellerate(*words, "-o", tmp_path / name, "--plot", tmp_path / "f.png")
        assert (code, err.count("written: ") + err.count("replaced: ")) == (0, 2)
        _, as_json, _ = cellerate(*words, "--json")
        (found,) = json.loads(as_json)["forecasts"]
        rows = list(csv.reader(io.StringIO(out)))
        assert rows == [
            list(found["rows"][0]),
            *([f"{v:.6g}" if isinstance(v, float) else v for v in r.values()] for r in found["rows"]),
        ]
        return list(csv.reader(io.StringIO((tmp_path / name).read_text())))

    (columns, *found), (expected_columns, *expected) = (
        tables(tmp_path / "series.cell", "packed.csv"),
        tables(made / "series.keras", "keras.csv"),
    )
    assert columns == expected_columns
    assert [row[0] for row in found] == [row[0] for row in expected]
    # The load goes from -1 to 1.
    values = [[float(row[1]) for row in rows] for rows in (found, expected)]
    np.testing.assert_allclose(*values, atol=2e-5, rtol=0)

    vectors = []
    for model, name in ((tmp_path / "embed.cell", "packed.npy"), (made / "embed.keras", "keras.npy")):
        code, out, err = cellerate("embed", model, made / "l.txt", "-o", tmp_path / name, "--batch-size", "4")
        assert (code, out, err) == (0, f"{tmp_path / name}: 15 vectors of 6\n", "")
        vectors.append(np.load(tmp_path / name))
    np.testing.assert_allclose(*vectors, atol=1e-5 * np.ptp(vectors[1]), rtol=0)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ["forecast", "embed.cell", "s.csv"],
            4,
            "task is 'embed', but forecast needs a model of the task 'series'",
        ),
        (
            ["embed", "series.cell", "l.txt"],
            4,
            "task is 'series', but embed needs a model of the task 'embed'",
        ),
        (["forecast", "series.cell", "l.txt"], 3, "l.txt"),
        (["forecast", "series.cell", "s.csv", "-o", "l.txt/f.csv"], 6, "f.csv"),
        (["embed", "embed.cell", "l.txt", "-o", "v.csv"], 2, "v.csv"),
        (["embed", "embed.cell", "zebra.txt"], 3, "'z'"),
        (["embed", "embed.cell", "l.txt", "--batch-size", "0"], 2, "--batch-size "),
        (["embed", "none.cell", "l.txt"], 3, "none.cell"),
        (["forecast", "none.cell", "s.csv"], 3, "none.cell"),
        (["embed", "cut.cell", "l.txt"], 3, "cut.cell is damaged"),
        (["evaluate", "embed.cell", "l.txt"], 4, "embed.cell is a packed model of the task 'embed'"),
        (["evaluate", "embed.cell", "l.txt"], 4, "embed.cell is a packed model of the task 'embed'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_error_of_a_packed_model_is_one_line_with_its_exit_code(cellerate, here, made, words, code, message):
    for task in ("series", "embed"):
        cellerate("pack", made / f"{task}.keras", "-o", f"{task}.cell")
    (here / "cut.cell").write_bytes((here / "embed.cell").read_bytes()[:-7])
    (here / "zebra.txt").write_text("z\nz\n")
    before = sorted(here.rglob("*"))
    found, out, err = cellerate(*words)
    assert (found, out) == (code, "")
    assert message in one_error(err)
    assert sorted(here.rglob("*")) == before


def test_evaluate_of_a_packed_text_model_scores_the_text_from_end_to_end(cellerate, made, tmp_path):
    cellerate("pack", made / "text.keras", "-o", tmp_path / "t.cell")
    code, out, err = cellerate("evaluate", tmp_path / "t.cell", made / "t.txt", "--json")
    assert (code, err) == (0, "")
    found, wanted = json.loads(out), load(tmp_path / "t.cell").score((made / "t.txt").read_text())
    assert found["bits_per_character"] == pytest.approx(wanted.bits_per_character)
    assert (found["tokens"], found["characters"]) == (wanted.tokens, wanted.characters)
    _, words, _ = cellerate("evaluate", tmp_path / "t.cell", made / "t.txt")
    assert f"{wanted.bits_per_character:.4f}" in words
    # The same text in windows, each read from zeros, is another quantity.
    _, keras, _ = cellerate("evaluate", made / "text.keras", made / "t.txt", "--json")
    from cellerate.tasks.inference import evaluate

    in_windows = evaluate(made / "text.keras", made / "t.txt")["bits_per_character"]
    assert json.loads(keras)["bits_per_character"] == pytest.approx(in_windows)
    assert in_windows != pytest.approx(wanted.bits_per_character, rel=1e-6)
    code, out, err = cellerate("evaluate", tmp_path / "t.cell", "nowhere.txt")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "nowhere.txt" in err


@pytest.mark.parametrize(("task", "data"), [("text", "t.txt"), ("series", "s.csv"), ("embed", "l.txt")])
def test_evaluate_prints_the_same_in_words_and_json(cellerate, made, task, data):
    code, out, err = cellerate("evaluate", made / f"{task}.keras", made / data, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["task"] == task
    _, words, _ = cellerate("evaluate", made / f"{task}.keras", made / data)
    if task == "series":
        assert f"judged on {found['windows']:,} windows: " in words
        assert f"{found['model']['mae']:,.4f}" in words
        assert words.splitlines()[-1] == found["verdict"]["sentence"]
        return
    for name, value in found.items():
        assert re.search(rf"^{name}\b", words, re.MULTILINE)
        if isinstance(value, float):
            assert f"{value:,.4f}" in words


@pytest.mark.backends
def test_explain_names_every_recurrent_layer(cellerate, made):
    code, out, err = cellerate("explain", made / "text.keras", "--json")
    assert (code, err) == (0, "")
    assert "lstm_1" in json.dumps(json.loads(out))
    _, words, _ = cellerate("explain", made / "embed.keras")
    assert "encoder" in words
    assert "decoder" in words


def test_explain_of_a_trained_model_says_that_train_accelerated_it(cellerate, made, tmp_path):
    note = "accelerated by `cellerate train`, and explained so; in your own program call cellerate.accelerate(model)"
    code, out, _ = cellerate("explain", made / "text.keras")
    assert code == 0
    assert note in out.splitlines() and "kernel  cellerate-c" in out
    assert "'embedding': its " in out and "starts with a deviation" not in out
    import keras

    # Training sums the gradients, which matters on TensorFlow alone.
    assert ("is summed by row" in out) is (keras.backend.backend() == "tensorflow")

    own = keras.Sequential([keras.Input((4, 3)), keras.layers.LSTM(2)])
    own.save(tmp_path / "own.keras")
    code, out, _ = cellerate("explain", tmp_path / "own.keras")
    assert code == 0
    assert note not in out and "-> cellerate.accelerate(model)" in out


def test_pack_says_all_that_it_cannot_take_and_writes_nothing(cellerate, tmp_path):
    import keras

    chain = [keras.layers.Conv1D(3, 2, name="conv"), keras.layers.LSTM(2, "softmax", "glu", name="soft")]
    keras.Sequential([keras.Input((4, 3)), *chain]).save(tmp_path / "own.keras")
    code, out, err = cellerate("pack", tmp_path / "own.keras", "-o", tmp_path / "own.cell")
    assert (code, out) == (4, "")
    for part in (
        "conv (Conv1D) is not a layer",
        "soft (LSTM) has the activation",
        "has the recurrent_activation",
    ):
        assert part in err
    assert not (tmp_path / "own.cell").exists()


def test_explain_of_a_packed_model_measures_each_operation(cellerate, made, tmp_path):
    assert cellerate("pack", made / "text.keras", "-o", tmp_path / "t.cell", "--precision", "int8")[0] == 0
    words = ["explain", tmp_path / "t.cell", "--batch-size", "3", "--steps", "7"]
    code, out, err = cellerate(*words, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["precision"], found["batch"]) == ("int8", 3)
    assert list(found["inputs"].values()) == [[3, 7]]
    code, table, _ = cellerate(*words)
    assert code == 0
    for one in found["operations"]:
        assert f"{one['name']} ({one['operation']})" in table
    code, _, err = cellerate("explain", tmp_path / "t.cell", "--batch-size", "0")
    assert code == 2
    assert "batch must be a whole number from 1 on" in one_error(err)


# --- what goes wrong ends in one line and the exit code of its kind


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["train", "text", "missing.txt", "-o", "m.keras"], 3, "missing.txt"),
        (["train", "text", "empty.txt", "-o", "m.keras"], 3, "empty.txt is empty"),
        (["train", "text", "t.txt", "-o", "m.keras", "--length", "5000"], 3, "a window needs 5,001"),
        (["train", "text", "t.txt", "-o", "m.keras", "--tokenizer", "no.json"], 3, "no.json"),
        (["train", "text", "binary.txt", "-o", "m.keras"], 3, "UTF-8"),
        (["train", "text", "t.txt", "-o", "m.h5"], 2, "m.h5"),
        (["train", "text", "t.txt", "-o", "t.txt/m.keras"], 6, "is a file"),
        (["train", "text", "t.txt", "-o", "folder.keras"], 6, "folder of that name"),
        (["train", "text", "t.txt", "-o", "m.keras", "--sample", "Zebra"], 3, "'Z'"),
        (["train", "text", "t.txt", "-o", "m.keras", "--model", "{made}/series.keras"], 4, "'series'"),
        (["train", "series", "s.csv", "-o", "m.keras"], 2, "no target"),
        (["train", "series", "s.csv", "-o", "m.keras", "--target", "nope"], 3, "'nope'"),
        (["train", "series", "words.csv", "-o", "m.keras", "--target", "a"], 3, "words.csv"),
        (["train", "series", "nan.csv", "-o", "m.keras", "--target", "a"], 3, "column 'a' has no value"),
        (["train", "series", "missing.csv", "-o", "m.keras", "--target", "a"], 3, "missing.csv"),
        (["train", "series", "s.csv", "-o", "m.keras", "--target", "load", "--window", "500"], 3, "500"),
        (
            ["train", "series", "s.csv", "-o", "m.keras", "--target", "load", "--quantile", "2"],
            2,
            "--quantile must be ascending",
        ),
        (["train", "series", "s.csv", "-o", "m.keras", "--target", "load", "--plot", "c.pdf"], 2, "c.pdf"),
        (["forecast", "absent.keras", "absent.csv", "--plot", "c.pdf"], 2, ".png or .svg, not 'c.pdf'"),
        (
            ["train", "series", "s.csv", "-o", "m.keras", "--target", "load", "--plot", "t.txt/c.png"],
            6,
            "c.png",
        ),
        (["train", "embed", "empty.txt", "-o", "m.keras"], 3, "empty.txt"),
        (["train", "embed", "l.txt", "-o", "m.keras", "--column", "x"], 3, "not a Parquet"),
        (["train", "embed", "l.txt", "-o", "m.keras", "--resume"], 4, "no checkpoint"),
        (["generate", "{made}/text.keras", "the Z"], 3, "'Z'"),
        (["generate", "{made}/text.keras", ""], 2, "prompt is empty"),
        (["generate", "{made}/text.keras", "the", "-t", "-1"], 2, "temperature"),
        (["generate", "{made}/text.keras", "the", "--top-k", "0"], 2, "--top-k "),
        (["generate", "{made}/text.keras", "the", "--min-p", "2"], 2, "--min-p "),
        (["generate", "{made}/text.keras", "the", "--device", "cuda"], 2, "--implementation cellerate-cuda"),
        (["generate", "{made}/text.keras", "the", "--repetition-penalty", "0"], 2, "--repetition-penalty "),
        (["generate", "{made}/series.keras", "the", "--implementation", "keras"], 4, "holds a series model"),
        (["generate", "{made}/series.keras", "the"], 4, "holds a series model"),
        (["generate", "missing.keras", "the"], 4, "missing.keras"),
        (["generate", "truncated.keras", "the"], 4, "truncated.keras"),
        (["generate", "t.txt", "the"], 4, "t.txt"),
        (["forecast", "{made}/text.keras", "s.csv"], 4, "holds a text model"),
        (["forecast", "{made}/series.keras", "words.csv"], 3, "words.csv"),
        (["forecast", "{made}/series.keras", "s.csv", "-o", "t.txt/f.csv"], 6, "f.csv"),
        (["embed", "{made}/text.keras", "l.txt"], 4, "holds a text model"),
        (["embed", "{made}/embed.keras", "l.txt", "-o", "v.csv"], 2, "v.csv"),
        (["embed", "{made}/embed.keras", "l.txt", "-o", "t.txt/v.npy"], 6, "v.npy"),
        (["embed", "{made}/embed.keras", "zebra.txt"], 3, "'z'"),
        (["embed", "{made}/embed.keras", "l.txt", "--batch-size", "0"], 2, "--batch-size "),
        (["evaluate", "truncated.keras", "t.txt"], 4, "truncated.keras"),
        (["evaluate", "{made}/text.keras", "zebra.txt"], 3, "'z'"),
        (["evaluate", "{made}/text.keras", "t.txt", "--batch-size", "0"], 2, "--batch-size "),
        (["evaluate", "{made}/embed.keras", "l.txt", "l.txt"], 2, "one file"),
        (["explain", "truncated.keras"], 4, "truncated.keras"),
        (["export", "truncated.keras", "-o", "m.onnx"], 4, "truncated.keras"),
        (["export", "{made}/text.keras", "-o", "m.bin"], 2, "ending in '.onnx'"),
        (["export", "{made}/text.keras", "-o", "m.onnx", "--to", "tflite"], 2, "'tflite'"),
        (["export", "{made}/text.keras", "-o", "m.onnx", "--dtype", "int4"], 2, "'int4'"),
        (["export", "{made}/text.keras", "-o", "t.txt/m.onnx"], 6, "m.onnx"),
        (["export", "{made}/text.keras", "-o", "m.onnx", "--data", "zebra.txt"], 3, "'z'"),
        (["export", "{made}/embed.keras", "-o", "m.onnx", "--stateful"], 4, "not known step by step"),
    ],
    ids=lambda value: re.sub(r"\{made\}/", "", "-".join(value)) if isinstance(value, list) else None,
)
def test_error_is_one_line_with_its_exit_code_and_writes_nothing(cellerate, here, made, words, code, message):
    (here / "empty.txt").write_text("")
    (here / "binary.txt").write_bytes(b"abc \xff\xfe\x00 def" * 50)
    (here / "zebra.txt").write_text("z\nz\n")
    (here / "words.csv").write_text("a,b\n" + "x,1\n" * 50)
    (here / "nan.csv").write_text("a,b\n" + ",1\n" * 50)
    (here / "folder.keras").mkdir()
    (here / "truncated.keras").write_bytes((made / "text.keras").read_bytes()[:-200])
    before = sorted(here.rglob("*"))
    found, out, err = cellerate(*[word.format(made=made) for word in words], *(
        ["--epochs", "1", "-q"] if words[0] == "train" else []
    ))  # fmt: skip
    assert (found, out) == (code, "")
    assert message in one_error(err)
    assert sorted(here.rglob("*")) == before


def test_model_with_one_byte_changed_is_refused(cellerate, made, tmp_path):
    content = bytearray((made / "text.keras").read_bytes())
    with zipfile.ZipFile(made / "text.keras") as archive:
        place = archive.getinfo("model.weights.h5").header_offset + 2000
    content[place] ^= 0xFF
    (tmp_path / "m.keras").write_bytes(content)
    code, out, err = cellerate("generate", tmp_path / "m.keras", "the ")
    assert (code, out) == (4, "")
    assert "checksum" in one_error(err)


def test_full_disk_ends_training_with_6_and_leaves_no_half_file(cellerate, here, small, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    words = ["train", "text", "t.txt", "-o", "m.keras", *small["text"], "-q"]
    assert cellerate(*words)[0] == 0
    kept = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    monkeypatch.setattr("os.fsync", full)
    code, out, err = cellerate(*words, "--overwrite")
    assert (code, out) == (6, "")
    assert "the disk is full" in one_error(err)
    # What a run writes as it goes on is of the run that failed, and says so.
    live = here / "m.run" / "telemetry.jsonl"
    assert json.loads(live.read_text().splitlines()[-1])["status"] == "failed"
    kept[live] = live.read_bytes()
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == kept


def test_diverged_training_ends_with_7(cellerate, here, small):
    code, _, err = cellerate(
        "train", "text", "t.txt", "-o", "m.keras", *small["text"], "-q", "--learning-rate", "1e38"
    )
    assert code == 7
    assert "diverged" in one_error(err)
    assert not list(here.glob("m.keras"))


def test_training_that_leaves_its_first_loss_by_far_ends_with_7_and_says_what_to_try(cellerate, here, small):
    words = ["train", "text", "t.txt", "-o", "m.keras", *small["text"]]
    code, out, err = cellerate(*words, "--learning-rate", "5000", "--optimizer", "sgd")
    assert (code, out) == (7, "")
    assert "best so far" not in err
    error = err.splitlines()[-1]
    assert error.startswith("error: training diverged: the loss of epoch 1 is ")
    assert "Try --clipnorm 1 or --learning-rate 0.01." in error
    assert not (here / "m.keras").exists()
    assert json.loads((here / "m.run" / "history.jsonl").read_text())["gradient_norm"] > 0
    # Short, and with next to nothing learned, it is no error.
    code, out, err = cellerate(*words, "--learning-rate", "1e-9", "--overwrite")
    assert code == 0
    assert "Worse than counting: " in err
    assert "It has not learned enough yet: train for longer" in err


def test_time_limits_are_said_with_what_was_judged(cellerate, here, small):
    words = ["train", "series", "s.csv", "-o", "m.keras", *small["series"]]
    code, out, err = cellerate(*words, "--max-seconds", "60", "--time-budget", "600")
    assert code == 0
    assert "time: at most 1 min 00 s of training, about 10 min 00 s in all" in err
    assert "for lack of time" not in out
    code, out, _ = cellerate(*words, "--max-seconds", "60", "--overwrite", "--json", "-q")
    assert json.loads(out)["training"]["judged"] is None


def test_unfinished_run_is_not_buried_and_other_settings_do_not_resume_it(cellerate, here, small):
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
def test_config_trains_without_any_other_word(cellerate, here, small):
    (here / "c.toml").write_text(
        'quiet = true\n[train.text]\npaths = ["t.txt"]\noutput = "m.keras"\nembedding = 4\nunits = 5\nlength = 6\n'
        'epochs = 2\nbatch-size = 8\njit-compile = false\ninclude = ["*.txt"]\n'
    )
    code, out, err = cellerate("train", "text", "--config", "c.toml", "--epochs", "1", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["training"]["epochs"] == 1
