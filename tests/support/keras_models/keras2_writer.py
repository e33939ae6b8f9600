"""Files that Keras 2 itself writes, in a process of its own: it cannot be imported beside Keras 3's backends."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


def written_by_keras_2(script: str, folder: Path) -> Path:
    """Runs a script that imports `tf_keras` in a folder, and returns the folder; skips the test without tf_keras."""
    if importlib.util.find_spec("tf_keras") is None:
        pytest.skip("tf-keras, which writes these files, needs a Python that TensorFlow 2.21 has builds for")
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder
