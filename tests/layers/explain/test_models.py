"""Masks, wrappers, subclasses and settings that `explain` finds in a model."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from cellerate.layers.explain import explain
from support.keras_models.explained import BACKEND, PLAIN, F, T, condition, model_of, only

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    # Keras's own convert_to_numpy calls np.array on a framework's tensor, which NumPy 2 warns about.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
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
    """Models that pass on, lose or combine a mask."""

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
def test_explain_reports_a_mask_exactly_where_one_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_explain_reports_a_shared_layer_once_and_as_masked_if_any_call_is() -> None:
    shared = layers.LSTM(4, name="shared")
    inputs = keras.Input((T, F))
    model = keras.Model(inputs, [shared(inputs), shared(layers.Masking(name="pad")(inputs))])
    assert "Masking 'pad'" in condition(only(explain(model)), "mask").found


def test_explain_reports_compiled_settings() -> None:
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
