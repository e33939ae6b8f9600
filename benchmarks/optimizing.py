"""`cellerate optimize` on a trained text model: from the model as Keras runs it to the verdict, in one recorded run.

A module of its own because everything is measured by the program itself; what is added is whether it is enough.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MODEL = ["--embedding", "256", "--units", "512", "--epochs", "3"]
QUICK = ["--embedding", "64", "--units", "128", "--epochs", "1"]
TRAINING = ["--batch-size", "128", "--learning-rate", "0.002", "--clipnorm", "1"]
MAX_QUALITY_LOSS, TIME_BUDGET_S = 0.02, 3600
# What the run must come to: a word of the row of the verdict, and how many times better.
GOALS = {
    "from predict": 500,
    "from predict_on_batch": 20,
    "file": 6,
    "training step": 2.5,
}


def run(book: Path, *, quick: bool, backend: str = "tensorflow") -> dict[str, Any]:
    """Trains a model in float32 and optimizes it; a quick run does so with a small one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "book.keras"
        _run(
            "train", "text", book, "-o", model, *(QUICK if quick else MODEL), *TRAINING, "--backend", backend
        )
        budget = 240 if quick else TIME_BUDGET_S
        options = ["--max-quality-loss", MAX_QUALITY_LOSS, "--time-budget", budget, "--backend", backend]
        _run("optimize", model, "--data", book, "-o", folder / "out", "--batch-size", "128", *options)
        found = json.loads((folder / "out" / "report.json").read_text())
    rows = {row["label"]: _factor(row) for row in found["verdict"]["rows"]}
    goals = {}
    for words, goal in GOALS.items():
        factor = next(value for label, value in rows.items() if words in label)
        goals[words] = {"goal": goal, "factor": factor, "reached": factor >= goal}
        print(f"{words:<24} {factor:,.1f} (goal {goal})")
    print(found["verdict"]["sentence"], flush=True)
    return {"goals": goals, "run": found}


def _factor(row: dict[str, Any]) -> float:
    better, worse = ("after", "before") if row["higher_is_better"] else ("before", "after")
    return row[better] / row[worse]


def _run(*arguments: Any) -> None:
    program = str(Path(sys.executable).parent / "cellerate")
    subprocess.run([program, *map(str, arguments)], check=True, stdout=sys.stderr)
