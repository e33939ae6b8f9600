"""The suite that times the GPU kernels loses no more than what failed: with faults that are planted, and no GPU."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu import compiling, journal, sizes, suite as gpu_suite, summary, watch
from benchmarks.gpu.watch import Part
from benchmarks.records import ROOT
from cellerate.kernels.decoder.cuda.plan import Generator

HERE = Path(__file__).parent
FAKE = "fake_parts"
DEVICE = Part("device", FAKE, 0, 5)


def part(name: str, **more: Any) -> Part:
    return Part(name, FAKE, 0, 30, **more)


def run(one: Part, folder: Path, seconds: float = 30) -> tuple[str, dict[str, Any]]:
    """Why the part ended, and the record of it."""
    why = watch.run(one, folder, seconds, lambda line: None)
    return why, summary.summarised(folder)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(what: Any) -> None:
    end = time.monotonic() + 20
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


@pytest.fixture
def jump(monkeypatch: pytest.MonkeyPatch, sleeper: Path) -> Any:
    """Has the suite's clock jump by so many seconds once an item hangs: however slow the machine is, nobody waits."""

    def clock(seconds: float) -> None:
        def monotonic() -> float:
            return time.monotonic() + (seconds if sleeper.exists() else 0)

        fake = SimpleNamespace(monotonic=monotonic, sleep=time.sleep)
        monkeypatch.setattr(watch, "time", fake)
        monkeypatch.setattr(gpu_suite, "time", fake)

    return clock


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The record of a part with every fault, and the process that its hang has started."""
    folder = tmp_path_factory.mktemp("faults")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE))
        patch.setenv("FAKE_SLEEPER", str(folder / "sleeper"))
        why, record = run(part("faults"), folder)
    return {
        **record["parts"]["faults"],
        "why": why,
        "record": record,
        "sleeper": (folder / "sleeper").read_text(),
    }


def test_fault_loses_its_item_and_no_other(faulty):
    assert faulty["why"] == "done" and faulty["items"] == 17 and not faulty["not_begun"]
    found = faulty["record"]["result"]["faults"]
    assert [one["item"] for one in found] == [
        "first", "after an exception", "after CUDA's", "after a crash", "after a hang", "a NaN", "last"
    ]  # fmt: skip
    assert set(faulty["left_out"]) == {"a package", "what is not there"}
    assert len(faulty["failed"]) == 9 and faulty["done"] == 7


@pytest.mark.parametrize(
    ("item", "kind", "message"),
    [
        ("an exception", "ValueError", "planted"),
        ("CUDA's", "RuntimeError", "illegal memory access"),
        ("an abort", "Crash", "the process ended with SIGABRT"),
        ("a segmentation fault", "Crash", "the process ended with SIGSEGV"),
        ("a hang", "Hang", "it took more than 0.4 s"),
        ("a NaN", "Wrong", '"h_T": 0.5'),
        ("what JSON has not", "TypeError", "not JSON serializable"),
        ("a mistake", "ModuleNotFoundError", "cellerate.no_such_module"),
    ],
)
def test_fault_is_told_by_its_item(faulty, item, kind, message):
    assert faulty["failed"][item]["type"] == kind and message in faulty["failed"][item]["message"]


def test_what_failed_says_where_and_what_was_printed(faulty):
    assert "in run\n    raise kind(message)" in faulty["failed"]["an exception"]["traceback"]
    assert "the last words" in faulty["failed"]["an abort"]["log"]
    assert "in hangs" in faulty["failed"]["a hang"]["log"]  # where it was


def test_process_goes_on_after_an_exception_and_is_a_new_one_after_an_error_of_cuda(faulty):
    pids = {one["item"]: one.get("pid") for one in faulty["record"]["result"]["faults"]}
    assert pids["first"] == pids["after an exception"]
    assert len({pids[name] for name in ("first", "after CUDA's", "after a crash", "after a hang")}) == 4
    assert pids["after a hang"] == pids["last"]


def test_hang_is_ended_with_what_it_had_started(faulty):
    assert not is_running(int(faulty["sleeper"]))


def test_nan_is_a_failure_and_the_record_is_json_all_the_same(faulty, tmp_path):
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    found = next(one for one in faulty["record"]["result"]["faults"] if one["item"] == "a NaN")
    assert found["errors"]["outputs"] is None and found["not_finite"] == {"found.errors.outputs": "nan"}
    record = {**faulty["record"], "case": "gpu", "figure": float("inf")}
    file = gpu_suite.write_record(record, tmp_path)
    assert json.loads(file.read_text(), parse_constant=refuse)["not_finite"] == {"figure": "inf"}


def test_part_without_its_package_is_left_out_and_one_that_dies_at_its_start_is_not_tried_again(
    tmp_path, sleeper
):
    assert run(part("without_package"), tmp_path)[0] == "done"
    why, record = run(part("ends_before_its_items"), tmp_path)
    assert why == "the process ended with 3"
    assert "no_such_package" in record["parts"]["without_package"]["left_out"]["the part itself"]
    assert not record["parts"]["without_package"]["failed"]
    assert record["parts"]["ends_before_its_items"]["failed"]["the part itself"]["type"] == "Crash"


def test_processes_share_the_items_of_a_part(tmp_path, sleeper):
    why, record = run(part("many", workers=3), tmp_path)
    found = record["result"]["many"]
    assert why == "done" and sorted(int(one["item"]) for one in found) == list(range(12))
    assert len({one["pid"] for one in found}) == 3


def test_part_ends_with_its_time_and_says_what_is_missing(tmp_path, sleeper, jump):
    jump(50)
    why, record = run(part("endless"), tmp_path, 50)
    found = record["parts"]["endless"]
    assert why == found["ended"] == "its 50 s were over" and found["done"] == 1
    assert 50 < found["seconds"] < 60
    assert found["left_out"] == {"long": why} and found["not_begun"] == ["never"]
    assert not is_running(int(sleeper.read_text()))


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch, sleeper: Path) -> pytest.MonkeyPatch:
    monkeypatch.setattr(gpu_suite, "DEVICE", DEVICE)
    monkeypatch.setattr(gpu_suite, "PARTS", tuple(part(name) for name in ("fine", "endless", "many")))
    return monkeypatch


def record_of(folder: Path) -> dict[str, Any]:
    (file,) = folder.glob("gpu-*.json")
    return json.loads(file.read_text())


def test_suite_keeps_its_time_whatever_hangs(suite, tmp_path, jump):
    suite.setattr(
        gpu_suite, "PARTS", (part("fine"), Part("endless", FAKE, 0, 300), Part("many", FAKE, 60, 90))
    )
    folder = tmp_path / "out"
    jump(80)
    assert gpu_suite.main(["-o", str(folder), "--minutes", "2.5"]) == 0
    record = record_of(folder)
    # The one that hangs leaves its successor what that is expected to need.
    assert {name: one["done"] for name, one in record["parts"].items()} == {
        "device": 1, "endless": 1, "fine": 3, "many": 12
    }  # fmt: skip
    assert re.fullmatch("its [67]. s were over", record["parts"]["endless"]["ended"])
    assert 80 < record["seconds"] < 150
    assert record["gpu"] == "a fake" and record["versions"]["cuda"] == "0"
    assert {file.name for file in folder.iterdir()} == {"fake_parts.jsonl", record_file(folder)}


def record_file(folder: Path) -> str:
    return next(folder.glob("gpu-*.json")).name


def test_suite_without_a_gpu_says_why_and_runs_nothing(suite, tmp_path, capsys):
    suite.setattr(gpu_suite, "DEVICE", Part("no_device", FAKE, 0, 5))
    assert gpu_suite.main(["-o", str(tmp_path / "out"), "--minutes", "0.1"]) == 2
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "there is no GPU that the kernels run on: the driver is not there"
    assert set(record_of(tmp_path / "out")["parts"]) == {"no_device"}


def test_suite_refuses_a_folder_with_journals_of_another_run(suite, tmp_path, capsys):
    (tmp_path / "checks.jsonl").touch()
    with pytest.raises(SystemExit):
        gpu_suite.main(["-o", str(tmp_path)])
    assert "journals of another run" in capsys.readouterr().err


PROGRAM = """
import sys
from benchmarks.gpu import suite
from benchmarks.gpu.watch import Part
suite.DEVICE = Part("device", "fake_parts", 0, 5)
suite.PARTS = (Part("fine", "fake_parts", 0, 30), Part("endless", "fake_parts", 0, 30))
sys.exit(suite.main(["-o", sys.argv[1]]))
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_suite_that_is_interrupted_leaves_what_it_had_and_no_process(how, tmp_path, sleeper):
    folder = tmp_path / "out"
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as running:
        wait_for(lambda: sleeper.exists() and sleeper.read_text())
        begun = journal.Reader(folder / "fake_parts.jsonl").lines()[-1]
        assert begun["event"] == "begin" and begun["item"] == "long"
        running.send_signal(how)
        running.communicate(timeout=20)
    assert running.returncode == (-how if how == signal.SIGKILL else 130)
    if how == signal.SIGKILL:
        # Nobody could write what came last: it is in the journals.
        assert "endless" not in record_of(folder)["parts"]
        assert gpu_suite.main(["--summarise", str(folder)]) == 0
    else:
        wait_for(lambda: not is_running(int(sleeper.read_text())))
        assert record_of(folder)["interrupted"]
        assert record_of(folder)["parts"]["endless"]["left_out"] == {"long": "it was interrupted"}
    record = record_of(folder)
    assert [one["item"] for one in record["result"]["fine"]] == ["0", "1", "2"]
    assert [one["item"] for one in record["result"]["endless"]] == ["short"]
    assert record["commit"] and record["plan"]["seconds"] > 0
    pid = record["result"]["endless"][0]["pid"]
    wait_for(lambda: not is_running(pid))


def test_suite_loads_neither_a_framework_nor_cuda():
    program = (
        "import sys; from benchmarks.gpu import suite\n"
        "print({'torch', 'jax', 'keras', 'tensorflow', 'cuda'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_plan_takes_the_first_parts_that_fit_and_gives_the_time_that_nobody_needs():
    parts = [Part("a", FAKE, 30, 100), Part("b", FAKE, 60, 90), Part("c", FAKE, 20, 30)]
    device = gpu_suite.DEVICE.expected_s
    assert gpu_suite.planned(parts, device + 110) == parts
    assert gpu_suite.planned(parts, device + 60) == [parts[0], parts[2]]
    assert gpu_suite.share(parts[0], parts[1:], 300) == 100
    assert gpu_suite.share(parts[0], parts[1:], 130) == 50
    assert gpu_suite.share(parts[0], parts[1:], 60) == 30
    assert gpu_suite.share(parts[0], parts[1:], 10) == 10


def test_whole_plan_fits_into_ten_minutes_and_few_files():
    parts = gpu_suite.PARTS
    assert gpu_suite.planned(parts, 560) == list(parts)
    journals = {journal.journal(Path(), one.module).name for one in (*parts, gpu_suite.DEVICE)}
    assert len(journals) + 1 <= 8


def test_journal_outlives_a_line_that_was_cut_off(tmp_path):
    file = tmp_path / "a.jsonl"
    reader = journal.Reader(file)
    assert reader.lines() == []
    journal.append(file, part="a", n=1)
    with file.open("a") as torn:
        torn.write('{"part": "a", "n"')
    assert [line["n"] for line in reader.lines()] == [1] and reader.damaged == 0
    journal.append(file, part="a", n=3)
    assert [line["n"] for line in reader.lines()] == [3] and reader.damaged == 1


def test_kernels_are_compiled_without_a_gpu():
    items = {item.name: item for item in compiling.compiled()}
    for name in ("forward bfloat16 H64 rows 8", "backward float16 H96 masked recurrent dropout rows 8"):
        assert items[name].run()["bytes"] > 5000
    kernels = list(sizes.kernels())
    assert len(items) == len(kernels) == len(set(kernels))
    assert {kernel.layers[0].units for kernel in kernels if isinstance(kernel, Generator)} == {256, 512}


def test_kernel_that_does_not_compile_is_one_item(tmp_path, monkeypatch):
    monkeypatch.setenv(compiling.ARCHITECTURE, "sm_1")
    item = next(iter(compiling.compiled()))
    with pytest.raises(Exception, match="could not be compiled"):
        item.run()
