"""Models that read one-hot vectors, and the vocabulary that they need to generate."""

import keras
import numpy as np
import pytest

import cellerate
from cellerate.errors import ConfigError, ModelError
from cellerate.kernels.decoder.sampling import SamplingRules
from cellerate.tasks.inference import generate
from cellerate.tasks.packing import packed
from support.runs.text_models import (
    CHARACTERS,
    IN_ORDER,
    ONE_HOT,
    RECORD,
    TOKENIZER,
    V,
    filled,
    made,
    one_hot,
    one_hot_to_last,
)

pytestmark = [
    pytest.mark.keras,
    # Keras's own convert_to_numpy calls np.array on a framework's tensor, which NumPy 2 warns about.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]


@pytest.mark.parametrize("make", ONE_HOT)
def test_steps_of_ids_give_the_logits_of_one_hot_vectors(make):
    model = filled(make(), 6)
    steps = packed(model).steps
    ids = np.array([[3, 14, 0, 9, 9]])
    found = keras.ops.convert_to_numpy(model(np.eye(V, dtype="float32")[ids], training=False))
    found = found if found.ndim == 2 else found[:, -1]
    _, logits = steps.read(steps.initial_state(), ids)
    if model.layers[-1].activation is keras.activations.softmax:
        logits = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(logits, found, rtol=1e-5, atol=1e-6)


def test_stepper_of_a_model_of_one_hot_vectors_draws_ids_without_a_vocabulary():
    model = filled(one_hot_to_last(), 29)
    stepper = packed(model).stepper()
    stepper.read(TOKENIZER.encode("abc")[None])
    (drawn,) = stepper.draw(20, SamplingRules(temperature=0))
    assert TOKENIZER.decode(drawn.ids) == generate(
        model, "abc", vocabulary=IN_ORDER, max_tokens=20, temperature=0
    )


def test_temperature_of_probabilities_is_that_of_the_logits_before_the_softmax():
    model = filled(one_hot(), 4)
    logits = keras.Sequential([keras.Input((None, V)), *model.layers[:-1], keras.layers.Dense(V)])
    logits.set_weights(model.get_weights())
    for implementation in ("cellerate-cpu", "keras"):
        options = {"vocabulary": IN_ORDER, "max_tokens": 80, "seed": 3, "implementation": implementation}
        texts = {generate(one, "abc", temperature=1.7, **options) for one in (model, logits)}
        assert len(texts) == 1
        assert texts != {generate(model, "abc", **options)}


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_model_packed_with_a_vocabulary_needs_nothing_to_generate(tmp_path, precision):
    (tmp_path / "book.txt").write_text(CHARACTERS * 3)
    model = filled(one_hot_to_last(), 4)
    options = {"max_tokens": 50, "seed": 3}
    cellerate.pack(model, tmp_path / "m.cell", precision=precision, vocabulary=tmp_path / "book.txt")
    opened = cellerate.load(tmp_path / "m.cell")
    said = generate(tmp_path / "m.cell", "abc", **options)
    assert (opened.task, opened.vocabulary_size, opened.tokenizer.characters) == (
        "text",
        V,
        "".join(IN_ORDER),
    )
    assert said == opened.generate("abc", **options)
    assert said == generate(model, "abc", vocabulary=IN_ORDER, precision=precision, **options)
    with pytest.raises(ConfigError, match="has its own: leave it out"):
        generate(opened, "abc", vocabulary=IN_ORDER)


def test_model_packed_without_a_vocabulary_takes_one_and_stays_as_it_is(tmp_path):
    model = filled(one_hot(), 4)
    cellerate.pack(model, tmp_path / "m.cell")
    opened = cellerate.load(tmp_path / "m.cell")
    options = {"max_tokens": 50, "seed": 3}
    expected = generate(model, "abc", vocabulary=IN_ORDER, **options)
    assert generate(tmp_path / "m.cell", "abc", vocabulary=IN_ORDER, **options) == expected
    assert opened.with_vocabulary(IN_ORDER).generate("abc", **options) == expected
    with pytest.raises(ModelError, match=r"no tokenizer: .*vocabulary='book.txt'"):
        opened.generate("abc", **options)
    with pytest.raises(
        ModelError, match=f"vocabulary has 2 entries, and the model predicts {V} different ids"
    ):
        opened.with_vocabulary(["a", "b"])


def test_ids_in_an_order_of_their_own_are_those_of_the_list(tmp_path):
    model = filled(one_hot(), 4)
    order = IN_ORDER[::-1]
    options = {"max_tokens": 50, "temperature": 0}
    said = generate(model, "abc", vocabulary=order, **options)
    ids = dict(zip(order, IN_ORDER, strict=True))
    expected = generate(model, "".join(ids[one] for one in "abc"), vocabulary=IN_ORDER, **options)
    assert "".join(ids[one] for one in said) == expected
    cellerate.pack(model, tmp_path / "m.cell", vocabulary=order)
    assert generate(tmp_path / "m.cell", "abc", **options) == said


def test_wrong_vocabulary_is_one_error_before_anything_is_written(tmp_path):
    model = made(vocabulary=V)
    (tmp_path / "book.txt").write_text("abC")
    message = (
        rf"book.txt has 3 distinct characters \(3 in lower case\), and the model predicts {V} different ids"
    )
    with pytest.raises(ModelError, match=message):
        generate(model, "a", vocabulary=tmp_path / "book.txt")
    with pytest.raises(ModelError, match=message):
        cellerate.pack(model, tmp_path / "m.cell", vocabulary=tmp_path / "book.txt")
    with pytest.raises(ConfigError, match="has its own: leave it out"):
        cellerate.pack(model, tmp_path / "m.cell", record=RECORD, vocabulary=IN_ORDER)
    assert not (tmp_path / "m.cell").exists()
