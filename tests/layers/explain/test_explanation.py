"""The explanation as text and as a dict, and whether the model can be packed."""

import json

import keras
import pytest
from keras import layers

from cellerate.errors import BackendError, ModelError
from cellerate.layers.explain import explain
from support.keras_models.explained import BACKEND, F, T, model_of

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    # Keras's own convert_to_numpy calls np.array on a framework's tensor, which NumPy 2 warns about.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]


def test_explanation_text_and_dict_agree() -> None:
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
    # The advice to accelerate the layer appears only for the running backend.
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


def test_explain_lists_every_reason_why_a_model_cannot_be_packed() -> None:
    one = explain(model_of(layers.Conv1DTranspose(3, 2, name="conv")))
    assert (
        str(one)
        .splitlines()[-1]
        .startswith("can be packed: no, because conv (Conv1DTranspose) is not a layer")
    )
    chain = [layers.Conv1DTranspose(3, 2, name="conv"), layers.LSTM(4, activation="softmax", name="soft")]
    both = explain(keras.Sequential([keras.Input((T, F)), *chain]))
    assert not both.can_be_packed
    _, packing, *reasons = str(both).splitlines()[:4]
    assert packing == "can be packed: no, because"
    assert [reason.split(" ")[1] for reason in reasons] == ["conv", "soft"]
    assert json.loads(json.dumps(both.to_dict()))["why_not_packed"] == list(both.why_not_packed)


def test_explain_of_a_packed_model_points_to_its_own_explain_method() -> None:
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
