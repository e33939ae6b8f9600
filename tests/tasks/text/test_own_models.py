"""A user's own Keras models as text models, and models that are trained on."""

import keras
import numpy as np
import pytest

from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.models.storage import save_model
from cellerate.tasks.inference import generate
from cellerate.tasks.text.train import evaluate_text, load_text_model
from support.runs.text_runs import LENGTH, TEXT, V, fit, log_probabilities, mean_nats, options, tail_of

pytestmark = pytest.mark.keras


def own_model(*layers, shape=(None,), batch_size=None):
    return keras.Sequential([keras.Input(shape, batch_size, dtype="int32"), *layers])


def own_layers(*, vocabulary=V, embedded=None, activation=None, sequences=True, wrap=lambda layer: layer):
    return [
        keras.layers.Embedding(embedded or vocabulary, 4),
        wrap(keras.layers.LSTM(6, return_sequences=sequences)),
        keras.layers.Dense(vocabulary, activation=activation),
    ]


def test_own_softmax_model_is_judged_by_its_probabilities(tmp_path):
    model = own_model(*own_layers(activation="softmax"))
    run = fit(tmp_path, model=model)
    nats = mean_nats(run.training.model, tail_of(tmp_path), logits=False)
    assert run.evaluation["nats_per_token"] == pytest.approx(nats, rel=1e-5)
    assert run.training.history[0]["val_loss"] == pytest.approx(nats, rel=1e-5)
    assert len(generate(tmp_path / "m.keras", "the ", max_tokens=5, seed=0)) == 5


@pytest.mark.backends
def test_own_many_to_one_model_learns_and_is_judged_on_the_last_id_of_each_window(tmp_path):
    run = fit(tmp_path, model=own_model(*own_layers(sequences=False)))
    ids = tail_of(tmp_path)
    starts = np.arange(0, len(ids) - LENGTH, LENGTH)
    assert len(ids) - 1 > len(starts) * LENGTH  # the last, short window does not count
    found = log_probabilities(run.training.model, ids[starts[:, None] + np.arange(LENGTH)])
    nats = -found[np.arange(len(starts)), ids[starts + LENGTH]].mean()
    assert run.evaluation["tokens"] == len(starts)
    assert run.evaluation["nats_per_token"] == pytest.approx(nats, rel=1e-5)
    assert run.training.history[0]["val_loss"] == pytest.approx(nats, rel=1e-5)
    assert len(generate(tmp_path / "m.keras", "the ", max_tokens=5, seed=0)) == 5


def test_own_many_to_one_model_with_no_whole_held_out_window_raises_before_training(tmp_path):
    with pytest.raises(DataError, match="held-out part has 2"):
        fit(
            tmp_path, text=TEXT[:200], validation_fraction=0.01, model=own_model(*own_layers(sequences=False))
        )
    assert not (tmp_path / "m.keras").exists()


def attentive(causal):
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(V, 4)(ids)
    seen = keras.layers.MultiHeadAttention(1, 4)(x, x, use_causal_mask=causal)
    return keras.Model(ids, keras.layers.Dense(V)(seen))


def of_branch(padding):
    """A branch beside an LSTM, whose weights begin at zero."""
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(V, 4)(ids)
    beside = keras.layers.Conv1D(6, 3, padding=padding, kernel_initializer="zeros")(x)
    return keras.Model(ids, keras.layers.Dense(V)(keras.layers.LSTM(6, return_sequences=True)(x) + beside))


AHEAD = {
    "bidirectional": lambda: own_model(*own_layers(wrap=keras.layers.Bidirectional)),
    "backwards": lambda: own_model(*own_layers(wrap=backwards)),
    "attention": lambda: attentive(causal=False),
    "branch-at-zero": lambda: of_branch("same"),
    "one-step": lambda: own_model(*own_layers(wrap=next_step)),
}


def backwards(layer):
    return keras.layers.GRU(layer.units, return_sequences=True, go_backwards=True)


def next_step(layer):
    return keras.layers.Conv1D(layer.units, 2, padding="same")


@pytest.mark.backends
@pytest.mark.parametrize("name", AHEAD)
def test_own_model_that_sees_what_it_is_to_predict_is_refused_before_training(tmp_path, name):
    model = AHEAD[name]()
    before = model.get_weights()
    with pytest.raises(
        ModelError, match=r"sees the characters that it is to predict.* leave out Bidirectional"
    ):
        fit(tmp_path, model=model)
    assert not list(tmp_path.glob("m.*"))
    for left, right in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(left, right, strict=True)


@pytest.mark.backends
@pytest.mark.parametrize(
    "make", [lambda: attentive(causal=True), lambda: of_branch("causal")], ids=["attention", "conv"]
)
def test_own_model_of_other_layers_that_look_back_trains(tmp_path, make):
    fit(tmp_path, model=make())
    assert (tmp_path / "m.keras").exists()


def two_inputs():
    first, second = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(V, 4)(first) + keras.layers.Embedding(V, 4)(second)
    return keras.Model([first, second], keras.layers.Dense(V)(keras.layers.LSTM(4, return_sequences=True)(x)))


def two_outputs():
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.LSTM(4, return_sequences=True)(keras.layers.Embedding(V, 4)(ids))
    return keras.Model(ids, [keras.layers.Dense(V)(x), keras.layers.Dense(V)(x)])


class Subclassed(keras.Model):
    def call(self, x):
        return x


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: own_model(*own_layers(vocabulary=V + 1)), f"predicts {V + 1} .* has {V}"),
        (lambda: own_model(*own_layers(embedded=V - 1)), f"takes {V - 1} .* has {V}"),
        (two_inputs, "one input of ids"),
        (two_outputs, "its outputs are"),
        (lambda: keras.Sequential([keras.Input((None, 3)), keras.layers.Dense(V)]), "one input of ids"),
        (lambda: own_model(*own_layers(), shape=(LENGTH + 1,)), f"set length to {LENGTH + 1}"),
        (lambda: own_model(*own_layers(), batch_size=5), "set batch_size=5"),
        (lambda: keras.Sequential([keras.layers.Embedding(V, 4)]), "no graph"),
        (Subclassed, "no graph"),
    ],
    ids=[
        "vocabulary", "embedding", "two-inputs", "two-outputs", "features", "length", "batch", "unbuilt", "class"
    ],
)  # fmt: skip
def test_own_model_that_does_not_fit_raises_before_training(tmp_path, make, message):
    with pytest.raises(ModelError, match=message):
        fit(tmp_path, model=make())
    assert not list(tmp_path.glob("m.*"))


def test_own_model_with_a_fixed_batch_trains_and_is_judged_in_it(tmp_path):
    run = fit(tmp_path, model=own_model(*own_layers(), batch_size=16))
    again = evaluate_text(
        load_text_model(tmp_path / "m.keras"),
        options(tmp_path / "text.txt", batch_size=3),
        part="held-out",
    )
    assert again["nats_per_token"] == pytest.approx(run.evaluation["nats_per_token"], rel=1e-6)


def test_own_model_with_a_fixed_batch_and_too_short_a_text_raises(tmp_path):
    with pytest.raises(DataError, match="batch of 16"):
        fit(tmp_path, text="".join(sorted(set(TEXT))) * 3, model=own_model(*own_layers(), batch_size=16))


def test_plain_keras_file_trains_on_and_generates_only_then(tmp_path):
    plain = tmp_path / "plain.keras"
    own_model(*own_layers()).save(plain)
    with pytest.raises(ModelError, match=r"plain\.keras"):
        load_text_model(plain)
    fit(tmp_path, model=plain)
    assert len(generate(tmp_path / "m.keras", "the ", max_tokens=5, seed=0)) == 5


def test_fine_tuning_keeps_the_tokenizer_and_starts_from_the_weights(trained, tmp_path):
    path, first = trained
    run = fit(tmp_path, text=TEXT[:120], model=path)
    assert run.tokenizer.to_config() == first.tokenizer.to_config()
    assert len(set(TEXT[:120])) < V
    start = first.training.history[0]["loss"]
    assert run.training.history[0]["loss"] < start


def test_fine_tuning_with_another_tokenizer_raises(trained, tmp_path):
    with pytest.raises(ConfigError, match="keeps its own"):
        fit(tmp_path, model=trained[0], tokenizer="bytes")


def test_fine_tuning_on_an_unknown_character_raises(trained, tmp_path):
    with pytest.raises(DataError, match="'Z'"):
        fit(tmp_path, text=TEXT + "Z", model=trained[0])


def test_fine_tuning_a_model_of_another_task_or_a_damaged_record_raises(tmp_path):
    from cellerate.models.storage import TaskRecord

    model = own_model(*own_layers())
    save_model(model, tmp_path / "bare.keras", TaskRecord("text", {}))
    with pytest.raises(ModelError):
        fit(tmp_path, model=tmp_path / "bare.keras")
    with pytest.raises(ModelError):
        load_text_model(tmp_path / "bare.keras")
