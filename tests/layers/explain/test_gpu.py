"""`explain` claims cuDNN exactly where Keras calls it, on a simulated GPU."""

import contextlib
import importlib
from typing import Any

import pytest
from keras import layers

from cellerate.layers.explain import explain
from cellerate.machine.environment import BACKENDS
from support.keras_models.explained import BACKEND, LAYERS, condition, model_of, ones, only

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    # Keras's own convert_to_numpy calls np.array on a framework's tensor, which NumPy 2 warns about.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, backend: str = BACKEND) -> None:
    monkeypatch.setattr(
        importlib.import_module(f"cellerate.bridges.{backend}"), "gpu_available", lambda: True
    )


class CalledCudnnError(BaseException):
    """A BaseException, because Keras on torch catches every Exception of its cuDNN call and falls back."""


def input_on_a_pretended_gpu() -> Any:
    """The input of a model; torch reads the device from the tensor."""
    if BACKEND != "torch":
        return ones()
    import torch

    class Pretending(torch.Tensor):
        @property
        def device(self) -> torch.device:
            return torch.device("cuda")

    return torch.from_numpy(ones()).as_subclass(Pretending)


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("name", [n for n in LAYERS if not n.startswith("simple")])
def test_explain_on_a_gpu_claims_cudnn_exactly_where_keras_calls_it(
    name: str, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keras sees a simulated GPU, and a stub that records the call replaces cuDNN."""
    called = []

    def cudnn(*args: Any, **kwargs: Any) -> Any:
        called.append(1)
        raise CalledCudnnError

    rnn = importlib.import_module(f"keras.src.backend.{BACKEND}.rnn")
    model = model_of(LAYERS[name](), masked=masked)
    pretend_gpu(monkeypatch)
    sees_gpu = "_is_cuda_cudnn_available" if BACKEND == "torch" else "_is_gpu_available"
    monkeypatch.setattr(rnn, sees_gpu, lambda: True)
    if BACKEND == "jax":
        monkeypatch.setattr(importlib.import_module("jax.experimental.rnn"), "lstm", cudnn)
    else:
        monkeypatch.setattr(rnn, "_cudnn_lstm", cudnn)
        monkeypatch.setattr(rnn, "_cudnn_gru", cudnn)
    report = only(explain(model))
    with contextlib.suppress(CalledCudnnError):
        model(input_on_a_pretended_gpu())
    assert bool(called) is (report.kernel == "cudnn")
    if masked and BACKEND == "tensorflow" and report.kernel == "cudnn":
        # TensorFlow's cuDNN takes a right-padded mask: only the data can tell.
        assert condition(report, "mask").holds is None


def test_explain_on_a_gpu_names_both_directions_and_the_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    for backend in BACKENDS:
        pretend_gpu(monkeypatch, backend)
    both = model_of(layers.Bidirectional(layers.LSTM(4)))
    dropped = model_of(layers.Bidirectional(layers.LSTM(4, dropout=0.1)))
    for backend, fused in {"jax": True, "torch": True, "tensorflow": False}.items():
        wrapper, forward, backward = explain(both, backend=backend).layers
        assert wrapper.wrapper and not forward.wrapper
        assert wrapper.kernel == ("cudnn-bidirectional" if fused else "two-passes")
        assert forward.kernel == backward.kernel == "cudnn"
        wrapper, forward, _ = explain(dropped, backend=backend).layers
        assert (wrapper.kernel, forward.kernel) == ("two-passes", "cudnn")
        assert ("dropout" in [c.name for c in wrapper.changes]) is fused
    half = model_of(layers.LSTM(4, dtype="mixed_bfloat16"))
    assert [only(explain(half, backend=b)).kernel for b in ("jax", "torch", "tensorflow")] == [
        "xla-scan",
        "cudnn",
        "cudnn",
    ]
    assert [c.name for c in only(explain(half, backend="jax")).changes] == ["dtype"]
    gru = model_of(layers.Bidirectional(layers.GRU(4)))
    assert [explain(gru, backend=b).layers[0].kernel for b in ("jax", "torch")] == [
        "two-passes",
        "cudnn-bidirectional",
    ]
