"""`cellerate optimize` on a trained model of each task: from the model as Keras runs it to the verdict, recorded.

The program itself measures everything; this module only checks whether the gains are sufficient.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.processes import cellerate

MAX_QUALITY_LOSS = 0.02


class Task(NamedTuple):
    """A model to train and then to optimize.

    Attributes:
        data: The file.
        options: The options of a training after which the model has finished learning, or nearly so.
        batch_size: The batch size of training and of optimizing.
        budget_s: The time limit of optimizing.
    """

    data: str
    options: tuple[str, ...]
    batch_size: int
    budget_s: int


TASKS = {
    "text": Task(
        "2600-0.txt",
        ("--embedding", "256", "--units", "512", "--epochs", "3", "--learning-rate", "0.002"),
        128,
        900,
    ),
    "series": Task(
        "ETTh1.csv",
        ("--target", "OT", "--window", "96", "--horizon", "24", "--epochs", "10", "--patience", "3"),
        64,
        300,
    ),
    "embed": Task(
        "tinyshakespeare.txt",
        (
            "--units",
            "256",
            "--latent",
            "256",
            "--epochs",
            "5",
            "--learning-rate",
            "0.003",
            "--schedule",
            "cosine",
        ),
        64,
        600,
    ),
}
QUICK = {
    "text": ("--embedding", "64", "--units", "128", "--epochs", "1"),
    "series": ("--epochs", "1"),
    "embed": ("--units", "64", "--latent", "64", "--epochs", "1"),
}
# The required gains on text: a word of the verdict's row, and the factor.
GOALS = {"from predict": 500, "from predict_on_batch": 20, "file": 6, "training": 2.5}


def run(data: Path, *, quick: bool, backend: str = "tensorflow") -> dict[str, Any]:
    """Train a model of each task in float32 and optimize it; a quick run uses small models."""
    runs: dict[str, dict[str, Any]] = {}
    for name, task in TASKS.items():
        with tempfile.TemporaryDirectory() as temporary:
            folder, batch = Path(temporary), ("--batch-size", task.batch_size, "--backend", backend)
            model, book = folder / f"{name}.keras", data / task.data
            options = (*task.options, *(QUICK[name] if quick else ()), "--clipnorm", "1")
            _run("train", name, book, "-o", model, *options, *batch)
            budget = (
                "--max-quality-loss",
                MAX_QUALITY_LOSS,
                "--time-budget",
                120 if quick else task.budget_s,
            )
            _run("optimize", model, "--data", book, "-o", folder / "out", *budget, *batch)
            runs[name] = json.loads((folder / "out" / "report.json").read_text())
        print(f"{name}: {runs[name]['verdict']['sentence']}", flush=True)
    rows = {row["label"]: factor(row) for row in runs["text"]["verdict"]["rows"]}
    goals = {}
    for words, goal in GOALS.items():
        found = next(value for label, value in rows.items() if words in label)
        goals[words] = {"goal": goal, "factor": found, "reached": found >= goal}
        print(f"{words:<24} {found:,.1f} (goal {goal})")
    return {"goals": goals, "runs": runs}


def factor(row: dict[str, Any]) -> float:
    """The factor by which a row of a verdict became better."""
    better, worse = ("after", "before") if row["higher_is_better"] else ("before", "after")
    return row[better] / row[worse]


def _run(*arguments: Any) -> None:
    subprocess.run(cellerate(*arguments), check=True, stdout=sys.stderr)
