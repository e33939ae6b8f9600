import dataclasses

import keras
import numpy as np
import pytest

from cellerate.errors import DataError
from cellerate.models.storage import load_model
from cellerate.tasks.backtest import refit as backtest_refit
from cellerate.tasks.backtest.run import backtest
from cellerate.tasks.series.train import train_on_series
from cellerate.tasks.settings import ForecastArchitecture, SeriesOptions
from cellerate.training.run import RunOptions
from cellerate.training.settings import TrainingSettings

pytestmark = pytest.mark.keras


@pytest.fixture
def trained(tmp_path):
    rows = 20 + 5 * np.sin(np.arange(160) / 2)[:, None] + np.random.default_rng(0).normal(size=(160, 1))
    np.save(tmp_path / "d.npy", rows.astype(np.float32))
    train_on_series(
        SeriesOptions(paths=[tmp_path / "d.npy"], target=["0"], window=8, horizon=3, batch_size=16),
        RunOptions(output=tmp_path / "m.keras", training=TrainingSettings(epochs=1, learning_rate=0.01)),
        architecture=ForecastArchitecture(units=4),
    )
    return tmp_path / "m.keras", tmp_path / "d.npy"


def test_each_fold_has_a_model_trained_on_the_rows_before_it_and_the_given_one_stays(trained, tmp_path):
    path, data = trained
    given, record = load_model(path)
    weights = [keras.ops.convert_to_numpy(one) for one in given.weights]
    found = backtest(given, data, record=record, folds=2, refit=True, epochs=1)
    assert (found.refit, len(found.folds)) == (True, 2)
    assert "model of its own" in found.told
    for one, before in zip(given.weights, weights, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(one), before)
    # What comes after the first origin changes neither its model nor its forecast, but the next fold's.
    rows = np.load(data)
    rows[-6:] += 50
    np.save(tmp_path / "e.npy", rows)
    other = backtest(given, tmp_path / "e.npy", record=record, folds=2, refit=True, epochs=1)
    first, second = ([one.folds[number].examples[0].forecast for one in (found, other)] for number in (0, 1))
    np.testing.assert_array_equal(*first)
    assert np.abs(second[0] - second[1]).max() > 1
    # Each fold's intervals are those of its own model, so the first knows nothing of what comes later.
    first, second = (
        [one.folds[number].examples[0].intervals[0.8] for one in (found, other)] for number in (0, 1)
    )
    np.testing.assert_array_equal(*first)
    assert np.abs(second[0] - second[1]).max() > 1
    plain = backtest(given, data, record=record, folds=2)
    assert np.abs(plain.folds[0].examples[0].forecast - found.folds[0].examples[0].forecast).max() > 1e-3


def test_fold_without_rows_to_train_on_is_named(trained):
    with pytest.raises(DataError, match=r"fold 1 has \d+ rows to train on"):
        backtest(trained[0], trained[1], folds=50, refit=True, epochs=1)


def test_interrupted_training_of_a_fold_ends_the_backtest(trained, monkeypatch):
    def interrupted(*given, **settings):
        return dataclasses.replace(train(*given, **settings), status="interrupted")

    train = backtest_refit.train
    monkeypatch.setattr(backtest_refit, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        backtest(trained[0], trained[1], folds=2, refit=True, epochs=1)
