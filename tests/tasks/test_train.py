"""The trainings as Python functions: one flat list of arguments, the same runs as with records."""

import inspect
import sys
import types

import keras
import numpy as np
import pytest

import cellerate
from cellerate.errors import ConfigError
from cellerate.tasks.embed import load_line_model
from cellerate.tasks.settings import AutoencoderArchitecture, LineOptions, TextArchitecture, TextOptions
from cellerate.tasks.text.train import train_on_text
from cellerate.training.run import RunOptions
from cellerate.training.settings import TrainingSettings

pytestmark = pytest.mark.keras

TEXT = "the cat sat on the mat.\n" * 30


@pytest.fixture
def book(tmp_path):
    (tmp_path / "book.txt").write_text(TEXT)
    return tmp_path / "book.txt"


@pytest.mark.backends
def test_flat_arguments_make_the_run_that_records_make(book, tmp_path, capsys):
    flat = cellerate.train_text(
        book, tmp_path / "flat.keras", length=8, batch_size=4, embedding=3, units=5, epochs=2, seed=7
    )
    records = train_on_text(
        TextOptions(paths=[book], length=8, batch_size=4),
        RunOptions(output=tmp_path / "records.keras", training=TrainingSettings(epochs=2, seed=7)),
        architecture=TextArchitecture(embedding=3, units=5),
    )
    for one, other in zip(
        flat.training.model.get_weights(), records.training.model.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert flat.evaluation == records.evaluation
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "")


def test_verbose_shows_progress_on_stderr(book, tmp_path, capsys):
    cellerate.train_text([book], tmp_path / "m.keras", length=8, units=3, epochs=1, verbose=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "epoch" in shown.err.lower()


def test_notebook_shows_progress_in_the_cell_unless_told_otherwise(book, tmp_path, capsys, monkeypatch):
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    options = {"length": 8, "units": 3, "epochs": 1}
    cellerate.train_text(book, tmp_path / "a.keras", **options)
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "epoch 1/1  loss" in shown.out
    cellerate.train_text(book, tmp_path / "b.keras", verbose=False, **options)
    shell.kernel = None
    cellerate.train_text(book, tmp_path / "c.keras", **options)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "")


def test_cell_that_stopped_at_its_time_limit_runs_again_with_overwrite(book, tmp_path):
    options = {"length": 8, "units": 3, "max_seconds": 0.001}
    cellerate.train_text(book, tmp_path / "m.keras", **options)
    with pytest.raises(ConfigError, match="overwrite=True"):
        cellerate.train_text(book, tmp_path / "m.keras", **options)
    run = cellerate.train_text(book, tmp_path / "m.keras", overwrite=True, **options)
    assert run.training.status == "time limit"


def test_preset_sizes_the_model_and_options_beside_it_win(book, tmp_path, capsys):
    options = {"length": 8, "epochs": 1, "max_seconds": 0.001, "embedding": 5, "units": 7, "verbose": True}
    run = cellerate.train_text(book, tmp_path / "m.keras", preset="large", **options)
    layers = [layer for layer in run.training.model.layers if isinstance(layer, keras.layers.LSTM)]
    assert [layer.units for layer in layers] == [7, 7]
    assert "preset large: layers=2 dropout=0.2 learning_rate=0.001 clipnorm=1.0" in capsys.readouterr().err


@pytest.mark.parametrize("train", [cellerate.train_text, cellerate.train_embed])
def test_data_that_are_no_path_are_refused_with_their_type(train, tmp_path):
    for wrong in ([{"text": ["a"]}], {"text": ["a"]}, 3):
        with pytest.raises(ConfigError, match=r"the data must be the paths? of .*, not a (dict|int)"):
            train(wrong, tmp_path / "m.keras")
    with pytest.raises(ConfigError, match=r"output must be the path of a \.keras file, not a NoneType"):
        train("a.txt", None)
    with pytest.raises(ConfigError, match="one file of lines, not 2"):
        cellerate.train_embed(["a.txt", "b.txt"], tmp_path / "m.keras")
    assert list(tmp_path.iterdir()) == []


def test_callbacks_reach_every_training(book, tmp_path):
    (tmp_path / "lines.txt").write_text("red\nblue\nhat\n" * 4)
    epochs = []
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epochs.append(epoch))
    cellerate.train_text(book, tmp_path / "a.keras", length=8, units=3, epochs=2, callbacks=[callback])
    cellerate.train_embed(
        tmp_path / "lines.txt", tmp_path / "b.keras", units=4, latent=3, epochs=1, callbacks=[callback]
    )
    assert epochs == [0, 1, 0]


def test_lines_of_json_in_another_encoding_are_read(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text(
        "".join(f'{{"name": "{name}", "n": 1}}\n' for name in ("süß", "rot", "blau") * 4), "utf-16"
    )
    run = cellerate.train_embed(
        path, tmp_path / "m.keras", field="name", encoding="utf-16", units=4, latent=3, epochs=1
    )
    assert run.training.status == "finished"
    assert load_line_model(tmp_path / "m.keras").vocabulary.characters == "".join(sorted(set("süßrotblau")))


def test_own_model_is_trained_from_a_file_or_from_memory(tmp_path):
    (tmp_path / "lines.txt").write_text("red\nblue\nhat\n" * 4)
    options = {"units": 4, "latent": 3, "embedding": 2, "epochs": 1}
    first = cellerate.train_embed(str(tmp_path / "lines.txt"), tmp_path / "a.keras", **options)
    for model, name in ((tmp_path / "a.keras", "b"), (first.training.model, "c")):
        run = cellerate.train_embed(tmp_path / "lines.txt", tmp_path / f"{name}.keras", model=model, epochs=1)
        assert run.training.status == "finished"


def test_resume_goes_on_and_every_option_is_an_argument(tmp_path, book):
    options = {"length": 8, "units": 3, "embedding": 2}
    cellerate.train_text(book, tmp_path / "m.keras", epochs=1, **options)
    run = cellerate.train_text(book, tmp_path / "m.keras", epochs=2, resume=True, **options)
    assert len(run.training.history) == 2
    parameters = inspect.signature(cellerate.train_embed).parameters
    for kind in (LineOptions, AutoencoderArchitecture, TrainingSettings):
        assert set(kind.__dataclass_fields__) - {"path"} <= set(parameters)


def test_arguments_that_cannot_be_used_are_refused_before_anything_is_written(tmp_path, book):
    for wrong, message in (
        ({"unit": 3}, "did you mean 'units'"),
        ({"epochs": 0}, "epochs must be"),
        ({"paths": ["x"]}, "'paths' is not an argument of train_text"),
        ({"errors": "ignore"}, "errors must be one of"),
    ):
        with pytest.raises(ConfigError, match=message):
            cellerate.train_text(book, tmp_path / "m.keras", **wrong)
    assert list(tmp_path.iterdir()) == [book]
