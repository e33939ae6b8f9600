"""The emulated GPU for tests of Keras layers."""

import keras
import pytest

from cellerate.layers import fused
from support.kernels import gpu_cases


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Cellerate see a GPU; Keras's own code stays on the CPU."""
    gpu_cases.emulate(monkeypatch)
    monkeypatch.setattr(fused.bridge(), "gpu_available", lambda: True)
    if keras.backend.backend() == "jax":
        import jax

        from cellerate.kernels import native

        jax.ffi.register_ffi_target("cellerate_launch", native.core().xla_launch_on_host(), platform="cpu")


@pytest.hookimpl(tryfirst=True)  # before pytest deselects tests by `-m`
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests on the emulated GPU as slow unless they are marked `quick_on_gpu`."""
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        quick = item.get_closest_marker("quick_on_gpu") is not None
        if parameters.get("implementation") == "cellerate-cuda" and not quick:
            item.add_marker(pytest.mark.slow)
