"""The pages and the chart that are made of the records hold what may be published of them, and nothing else."""

import json
import re
import shutil
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from benchmarks import measured, pages
from benchmarks.records import ROOT
from benchmarks.tables import by_case, headline, standings
from support.benchmarks import planted

PAGE = pages.PAGES[1]
README = pages.PAGES[0]
SPECIAL = ("first", "first_gpu", "gains_generating", "gains_predicting", "gains_training", "gpu", "worst")
"""The tables of several cases, and those of GPUs."""


def plant(folder, case, day=1, **fields):
    """Puts a record of a day into a folder; gives it, to be changed and written again."""
    record = planted.record(case, date=f"2026-12-{day:02}T00:00:00+00:00", **fields)
    planted.write(folder, record)
    return record


def speeds(record, contestant, job):
    """The entries of a job in a record of `generate`."""
    found = [one for size in record["result"]["sizes"] for one in size["records"]]
    return [one for one in found if (one["contestant"], one["job"]) == (contestant, job)]


def headline_of(folder):
    """The rows of the only headline table, by what they say."""
    rows = [line.strip("| ").split(" | ") for line in pages.first_tables(README, folder).splitlines()]
    return {row[0]: row[1:] for row in rows if len(row) == 4}


@pytest.mark.parametrize("path", [*pages.PAGES, pages.CHART], ids=lambda path: path.name)
def test_page_is_what_make_docs_makes_of_the_records(path):
    assert path.read_text() == pages.pages()[path]


def test_pages_of_a_copy_without_git_are_the_same(tmp_path):
    copy = tmp_path / "copy"
    for name in ("benchmarks", "docs", "README.md"):
        to = copy / name
        to.parent.mkdir(exist_ok=True)
        shutil.copytree(ROOT / name, to) if (ROOT / name).is_dir() else shutil.copy(ROOT / name, to)
    for page in pages.PAGES:
        (copy / page.relative_to(ROOT)).write_text(pages.MARKED.sub(r"\1Else\n\3", page.read_text()))
    command = [sys.executable, str(copy / "benchmarks" / "pages.py")]
    subprocess.run(command, check=True, env={"PATH": "", "PYTHONPATH": str(ROOT / "src")})
    for path in (*pages.PAGES, pages.CHART):
        assert (copy / path.relative_to(ROOT)).read_text() == path.read_text()


def test_every_table_is_on_a_page_once():
    found = [
        case for page in pages.PAGES for case in re.findall(r"<!-- table: ([\w-]+) -->", page.read_text())
    ]
    assert sorted(found) == sorted([*SPECIAL, *by_case.TABLES])


def test_case_without_a_publishable_record_says_so(tmp_path):
    plant(tmp_path, "step", clean=False)
    assert pages.table("step", PAGE, tmp_path) == "Not measured yet by [the rules](method.md#the-rules)."
    assert pages.first_tables(README, tmp_path) == (
        "Not measured yet by [the rules](docs/measured/method.md#the-rules)."
    )
    assert "Not measured yet" in pages.worst_tables(PAGE, tmp_path)
    assert "Not measured yet" in headline.chart(pages.by_processor([*headline.ROWS], tmp_path))


@pytest.mark.parametrize("case", by_case.TABLES)
def test_table_of_a_case_names_record_commit_date_and_processor(case, tmp_path):
    plant(tmp_path, case, day=2)
    text = pages.table(case, PAGE, tmp_path)
    assert text.startswith("| ")
    assert f"{case}-2026-12-02T000000.json) of 2026-12-02 at commit 0123456; again with" in text
    assert text.endswith(f"`make bench CASE={case}`.")
    assert f"{planted.ZEN4}; 2 cores; keras" in text


def test_table_is_of_the_newest_publishable_record(tmp_path):
    plant(tmp_path, "embed", day=1)
    newest = plant(tmp_path, "embed", day=2)
    newest["result"]["held_out"]["exact_lines"] = 0.123
    planted.write(tmp_path, newest)
    refused = plant(tmp_path, "embed", day=3, anyway=True)
    refused["result"]["held_out"]["exact_lines"] = 0.456
    planted.write(tmp_path, refused)
    text = pages.table("embed", PAGE, tmp_path)
    assert "12.3%" in text and "45.6%" not in text and "2026-12-03" not in text


def test_records_of_two_processors_stand_side_by_side(tmp_path):
    plant(tmp_path, "typical", day=1)
    elsewhere = plant(tmp_path, "typical", day=2)
    elsewhere["machine"]["processor"] = planted.ZEN5
    planted.write(tmp_path, elsewhere)
    for text in (
        pages.table("typical", PAGE, tmp_path),
        pages.first_tables(README, tmp_path),
        pages.worst_tables(PAGE, tmp_path),
    ):
        assert len(re.findall(r"^\| ---", text, re.MULTILINE)) == 2
        assert text.index(planted.ZEN4) < text.index(planted.ZEN5)
    chart = headline.chart(pages.by_processor([*headline.ROWS], tmp_path))
    assert planted.ZEN4 in chart and planted.ZEN5 in chart


def test_chart_leaves_out_processors_with_less_than_others(tmp_path):
    plant(tmp_path, "typical", day=1)
    plant(tmp_path, "generate", day=1)
    elsewhere = plant(tmp_path, "typical", day=2)
    elsewhere["machine"]["processor"] = planted.ZEN5
    planted.write(tmp_path, elsewhere)
    chart = headline.chart(pages.by_processor([*headline.ROWS], tmp_path))
    assert planted.ZEN4 in chart and planted.ZEN5 not in chart


def test_headline_stands_beside_the_fastest_way_of_keras(tmp_path):
    record = plant(tmp_path, "generate")
    assert headline_of(tmp_path)["generating, H=512, float32"] == [
        "15.1 k (Keras on tensorflow, steps compiled as one loop)",
        "56.1 k (Cellerate)",
        "3.72",
    ]
    for one in speeds(record, "torch", "predict"):
        one["characters_per_s"] = 20_000.0
    planted.write(tmp_path, record)
    assert headline_of(tmp_path)["generating, H=512, float32"] == [
        "20.0 k (Keras on torch, `predict` a character)",
        "56.1 k (Cellerate)",
        "2.80",
    ]


def test_headline_of_training_is_beside_the_fastest_backend_and_on_tensorflow_beside_its_own(tmp_path):
    record = plant(tmp_path, "typical")
    race = next(each for each in record["result"]["races"] if each[0]["model"] == "forecaster")
    for one in race:
        way = (one["implementation"], one["backend"], one["jit_compile"])
        one["median_s"] = {
            ("keras", "torch", "auto"): 0.012,
            ("keras", "tensorflow", True): 0.016,
            ("cellerate-cpu", "jax", "auto"): 0.003,
            ("cellerate-cpu", "tensorflow", "auto"): 0.004,
            # Faster, but no Keras.
            ("torch.nn.LSTM", "torch", True): 0.002,
        }.get(way, 0.5)
    planted.write(tmp_path, record)
    rows = {
        what: row for what, row in headline_of(tmp_path).items() if what.startswith("training, forecaster")
    }
    assert list(rows.values()) == [
        ["12 ms (Keras on torch)", "3 ms (Cellerate on jax)", "4.00"],
        [
            "16 ms (Keras on tensorflow, jit_compile=True)",
            "4 ms (Cellerate on tensorflow)",
            "4.00",
        ],
    ]
    assert [what.endswith(", on TensorFlow") for what in rows] == [False, True]


def test_headline_says_what_precision_and_pruning_add_beside_our_own(tmp_path):
    for case in headline.ROWS:
        plant(tmp_path, case)
    rows = headline_of(tmp_path)
    assert rows["generating, H=512, int8 in place of float32"] == [
        "56.1 k (Cellerate)",
        "247 k (Cellerate)",
        "4.41",
    ]
    assert rows["generating, int8, half of the units pruned"][2] == "2.16"
    assert rows["the file, int8 in place of float32"][2] == "3.88"
    # All that is not float32 is beside our own.
    assert not [row for what, row in rows.items() if "Keras" in row[0] and "float32" not in what]


def test_headline_of_predicting_is_beside_the_fastest_keras_and_our_own_float32(tmp_path):
    record = plant(tmp_path, "inference")
    rows = headline_of(tmp_path)
    ours, keras, int8 = (
        next(
            one["median_s"]
            for cell in record["result"]["cells"]
            for one in cell["records"]
            if (cell["model"], cell["batch"], one["contestant"], one["precision"]) == ("text 512", 32, *who)
        )
        for who in (("cellerate", "float32"), ("tensorflow", "float32"), ("cellerate", "int8"))
    )
    before, after, factor = rows["predicting, text 512, 32 rows, float32"]
    assert before == f"{1e3 * keras:.1f} ms (Keras on tensorflow)"
    assert after == f"{1e3 * ours:.1f} ms (Cellerate)"
    assert factor == f"{keras / ours:.2f}"
    _, after, factor = rows["predicting, text 512, 32 rows, int8 in place of float32"]
    assert (after, factor) == (f"{1e3 * int8:.1f} ms (Cellerate)", f"{ours / int8:.2f}")
    assert "predicting, forecaster 2x50, 1 row, float32" in rows


def test_table_of_inference_has_the_share_of_the_peak_and_the_streams(tmp_path):
    record = plant(tmp_path, "inference")
    (first, *_) = record["result"]["cells"]
    (ours,) = [
        one for one in first["records"] if (one["contestant"], one["precision"]) == ("cellerate", "float32")
    ]
    assert "%" not in pages.table("inference", PAGE, tmp_path).splitlines()[2]
    # 1e6 products in the time of a call are 40 % of the peak.
    peak = 2e6 / ours["median_s"] / 0.4
    record["result"] |= {
        "products": {cell["model"]: 10**6 for cell in record["result"]["cells"]},
        "peak_operations_per_s": {"float32": peak, "bfloat16": 2 * peak, "int8": 4 * peak},
        "streams": {
            "model": "small",
            "count": 10_000,
            "records": [{"precision": name, "median_s": 0.005} for name in ("float32", "bfloat16", "int8")],
        },
    }
    planted.write(tmp_path, record)
    lines = pages.table("inference", PAGE, tmp_path).splitlines()
    assert " ms (40 %), " in lines[2].split("|")[3]
    assert "| small, 10,000 streams | 1 step | 2.00 M steps/s | 2.00 M steps/s | 2.00 M steps/s |" in lines


def test_predict_in_a_loop_is_one_labelled_row(tmp_path):
    plant(tmp_path, "generate")
    (what,) = [what for what, row in headline_of(tmp_path).items() if "`predict` a character" in row[0]]
    assert what == "generating, H=512, float32, beside `predict` a character, which many people do"


def test_headline_has_the_range_of_three_records_and_counts_two(tmp_path):
    def factor():
        return headline_of(tmp_path)["generating, H=512, float32"][2]

    for day, faster in ((1, 0.5), (2, 1.25)):
        record = plant(tmp_path, "generate", day=day)
        for one in speeds(record, "cellerate", "loop float32"):
            one["characters_per_s"] *= faster
        planted.write(tmp_path, record)
    assert factor() == "4.65 (2 records)"
    plant(tmp_path, "generate", day=3)
    assert factor() == "3.72 (1.86 to 4.65 in 3 records)"
    plant(tmp_path, "generate", day=4, measured={"csrc": "other code"})
    assert factor() == "3.72"


def test_headline_has_three_significant_digits(tmp_path):
    record = plant(tmp_path, "generate")
    for one in speeds(record, "cellerate", "loop float32"):
        one["characters_per_s"] = 123_456_789.0
    planted.write(tmp_path, record)
    before, after, factor = headline_of(tmp_path)["generating, H=512, float32"]
    assert (after, factor) == ("123 M (Cellerate)", "8,190")
    digits = [re.sub(r"\D", "", cell.split(" ")[0]).strip("0") for cell in (before, after, factor)]
    assert all(len(one) <= 3 for one in digits)


def test_worst_ratio_is_against_the_best_opponent_in_the_same_precision(tmp_path):
    plant(tmp_path, "step")
    record = plant(tmp_path, "generate")
    text = pages.worst_tables(PAGE, tmp_path)
    lines = text.splitlines()
    assert lines[2].endswith("| 0.551 |") and "ONNX Runtime, its LSTM node alone" in lines[2]
    assert lines[3].endswith("| 1.89 |") and "torch.nn.LSTM" in lines[3] and "float32" in lines[3]
    for one in speeds(record, "onnxruntime", "int8"):
        one["characters_per_s"] /= 100
    planted.write(tmp_path, record)
    assert "0.551" not in pages.worst_tables(PAGE, tmp_path)


@pytest.mark.parametrize("case", standings.CONTESTS)
def test_every_contest_has_a_worst_pair_of_its_own_precision(case):
    found = standings.worst(case, planted.record(case)["result"])
    assert found is not None and found.ours.side == "ours" and found.opponent.side != "ours"
    assert found.ours.precision == found.opponent.precision and found.ratio > 0


def test_step_of_ours_is_compared_with_what_is_called_for_each_step():
    records = [
        {"contestant": "cellerate", "job": "step float32", "characters_per_s": 10.0},
        {"contestant": "jax", "job": "loop", "characters_per_s": 100.0},
        {"contestant": "jax", "job": "step", "characters_per_s": 5.0},
    ]
    found = standings.worst("generate", {"sizes": [{"units": 8, "records": records}]})
    assert found.opponent.way == "step" and found.ratio == 2


def test_other_work_than_generating_is_no_way_of_keras_to_generate(tmp_path):
    record = plant(tmp_path, "generate")
    for size in record["result"]["sizes"]:
        for job in ("logits", "sequence float32"):
            size["records"].append({"contestant": "jax", "job": job, "characters_per_s": 1e6})
    planted.write(tmp_path, record)
    assert headline_of(tmp_path)["generating, H=512, float32"][2] == "3.72"
    assert "1.00 M" not in headline.chart(pages.by_processor([*headline.ROWS], tmp_path))
    # But it is what a step and a judged text of ours are compared with.
    found = standings.worst("generate", record["result"])
    assert (found.ours.way, found.opponent.value) == ("step", 1e6)


def test_smaller_memory_is_the_better():
    processes = [
        {"backend": "jax", "units": 8, "implementation": name, "policy": "float32", "peak_bytes": [peak] * 3}
        for name, peak in (("keras", 100), ("cellerate-cpu", 200))
    ]
    assert standings.worst("memory", {"processes": processes}).ratio == 0.5


def test_chart_is_small_and_has_the_fastest_of_each_side_in_each_precision(tmp_path):
    for case in headline.ROWS:
        plant(tmp_path, case)
    text = headline.chart(pages.by_processor([*headline.ROWS], tmp_path))
    assert len(text.encode()) < 60_000
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    bars = [one for one in root.iter(f"{space}rect") if one.get("class") in ("keras", "ours")]
    told = [one.text for one in root.iter(f"{space}text")]
    # Training: of four models Keras, torch and ours. Generating: predict, Keras, ONNX and ours; ours; ONNX and ours.
    assert (
        len(bars) == len([one for one in told if re.fullmatch(r"[\d.,]+( [kM])?", one)]) == 4 * 3 + 4 + 1 + 2
    )
    assert [one.get("class") for one in bars].count("ours") == 4 + 3
    # Each model has a scale of its own.
    widths = sorted((float(one.get("width")) for one in bars), reverse=True)
    assert widths[3] == widths[0] > widths[6]
    assert "Keras on tensorflow, compiled loop" in told and "Keras on jax, predict" in told
    assert max(float(one.get("x")) + float(one.get("width")) for one in bars) < float(root.get("width")) - 40
    assert max(float(one.get("y")) for one in bars) < float(root.get("height")) - 30


def gpu_record(folder, day, *, clean=True, ours_ms=0.2, result=None):
    """Puts the record of a day of the GPU suite into a folder: one layer, one race, one speed, one variant."""
    times = {"forward": ours_ms, "forward and backward": 0.5, "cuDNN bfloat16 forward": 0.6}
    one = {name: {"median_ms": ms} for name, ms in times.items()}
    refused = {"implementation": "keras", "error": "RefusedError: ValueError: Unknown output type"}
    record = {
        "clean": clean, "gpu": "NVIDIA H200", "commit": "0123456789", "date": f"2026-12-{day:02}T00:00:00+00:00",
        "versions": dict.fromkeys(("jax", "torch", "keras", "cudnn"), "1.2"),
        "result": {
            "recurrence": [{"number": "bfloat16", "units": 512, "batch": 112, "times": one}, {"number": "bfloat16"}],
            "sizes": [{"number": "float32", "units": 512, "batch": 112, "times": one}],
            "fit": [
                {"backend": "jax", "policy": "mixed_bfloat16", "contestants": [{"characters_per_s": 8e6}, refused]},
                {"backend": "torch", "policy": "float32",
                 "contestants": [{"characters_per_s": 3e6}, {"characters_per_s": 2e6}]},
            ],
            "generation": [{"units": 512, "batch": 1, "characters_per_s": 4e5}, {"units": 512}],
            "variants": [
                {"variant": "relu", "number": "bfloat16",
                 "times": {"plain": {"median_ms": 2.0}, "variant": {"median_ms": 2.5}}},
            ],
            "goals": [{"reached": True}, {"reached": False}],
        },
    }  # fmt: skip
    record |= {"result": result} if result else {}
    (folder / f"gpu-2026-12-{day:02}T000000.json").write_text(json.dumps(record))


def test_tables_of_a_gpu_are_of_its_newest_record_of_committed_code(tmp_path):
    assert "Not measured yet" in pages.gpu_tables(pages.PAGES[-1], tmp_path)
    gpu_record(tmp_path, 1, ours_ms=9.0)
    gpu_record(tmp_path, 2)
    gpu_record(tmp_path, 3, clean=False, ours_ms=7.0)
    text = pages.gpu_tables(pages.PAGES[-1], tmp_path)
    assert "| 512 | 112 | 2.00 | 3.00 |  | 5.00 |  |  |" in text
    assert "| jax, mixed_bfloat16 | 8.00 | ValueError: Unknown output type |  |" in text
    assert "| torch, float32 | 3.00 | 2.00 | 1.50 |" in text
    assert "| H=512 | 0.400 |" in text and "| relu | 1.25 |" in text
    # A run of one part alone adds its table, and leaves those of the whole run.
    race = {
        "variant": "relu",
        "policy": "float32",
        "contestants": [{"characters_per_s": 6e6}, {"characters_per_s": 2e5}],
    }
    gpu_record(tmp_path, 4, result={"tensorflow": [race], "goals": [{"reached": False}]})
    more = pages.gpu_tables(pages.PAGES[-1], tmp_path)
    assert "| relu, float32 | 6.00 | 0.200 | 30.0 |" in more
    assert "| 512 | 112 | 2.00 | 3.00 |" in more and "1 of 2 goals" in more
    assert "2026-12-02" in more and "2026-12-04" in more
    fit = {
        "backend": "torch",
        "policy": "mixed_bfloat16",
        "contestants": [{"characters_per_s": 9e6}, {"error": "A: no"}],
    }
    here = race | {"policy": "mixed_bfloat16"}
    gpu_record(tmp_path, 5, result={"fit": [fit], "tensorflow": [race, here], "goals": []})
    first = pages.first_gpu_table(pages.PAGES[0], tmp_path)
    assert (
        "| plain, beside Keras on torch | 9.00 | fails |  |\n| relu, beside Keras on TensorFlow | 6.00 |"
        in first
    )
    assert first.count("Keras on TensorFlow") == 1
    assert "1 of 2 goals are reached" in text and "of 2026-12-02 at commit 0123456" in text


def test_stale_tables_are_listed_and_fresh_ones_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(
        by_case, "TABLES", {name: by_case.TABLES[name] for name in ("kernel", "step", "loss")}
    )
    plant(tmp_path, "kernel", measured=measured.digests("kernel", ROOT))
    plant(tmp_path, "step", measured={"csrc": "old"})
    first, second = pages.stale(folder=tmp_path)
    assert first.startswith(f"step, {planted.ZEN4}; 2 cores: changed since 0123456, 2026-12-01: ")
    assert "csrc" in first and second == "loss: no publishable record (0 that are not)"


def test_stale_exits_with_1_and_writes_nothing(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["pages.py", "--stale"])
    monkeypatch.setattr(pages, "pages", lambda: pytest.fail("it wrote"))
    for lines, status in ((["step: changed"], 1), ([], 0)):
        monkeypatch.setattr(pages, "stale", lambda lines=lines: lines)
        with pytest.raises(SystemExit) as stopped:
            pages.main()
        assert stopped.value.code == status
    assert "step: changed" in capsys.readouterr().out


def test_epochs_stand_in_each_row_of_the_forecasts(tmp_path):
    plant(tmp_path, "series")
    rows = [line for line in pages.table("series", PAGE, tmp_path).splitlines() if "Cellerate," in line]
    assert [row.split(" | ")[1] for row in rows] == ["4 of at most 10", "5 of at most 10", "2 of at most 2"]


def test_optimized_models_stand_beside_the_original_trained_as_long(tmp_path):
    record = plant(tmp_path, "optimize")
    assert "for as many further steps" not in pages.table("optimize", PAGE, tmp_path)
    run = record["result"]["runs"]["text"]
    run["verdict"]["tested"] = [
        {"candidate": name, "role": role, "quality": {"value": value, "low": value, "high": value}}
        for name, role, value in (
            ("original", "before", 2.1),
            ("control", "control", 1.987),
            ("pruned", "after", 2.0),
        )
    ]
    record["result"]["runs"]["series"] = run | {"model": "ett.keras"}
    planted.write(tmp_path, record)
    text = pages.table("optimize", PAGE, tmp_path)
    assert text.count("| the original, trained for as many further steps |  | 1.987") == 2
    assert f"| **{run['model']}**, " in text and "| **ett.keras**, " in text


def test_kernel_stands_beside_onednn_in_training_and_in_inference():
    result = planted.record("kernel")["result"]
    (inference, training) = (("inference",), ("forward", "backward"))
    (slow,) = [
        one
        for one in result["onednn"]["sizes"]
        if (one["units"], one["batch"], one["dtype"]) == (512, 32, "float32")
    ]
    for halves, what in ((inference, "inference"), (training, "training")):
        for half in halves:
            slow[half]["median_s"] /= 100
        found = standings.worst("kernel", result)
        assert found.contest.what == f"the kernel alone, {what}, H=512, B=32" and found.ratio < 0.1
        for half in halves:
            slow[half]["median_s"] *= 100
