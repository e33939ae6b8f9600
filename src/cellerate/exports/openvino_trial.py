"""Tries an ONNX file in OpenVINO, in its own process, because OpenVINO forks when it is imported.

`python -m cellerate.exports.openvino_trial FILE` reads the trials from stdin, and writes the outcome as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from cellerate.exports.trials import Arrays, TrialBatch, deviation

# A trial takes about two seconds.
_PATIENCE_S = 120
# Far above rounding, in int8 too, and far below a wrong layer.
_RIGHT = 0.05


def tried_in_openvino(path: Path, trials: list[TrialBatch]) -> str:
    """The outcome of a trial of an ONNX file in OpenVINO, in words; "" if it is not installed."""
    if importlib.util.find_spec("openvino") is None:
        return ""
    command = [sys.executable, "-m", "cellerate.exports.openvino_trial", str(path)]
    try:
        done = subprocess.run(  # noqa: S603 (our own program)
            command, input=pickle.dumps(trials), capture_output=True, timeout=_PATIENCE_S, check=True
        )
        found: dict[str, Any] = json.loads(done.stdout)
    except (subprocess.SubprocessError, json.JSONDecodeError):
        return "OpenVINO did not end well with it"
    if "error" in found:
        words = f"in OpenVINO, in float32: error {found['error']:.1e}"
        return words if found["error"] <= _RIGHT else f"{words}, which is wrong: do not use the file there"
    return f"OpenVINO does not read it: {found['reason']}"


def main() -> None:
    """Tries a file, on the CPU and in float32."""
    import openvino

    trials: list[TrialBatch] = pickle.load(sys.stdin.buffer)  # noqa: S301 (from the process that started this one)
    try:
        model = openvino.Core().compile_model(sys.argv[1], "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

        def run(inputs: Arrays) -> Arrays:
            results = model(dict(inputs))
            # An output may have several names.
            named = [(name, output) for output in model.outputs for name in output.get_names()]
            return {name: np.asarray(results[output]) for name, output in named}

        print(json.dumps({"error": deviation(trials, run).error}))
    except RuntimeError as error:
        print(json.dumps({"reason": str(error).strip().splitlines()[-1]}))


if __name__ == "__main__":
    main()
