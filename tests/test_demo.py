"""The demo, shortened, as a new user runs it: on each target its table tells the figures of its report, and all that it
recommends exists and runs."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cellerate.kernels import native

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "demo.sh"
# Other seconds can be set as they are for the demo: on a busy machine `optimize` may need more.
SECONDS = {
    name: os.environ.get(name, seconds)
    for name, seconds in {
        "DEMO_TRAIN_SECONDS": "8",
        "DEMO_FORECAST_SECONDS": "4",
        "DEMO_OPTIMIZE_SECONDS": "120",
    }.items()
}
# A shell that runs the tests in the background has Ctrl-C ignored, and every process below it inherits that.
START = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execvp('sh', ['sh', sys.argv[1]])"
SENTENCE = re.compile(
    r"Beside Keras on jax, in the same precision, Cellerate "
    r"(?:trains (?P<trains>.+?)(?P<noise> \(noise.*\))? and )?"
    r"generates (?P<generates>.+?); with int8 it generates (?P<int8>.+?)(?: still)?"
    r"(?:, but loses more quality than allowed)?\."
)
TARGETS = native.available_targets() if native.why_unavailable() is None else ["none"]


def start(folder, **variables):
    """Starts the demo in a folder, with this Python's environment as the `.venv` there."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("CELLERATE_", "KERAS_"))
    }
    kept.pop("XLA_FLAGS", None)
    (folder / ".venv").symlink_to(sys.prefix)
    path = f"{folder / '.venv' / 'bin'}{os.pathsep}{kept['PATH']}"
    return subprocess.Popen(
        [sys.executable, "-c", START, SCRIPT],
        cwd=folder,
        env=kept | SECONDS | variables | {"PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(process):
    """Ends the demo and all that it has started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.fixture(scope="module", params=TARGETS)
def demo(request, tmp_path_factory):
    """A run of the demo on a target: its folder, its variables, and what it wrote on stdout."""
    folder = tmp_path_factory.mktemp(f"demo-{request.param}")
    target = {} if request.param == "none" else {"CELLERATE_TARGET": request.param}
    process = start(folder, **target)
    try:
        out, err = process.communicate(timeout=1500)
    finally:
        end(process)
    assert process.returncode == 0, err
    yield folder, target, out
    shutil.rmtree(folder)


def printed_table(out):
    """The last table: its heads, and its rows by their labels; and the sentence below it."""
    _, found, rest = out.partition("Keras beside Cellerate, measured in this run:\n")
    assert found, out
    heads, *lines = rest.partition("\n\n")[0].splitlines()
    # Below the rows there are remarks.
    rows = {row[0]: row[1:] for line in lines if len(row := re.split(r"\s{2,}", line.strip())) > 1}
    return re.split(r"\s{2,}", heads.strip()), rows, rest.partition("\n\n")[2].partition("\n")[0]


def factor(words):
    """The factor in a text: from "2.50x", "0.9x (noise)", "1.20x slower", "0.5 % worse", "equal"."""
    if words in ("equal", "as fast"):
        return 1.0
    number, unit, word = re.fullmatch(r"([\d.,]+)(x| %)(?: (\w+))?(?: \(noise\))?", words).groups()
    value = float(number.replace(",", ""))
    if unit == " %":
        return 1 + value / 100 if word == "better" else 1 - value / 100
    return 1 / value if word == "slower" else value


def trains_on_our_kernels(target):
    """Without vector instructions JAX's own code is faster, which then trains the model in any case."""
    return target != {"CELLERATE_TARGET": "scalar"}


def measured(report, target):
    """What the report holds of each row: the values in Keras, on Cellerate and in int8, and whether more is better."""
    models = {one["id"]: one for one in report["candidates"]}
    compared = [models[name] for name in ("original", "float32", "int8")]

    def best(figure, choose):
        return [choose(speed[figure] for speed in one["speeds"] if speed[figure]) for one in compared]

    raced = {
        step["way"]: step["items_per_s"] for step in report["training_steps"] if step["race"] == "kernels"
    }
    wanted = 2 if trains_on_our_kernels(target) else 0
    assert len(raced) == wanted, [(one["name"], one["status"], one["reason"]) for one in report["passes"]]
    tested = {one["candidate"]: one["quality"]["value"] for one in report["verdict"]["tested"]}
    judged = tested if tested.keys() >= set(models) & {"original", "float32", "int8"} else None
    qualities = [judged[one["id"]] if judged else one["quality"]["value"] for one in compared]
    training = [raced["Keras, float32"], raced["fused kernels, float32"], None] if raced else None
    return ({"training": (training, True)} if training else {}) | {
        "generating one text": (best("per_s", max), True),
        "generating 64 texts": (best("throughput_per_s", max), True),
        "latency of a call": (best("latency_p50_ms", min), False),
        "file": ([one["file_bytes"] for one in compared], False),
        "bits per character": (qualities, False),
    }


def test_table_and_sentence_at_the_end_have_the_figures_of_the_report(demo):
    folder, target, out = demo
    report = json.loads((folder / "demo" / "optimized" / "report.json").read_text())
    heads, rows, sentence = printed_table(out)
    assert heads == ["Keras on jax", "Cellerate", "Gain", "With int8", "int8 adds"]
    expected = measured(report, target)
    assert rows.keys() == expected.keys()
    for label, ((keras, same, narrow), more) in expected.items():
        _, _, gain, _, adds = rows[label]
        better = same / keras if more else keras / same
        assert factor(gain) == pytest.approx(better, rel=0.006), label
        if narrow is None:
            assert adds == "—"
        else:
            assert factor(adds) == pytest.approx(narrow / same if more else same / narrow, rel=0.006), label
    keras, same, narrow = expected["generating one text"][0]
    told = SENTENCE.fullmatch(sentence)
    assert told, sentence
    assert list(map(factor, told.group("generates", "int8"))) == pytest.approx(
        [same / keras, narrow / same], rel=0.006
    )
    assert bool(told["trains"]) == ("training" in expected)
    if told["trains"]:
        before, after, _ = expected["training"][0]
        assert factor(told["trains"]) == pytest.approx(after / before, rel=0.006)
        assert bool(told["noise"]) == ("noise" in rows["training"][2])


def test_table_comes_after_all_that_was_measured_and_before_what_to_do_next(demo):
    _, _, out = demo
    steps = [out.index(f"\n{n}. ") if n > 1 else out.index("1. ") for n in (1, 2, 3, 4)]
    table = out.index("Keras beside Cellerate")
    assert sorted(steps) == steps and steps[-1] < table < out.index("What to do next")


def recommended(out):
    """The files to look at, and the commands to run, without their remarks."""
    _, _, rest = out.partition("To open in a browser:\n")
    files, found, commands = rest.partition("What to do next, from this folder:\n")
    assert found, out
    return [[line.partition("  #")[0].strip() for line in part.splitlines()] for part in (files, commands)]


def test_files_that_it_recommends_exist(demo):
    folder, _, out = demo
    page, chart = recommended(out)[0]
    assert (folder / page).read_text().startswith("<!doctype html>")
    assert (folder / chart).read_bytes().startswith(b"\x89PNG")


def test_commands_that_it_recommends_run(demo):
    folder, target, out = demo
    activate, *commands = recommended(out)[1]
    assert activate == ". .venv/bin/activate"
    chosen = json.loads((folder / "demo" / "optimized" / "report.json").read_text())["verdict"]["chosen"]
    assert any("demo/optimized/optimized.cell" in line for line in commands) == (chosen != "original")
    (folder / "YOUR.txt").write_text("".join(f"{n} times {n} is {n * n}.\n" for n in range(200)))
    rows = (folder / "demo" / "demand.csv").read_text().splitlines(keepends=True)
    (folder / "YOUR.csv").write_text("".join(rows[:1500]))
    # Only what the first line does puts the programs of the environment in the path.
    # The demo's own environment has no backend but JAX.
    environment = {"PATH": os.defpath, "HOME": str(folder), "KERAS_BACKEND": "jax", **target}
    for command in commands:
        words = command.replace("COLUMN", "demand")
        done = subprocess.run(
            ["sh", "-c", f"{activate}\n{words}"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        if "explain" in words and target:
            ours = (
                f"cellerate-cpu ({target['CELLERATE_TARGET']})"
                if trains_on_our_kernels(target)
                else "xla-scan"
            )
            assert f"kernel  {ours}" in done.stdout


@pytest.mark.parametrize("after", ["epoch 1/1", " = Baseline"])
def test_ctrl_c_ends_it_at_once_with_a_clear_line(tmp_path, after):
    process = start(tmp_path)
    try:
        for line in process.stderr:
            if line.startswith(after):
                break
        os.killpg(process.pid, signal.SIGINT)
        began = time.perf_counter()
        out, err = process.communicate(timeout=120)
    finally:
        end(process)
    assert process.returncode == 130
    assert time.perf_counter() - began < 30
    assert "Traceback" not in err
    assert err.rstrip().endswith("The demo has stopped before its end. To start it again: make demo")
    assert "What to do next" not in out
