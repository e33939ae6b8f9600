"""Each implementation that a layer can be accelerated with, on each backend."""

from typing import Any

import keras
import pytest

from cellerate.kernels.dense import DENSE
from cellerate.layers import cudnn_choice, fused
from support.keras_models.fused_layers import BACKEND

# The kernels for GPUs run on an emulated one, for which each kind of layer is compiled anew. All tests on both would
# take minutes, so `make test` runs those on the GPU that are marked `quick_on_gpu`: at least one of each variant.
IMPLEMENTATIONS = ["cellerate-cpu"] if BACKEND == "tensorflow" else ["cellerate-cpu", "cellerate-cuda"]


@pytest.fixture(autouse=True)
def seeded() -> None:
    keras.utils.set_random_seed(0)


@pytest.fixture(autouse=True, params=IMPLEMENTATIONS)
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The implementation that `accelerate` chooses by itself."""
    if request.param == "cellerate-cuda":
        request.getfixturevalue("gpu")
        # cuDNN would always be faster than an emulated GPU.
        monkeypatch.setattr(cudnn_choice, "cudnn_is_faster", lambda *_: False)
    return request.param


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, implementation: str) -> list[list[str]]:
    """The names of the arrays passed to each kernel call."""
    seen: list[list[str]] = []
    name = "cuda_lstm" if implementation == "cellerate-cuda" else "run"
    run = getattr(fused.bridge(), name)

    def spy(*given: Any, **named: Any) -> Any:
        if given[0] is not DENSE:
            seen.append(sorted(next(one for one in given if isinstance(one, dict))))
        return run(*given, **named)

    monkeypatch.setattr(fused.bridge(), name, spy)
    return seen
