"""`explain` reports the Embedding before an LSTM and advises a larger initial scale only where it helps."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from cellerate.layers import fused
from cellerate.layers.accelerate import accelerate, restore
from cellerate.layers.conditions import Condition
from cellerate.layers.explain import explain

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]

BACKEND = keras.backend.backend()
ROWS, UNITS = 30, 4


def text_model(table: Any = None, layer: Any = None, optimizer: Any = "adam", **options: Any) -> keras.Model:
    ids = keras.Input((None,), dtype="int32")
    table = layers.Embedding(ROWS, 8, name="table", **options) if table is None else table
    layer = layers.LSTM(UNITS, return_sequences=True, name="reader") if layer is None else layer
    model = keras.Model(ids, layers.Dense(ROWS)(layer(table(ids))))
    if optimizer is not None:
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def named(model: keras.Model, name: str) -> list[Condition]:
    return [c for report in explain(model).layers for c in report.conditions if c.name == name]


def offers(model: keras.Model) -> list[str]:
    return [note for note in explain(model).notes if "RandomNormal(stddev=1.0)" in note]


def test_explain_names_the_projected_embedding_its_rows_and_the_condition() -> None:
    model = accelerate(text_model())
    (condition,) = named(model, "embedding")
    assert condition.found.startswith("'table': its 30 rows are projected once a call")
    assert "calls of fewer than 60 steps (batch x time)" in condition.found
    fewest = fused.fewest_looked_up(ROWS)
    enough, short = (np.zeros((1, steps), "int32") for steps in (fewest, fewest - 1))
    table = np.zeros((ROWS, 8))
    assert fused._worth_a_table(enough, table) and not fused._worth_a_table(short, table)
    assert "'table': its 30 rows" in str(explain(model))
    assert named(restore(model), "embedding") == []


@pytest.mark.skipif(BACKEND != "tensorflow", reason="elsewhere the framework sums it")
@pytest.mark.parametrize(("summed", "said"), [(False, "row by row, as in stock Keras"), (True, "is summed")])
def test_explain_names_the_embedding_gradient_that_accelerate_chose(summed: bool, said: str) -> None:
    import tensorflow as tf

    model = accelerate(text_model(), sum_embedding_gradients=summed)
    (condition,) = named(model, "embedding's gradient")
    assert said in condition.found
    ids = np.zeros((4, 20), "int32")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(ids))
    gradient = tape.gradient(loss, model.get_layer("table").embeddings.value)
    rows = gradient.indices.shape[0] if isinstance(gradient, tf.IndexedSlices) else None
    assert (rows == ids.size) is not summed


@pytest.mark.skipif(BACKEND == "tensorflow", reason="there it is row by row")
def test_explain_omits_the_embedding_gradient_where_every_framework_sums_it() -> None:
    assert named(accelerate(text_model()), "embedding's gradient") == []


def test_explain_of_a_large_table_or_dropout_says_when_steps_are_projected() -> None:
    table = layers.Embedding(2000, 8, name="table")
    layer = layers.LSTM(UNITS, return_sequences=True, dropout=0.25)
    (condition,) = named(accelerate(text_model(table, layer)), "embedding")
    assert "fewer than 4,000 steps" in condition.found
    assert "in training, for dropout=0.25" in condition.found
    assert ("TensorFlow does not know" in condition.found) is (BACKEND == "tensorflow")


def test_explain_names_the_embedding_of_both_directions_and_of_nested_models() -> None:
    model = accelerate(text_model(layer=layers.Bidirectional(layers.LSTM(UNITS, return_sequences=True))))
    assert len(named(model, "embedding")) == 2
    vectors = keras.Input((None, 8))
    inner = keras.Model(vectors, layers.LSTM(UNITS, return_sequences=True)(vectors))
    model = accelerate(text_model(layer=inner))
    assert len(named(model, "embedding")) == 1


def test_explain_omits_an_embedding_whose_output_changes_before_the_lstm() -> None:
    ids = keras.Input((None,), dtype="int32")
    changed = layers.LayerNormalization()(layers.Embedding(ROWS, 8)(ids))
    assert named(accelerate(keras.Model(ids, layers.LSTM(UNITS)(changed))), "embedding") == []
    shared, table = layers.LSTM(UNITS, return_sequences=True), layers.Embedding(ROWS, 8)
    vectors = keras.Input((None, 8))
    both = keras.Model([ids, vectors], [shared(table(ids)), shared(vectors)])
    assert named(accelerate(both), "embedding") == []


class Tied(layers.Layer):
    """A head that multiplies by the Embedding table."""

    def __init__(self, table: layers.Embedding) -> None:
        super().__init__()
        self.table = table

    def call(self, inputs: Any) -> Any:
        return keras.ops.matmul(inputs, keras.ops.transpose(self.table.embeddings))


@pytest.mark.parametrize("accelerated", [False, True])
def test_small_initial_embedding_gets_advice_for_a_larger_one(accelerated: bool) -> None:
    model = text_model()
    model = accelerate(model) if accelerated else model
    (said,) = offers(model)
    assert "Embedding 'table' starts with a deviation of 0.0" in said and "docs/guide/training.md" in said
    assert said in str(explain(model)) and said in json.loads(json.dumps(explain(model).to_dict()))["notes"]
    assert len(offers(text_model(optimizer=None))) == 1
    assert len(offers(text_model(layer=layers.Bidirectional(layers.LSTM(UNITS, return_sequences=True))))) == 1


def test_initial_embedding_gets_no_advice_without_a_known_gain() -> None:
    assert offers(text_model(embeddings_initializer=keras.initializers.RandomNormal(stddev=1.0))) == []
    assert offers(text_model(optimizer="sgd")) == []
    assert offers(text_model(layer=layers.GRU(UNITS, return_sequences=True))) == []
    frozen = layers.Embedding(ROWS, 8, trainable=False)
    assert offers(text_model(frozen)) == []
    ids, table = keras.Input((None,), dtype="int32"), layers.Embedding(ROWS, UNITS)
    tied = keras.Model(ids, Tied(table)(layers.LSTM(UNITS, return_sequences=True)(table(ids))))
    assert offers(tied) == []
    reversible = layers.ReversibleEmbedding(ROWS, UNITS)
    model = text_model(reversible)
    assert offers(model) == []


def test_initial_embedding_of_a_trained_model_gets_no_advice(tmp_path: Path) -> None:
    model = text_model()
    ids = np.arange(ROWS, dtype="int32").reshape(2, -1)
    model.fit(ids, ids, verbose=0)
    assert offers(model) == []
    # The same holds for a file loaded without its optimizer.
    model.save(tmp_path / "trained.keras")
    loaded = keras.saving.load_model(tmp_path / "trained.keras", compile=False)
    assert np.std(loaded.get_layer("table").get_weights()[0]) < 0.1 and offers(loaded) == []


@pytest.mark.skipif(BACKEND != "tensorflow", reason="only TensorFlow's XLA cannot compile the kernels")
def test_explain_says_that_the_kernels_keep_xla_off() -> None:
    ids = keras.Input((12,), dtype="int32")
    x = layers.LSTM(UNITS, return_sequences=True, name="ours")(layers.Embedding(ROWS, 8)(ids))
    model = keras.Model(ids, layers.GRU(UNITS, name="theirs")(x))
    model.compile("adam", "mse")
    assert not any("XLA" in note for note in explain(model).notes)
    assert all(c.fix for c in named(model, "XLA"))
    accelerate(model)
    (said,) = [note for note in explain(model).notes if "XLA" in note]
    assert "jit_compile=True is turned off with a warning" in said
    # `explain` then does not recommend XLA for the other layers either.
    assert [c.fix for c in named(model, "XLA")] == [""]
    with pytest.warns(UserWarning, match="jit_compile"):
        model.compile("adam", "mse", jit_compile=True)
    assert not model.jit_compile
    restore(model)
    model.compile("adam", "mse", jit_compile=True)
    assert model.jit_compile and not any("XLA" in note for note in explain(model).notes)


@pytest.mark.skipif(BACKEND == "tensorflow", reason="said there")
def test_explain_omits_xla_where_the_kernels_work_with_it() -> None:
    found = explain(accelerate(text_model()))
    assert "cellerate-cpu" in str(found)
    assert not any("XLA" in note for note in found.notes)
