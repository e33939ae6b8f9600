"""The trainings as Python functions: one flat list of arguments, the same runs as with records."""

import inspect

import numpy as np
import pytest

import cellerate
from cellerate.errors import ConfigError
from cellerate.tasks.settings import AutoencoderArchitecture, LineOptions, TextArchitecture, TextOptions
from cellerate.tasks.text import train_on_text
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
        tmp_path / "records.keras",
        architecture=TextArchitecture(embedding=3, units=5),
        training=TrainingSettings(epochs=2, seed=7),
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
