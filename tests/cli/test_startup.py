"""The start of a training, measured by imports and compilations instead of the clock."""

import json
import logging
import os
import resource
import subprocess
import sys

import keras
import pytest

from cellerate.cli.backend import start_backend

pytestmark = [pytest.mark.keras, pytest.mark.backends]

# Runs the program up to an event, and prints the imports and compilations before it.
UNTIL = """
import json, os, sys
compiled = []

def stop():
    print(json.dumps({"modules": sorted(sys.modules), "compiled": len(compiled)}), flush=True)
    os._exit(0)

def at_first_line():
    write = sys.stderr.write
    def written(text):
        write(text)
        if text.endswith(chr(10)):
            stop()
    sys.stderr.write = written

def at_first_step():
    from cellerate.training.callbacks import Conductor
    if "jax" in sys.modules:
        import jax.monitoring
        jax.monitoring.register_event_duration_secs_listener(
            lambda event, _, **__: compiled.append(event) if event.endswith("backend_compile_duration") else None
        )
    Conductor.on_train_batch_end = lambda *_, **__: stop()

from cellerate.cli import main, running
if sys.argv[1] == "line":
    at_first_line()
else:
    start = running.start_backend
    def started(*arguments):
        start(*arguments)
        at_first_step()
    running.start_backend = started
sys.argv = ["cellerate", *sys.argv[2:]]
main.main()
"""
# Modules that a first step does not need, though Keras, JAX or torch would import them.
NEEDLESS = {"matplotlib", "pandas", "sklearn", "IPython", "wandb", "mlflow", "onnx", "onnxruntime", "uvicorn"}
TASKS = [("text", "t.txt"), ("series", "s.csv"), ("embed", "l.txt")]


def until(event, *words):
    done = subprocess.run(
        [sys.executable, "-c", UNTIL, event, *map(str, words)], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def training(small, task, data):
    return ["train", task, data, "-o", "m.keras", *small[task], "--backend", keras.backend.backend()]


@pytest.mark.parametrize(("task", "data"), TASKS)
def test_first_line_is_printed_before_heavy_imports(here, small, task, data):
    found, said = until("line", *training(small, task, data))
    assert said == f"training m.keras on {data}: starting {keras.backend.backend()}\n"
    packages = {name.partition(".")[0] for name in found["modules"]}
    heavy = NEEDLESS | {"numpy", "keras", "jax", "torch", "tensorflow", "pyarrow", "rich", "scipy"}
    assert packages & heavy == set()
    assert len(found["modules"]) < 400


@pytest.mark.parametrize(("task", "data"), TASKS)
def test_first_step_imports_few_packages_and_compiles_few_programs(here, small, task, data):
    found, _ = until("step", *training(small, task, data), "--implementation", "auto")
    packages = {name.partition(".")[0] for name in found["modules"]}
    others = {"tensorflow", "torch", "jax"} - {keras.backend.backend()}
    if keras.backend.backend() == "tensorflow":
        others -= {"jax", "torch"}
    assert packages & (NEEDLESS | others) == set()
    if keras.backend.backend() == "jax":
        assert found["compiled"] <= 20


def processor_s():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="the backend whose start takes longest")
def test_training_prints_a_line_in_half_a_second_and_trains_in_six(here, shared_data, monkeypatch):
    """Times are processor seconds, little affected by other programs; the first run compiles, later runs load."""
    monkeypatch.setenv("XLA_FLAGS", "")  # as users run it
    words = [
        "train",
        "text",
        shared_data / "tinyshakespeare.txt",
        "-o",
        "m.keras",
        "--backend",
        "jax",
        "--overwrite",
    ]
    seconds = {}
    for event in ("line", "step"):
        for _ in range(3):
            before = processor_s()
            until(event, *words)
            seconds.setdefault(event, []).append(processor_s() - before)
    assert min(seconds["line"]) < 0.5
    assert max(seconds["step"]) < 6
    assert min(seconds["step"][1:]) < 0.8 * seconds["step"][0]


def test_recompilation_advice_is_hidden_and_other_warnings_are_shown():
    start_backend(keras.backend.backend())
    said = [
        "5 out of the last 11 calls to f triggered tf.function retracing.",
        "AutoGraph could not transform f.",
    ]
    records = [logging.LogRecord("tensorflow", logging.WARNING, "f.py", 1, text, (), None) for text in said]
    assert [bool(logging.getLogger("tensorflow").filter(record)) for record in records] == [False, True]


def test_module_runs_as_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "cellerate", "forecast"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "Usage: cellerate forecast" in done.stderr
