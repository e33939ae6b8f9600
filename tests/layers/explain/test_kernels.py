"""The kernel that `explain` names is the one that Keras then runs."""

from collections.abc import Callable
from typing import Any

import keras
import pytest
from keras import layers

from cellerate.layers.explain import explain
from cellerate.machine.environment import BACKENDS
from support.keras_models.explained import (
    BACKEND,
    LAYERS,
    PLAIN,
    F,
    T,
    Watch,
    condition,
    model_of,
    ones,
    only,
)

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    # Keras's own convert_to_numpy calls np.array on a framework's tensor, which NumPy 2 warns about.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("name", LAYERS)
def test_explain_names_the_kernel_that_runs(name: str, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(LAYERS[name](), masked=masked)
    report = only(explain(model))
    watch = Watch(monkeypatch)
    model(ones())
    assert watch.kernels == [report.kernel]
    mask = [c for c in report.conditions if c.name == "mask"]
    assert all((c.found != "none") is masked for c in mask)


@pytest.mark.parametrize("kind", [layers.LSTM, layers.GRU])
def test_explain_without_a_gpu_says_which_conditions_matter(kind: Any) -> None:
    """On torch the conditions that choose between its two loops matter; on TensorFlow the mask; on JAX none."""
    worse: dict[str, Callable[[], keras.Model]] = {
        "activation": lambda: model_of(kind(4, activation="relu")),
        "recurrent_dropout": lambda: model_of(kind(4, recurrent_dropout=0.2)),
        "use_bias": lambda: model_of(kind(4, use_bias=False)),
        "use_cudnn": lambda: model_of(kind(4, use_cudnn=False)),
        "mask": lambda: model_of(kind(4), masked=True),
    }
    best = only(explain(model_of(kind(4)))).kernel
    for name, build in worse.items():
        report = only(explain(build()))
        changed = condition(report, name)
        assert changed.holds is False and changed.fix
        slower = report.kernel != best if BACKEND == "torch" else (BACKEND == "tensorflow" and name == "mask")
        assert changed.matters is slower, name
        assert (name in [c.name for c in report.changes]) is slower


def test_explain_kernel_description_matches_the_compiled_program() -> None:
    """The kernel descriptions match the programs that XLA and TensorFlow receive."""
    lstm, unrolled = model_of(layers.LSTM(4)), model_of(layers.LSTM(4, unroll=True))
    gru = model_of(layers.GRU(4))
    kernels = [only(explain(model)).kernel for model in (lstm, unrolled, gru)]
    if BACKEND == "jax":
        import jax

        def program(model: keras.Model) -> Any:
            def run(x: Any) -> Any:
                with keras.StatelessScope():
                    return model(x)

            return jax.make_jaxpr(run)(ones()).jaxpr

        def products_in_scan(jaxpr: Any) -> int | None:
            for equation in jaxpr.eqns:
                if equation.primitive.name == "scan":
                    return str(equation.params["jaxpr"]).count("dot_general[")
            return None

        assert [products_in_scan(program(m)) for m in (lstm, unrolled, gru)] == [2, None, 1]
        assert kernels == ["xla-scan", "xla-unrolled", "xla-scan-projected"]
    elif BACKEND == "tensorflow":
        import tensorflow as tf

        def loops(model: keras.Model) -> bool:
            traced = tf.function(model).get_concrete_function(tf.TensorSpec((2, T, F)))
            return any("While" in operation.type for operation in traced.graph.get_operations())

        assert [loops(m) for m in (lstm, unrolled, gru)] == [True, False, True]
        assert kernels == ["tf-while", "tf-unrolled", "tf-while"]
    else:
        calls = []
        cell_call = layers.LSTMCell.call
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(layers.LSTMCell, "call", lambda *a, **k: calls.append(1) or cell_call(*a, **k))
            lstm(ones())
            assert not calls  # the projected loop never calls the cell
            model_of(layers.LSTM(4, use_cudnn=False))(ones())
            assert len(calls) >= T
        assert kernels == ["python-loop-projected"] * 3


@pytest.mark.parametrize("other", BACKENDS)
def test_explain_for_another_backend_says_what_would_run_there(other: str) -> None:
    assert only(explain(model_of(layers.SimpleRNN(4)), backend=other)).kernel == PLAIN[other][0]
    masked = only(explain(model_of(layers.LSTM(4), masked=True), backend=other))
    assert masked.kernel == PLAIN[other][0]
    assert ("mask" in [c.name for c in masked.changes]) is (other != "jax")
