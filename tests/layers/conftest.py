"""The emulated GPU for tests of Keras layers."""

import sys
from pathlib import Path

import keras
import pytest

from cellerate.layers import fused

sys.path.insert(0, str(Path(__file__).parents[1] / "bridges"))
import gpu_cases


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the backend compute on a GPU, as far as Cellerate asks; Keras's own code stays on the CPU."""
    gpu_cases.emulate(monkeypatch)
    monkeypatch.setattr(fused.bridge(), "gpu_available", lambda: True)
    if keras.backend.backend() == "jax":
        import jax

        from cellerate.kernels import cpu

        jax.ffi.register_ffi_target("cellerate_launch", cpu.core().xla_launch_on_host(), platform="cpu")
