"""`explain` must say what Keras then really does: its claims are held against calls that are watched."""

import contextlib
import dataclasses
import importlib
import json
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers
from keras.src import backend as keras_backend

from cellerate.errors import BackendError, ModelError
from cellerate.kernels import native
from cellerate.layers.accelerate import accelerate, is_accelerated, restore
from cellerate.layers.explain import Explanation, LayerReport, explain
from cellerate.layers.fused import bridge
from cellerate.machine.environment import BACKENDS

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    # Keras's own convert_to_numpy calls np.array on a framework's tensor, which NumPy 2 warns about.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]

BACKEND = keras.backend.backend()
T, F = 3, 4

LAYERS: dict[str, Callable[[], layers.Layer]] = {
    "lstm": lambda: layers.LSTM(4),
    "lstm-relu": lambda: layers.LSTM(4, activation="relu"),
    "lstm-hard-sigmoid": lambda: layers.LSTM(4, recurrent_activation="hard_sigmoid"),
    "lstm-recurrent-dropout": lambda: layers.LSTM(4, recurrent_dropout=0.2),
    "lstm-dropout": lambda: layers.LSTM(4, dropout=0.2),
    "lstm-unroll": lambda: layers.LSTM(4, unroll=True),
    "lstm-no-bias": lambda: layers.LSTM(4, use_bias=False),
    "lstm-no-cudnn": lambda: layers.LSTM(4, use_cudnn=False),
    "lstm-backwards": lambda: layers.LSTM(4, go_backwards=True),
    "gru": lambda: layers.GRU(4),
    "gru-reset-before": lambda: layers.GRU(4, reset_after=False),
    "gru-recurrent-dropout": lambda: layers.GRU(4, recurrent_dropout=0.2),
    "gru-unroll": lambda: layers.GRU(4, unroll=True),
    "gru-no-cudnn": lambda: layers.GRU(4, use_cudnn=False),
    "simple-rnn": lambda: layers.SimpleRNN(4),
    "simple-rnn-unroll": lambda: layers.SimpleRNN(4, unroll=True),
    "rnn-of-lstm-cell": lambda: layers.RNN(layers.LSTMCell(4)),
    "rnn-of-stacked-cells": lambda: layers.RNN([layers.LSTMCell(4), layers.GRUCell(4)]),
}
PLAIN = {
    "jax": ("xla-scan", "xla-unrolled"),
    "tensorflow": ("tf-while", "tf-unrolled"),
    "torch": ("python-loop", "python-loop"),
}


def model_of(layer: layers.Layer, *, masked: bool = False) -> keras.Model:
    inputs = keras.Input((T, F))
    x = layers.Masking()(inputs) if masked else inputs
    return keras.Model(inputs, layer(x))


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape or (2, T, F), "float32")


def only(explanation: Explanation) -> LayerReport:
    (report,) = explanation.layers
    return report


def condition(report: LayerReport, name: str) -> Any:
    (found,) = [c for c in report.conditions if c.name == name]
    return found


class Watch:
    """Records which of a backend's recurrent kernels did the work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kernels: list[str] = []
        self.fused = PLAIN[BACKEND][0].replace("python-loop", "python-loop-projected") + (
            "-projected" if BACKEND == "jax" else ""
        )
        for name in ("lstm", "gru"):
            monkeypatch.setattr(keras_backend, name, self._watched(getattr(keras_backend, name)))
        rnn = keras_backend.rnn

        def watched_rnn(*args: Any, **kwargs: Any) -> Any:
            self.kernels.append(PLAIN[BACKEND][1 if kwargs["unroll"] else 0])
            return rnn(*args, **kwargs)

        monkeypatch.setattr(keras_backend, "rnn", watched_rnn)

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)  # NotImplementedError: this one does not run it
            self.kernels.append(self.fused)
            return result

        return watched


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("name", LAYERS)
def test_explain_kernel_is_the_one_that_runs(
    name: str, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(LAYERS[name](), masked=masked)
    report = only(explain(model))
    watch = Watch(monkeypatch)
    model(ones())
    assert watch.kernels == [report.kernel]
    mask = [c for c in report.conditions if c.name == "mask"]
    assert all((c.found != "none") is masked for c in mask)


@pytest.mark.parametrize("kind", [layers.LSTM, layers.GRU])
def test_explain_without_a_gpu_says_of_each_condition_whether_it_matters(kind: Any) -> None:
    """On torch those that decide between its two loops; on TensorFlow the mask; on JAX none."""
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
    """The names stand for what XLA and TensorFlow are really given."""
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


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, backend: str = BACKEND) -> None:
    monkeypatch.setattr(
        importlib.import_module(f"cellerate.bridges.{backend}"), "gpu_available", lambda: True
    )


class CalledCudnnError(BaseException):
    """Not an Exception: Keras on torch catches those of its cuDNN call and goes on without."""


def input_on_a_pretended_gpu() -> Any:
    """What a model is called on; torch looks at the device of the tensor itself."""
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
    """Keras is made to see a GPU, and its call into cuDNN is replaced by one that only says it was made."""
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


def masks_seen(model: keras.Model, given: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    seen: dict[str, bool] = {}
    for cls in (layers.LSTM, layers.GRU, layers.RNN):
        inner_loop = cls.inner_loop

        def watched(self, sequences, initial_state, mask, training=False, inner_loop=inner_loop):
            seen[self.name] = seen.get(self.name, False) or mask is not None
            return inner_loop(self, sequences, initial_state, mask=mask, training=training)

        monkeypatch.setattr(cls, "inner_loop", watched)
    model(given)
    return seen


def masked_graph() -> keras.Model:
    """Ways a mask goes on, is lost, or is joined."""

    def lstm(name: str, sequences: bool = True, **options: Any) -> layers.LSTM:
        return layers.LSTM(4, return_sequences=sequences, name=name, **options)

    inner_inputs = keras.Input((T, 4))
    inner = keras.Model(inner_inputs, lstm("in_nested")(layers.Dropout(0.1)(inner_inputs)), name="nested")
    inputs = keras.Input((T,), dtype="int32")
    masked = layers.Embedding(9, 4, mask_zero=True, name="tokens")(inputs)
    plain = layers.Embedding(9, 4)(inputs)
    through = lstm("through")(layers.Dense(4)(layers.Dropout(0.1)(masked)))
    outputs = [
        lstm("first")(masked),
        lstm("never")(plain),
        lstm("second", sequences=False)(through),
        lstm("added")(layers.Add()([masked, through])),
        lstm("added_to_plain")(layers.Add()([masked, plain])),
        lstm("joined")(layers.Concatenate()([plain, masked])),
        lstm("after_plain_op")(masked * 2.0),
        lstm("after_last")(layers.RepeatVector(T)(layers.GRU(4, name="last")(masked))),
        lstm("after_both")(layers.Bidirectional(layers.GRU(4, return_sequences=True))(masked)),
        lstm("after_nested")(inner(masked)),
        lstm("own_mask")(plain, mask=keras.ops.not_equal(inputs, 2)),
        lstm("reversible")(layers.ReversibleEmbedding(9, 4, mask_zero=True)(inputs)),
        lstm("each_step")(layers.TimeDistributed(layers.Dense(4))(masked)),
    ]
    return keras.Model(inputs, outputs)


# The model loses masks on purpose, and Keras says so.
@pytest.mark.filterwarnings("ignore:Layer .*does not support masking")
def test_explain_mask_is_found_exactly_where_one_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    model = masked_graph()
    reports = [r for r in explain(model).layers if not r.wrapper]
    claimed = {r.name: condition(r, "mask").found != "none" for r in reports}
    assert claimed == masks_seen(model, np.array([[1, 2, 0], [3, 0, 0]]), monkeypatch)
    assert sum(claimed.values()) > 5 and not all(claimed.values())
    paths = {r.name: r.path for r in reports}
    assert paths["in_nested"] == "nested/in_nested"
    found = {r.name: condition(r, "mask").found for r in reports}
    assert "Embedding 'tokens' (mask_zero=True)" in found["in_nested"]
    assert "Embedding 'tokens'" in found["second"]
    assert "`mask` argument" in found["own_mask"]


class Block(layers.Layer):
    def __init__(self) -> None:
        super().__init__(name="block")
        self.inside = layers.LSTM(4, name="inside")

    def call(self, x: Any) -> Any:
        return self.inside(x)


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.both = layers.Bidirectional(layers.SimpleRNN(4), name="both")

    def call(self, x: Any) -> Any:
        return self.both(x) + self.block(x)


def test_explain_of_a_subclassed_model_says_that_the_mask_is_unknown() -> None:
    reports = {r.path: r for r in explain(Subclassed()).layers}
    assert set(reports) == {
        "block/inside",
        "both",
        "both/forward_simple_rnn",
        "both/backward_simple_rnn",
    } or {path.split("/")[0] for path in reports} == {"block", "both"}
    mask = condition(reports["block/inside"], "mask")
    assert mask.holds is None and mask.found == "unknown until called"
    assert "unknown until called" in str(explain(Subclassed()))


def test_explain_looks_into_wrappers() -> None:
    inputs = keras.Input((5, T, F))
    document = keras.Model(
        sentence := keras.Input((T, F)),
        layers.Bidirectional(layers.GRU(4), name="both")(sentence),
        name="sentence",
    )
    x = layers.TimeDistributed(document, name="each")(inputs)
    x = layers.TimeDistributed(layers.Dense(4), name="needless")(x)
    x = layers.TimeDistributed(layers.LSTM(4, name="inner"), name="inner_each")(layers.Reshape((5, 2, 2))(x))
    model = keras.Model(inputs, x)
    paths = [r.path for r in explain(model).layers]
    assert paths[:2] == ["each", "each/sentence/both"]
    assert [p.rsplit("/", 1)[0] for p in paths[2:4]] == ["each/sentence/both"] * 2
    assert paths[4:] == ["needless", "inner_each", "inner_each/inner"]
    needless = next(r for r in explain(model).layers if r.path == "needless")
    assert needless.wrapper and needless.kernel == "one-call-a-step"
    assert [c.fix for c in needless.changes] and "use Dense itself" in needless.changes[0].fix
    assert explain(model).summary.startswith("3 recurrent layers;")


def test_explain_of_convolutional_and_custom_layers_names_what_runs() -> None:
    conv = model_of_shape(layers.ConvLSTM1D(2, 2), (T, 5, 1))
    assert only(explain(conv)).kernel == PLAIN[BACKEND][0]

    class Mine(layers.LSTM):
        def inner_loop(self, sequences, initial_state, mask, training=False):
            return super().inner_loop(sequences, initial_state, mask, training)

    report = only(explain(model_of(Mine(4))))
    assert report.kernel == "custom"
    assert "Mine" in report.conditions[0].found


def model_of_shape(layer: layers.Layer, shape: tuple[int, ...]) -> keras.Model:
    inputs = keras.Input(shape)
    return keras.Model(inputs, layer(inputs))


def test_explain_shared_layer_is_reported_once_and_masked_if_any_call_is() -> None:
    shared = layers.LSTM(4, name="shared")
    inputs = keras.Input((T, F))
    model = keras.Model(inputs, [shared(inputs), shared(layers.Masking(name="pad")(inputs))])
    assert "Masking 'pad'" in condition(only(explain(model)), "mask").found


def test_explain_compiled_settings_are_seen() -> None:
    model = model_of(layers.LSTM(4, implementation=1))
    model.compile("sgd", "mse", run_eagerly=True, jit_compile=False)
    report = only(explain(model))
    if BACKEND == "tensorflow":
        assert report.kernel == "python-loop"
        assert [c.name for c in report.changes] == ["accelerated", "implementation", "graph"]
        model.compile("sgd", "mse", jit_compile=True)
        assert condition(only(explain(model)), "XLA").holds
    elif BACKEND == "jax":
        assert [c.name for c in report.changes] == ["accelerated", "jit"]
    else:
        assert [c.name for c in report.changes] == ["accelerated", "compiled loop"]


@pytest.mark.parametrize("other", BACKENDS)
def test_explain_for_another_backend_says_what_would_run_there(other: str) -> None:
    assert only(explain(model_of(layers.SimpleRNN(4)), backend=other)).kernel == PLAIN[other][0]
    masked = only(explain(model_of(layers.LSTM(4), masked=True), backend=other))
    assert masked.kernel == PLAIN[other][0]
    assert ("mask" in [c.name for c in masked.changes]) is (other != "jax")


@pytest.mark.parametrize("other", [name for name in BACKENDS if name != BACKEND])
def test_explain_of_an_accelerated_model_for_another_backend_says_nothing_of_the_one_that_runs(
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
def test_explain_of_a_model_accelerated_on_a_gpu_for_another_backend_is_that_of_a_plain_model() -> None:
    model = model_of(layers.Bidirectional(layers.LSTM(4)))
    others = [name for name in BACKENDS if name != BACKEND]
    plain = [explain(model, backend=other) for other in others]
    assert [explain(accelerate(model), backend=other) for other in others] == plain


def test_explanation_text_and_dict_say_the_same() -> None:
    inputs = keras.Input((None, F))
    x = layers.LSTM(4, return_sequences=True, recurrent_dropout=0.5, name="slow")(inputs)
    explanation = explain(keras.Model(inputs, layers.GRU(4, name="fine")(x), name="both"), backend="torch")
    values = json.loads(json.dumps(explanation.to_dict()))
    assert values["backend"] == "torch" and values["model"] == "both"
    assert [given["path"] for given in values["layers"]] == ["slow", "fine"]
    assert values["layers"][0]["kernel"] == "python-loop"
    assert values["layers"][0]["kernel_description"]
    dropout = next(c for c in values["layers"][0]["conditions"] if c["name"] == "recurrent_dropout")
    assert dropout["holds"] is False and dropout["found"] == "0.5" and dropout["matters"] is True

    text = str(explanation)
    lines = text.splitlines()
    assert "backend torch" in lines[0]
    assert lines[-1] == values["summary"]
    # That the layer could be accelerated is said for the backend that runs.
    accelerated = "accelerated, " if BACKEND == "torch" else ""
    assert lines[-1].startswith(
        f"2 recurrent layers; 2 could run faster: slow ({accelerated}recurrent_dropout, "
    )
    marked = [line for line in lines if line.startswith("  no  recurrent_dropout")]
    assert len(marked) == 1 and "0.5" in marked[0] and "-> recurrent_dropout=0" in marked[0]
    # Aligned: within a layer, every finding starts in the same column.
    block = lines[lines.index("slow (LSTM)") + 2 : lines.index("fine (GRU)") - 1]
    starts = {line.index(c.found) for line, c in zip(block, explanation.layers[0].conditions, strict=True)}
    assert len(starts) == 1
    assert max(map(ord, text)) < 128


def test_explain_says_at_once_that_a_model_can_be_packed() -> None:
    explanation = explain(model_of(layers.LSTM(4)))
    assert explanation.can_be_packed and explanation.why_not_packed == ()
    assert str(explanation).splitlines()[1] == "can be packed: yes"
    assert explanation.to_dict()["can_be_packed"] is True


def test_explain_says_everything_that_keeps_a_model_from_being_packed() -> None:
    one = explain(model_of(layers.Conv1D(3, 2, name="conv")))
    assert str(one).splitlines()[-1].startswith("can be packed: no, because conv (Conv1D) is not a layer")
    chain = [layers.Conv1D(3, 2, name="conv"), layers.LSTM(4, activation="softmax", name="soft")]
    both = explain(keras.Sequential([keras.Input((T, F)), *chain]))
    assert not both.can_be_packed
    _, packing, *reasons = str(both).splitlines()[:4]
    assert packing == "can be packed: no, because"
    assert [reason.split(" ")[1] for reason in reasons] == ["conv", "soft"]
    assert json.loads(json.dumps(both.to_dict()))["why_not_packed"] == list(both.why_not_packed)


def test_explain_of_a_packed_model_says_that_it_explains_itself() -> None:
    with pytest.raises(ModelError, match=r"cellerate.load\(path\).explain\(\)"):
        explain("book.cell")  # type: ignore[arg-type]


def test_explain_without_recurrent_layers_says_so() -> None:
    explanation = explain(model_of(layers.Dense(2)))
    assert explanation.layers == ()
    assert "no recurrent layers" in str(explanation)
    assert "no recurrent layers" in explanation.to_dict()["summary"]


def test_explain_of_a_wrong_argument_raises() -> None:
    with pytest.raises(ModelError, match=r"got str.*load_model"):
        explain("model.keras")  # type: ignore[arg-type]
    with pytest.raises(BackendError, match="theano"):
        explain(model_of(layers.LSTM(4)), backend="theano")


def test_explain_of_an_accelerated_layer_names_the_native_core_and_its_target() -> None:
    model = model_of(layers.Bidirectional(layers.LSTM(4, dtype="mixed_float16"), name="both"), masked=True)
    plain = explain(model).layers
    assert [r.implementation for r in plain] == ["keras"] * 3
    for report in plain[1:]:
        # What there is to gain stands first, and is counted among what could run faster.
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
    assert explanation.summary == "2 recurrent layers; 0 could run faster."
    values = json.loads(json.dumps(explanation.to_dict()))
    assert [given["target"] for given in values["layers"]] == [None, native.target(), native.target()]
    assert explain(restore(model)) == dataclasses.replace(explanation, layers=plain, notes=())


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
    # Unrolled and masked is Keras's, and the report says so.
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
    # cuDNN may run plain calls, and no other.
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
