"""Training a text model: its figures, tokenizers, samples, streams and limits."""

import json
import math

import keras
import numpy as np
import pytest

from cellerate.data.text.text import open_text
from cellerate.data.tokenizers.tokenizer import ByteTokenizer
from cellerate.errors import CheckpointError, ConfigError, DataError
from cellerate.models.storage import load_model
from cellerate.tasks.inference import evaluate, generate
from cellerate.tasks.settings import TextArchitecture
from cellerate.tasks.text.train import evaluate_text, load_text_model, train_on_text
from cellerate.training import divergence, time_limits
from cellerate.training.run import RunOptions
from cellerate.training.settings import TrainingSettings
from cellerate.training.telemetry.display import Display
from support.runs.text_runs import LENGTH, TEXT, V, fit, mean_nats, options, tail_of

pytestmark = pytest.mark.keras


class Heard(Display):
    """Notes what is said."""

    def __init__(self):
        self.said = []

    def message(self, text):
        self.said.append(text)


@pytest.mark.backends
def test_round_trip_learns_and_held_out_bits_equal_plain_numpy(trained):
    path, run = trained
    text_model = load_text_model(path)
    ids = tail_of(path.parent)
    assert len(ids) % LENGTH != 1  # the last window is a short one
    nats = mean_nats(text_model.model, ids)
    assert run.evaluation["bits_per_character"] == pytest.approx(nats / math.log(2), rel=1e-5)
    assert run.evaluation["perplexity"] == pytest.approx(math.exp(nats), rel=1e-5)
    assert run.evaluation["tokens"] == len(ids) - 1
    assert run.evaluation["characters"] == len(ids)
    assert run.evaluation["bits_per_character"] < math.log2(V) - 0.5
    # The loss that chose the best epoch is the same figure.
    best = run.training.history[run.training.best_epoch - 1]
    assert best["val_loss"] == pytest.approx(nats, rel=1e-5)


def test_evaluate_all_and_held_out_from_the_file_equal_plain_numpy(trained):
    path, run = trained
    text_model = load_text_model(path)
    # A batch larger than the text is not padded to its size, which no memory holds.
    for batch_size in (5, 10**12):
        held = evaluate_text(
            text_model, options(path.parent / "text.txt", batch_size=batch_size), part="held-out"
        )
        assert held["bits_per_character"] == pytest.approx(run.evaluation["bits_per_character"], rel=1e-5)
    everything = evaluate_text(text_model, options(path.parent / "text.txt"))
    ids = open_text(path.parent / "text.txt").ids.astype(np.int64)
    assert everything["nats_per_token"] == pytest.approx(mean_nats(text_model.model, ids), rel=1e-5)


def test_evaluate_held_out_of_nothing_and_of_one_character_raise(trained, tmp_path):
    text_model = load_text_model(trained[0])
    with pytest.raises(ConfigError, match="validation_fraction"):
        evaluate_text(
            text_model, options(trained[0].parent / "text.txt", validation_fraction=0.0), part="held-out"
        )
    (tmp_path / "one.txt").write_text("t")
    with pytest.raises(DataError, match="at least 2"):
        evaluate_text(text_model, options(tmp_path / "one.txt"))


def test_bytes_tokenizer_scales_bits_to_characters(tmp_path):
    text = "größer süßer älter über öfter " * 12
    run = fit(tmp_path, text=text, tokenizer="bytes")
    raw = np.frombuffer(text.encode(), np.uint8)
    tail = raw[len(raw) - int(len(raw) * 0.1) :].astype(np.int64)
    characters = len(tail.astype(np.uint8).tobytes().decode(errors="replace"))
    assert characters < len(tail)
    nats = mean_nats(run.training.model, tail)
    expected = nats / math.log(2) * len(tail) / characters
    assert run.evaluation["bits_per_character"] == pytest.approx(expected, rel=1e-5)
    text_model = load_text_model(tmp_path / "m.keras")
    assert isinstance(text_model.tokenizer, ByteTokenizer)


def tokenizer_file(folder, text):
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=40, initial_alphabet=[], show_progress=False)
    made.train_from_iterator([text], trainer)
    path = folder / "tokenizer.json"
    made.save(str(path))
    return path, made


def test_tokenizer_file_travels_inside_the_model(tmp_path):
    path, made = tokenizer_file(tmp_path, TEXT)
    run = fit(tmp_path, tokenizer=str(path))
    assert run.training.model.output_shape[-1] == made.get_vocab_size()
    path.unlink()
    text_model = load_text_model(tmp_path / "m.keras")
    assert list(text_model.tokenizer.encode("the cat")) == made.encode("the cat").ids
    assert isinstance(generate(tmp_path / "m.keras", "the cat", max_tokens=5, seed=0), str)
    held = run.evaluation
    assert held["tokens"] < held["characters"]
    ratio = (held["tokens"] + 1) / held["characters"]
    assert held["bits_per_character"] == pytest.approx(held["nats_per_token"] / math.log(2) * ratio)


def test_tokenizer_path_that_does_not_exist_raises(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.json"):
        fit(tmp_path, tokenizer=str(tmp_path / "nowhere.json"))


def test_folder_reads_what_include_and_exclude_leave(tmp_path):
    folder = tmp_path / "src"
    (folder / "skip").mkdir(parents=True)
    (folder / "a.txt").write_text(TEXT)
    (folder / "b.md").write_text("QQQQ")
    (folder / "skip" / "c.txt").write_text("XXXX")
    run = train_on_text(
        options(folder, include=["*.txt"], exclude=["skip"]),
        RunOptions(output=tmp_path / "m.keras", training=TrainingSettings(epochs=1)),
        architecture=TextArchitecture(embedding=2, units=3),
    )
    assert run.tokenizer.vocabulary_size == V
    assert load_text_model(tmp_path / "m.keras").record["include"] == ["*.txt"]


@pytest.mark.parametrize(
    "how",
    [
        {"encoding": "utf-16"},
        {
            "field": "body",
            "file": "text.jsonl",
            "text": "".join(json.dumps({"body": TEXT}) + "\n" for _ in "ab"),
        },
        {"strip_gutenberg": True},
    ],
    ids=str,
)
def test_model_remembers_how_its_text_was_read_and_is_judged_on_the_same(tmp_path, how):
    run = fit(tmp_path, **how)
    text_model = load_text_model(tmp_path / "m.keras")
    name = next(iter(how))
    assert text_model.record[name] == how[name]
    (path,) = tmp_path.glob("text.*")
    again = evaluate(tmp_path / "m.keras", [path], part="held-out")
    assert again["bits_per_character"] == pytest.approx(run.evaluation["bits_per_character"])


def test_field_without_json_lines_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="field is 'body', and no file has JSON lines"):
        fit(tmp_path, field="body")


def test_training_says_what_the_text_lacks_and_whose_licence_is_in_it(tmp_path):
    heard = Heard()
    licence = "*** START OF THE PROJECT GUTENBERG EBOOK X ***\n"
    fit(tmp_path, text=licence + TEXT * 2 + "QQZZ", display=heard)
    assert "the licence of Project Gutenberg in it" in heard.said[0]
    assert "strip_gutenberg=True" in heard.said[0]
    assert heard.said[1].startswith("'Q', 'Z' occur in the held-out part only")
    assert "too few to tell one model from another" in heard.said[2]
    heard = Heard()
    fit(tmp_path, text=licence + TEXT, display=heard, strip_gutenberg=True, output="b.keras")
    assert heard.said[0] == "the licence of Project Gutenberg was left out of the text"
    heard = Heard()
    fit(tmp_path, display=heard, strip_gutenberg=True, output="c.keras")
    assert heard.said[0].startswith("the licence of Project Gutenberg was not found")


def test_resumed_with_another_model_or_text_says_what_differs(tmp_path):
    fit(tmp_path, units=8)
    with pytest.raises(CheckpointError, match=r"data: units was 8, now 6\. Resume"):
        fit(tmp_path, units=6, epochs=2, resume=True)
    with pytest.raises(CheckpointError, match=r"data: cell was 'lstm', now 'gru'\. Resume"):
        fit(tmp_path, units=8, cell="gru", epochs=2, resume=True)
    with pytest.raises(CheckpointError, match=r"data: length was 6, now 5\. Resume"):
        fit(tmp_path, length=5, epochs=2, resume=True)
    with pytest.raises(CheckpointError, match=r"data: characters of the text was \d+, now \d+\. Resume"):
        fit(tmp_path, text=TEXT + TEXT, epochs=2, resume=True)
    with pytest.raises(
        CheckpointError, match=r"the training data differ; the validation data differ\. Resume"
    ):
        fit(tmp_path, text=TEXT.replace("owl", "oow"), epochs=2, resume=True)


def test_samples_while_training_go_on_from_a_prompt_and_a_model_without_them_is_refused(tmp_path):
    heard = Heard()
    fit(tmp_path, display=heard, sample_every=5, prompt="the dog")
    shown = [text for text in heard.said if text.startswith("--- sample after step")]
    assert len(shown) > 1
    assert all(text.splitlines()[1].startswith("the dog") for text in shown)
    with pytest.raises(DataError, match="'Q'"):
        fit(tmp_path, sample_every=5, prompt="the Q", output="b.keras")
    with pytest.raises(ConfigError, match="sample_every must be a whole number"):
        fit(tmp_path, sample_every=0, output="b.keras")
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(V, 4)(ids)
    model = keras.Model(ids, keras.layers.Dense(V)(keras.layers.Attention()([x, x], use_causal_mask=True)))
    with pytest.raises(ConfigError, match="sample_every needs a model that can be run a step at a time"):
        fit(tmp_path, model=model, sample_every=5, output="b.keras")
    assert not (tmp_path / "b.keras").exists()


def test_text_shorter_than_a_window_raises_and_leaves_nothing(tmp_path):
    with pytest.raises(DataError, match="a window needs 7"):
        fit(tmp_path, text="short", validation_fraction=0.0)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_text_with_fewer_windows_than_a_batch_trains_in_a_smaller_batch(tmp_path):
    run = fit(tmp_path, text=TEXT[:30], batch_size=500, epochs=2)
    assert [record["steps"] for record in run.training.history] == [1, 1]


def test_validation_fraction_zero_trains_without_evaluation(tmp_path):
    run = fit(tmp_path, validation_fraction=0.0)
    assert run.evaluation is None
    assert "val_loss" not in run.training.history[0]
    assert (tmp_path / "m.keras").exists()


def samples(run):
    lines = (run.training.folder / "telemetry.jsonl").read_text().splitlines()
    return [line["sample"] for line in map(json.loads, lines) if "sample" in line]


def test_each_epoch_leaves_a_sample_that_the_model_draws(tmp_path):
    run = fit(tmp_path, epochs=2)
    first, second = samples(run)
    held_out = open_text([tmp_path / "text.txt"]).split(0.1)[1]
    given = run.tokenizer.decode(held_out[:60])
    assert first["given"] == second["given"] == given
    assert len(first["made"]) == len(second["made"]) == 200
    assert second["made"] == generate(tmp_path / "m.keras", given, max_tokens=200, temperature=0.8, seed=1)
    # A model that cannot be run a step at a time has none, and trains.
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(V, 4)(ids)
    model = keras.Model(ids, keras.layers.Dense(V)(keras.layers.Attention()([x, x], use_causal_mask=True)))
    run = fit(tmp_path, model=model, output="attention.keras")
    assert samples(run) == []


@pytest.mark.backends
def test_carry_states_trains_streams_and_generates(tmp_path):
    run = fit(tmp_path, carry_states=True, batch_size=4, epochs=2)
    assert run.training.history[0]["steps"] == (len(TEXT) - int(len(TEXT) * 0.1) - 1) // 4 // LENGTH
    assert run.training.history[1]["loss"] < run.training.history[0]["loss"]
    assert len(generate(tmp_path / "m.keras", "the ", max_tokens=5, seed=0)) == 5


def test_carry_states_with_too_little_held_out_raises(tmp_path):
    with pytest.raises(DataError, match="Hold out more"):
        fit(tmp_path, carry_states=True, batch_size=16, validation_fraction=0.02)


def test_text_of_one_distinct_character_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"one distinct character only.* at least two"):
        fit(tmp_path, text="a" * 500)


def test_saved_model_opens_as_plain_keras(trained):
    model = keras.saving.load_model(trained[0])
    assert model.output_shape == (None, None, V)
    assert load_model(trained[0])[1].task == "text"


@pytest.mark.parametrize(
    ("rate", "why"),
    [(5000.0, "Training made it worse: the loss rose from"), (1e-9, "It has not learned enough yet")],
)
def test_training_that_ends_worse_than_counting_says_so_and_why(tmp_path, monkeypatch, rate, why):
    monkeypatch.setattr(divergence, "_FAR", math.inf)
    (tmp_path / "text.txt").write_text(TEXT)
    run = train_on_text(
        options(tmp_path / "text.txt"),
        RunOptions(
            output=tmp_path / "m.keras",
            training=TrainingSettings(epochs=1, learning_rate=rate, optimizer="sgd"),
        ),
        architecture=TextArchitecture(embedding=4, units=8),
    )
    verdict = run.evaluation["verdict"]
    assert verdict["beats_counting"] is False
    assert verdict["sentence"].startswith("Worse than counting: ")
    assert why in verdict["sentence"]
    assert f"{run.training.history[0]['gradient_norm']:,.3g}" in verdict["sentence"]


def test_training_that_learns_is_better_than_counting(tmp_path):
    verdict = fit(tmp_path, epochs=20, units=16).evaluation["verdict"]
    assert verdict["beats_counting"] is True
    assert verdict["sentence"].startswith("Better than counting: ")


def test_training_under_a_time_limit_judges_its_model_on_a_sample_too(tmp_path, monkeypatch):
    monkeypatch.setattr(time_limits, "_LEAST_S", 1e-6)
    (tmp_path / "text.txt").write_text(TEXT * 3)
    run = train_on_text(
        options(tmp_path / "text.txt", validation_fraction=0.5),
        RunOptions(output=tmp_path / "m.keras", training=TrainingSettings(epochs=1, max_seconds=1e-5)),
        architecture=TextArchitecture(embedding=4, units=8),
    )
    found = run.evaluation
    assert found["tokens"] == run.training.judged.items == 4 * 16 * LENGTH
    assert found["sampled_from"] == len(TEXT * 3) // 2 - 1
    assert found["nats_per_token"] == pytest.approx(run.training.best, rel=1e-5)
