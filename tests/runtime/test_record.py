"""The properties of a packed model that need no computation."""

import pytest

from cellerate.data.tokenizers.tokenizer import CharacterTokenizer
from cellerate.errors import DataError, ModelError
from cellerate.program import Node, Program
from cellerate.runtime.cell import Cell
from cellerate.runtime.packed import PackedModel
from support import packed_forecaster
from support.runtime import packed_lines

X = Node("input", "x", options={"shape": (-1, -1, 3), "dtype": "float32"})
PROGRAM = Program((X, Node("activation", "y", {"x": 0}, {}, {"activation": "tanh"})), {"y": 1})
OF_FORECASTERS = ("features", "targets", "window", "horizon", "quantiles")


def of_header(**header) -> PackedModel:
    return PackedModel(Cell(PROGRAM, "bfloat16", header))


def test_forecaster_shows_its_columns_and_sizes():
    model = packed_forecaster.packed("int8", quantiles=(0.1, 0.5, 0.9))
    assert model.features == ("load", "wind")
    assert model.targets == ("price", "load")
    assert (model.window, model.horizon) == (packed_forecaster.WINDOW, packed_forecaster.HORIZON)
    assert model.quantiles == (0.1, 0.5, 0.9)
    assert model.vocabulary_size is None
    assert repr(model) == (
        "<PackedModel: forecaster of price, load from load, wind, 6 rows to 3, 3 quantiles, "
        f"{model.parameters:,} parameters in int8>"
    )
    assert packed_forecaster.packed().quantiles == ()


def test_line_model_shows_its_vocabulary():
    model = packed_lines.packed()
    assert model.vocabulary_size == packed_lines.V
    assert [getattr(model, name) for name in OF_FORECASTERS] == [None] * 5
    assert repr(model) == "<PackedModel: line model, vocabulary of 17, 2,246 parameters in float32>"


def test_text_model_shows_its_vocabulary():
    model = of_header(task="text", payload={"tokenizer": CharacterTokenizer("abc").to_config()})
    assert model.vocabulary_size == 3
    assert repr(model) == "<PackedModel: text model, vocabulary of 3, 0 parameters in bfloat16>"


def test_model_without_a_task_shows_its_inputs_and_outputs():
    model = of_header()
    assert [getattr(model, name) for name in (*OF_FORECASTERS, "vocabulary_size")] == [None] * 6
    assert repr(model) == "<PackedModel: model of x (any, any, 3) to y, 0 parameters in bfloat16>"


@pytest.mark.parametrize("task", ["text", "series", "embed"])
def test_damaged_record_raises_on_reading_and_shows_in_the_repr(task):
    model = of_header(task=task, payload=[])
    with pytest.raises(ModelError, match="task record of this packed model is damaged"):
        _ = model.window
    assert repr(model) == f"<PackedModel: {task!r} model with a damaged record, 0 parameters in bfloat16>"


def test_model_of_another_task_is_refused_as_text():
    with pytest.raises(DataError, match="task is 3; expected a string"):
        of_header(task=3)
