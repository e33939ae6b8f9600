"""`explain` of accelerated models: the kernels that run, and why a layer keeps Keras's own."""

import dataclasses
import json
from typing import Any

import keras
import pytest
from keras import layers

from cellerate.errors import BackendError
from cellerate.kernels import native
from cellerate.layers.accelerate import accelerate, is_accelerated, restore
from cellerate.layers.explain import explain
from cellerate.layers.fused import bridge
from cellerate.machine.environment import BACKENDS
from support.keras_models.explained import BACKEND, LAYERS, F, T, Watch, condition, model_of, ones, only

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    # Keras's own convert_to_numpy calls np.array on a framework's tensor, which NumPy 2 warns about.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]


@pytest.mark.parametrize("other", [name for name in BACKENDS if name != BACKEND])
def test_explain_for_another_backend_omits_the_running_backend(
    other: str,
) -> None:
    inputs = keras.Input((T, F))
    x = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(inputs)
    model = keras.Model(inputs, layers.LSTM(4)(x))
    plain = explain(model, backend=other)
    explanation = explain(accelerate(model), backend=other)
    assert explanation == plain
    assert f"{BACKEND} computes on" not in str(explanation)
    for report in explanation.layers[1:]:
        assert (report.implementation, report.kernel != "custom", report.target) == ("keras", True, None)
        unknown = report.conditions[0]
        assert (unknown.name, unknown.holds) == ("accelerated", None)
        assert f"where {other} runs" in unknown.found and f"KERAS_BACKEND={other}" in unknown.fix
        assert unknown not in report.changes


@pytest.mark.usefixtures("gpu")
@pytest.mark.skipif(BACKEND == "tensorflow", reason="TensorFlow's own path is cuDNN")
def test_explain_for_another_backend_treats_an_accelerated_gpu_model_as_plain() -> None:
    model = model_of(layers.Bidirectional(layers.LSTM(4)))
    others = [name for name in BACKENDS if name != BACKEND]
    plain = [explain(model, backend=other) for other in others]
    assert [explain(accelerate(model), backend=other) for other in others] == plain


def test_explain_of_an_accelerated_layer_names_the_core_and_its_target() -> None:
    model = model_of(layers.Bidirectional(layers.LSTM(4, dtype="mixed_float16"), name="both"), masked=True)
    plain = explain(model).layers
    assert [r.implementation for r in plain] == ["keras"] * 3
    for report in plain[1:]:
        # The possible gain comes first, and counts among the layers that could run faster.
        assert (report.conditions[0].name, report.conditions[0].fix) == (
            "accelerated",
            "cellerate.accelerate(model)",
        )
        assert report.changes[0] is report.conditions[0] and report.target is None
    explanation = explain(accelerate(model))
    for report in explanation.layers[1:]:
        assert (report.kernel, report.implementation, report.target) == (
            "cellerate-cpu",
            "cellerate-cpu",
            native.target(),
        )
        assert report.changes == ()
        assert condition(report, "dtype").found == "float16, computed in float32"
    assert f"kernel  cellerate-cpu ({native.target()}): Cellerate's native core" in str(explanation)
    assert explanation.summary == (
        "2 recurrent layers, none of which could run faster alone; Keras runs the training step, for the reasons above."
    )
    whole = dataclasses.replace(explanation, training_step=None)
    assert whole.summary == "2 recurrent layers; 0 could run faster."
    values = json.loads(json.dumps(explanation.to_dict()))
    assert [given["target"] for given in values["layers"]] == [None, native.target(), native.target()]
    assert explanation.training_step is not None and "computes in float16" in explanation.training_step
    before = dataclasses.replace(explanation, layers=plain, notes=(), training_step=None)
    assert explain(restore(model)) == before


@pytest.mark.parametrize(
    ("layer", "name", "found", "fix"),
    [
        (lambda: layers.LSTM(4, activation="softmax"), "activation", "softmax", "one of linear, tanh, "),
        (
            lambda: layers.LSTM(4, recurrent_activation=lambda x: 0.5 * x + 0.5 * x),
            "recurrent_activation",
            "<lambda>",
            'recurrent_activation="linear" gives the same for x from -4 to 4',
        ),
    ],
    ids=["softmax", "function"],
)
def test_explain_of_a_layer_that_cannot_be_accelerated_says_why(
    layer: Any, name: str, found: str, fix: str
) -> None:
    report = only(explain(accelerate(model_of(layer()))))
    assert report.implementation == "keras" and report.kernel != "custom"
    reason = report.conditions[0]
    assert (reason.name, reason.holds, reason.found) == (f"accelerated: {name}", False, found)
    assert reason.fix.startswith(fix)


def test_explain_of_an_accelerated_unrolled_layer_says_what_a_mask_does() -> None:
    masked = only(explain(accelerate(model_of(layers.LSTM(4, unroll=True), masked=True))))
    assert condition(masked, "unroll").holds is False and "unroll=False" in condition(masked, "unroll").fix
    plain = only(explain(accelerate(model_of(layers.LSTM(4, unroll=True)))))
    assert "unroll" not in [c.name for c in plain.conditions]


@pytest.mark.parametrize("name", [n for n in LAYERS if "lstm" in n and "rnn" not in n])
def test_explain_claims_the_native_core_exactly_where_it_is_called(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = accelerate(model_of(LAYERS[name](), masked=True))
    report = only(explain(model))
    calls, run = [], bridge().run
    monkeypatch.setattr(bridge(), "run", lambda *a, **k: calls.append(1) or run(*a, **k))
    watch = Watch(monkeypatch)
    model(ones())
    assert report.kernel == "cellerate-cpu"
    # Keras runs an unrolled layer with a mask, and the report says so.
    left = [c.name for c in report.changes] == ["unroll"]
    assert (calls == [], watch.kernels != []) == (left, left)


@pytest.mark.usefixtures("gpu")
@pytest.mark.skipif(BACKEND == "tensorflow", reason="TensorFlow's own path is cuDNN")
def test_explain_on_a_gpu_names_the_kernels_of_an_accelerated_model() -> None:
    inputs = keras.Input((T, F))
    x = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(inputs)
    x = layers.LSTM(4, activation="relu", return_sequences=True)(x)
    # Drawing orthogonal weights of this size would take most of a minute.
    model = keras.Model(inputs, layers.LSTM(1025, recurrent_initializer="zeros")(x))
    stock = explain(model)
    assert [c.name for c in stock.layers[-2].changes][:1] == ["accelerated"]
    explanation = explain(accelerate(model))
    kernels = [report.kernel for report in explanation.layers]
    cudnn = "cudnn" if BACKEND == "torch" else stock.layers[-1].kernel
    assert kernels == ["two-passes", "cellerate-cuda", "cellerate-cuda", "cellerate-cuda", cudnn]
    _, forward, _, relu, wide = explanation.layers
    assert (forward.implementation, forward.target) == ("cellerate-cuda", None)
    # cuDNN may run plain calls only.
    assert condition(forward, "cuDNN").holds is None
    assert not any(c.name == "cuDNN" for c in relu.conditions) and relu.changes == ()
    assert condition(wide, "accelerated: units").fix == "at most 1024"
    assert "cellerate-cuda: Cellerate's kernels for NVIDIA GPUs" in str(explanation)
    named = accelerate(keras.Sequential([keras.Input((T, F)), layers.LSTM(4)]), "cellerate-cuda")
    assert not any(c.name == "cuDNN" for c in only(explain(named)).conditions)


def test_named_implementation_that_cannot_run_here_is_refused_with_the_reason() -> None:
    model = model_of(layers.LSTM(4))
    expected = "KERAS_BACKEND=torch or jax" if BACKEND == "tensorflow" else "computes on the CPU"
    with pytest.raises(BackendError, match=expected):
        accelerate(model, "cellerate-cuda")
    assert not is_accelerated(model.layers[-1])


def test_explain_of_an_unknown_activation_names_the_nearest_known() -> None:
    def quick_gelu(x: Any) -> Any:
        return x * keras.ops.sigmoid(1.702 * x)

    report = only(explain(model_of(layers.LSTM(4, activation=quick_gelu))))
    unknown = condition(report, "accelerated: activation")
    assert unknown.fix == 'activation="gelu" comes nearest: it differs by at most 0.02 for x from -4 to 4'
    report = only(explain(model_of(layers.LSTM(4, recurrent_activation=lambda x: 0.5 + 0.25 * x))))
    assert condition(report, "accelerated: recurrent_activation").fix.startswith('recurrent_activation="')
