import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cellerate
from cellerate.data.text.lines import BOS, EOS, LineVocabulary
from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.models.autoencoder import build_autoencoder, encoder_and_decoder, stepwise_decoder
from cellerate.models.storage import TaskRecord, save_model
from cellerate.models.text import build_text_model
from cellerate.tasks import bulk
from cellerate.tasks.embed import (
    LineModel,
    embed_lines,
    evaluate_lines,
    load_line_model,
    reconstruct_lines,
    train_on_lines,
)
from cellerate.tasks.settings import AutoencoderArchitecture, LineFiles, LineOptions
from cellerate.training import time_limits
from cellerate.training.run import RunOptions
from cellerate.training.settings import TrainingSettings

pytestmark = pytest.mark.keras

LINES = ["red hat", "blue", "old cow", "ten bees"]


def fit(path, output="m.keras", *, epochs=1, model=None, units=8, **changes):
    return train_on_lines(
        LineOptions(
            **({"path": path, "batch_size": 4, "max_length": 10, "validation_fraction": 0.0} | changes)
        ),
        RunOptions(output=path.parent / output, training=TrainingSettings(epochs=epochs, learning_rate=0.02)),
        architecture=AutoencoderArchitecture(embedding=6, units=units, latent=12),
        model=model,
    )


@pytest.fixture(scope="module")
def overfitted(tmp_path_factory):
    """A model that knows four lines by heart."""
    folder = tmp_path_factory.mktemp("overfitted")
    (folder / "lines.txt").write_text("\n".join(LINES * 10) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CELLERATE_CACHE", str(folder / "cache"))
        fit(folder / "lines.txt", epochs=12, units=24)
    return load_line_model(folder / "m.keras")


@pytest.fixture(scope="module")
def untrained():
    """A small model of random weights, which gets some characters right and most wrong."""
    vocabulary = LineVocabulary("abc")
    model = build_autoencoder(vocabulary.size, embedding=3, units=4, latent=5, seed=2)
    return LineModel(model, vocabulary, 6, "right", {})


def as_numpy(tensor):
    return np.asarray(keras.ops.convert_to_numpy(tensor))


@pytest.mark.backends
def test_overfitted_model_writes_its_lines_back(overfitted):
    vectors = embed_lines(overfitted, LINES)
    assert vectors.shape == (4, 12)
    assert vectors.dtype == np.float32
    assert reconstruct_lines(overfitted, vectors) == LINES
    assert reconstruct_lines(overfitted, vectors[::-1]) == LINES[::-1]
    assert reconstruct_lines(overfitted, vectors, length=3)[1] == "blue"
    found = evaluate_lines(overfitted, LINES, batch_size=3)
    assert found == {"token_accuracy": 1.0, "free_token_accuracy": 1.0, "exact_lines": 1.0, "lines": 4}


def test_vectors_come_in_the_order_of_the_lines_empty_ones_too(overfitted):
    lines = ["ten bees", "", "red", "a" if "a" in overfitted.vocabulary.characters else "r", "old cow", ""]
    together = embed_lines(overfitted, lines, batch_size=4)
    for line, vector in zip(lines, together, strict=True):
        alone = embed_lines(overfitted, [line], batch_size=1)[0]
        np.testing.assert_allclose(vector, alone, atol=1e-5)
    np.testing.assert_allclose(together[1], together[5], atol=1e-6)
    assert np.isfinite(together).all()
    assert np.abs(together[0] - together[4]).max() > 0.1


def test_vector_of_a_line_is_that_of_the_encoder(overfitted):
    encode, _ = encoder_and_decoder(overfitted.model)
    ids = overfitted.vocabulary.encode("red hat")
    np.testing.assert_allclose(
        embed_lines(overfitted, ["red hat"])[0], as_numpy(encode(ids[None]))[0], atol=1e-5
    )


def test_unknown_characters_are_refused_or_replaced(overfitted):
    with pytest.raises(DataError, match="'Z'"):
        embed_lines(overfitted, ["blue", "Zed"])
    vectors = embed_lines(overfitted, ["blue", "Zed", "Yed"], errors="replace")
    np.testing.assert_allclose(vectors[1], vectors[2], atol=1e-6)
    np.testing.assert_allclose(vectors[0], embed_lines(overfitted, ["blue"])[0], atol=1e-5)


def test_embed_of_no_lines_raises(overfitted):
    with pytest.raises(DataError, match="no line"):
        embed_lines(overfitted, [])


@pytest.mark.backends
def test_stepwise_decoder_equals_the_decoder_with_teacher_forcing(untrained):
    _, decode = encoder_and_decoder(untrained.model)
    start, step = stepwise_decoder(decode)
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(3, 5)).astype(np.float32)
    ids = rng.integers(1, untrained.vocabulary.size, (3, 6)).astype(np.int32)
    forced = as_numpy(decode([vectors, ids]))
    state = [as_numpy(part) for part in start(vectors)]
    for place in range(ids.shape[1]):
        logits, *state = map(as_numpy, step([ids[:, place : place + 1], *state]))
        np.testing.assert_allclose(logits, forced[:, place], atol=1e-5)


def test_evaluate_lines_equals_a_plain_count(untrained):
    lines = ["abc", "a", "ccba", "bbbbbb", "cab"]
    encode, decode = encoder_and_decoder(untrained.model)
    forced = free = total = exact = 0
    for line in lines:
        target = [*untrained.vocabulary.encode(line), EOS]
        vector = as_numpy(encode(np.array([target[:-1]], np.int32)))
        given = as_numpy(decode([vector, np.array([[BOS, *target[:-1]]], np.int32)]))[0].argmax(axis=-1)
        forced += int((given == target).sum())
        written = [BOS]
        for _ in target:
            logits = as_numpy(decode([vector, np.array([written], np.int32)]))[0, -1]
            written.append(int(logits.argmax()))
        hits = sum(one == other for one, other in zip(written[1:], target, strict=True))
        free += hits
        exact += hits == len(target)
        total += len(target)
    found = evaluate_lines(untrained, lines, batch_size=2)
    assert found["token_accuracy"] == pytest.approx(forced / total, abs=1e-6)
    assert found["free_token_accuracy"] == pytest.approx(free / total)
    assert found["exact_lines"] == exact / len(lines)
    assert found["lines"] == 5


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("part", ["whole", "encode"])
def test_packed_model_gives_the_vectors_of_its_keras_model(tmp_path, padding, part, monkeypatch):
    lines = ["abba", "", "a cab", "c", "bacca bacca", "bb", "ab ab", "a", "", "caab"]
    vocabulary = LineVocabulary(" abc")
    model = build_autoencoder(
        vocabulary.size, embedding=6, units=9, latent=7, dropout=0.1, decoder_dropout=0.2, seed=2
    )
    payload = {"vocabulary": vocabulary.to_config(), "max_length": 10, "padding": padding}
    record = TaskRecord("embed", payload)
    given = model if part == "whole" else encoder_and_decoder(model)[0]
    cellerate.pack(given, tmp_path / "m.cell", record=record)
    packed = cellerate.load(tmp_path / "m.cell")
    # Packed before, the model is still what it was.
    save_model(model, tmp_path / "m.keras", record)
    expected = embed_lines(load_line_model(tmp_path / "m.keras"), lines, batch_size=4)
    found = packed.embed(lines, batch_size=4)
    if part == "whole":
        monkeypatch.setattr(bulk, "_LINES_A_PIECE", 6)
        (tmp_path / "l.txt").write_text("\n".join(lines))
        bulk.embed_files(tmp_path / "m.keras", LineFiles(tmp_path / "l.txt"), tmp_path / "out")
        written = np.array(pq.read_table(tmp_path / "out")["vector"].to_pylist())
        np.testing.assert_allclose(written, expected, atol=1e-5 * np.ptp(expected), rtol=0)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.ptp(expected), rtol=0)
    if part == "whole":
        assert packed.outputs == ("logits", "vector")
        inputs = {
            "source": np.array([[4, 5, 0], [7, 6, 5]]),
            "target_in": np.array([[1, 4, 5, 0], [1, 7, 6, 5]]),
        }
        expected = as_numpy(model({name: ids.astype(np.int32) for name, ids in inputs.items()}))
        logits = packed.predict(inputs, ["logits"])
        np.testing.assert_allclose(logits, expected, atol=1e-5 * np.ptp(expected), rtol=0)


def test_model_without_an_encoder_is_not_packed_as_one_of_lines(tmp_path):
    model = build_text_model(7, embedding=3, units=4)
    with pytest.raises(ModelError, match="not a line autoencoder"):
        cellerate.pack(model, tmp_path / "m.cell", record=TaskRecord("embed", {}))
    assert list(tmp_path.iterdir()) == []


def test_training_holds_lines_out_and_judges_them(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(f"line {n}" for n in range(20)))
    run = fit(path, validation_fraction=0.25, max_length=5)
    assert run.evaluation["lines"] == 5
    assert run.truncated == 15
    assert "val_loss" in run.training.history[0]
    # The metric during validation is the one of the evaluation.
    assert run.training.history[0]["val_token_accuracy"] == pytest.approx(run.evaluation["token_accuracy"])
    assert load_line_model(tmp_path / "m.keras").max_length == 5


def test_training_from_a_parquet_column_and_left_padding(tmp_path):
    pq.write_table(pa.table({"n": [1, 2, 3], "name": ["ab", "ba", "aab"]}), tmp_path / "t.parquet")
    run = fit(tmp_path / "t.parquet", column="name", padding="left")
    assert run.evaluation is None
    line_model = load_line_model(tmp_path / "m.keras")
    assert line_model.padding == "left"
    assert embed_lines(line_model, ["ab", "a"]).shape == (2, 12)
    with pytest.raises(DataError, match="'nope'"):
        fit(tmp_path / "t.parquet", "n.keras", column="nope")


def test_judging_reads_a_file_of_the_kind_of_the_training_as_that_did(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"title": "ab", "text": "ba"}\n' * 3)
    (tmp_path / "t.txt").write_text("ab\nba\n")
    fit(tmp_path / "t.jsonl", field="title")
    for name, field, lines in (("t.jsonl", None, 3), ("t.jsonl", "title", 3), ("t.txt", None, 2)):
        found = cellerate.evaluate(tmp_path / "m.keras", [tmp_path / name], field=field)
        assert found["lines"] == lines
    (tmp_path / "wide.txt").write_text("ab\nba\nab\nab", encoding="utf-16")
    found = cellerate.evaluate(tmp_path / "m.keras", [tmp_path / "wide.txt"], encoding="utf-16")
    assert found["lines"] == 4
    with pytest.raises(DataError, match="'b'"):
        cellerate.evaluate(tmp_path / "m.keras", [tmp_path / "t.jsonl"], field="b")


def test_fine_tuning_keeps_the_vocabulary(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("abc\nbca\ncab\n")
    fit(path)
    path.write_text("ab\nba\n")
    fit(path, "n.keras", model=tmp_path / "m.keras")
    assert load_line_model(tmp_path / "n.keras").vocabulary.characters == "abc"
    path.write_text("abd\n")
    with pytest.raises(DataError, match="'d'"):
        fit(path, "o.keras", model=tmp_path / "m.keras")


def test_own_model_that_does_not_fit_raises(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("abc\nbca\n")
    with pytest.raises(ModelError, match="predicts 9 different ids, the lines have 7"):
        fit(path, model=build_autoencoder(9, embedding=3, units=4, latent=5))
    with pytest.raises(ModelError, match="not a line autoencoder"):
        fit(path, model=build_text_model(7, embedding=3, units=4))


def test_model_of_another_task_and_damaged_records_raise(tmp_path):
    save_model(build_text_model(7, embedding=3, units=4), tmp_path / "t.keras", TaskRecord("text", {}))
    with pytest.raises(ModelError, match="holds a text model"):
        load_line_model(tmp_path / "t.keras")
    model = build_autoencoder(7, embedding=3, units=4, latent=5)
    save_model(model, tmp_path / "plain.keras")
    with pytest.raises(ModelError, match=r"plain\.keras"):
        load_line_model(tmp_path / "plain.keras")
    good = {"vocabulary": {"characters": "abc"}, "max_length": 5, "padding": "right"}
    for number, change in enumerate(
        [{"vocabulary": {}}, {"vocabulary": None}, {"max_length": "x"}, {"max_length": 0}, {"padding": "up"}]
    ):
        path = tmp_path / f"bad{number}.keras"
        save_model(model, path, TaskRecord("embed", good | change))
        with pytest.raises(ModelError):
            load_line_model(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_length", 0), ("batch_size", 0), ("validation_fraction", 1.0), ("padding", "up"), ("errors", "no")],
)
def test_options_with_a_wrong_value_raise_naming_it(name, value):
    with pytest.raises(ConfigError, match=name):
        LineOptions(**{name: value})


def test_lines_are_judged_on_a_sample_where_time_is_short(untrained):
    lines = ["abc", "a", "ccba", "bbbbbb", "cab"] * 4
    whole = evaluate_lines(untrained, lines, batch_size=2)
    assert evaluate_lines(untrained, lines, batch_size=2, seconds=3600.0) == pytest.approx(whole)
    assert "sampled_from" not in whole
    short = evaluate_lines(untrained, lines, batch_size=2, seconds=0.0)
    assert (short["lines"], short["sampled_from"]) == (2, 20)


def test_training_under_a_time_limit_judges_a_sample_of_the_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(time_limits, "_LEAST_S", 0.0)
    (tmp_path / "lines.txt").write_text("\n".join(LINES * 20) + "\n")
    run = train_on_lines(
        LineOptions(path=tmp_path / "lines.txt", batch_size=4, max_length=10, validation_fraction=0.5),
        RunOptions(output=tmp_path / "m.keras", training=TrainingSettings(epochs=1, max_seconds=1e-9)),
        architecture=AutoencoderArchitecture(embedding=6, units=8, latent=12),
    )
    assert run.training.judged.items == 16
    assert run.evaluation["sampled_from"] == 40
    assert run.evaluation["lines"] == 4
