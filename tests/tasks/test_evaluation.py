import keras
import numpy as np
import pytest

from cellerate.data.text.lines import LineVocabulary
from cellerate.data.tokenizers.tokenizer import CharacterTokenizer
from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.models.autoencoder import build_autoencoder
from cellerate.models.storage import TaskRecord, save_model
from cellerate.models.text import build_text_model
from cellerate.tasks.embed import evaluate_lines, load_line_model
from cellerate.tasks.inference import evaluate
from cellerate.tasks.judging.evaluation import evaluate_forecaster
from cellerate.tasks.opening import forecaster_of, open_model
from cellerate.tasks.series.train import train_on_series
from cellerate.tasks.settings import ForecastArchitecture, SeriesOptions
from cellerate.training.run import RunOptions
from cellerate.training.settings import TrainingSettings

pytestmark = pytest.mark.keras

TEXT = "abcab\n" * 20
PAYLOAD = {
    "tokenizer": CharacterTokenizer("\nabc").to_config(),
    "length": 5,
    "validation_fraction": 0.25,
    "include": ["*.txt"],
    "exclude": ["old*"],
}


@pytest.fixture
def text_model(tmp_path):
    model = build_text_model(4, embedding=2, units=3, seed=1)
    save_model(model, tmp_path / "t.keras", TaskRecord("text", PAYLOAD))
    (tmp_path / "t.txt").write_text(TEXT)
    return tmp_path / "t.keras"


def test_text_model_is_judged_in_its_own_length_on_all_or_what_it_held_out(text_model):
    everything = evaluate(text_model, [text_model.with_suffix(".txt")])
    assert everything["task"] == "text"
    assert (everything["tokens"], everything["length"]) == (119, 5)
    held = evaluate(text_model, [text_model.with_suffix(".txt")], part="held-out")
    assert held["tokens"] == 29
    with pytest.raises(ConfigError, match="leave out column='a', which a text model does not use"):
        evaluate(text_model, [text_model.with_suffix(".txt")], column="a")
    with pytest.raises(ConfigError, match="batch_size must be a whole number at least 1"):
        evaluate(text_model, [text_model.with_suffix(".txt")], batch_size=-1)


def test_text_model_reads_of_a_folder_what_training_read(text_model, tmp_path):
    folder = tmp_path / "books"
    folder.mkdir()
    (folder / "a.txt").write_text(TEXT)
    (folder / "old.txt").write_text("WWW")
    (folder / "b.md").write_text("WWW")
    assert evaluate(text_model, [folder])["characters"] == 120


def test_text_with_broken_utf8_is_refused_or_replaced(text_model, tmp_path):
    (tmp_path / "t.txt").write_bytes(TEXT.encode() + b"\xff")
    with pytest.raises(DataError, match="0xFF"):
        evaluate(text_model, [tmp_path / "t.txt"])
    # U+FFFD is not a character of the model, which has to be said as well.
    with pytest.raises(DataError, match="U\\+FFFD"):
        evaluate(text_model, [tmp_path / "t.txt"], errors="replace")


def test_text_model_with_a_damaged_record_raises(text_model, tmp_path):
    for number, change in enumerate([{"length": "x"}, {"length": 0}, {"validation_fraction": 7}]):
        path = tmp_path / f"bad{number}.keras"
        save_model(build_text_model(4, embedding=2, units=3), path, TaskRecord("text", PAYLOAD | change))
        with pytest.raises(ModelError, match="damaged"):
            evaluate(path, [tmp_path / "t.txt"])
    del change
    some = {name: value for name, value in PAYLOAD.items() if name != "length"}
    save_model(build_text_model(4, embedding=2, units=3), tmp_path / "l.keras", TaskRecord("text", some))
    with pytest.raises(ModelError, match="length"):
        evaluate(tmp_path / "l.keras", [tmp_path / "t.txt"])


def test_series_model_is_judged_as_by_its_own_task(tmp_path):
    rows = "\n".join(f"{n % 7},{n % 3}" for n in range(80))
    (tmp_path / "s.csv").write_text("a,b\n" + rows)
    train_on_series(
        SeriesOptions(paths=[tmp_path / "s.csv"], target=["a"], window=5, horizon=2, batch_size=8),
        RunOptions(output=tmp_path / "s.keras", training=TrainingSettings(epochs=1)),
        architecture=ForecastArchitecture(units=3),
    )
    for part in ("all", "held-out"):
        found = evaluate(tmp_path / "s.keras", [tmp_path / "s.csv"], part=part)
        assert found.pop("task") == "series"
        assert found == evaluate_forecaster(
            forecaster_of(open_model(tmp_path / "s.keras")), [tmp_path / "s.csv"], part=part
        )
    assert found["windows"] == 15
    for unused in ({"column": "a"}, {"field": "a"}, {"errors": "replace"}):
        with pytest.raises(ConfigError, match=f"leave out {next(iter(unused))}=.*a forecaster"):
            evaluate(tmp_path / "s.keras", [tmp_path / "s.csv"], **unused)


def test_line_model_is_judged_on_one_file(tmp_path):
    vocabulary = LineVocabulary("ab")
    payload = {"vocabulary": vocabulary.to_config(), "max_length": 4, "padding": "right"}
    model = build_autoencoder(vocabulary.size, embedding=2, units=3, latent=2, seed=1)
    save_model(model, tmp_path / "l.keras", TaskRecord("embed", payload))
    (tmp_path / "l.txt").write_text("ab\n\nba\n")
    found = evaluate(tmp_path / "l.keras", [tmp_path / "l.txt"])
    expected = evaluate_lines(load_line_model(tmp_path / "l.keras"), ["ab", "ba"])
    assert found == {"task": "embed", **expected}
    assert found["lines"] == 2
    with pytest.raises(ConfigError, match="one file"):
        evaluate(tmp_path / "l.keras", [tmp_path / "l.txt"] * 2)
    with pytest.raises(ConfigError, match="all"):
        evaluate(tmp_path / "l.keras", [tmp_path / "l.txt"], part="held-out")


def test_plain_keras_model_and_missing_data_raise(text_model, tmp_path):
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(tmp_path / "p.keras")
    with pytest.raises(ModelError, match="its task is not known"):
        evaluate(tmp_path / "p.keras", [tmp_path / "t.txt"])
    with pytest.raises(DataError, match="nowhere"):
        evaluate(text_model, [tmp_path / "nowhere.txt"])
    np.save(tmp_path / "x.npy", np.zeros(3))
    with pytest.raises(DataError):
        evaluate(text_model, [tmp_path / "x.npy"])
