from pathlib import Path

import keras
import numpy as np
import pytest

import cellerate
from cellerate.data.loaders.loader import Loader
from cellerate.errors import ConfigError, DataError

pytestmark = [pytest.mark.keras, pytest.mark.backends]


def text_model(batches: Loader, vocabulary: int) -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input(batches.input_shape, dtype="int32"),
            keras.layers.Embedding(vocabulary, vocabulary, embeddings_initializer="zeros"),
        ]
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def test_text_of_files_trains_and_each_held_out_id_counts_once(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("well, prince " * 80)
    train, validation = cellerate.text_batches(
        tmp_path, 10, 16, shuffle=True, seed=0, include="*.txt", encoding="utf-8"
    ).split(0.1)
    x, y = train[0]
    assert (x.shape, x.dtype) == ((16, 10), np.int32)
    assert np.array_equal(x[:, 1:], y[:, :-1])
    vocabulary = train.tokenizer.vocabulary_size
    model = text_model(train, vocabulary)
    # Equal logits: each id costs ln V, whatever fills up the last batch.
    assert model.evaluate(validation, verbose=0) == pytest.approx(np.log(vocabulary), rel=1e-6)
    assert sum(int((weight > 0).sum()) for _, _, weight in validation) == 104 - 1
    model.fit(train, validation_data=validation, epochs=1, verbose=0)
    assert train.epoch == 1


def test_text_with_carried_states_goes_on_where_the_batch_before_ended() -> None:
    ids = np.arange(1000) % 250
    train, validation = cellerate.text_batches(ids, 5, 4, carry_states=True).split(0.2)
    assert train.tokenizer is None
    (_, y), (after, _) = train[0], train[1]
    assert np.array_equal(after[:, 0], y[:, -1])
    assert validation[0][0][0, 0] == 800 % 250


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"data": ["a", 3]}, "paths of files, folders or globs, not a int"),
        ({"data": np.zeros(99)}, "expected .N,. integers"),
        ({"carry_states": True, "shuffle": True}, "leave shuffle and stride out"),
        ({"errors": "replace"}, "errors say how files are read"),
        ({"length": 200}, "needs at least 201"),
        ({"length": 0}, "length is 0"),
        ({"drop_last": False, "stride": 3}, "every id is predicted once"),
    ],
)
def test_argument_of_a_text_that_cannot_be_used_is_refused_in_words(arguments, words) -> None:
    with pytest.raises((ConfigError, DataError), match=words):
        cellerate.text_batches(**{"data": np.arange(99) % 7, "length": 10, "batch_size": 2} | arguments)


@pytest.mark.parametrize("wrong", [-1, 1 << 31])
def test_ids_that_are_no_rows_of_an_embedding_are_refused(wrong: int) -> None:
    with pytest.raises(DataError, match=f"data holds ids from .*{wrong}.*expected ids from 0"):
        cellerate.text_batches(np.array([3, 1, wrong, *range(30)]), 5, 4)
