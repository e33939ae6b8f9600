"""The separate environment of the forecasting peers Darts and NeuralForecast.

It is made once, in `build/forecasters`, from the dependency group `forecasters`; `CELLERATE_BENCH_FORECASTERS` names
another one. Torch is installed first, in the version that we are measured with: the peers alone might pull in a build
for GPUs, of some gigabytes.
"""

import json
import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from benchmarks import ROOT

PLACE = Path(os.environ.get("CELLERATE_BENCH_FORECASTERS", ROOT / "build" / "forecasters"))
STAMP = "forecasters.json"


def requirements() -> list[str]:
    """The packages of the environment: our torch, and the group."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    return [f"torch=={metadata.version('torch').partition('+')[0]}", *groups["forecasters"]]


def peers_python(place: Path = PLACE) -> str:
    """The Python of the environment, which is made first if it is missing or has other packages.

    Raises:
        RuntimeError: The environment cannot be made.
    """
    python, stamp, wanted = place / "bin" / "python", place / STAMP, requirements()
    if not stamp.exists() or json.loads(stamp.read_text()) != wanted:
        print(f"makes {place}: {', '.join(wanted)}", flush=True)
        torch, *_ = wanted
        for command in (
            [sys.executable, "-m", "venv", str(place)],
            [str(python), "-m", "pip", "install", "--quiet", torch],
            [str(python), "-m", "pip", "install", "--quiet", *wanted],
        ):
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode:
                *_, last = ["", *done.stderr.splitlines()]
                raise RuntimeError(f"the environment of the peers cannot be made: {last}")
        stamp.write_text(json.dumps(wanted))
    return str(python)


if __name__ == "__main__":
    print(peers_python())
