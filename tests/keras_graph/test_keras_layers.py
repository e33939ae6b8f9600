"""The table of layers: a row is all that a new layer needs, and what a row names is there in Keras."""

import keras
import numpy as np
import pytest
from keras import layers

from cellerate.errors import ModelError
from cellerate.keras_graph import program_layers, ties_layers
from cellerate.keras_graph.keras_layers import (
    ALIKE,
    MIXED,
    OPERATIONS,
    ROWS,
    LayerFacts,
    OperationRow,
    readers,
)
from cellerate.keras_graph.program_nodes import ProgramCall, ProgramValue
from cellerate.keras_graph.step_graph import StepGraph
from cellerate.keras_graph.ties import units_of
from cellerate.keras_graph.to_program import read_program

pytestmark = pytest.mark.keras

V = 7


class Doubled(keras.Layer):
    """A layer that Keras does not have."""

    def call(self, inputs):
        return 2 * inputs

    def compute_output_shape(self, input_shape):
        return input_shape


def read_doubled(call: ProgramCall) -> ProgramValue:
    return program_layers.affine(call, 2.0, 0.0)


def model_with(layer: keras.Layer) -> keras.Model:
    ids = keras.Input((None,), dtype="int32")
    x = layers.LSTM(3, return_sequences=True, name="lstm")(layers.Embedding(V, 2)(ids))
    return keras.Model(ids, layers.Dense(V)(layer(x)))


def test_layer_without_a_row_is_unknown_to_every_reader():
    model = model_with(Doubled(name="doubled"))
    with pytest.raises(ModelError, match="doubled"):
        read_program(model)
    assert StepGraph(model).untested == ["doubled"]
    assert "doubled" in units_of(model).kept_whole["lstm"]


def test_planted_row_is_all_that_a_new_layer_needs(monkeypatch):
    monkeypatch.setitem(ROWS, Doubled, LayerFacts(ALIKE, read_doubled, ties_layers.passes, per_step=True))
    model = model_with(Doubled(name="doubled"))

    nodes = {node.name: node for node in read_program(model).nodes}
    assert nodes["doubled"].op == "affine"
    np.testing.assert_array_equal(nodes["doubled"].arrays["scale"], [2.0, 2.0, 2.0])
    assert StepGraph(model).untested == []
    units = units_of(model)
    assert [list(units.layers), dict(units.kept_whole)] == [["lstm"], {}]


def test_planted_row_of_a_single_step_is_read_inside_time_distributed(monkeypatch):
    model = model_with(layers.TimeDistributed(Doubled(name="doubled"), name="steps"))
    monkeypatch.setitem(ROWS, Doubled, LayerFacts(ALIKE, read_doubled, ties_layers.passes))
    with pytest.raises(ModelError, match="steps/doubled"):
        read_program(model)
    monkeypatch.setitem(ROWS, Doubled, LayerFacts(ALIKE, read_doubled, ties_layers.passes, per_step=True))
    assert "steps/doubled" in {node.name for node in read_program(model).nodes}
    assert list(units_of(model).layers) == ["lstm"]


def test_planted_row_that_mixes_steps_is_refused_by_the_step_graph(monkeypatch):
    monkeypatch.setitem(ROWS, Doubled, LayerFacts(MIXED))
    with pytest.raises(ModelError, match="mixes time steps"):
        StepGraph(model_with(Doubled(name="doubled")))


def test_planted_row_of_an_operation_is_all_that_it_needs(monkeypatch):
    ids = keras.Input((None,), dtype="int32")
    x = layers.LSTM(3, return_sequences=True, name="lstm")(layers.Embedding(V, 2)(ids))
    model = keras.Model(ids, layers.Dense(V)(keras.ops.erf(x)))
    with pytest.raises(ModelError, match="Erf"):
        read_program(model)
    assert len(StepGraph(model).untested) == 1
    assert "lstm" in units_of(model).kept_whole

    monkeypatch.setitem(OPERATIONS, "Erf", OperationRow(ALIKE, read_doubled, ties_layers.passes))
    assert "affine" in {node.op for node in read_program(model).nodes}
    assert StepGraph(model).untested == []
    assert list(units_of(model).layers) == ["lstm"]


def test_rows_are_of_layers_that_keras_has():
    public = [kind for kind in vars(layers).values() if isinstance(kind, type)]
    for kind in ROWS:
        # A base that Keras does not show stands for those that it does.
        assert any(issubclass(known, kind) for known in public), kind
        assert issubclass(kind, keras.Layer), kind


def test_rows_are_of_operations_that_keras_has():
    operations = {}
    kinds = [keras.Operation]
    while kinds:
        kind = kinds.pop()
        if kind.__module__.startswith(("keras.src.ops.", "keras.src.activations.")):
            operations[kind.__name__] = kind
        kinds += kind.__subclasses__()
    assert OPERATIONS.keys() <= operations.keys()


def test_rows_say_something_of_every_layer():
    assert [kind for kind, row in ROWS.items() if row == LayerFacts()] == []
    assert [name for name, row in OPERATIONS.items() if row == OperationRow()] == []
    assert {kind for kind, row in ROWS.items() if row.per_step} == readers().per_step.keys()
