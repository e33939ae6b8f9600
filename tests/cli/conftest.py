import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from support.runs import small_runs
from support.runs.program import program_here, share_process

# A shell that runs the tests in the background ignores Ctrl-C, and child processes inherit that.
PROGRAM = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "sys.argv[0] = 'cellerate'; from cellerate.cli.main import main; main()"
)
# The options that every training of these tests shares; it takes a second.
SMALL = {task: words.split() for task, words in small_runs.SMALL.items()}


@pytest.fixture
def cellerate(monkeypatch, capsys):
    """Run the program in this process; return its exit code, stdout and stderr; fail on a traceback."""
    return program_here(monkeypatch, capsys)


@pytest.fixture
def speak_of(monkeypatch):
    """Make messages name the options of a verb, as if this process ran that verb."""
    from cellerate.cli import main, words

    def speak(*verb):
        monkeypatch.setattr(words, "_program", lambda: typer.main.get_command(main.app))
        monkeypatch.setattr(sys, "argv", ["cellerate", *verb])

    return speak


@pytest.fixture
def start_cellerate():
    """Start the program in a separate process, and kill what is left of it at the end."""
    started = []

    def start(*words, **options):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *map(str, words)],
            stdin=subprocess.DEVNULL,
            **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options),
            env=os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": "200"},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """The folder of data and of one small model a task, which tests only read."""
    from cellerate.cli.main import app

    folder = tmp_path_factory.mktemp("made")
    small_runs.write_inputs(folder)
    with pytest.MonkeyPatch.context() as patch:
        share_process(patch)
        patch.setenv("CELLERATE_CACHE", str(folder / "cache"))
        for task, data in (("text", "t.txt"), ("series", "s.csv"), ("embed", "l.txt")):
            words = [str(folder / data), "-o", str(folder / f"{task}.keras"), *SMALL[task], "-q"]
            app(["train", task, *words], standalone_mode=False)
    return folder


@pytest.fixture
def small():
    """The options of a quick training, by task."""
    return SMALL


@pytest.fixture
def here(tmp_path, monkeypatch, made) -> Path:
    """The working folder of a test, with data to train on."""
    monkeypatch.chdir(tmp_path)
    for name in ("t.txt", "s.csv", "l.txt"):
        (tmp_path / name).write_bytes((made / name).read_bytes())
    return tmp_path
