"""Runs the jobs of a program of `support.runs` in several processes."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TESTS = str(Path(__file__).parents[2])


def launched(
    program: str, jobs: list[str], count: int, folder: Path, extra: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run jobs in several processes; return the exit code and their stderr."""
    # Imported here, because the program itself joins its group before it imports Keras.
    import keras

    folder.mkdir(exist_ok=True)
    code = f"import sys; from cellerate.distributed.launch import launch; sys.exit(launch(sys.argv[1:], {count}))"
    done = subprocess.run(
        [sys.executable, "-c", code, sys.executable, program, str(folder), *jobs],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "KERAS_BACKEND": keras.config.backend(), "PYTHONPATH": _TESTS, **(extra or {})},
    )
    return done.returncode, done.stderr


def together(
    program: str, jobs: list[str], count: int, folder: Path, extra: Mapping[str, str] | None = None
) -> list[list[dict]]:
    """Run jobs in several processes; return the results of all processes for each job."""
    code, said = launched(program, jobs, count, folder, extra)
    assert code == 0, said
    return [*results(folder, jobs, count).values()]


def results(folder: Path, jobs: list[str], count: int) -> dict[str, list[dict]]:
    """The results of all processes for each job, by its name."""
    return {job: [json.loads((folder / f"{job}-{n}.json").read_text()) for n in range(count)] for job in jobs}


def run_jobs(jobs: Mapping[str, object]) -> None:
    """Run the jobs that the command line names, in the group of this process, and write the result of each.

    `python PROGRAM FOLDER JOB...`
    """
    import functools
    import traceback

    from cellerate.cli.backend import start_backend
    from cellerate.distributed.group import join, own_place

    folder, *names = sys.argv[1:]
    place = own_place()
    start_backend(None, functools.partial(join, place) if place else lambda _: None)
    for name in names:
        try:
            found = jobs[name](Path(folder))  # type: ignore[operator]
        except BaseException:
            # Exit at once: otherwise this process and the others would wait for each other.
            traceback.print_exc()
            os._exit(1)
        Path(folder, f"{name}-{place.number if place else 0}.json").write_text(json.dumps(found))


def outcome(result: Any, source: Any) -> dict[str, Any]:
    """The result of a training, for JSON: its history and curve, and its model's predictions for a batch."""
    import numpy as np

    from cellerate.training.parallel import apart

    predicted = curve = None
    if result.here:
        # The first process writes the curve, at the end of an epoch.
        lines = (result.folder / "curve.csv").read_text().splitlines()[1:] if result.history else []
        curve = [float(line.rpartition(",")[2]) for line in lines]
        with apart():
            predicted = np.asarray(result.model.predict_on_batch(source.batch(0, 0)[0])).tolist()
    names = ("loss", "val_loss", "mae", "val_mae", "steps", "gradient_norm")
    return {
        "status": result.status,
        "here": result.here,
        "history": [{key: row[key] for key in names if key in row} for row in result.history],
        "curve": curve,
        "predicted": predicted,
    }
