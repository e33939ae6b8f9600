"""Commands stopped by signals, each in a separate process."""

import csv
import json
import random
import shlex
import signal
import subprocess
import sys
import time

import pytest

from cellerate.cli.start import start

pytestmark = pytest.mark.keras
# The program with a verb that writes half of a file, says so, and waits.
WRITING = """
import sys, time
from cellerate.cli import main
from cellerate.files import atomic_write

def write(path: str) -> None:
    with atomic_write(path) as file:
        file.write_text("half")
        print("half", flush=True)
        time.sleep(60)

main.add_verbs({"Train": (write,)})
sys.argv[1:] = ["write", *sys.argv[1:]]
main.main()
"""


def until(process, start):
    """Read stderr up to a line that begins with `start`; return all lines read."""
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith(start):
            return lines
    raise AssertionError("".join(lines))


def curve(folder):
    return (folder / "curve.csv").read_text()


def history(folder):
    """The history without clock times."""
    with (folder / "history.csv").open(newline="") as file:
        return [
            {
                name: value
                for name, value in row.items()
                if name not in ("seconds", "items_per_s", "data_wait")
            }
            for row in csv.DictReader(file)
        ]


def test_ctrl_c_while_the_program_is_imported_prints_nothing(monkeypatch):
    class Interrupted:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "cellerate.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "cellerate.cli.main", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted, *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        start()
    assert ended.value.code == 130


def test_ctrl_c_saves_and_prints_a_command_that_resumes(start_cellerate, cellerate, here, small):
    words = ["train", "text", "t.txt", "-o", "my model.keras", *small["text"], "--epochs", "3000"]
    process = start_cellerate(*words)
    until(process, "epoch 1/3000")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Stopping after this step" in err
    assert "Traceback" not in err
    said, _, command = err.rpartition("To go on:\n")
    assert "nothing is lost" in said.splitlines()[-1]
    assert shlex.split(command) == ["cellerate", *words, "--resume"]
    assert list((here / "my model.run").glob("checkpoint-*.safetensors"))
    assert (here / "my model.keras").exists()
    done = len(history(here / "my model.run"))

    code, out, err = cellerate(*shlex.split(command)[1:], "--epochs", done + 2, "--json")
    assert code == 0
    training = json.loads(out)["training"]
    assert training["status"] == "finished"
    assert [record["epoch"] for record in training["history"]] == list(range(1, done + 3))


def test_ctrl_c_in_the_first_epoch_says_so(start_cellerate, here, small):
    (here / "t.txt").write_bytes((here / "t.txt").read_bytes() * 2000)
    process = start_cellerate(
        "train", "text", "t.txt", "-o", "m.keras", *small["text"], "--json", "--sample", "the "
    )
    until(process, "--- sample before training")
    until(process, "---")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    assert process.returncode == 130
    # Ctrl-C can come before the loop handles it: then nothing has begun, and no message is needed.
    if out:
        assert json.loads(out)["training"]["status"] == "interrupted"
        assert "interrupted in its first epoch" in err
        assert list((here / "m.run").glob("checkpoint-*.safetensors"))
    else:
        assert list(here.glob("m.*")) == []


@pytest.mark.backends
@pytest.mark.few_steps  # one of the runs is in the process of the tests: it is to leave to Keras what the others leave
def test_kill_then_resume_has_the_same_curve(start_cellerate, cellerate, here, small):
    words = ["--embedding", "4", "--units", "6", "--length", "8", "--batch-size", "8", "--dropout", "0.3"]
    words += ["--validation-fraction", "0.1", "--epochs", "12", "--log-every", "1"]
    assert cellerate("train", "text", "t.txt", "-o", "whole.keras", *words, "-q")[0] == 0

    process = start_cellerate(
        "train", "text", "t.txt", "-o", "killed.keras", *words, "--checkpoint-every-s", "0.001"
    )
    until(process, "epoch 3/12")
    process.kill()
    process.wait()
    assert 3 <= len(history(here / "killed.run")) < 12
    assert cellerate("train", "text", "t.txt", "-o", "killed.keras", *words, "-q", "--resume")[0] == 0
    assert history(here / "killed.run") == history(here / "whole.run")
    assert curve(here / "killed.run") == curve(here / "whole.run")
    _, expected, _ = cellerate("generate", "whole.keras", "the ", "--seed", "1")
    assert cellerate("generate", "killed.keras", "the ", "--seed", "1")[1] == expected
    hidden = {path.name for path in here.rglob(".*")}
    assert hidden == {".lock"}, "something is left of what the killed process had not finished"


@pytest.mark.slow
@pytest.mark.few_steps
def test_fifty_kills_at_random_moments_do_not_change_the_curve(start_cellerate, cellerate, here, small):
    words = ["--embedding", "4", "--units", "6", "--length", "8", "--batch-size", "8", "--dropout", "0.3"]
    words += ["--validation-fraction", "0.1", "--epochs", "400", "--log-every", "7"]
    assert cellerate("train", "text", "t.txt", "-o", "whole.keras", *words, "-q")[0] == 0
    chance, folder, resume = random.Random(0), here / "killed.run", []
    for _ in range(50):
        newest = max(folder.glob("checkpoint-*"), default=None)
        process = start_cellerate(
            "train", "text", "t.txt", "-o", "killed.keras", *words, *resume, "--checkpoint-every-s", "0.001",
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        # A new checkpoint shows that it trains; then the kill comes at a random moment.
        while max(folder.glob("checkpoint-*"), default=None) == newest:
            assert process.poll() is None, "it ended before it was killed"
            time.sleep(0.01)
        time.sleep(0.15 * chance.random())
        assert process.poll() is None, "it ended before it was killed"
        process.kill()
        process.wait()
        resume = ["--resume"]
    assert 5 <= len(history(folder)) < 400
    assert cellerate("train", "text", "t.txt", "-o", "killed.keras", *words, "-q", "--resume")[0] == 0
    assert history(folder) == history(here / "whole.run")
    assert curve(folder) == curve(here / "whole.run")
    assert {path.name for path in here.rglob(".*")} == {".lock"}


def test_generate_with_a_closed_stdout_ends_quietly(start_cellerate, made):
    process = start_cellerate("generate", made / "text.keras", "the ", "-n", "100000", "--seed", "1")
    assert process.stdout.read(10).startswith("the ")
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert process.stderr.read() == ""


def test_generate_stopped_by_ctrl_c_exits_with_130_quietly(start_cellerate, made):
    process = start_cellerate("generate", made / "text.keras", "the ", "-n", "1000000", "--seed", "1")
    assert process.stdout.read(10).startswith("the ")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_repeated_ctrl_c_gives_no_traceback(start_cellerate, made):
    process = start_cellerate("generate", made / "text.keras", "the ", "-n", "1000000", "--seed", "1")
    assert process.stdout.read(10).startswith("the ")
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.002)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT)
    assert "Traceback" not in err and "Exception ignored" not in err


def test_sigterm_while_a_file_is_written_leaves_nothing_of_it(tmp_path):
    target = tmp_path / "m.onnx"
    target.write_text("as before")
    process = subprocess.Popen([sys.executable, "-c", WRITING, target], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "half\n"
        assert len(list(tmp_path.iterdir())) == 2
        process.terminate()
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert {path: path.read_text() for path in tmp_path.iterdir()} == {target: "as before"}
