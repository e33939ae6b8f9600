import csv
import json

import keras
import numpy as np
import pytest

from cellerate.models.storage import load_model
from cellerate.tasks.judging.baselines import Baselines
from cellerate.tasks.opening import forecaster_of, open_model
from cellerate.tasks.series import linear_start
from cellerate.tasks.series.train import train_on_series
from cellerate.tasks.settings import ForecastArchitecture, SeriesOptions
from cellerate.training.run import RunOptions
from cellerate.training.settings import TrainingSettings
from cellerate.training.telemetry.display import Display

pytestmark = [
    pytest.mark.keras,
    # Keras 3.15 variables have the __array__ of NumPy 1; saving and reading weights meets it.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

WINDOW, HORIZON = 8, 3


def table(path, rows=300, **columns):
    """A table of swings around levels that drift; `columns` are added."""
    draw = np.random.default_rng(0)
    made = {
        "load": 500 + 40 * np.sin(np.arange(rows) / 3) + draw.normal(0, 10, rows).cumsum(),
        "wind": draw.gamma(2, 3, rows),
        **columns,
    }
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(made)
        writer.writerows(zip(*made.values(), strict=True))
    return path


class Heard(Display):
    """Notes what the run says."""

    def __init__(self):
        self.messages = []

    def message(self, text):
        self.messages.append(text)


def fit(
    path,
    *,
    epochs=1,
    quantile=(),
    linear=True,
    resume=False,
    display=None,
    callbacks=(),
    rate=0.01,
    **changes,
):
    settings = {"target": ["load"], "window": WINDOW, "horizon": HORIZON, "batch_size": 16}
    return train_on_series(
        SeriesOptions.of_record({"paths": [path], **settings, **changes}),
        RunOptions(
            output=path.with_suffix(".keras"),
            training=TrainingSettings(epochs=epochs, learning_rate=rate, log_every=1),
            resume=resume,
            display=display,
            callbacks=callbacks,
        ),
        architecture=ForecastArchitecture(units=6, dropout=0.2, quantile=quantile, linear=linear),
    )


def both(path):
    """The saved model's forecasts of the test part and those of NLinear, in the units of the data."""
    model = forecaster_of(open_model(path.with_suffix(".keras")))
    options = model.options
    data = model.open([path])
    split = options.split(data)
    origins = np.concatenate(
        [np.arange(begin, stop - options.horizon + 1) for _, begin, stop in split.test.bounds]
    )
    baselines = Baselines.fit(split.train, options.window, options.horizon, options.season)
    places = np.searchsorted([first for first, _, _ in data.segments], origins, side="right") - 1
    names = [data.segments[place][2] for place in places]
    rows = data.values[origins[:, None] + np.arange(-options.window, 0)][..., list(data.target_columns)]
    scales = baselines.scales_of(names, rows.shape[2])
    made = baselines.forecast("nlinear", rows.astype(np.float64), scales)
    return model.forecast_at(data, origins), made


# At this rate no epoch is better than the start, so the file holds the start.
NEVER = 3.0

SERIES = {"shop": np.repeat(["a", "b"], 150), "load": np.r_[np.zeros(150), np.full(150, 900)]}


@pytest.mark.backends
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"target": ["wind", "load"]},
        {"target": ["load"], "feature": ["load"], "scaling": "series"},
        {"target": ["wind", "load"], "series_column": ("shop",), "scaling": "series"},
    ],
    ids=["one", "two", "own-scale", "two-series"],
)
def test_forecaster_begins_as_nlinear_and_stays_so_if_no_epoch_is_better(tmp_path, changes):
    extra = {"shop": SERIES["shop"]} if "series_column" in changes else {}
    path = table(tmp_path / "d.csv", **extra)
    heard = Heard()
    run = fit(path, rate=NEVER, epochs=2, display=heard, **changes)
    ours, nlinear = both(path)
    spread = np.abs(nlinear - nlinear.mean(axis=(0, 1))).max(axis=(0, 1))
    tolerance = 1e-4 if "series_column" not in changes else 2e-2
    assert (np.abs(ours - nlinear) < tolerance * spread).all()
    assert run.training.best_epoch == 0
    assert run.training.best < min(epoch["val_loss"] for epoch in run.training.history)
    assert not any(epoch["best"] for epoch in run.training.history)
    figure = "mae" if "mae" in run.test["model"] else "scaled_mae"
    assert run.test["model"][figure] == pytest.approx(run.test["nlinear"][figure], rel=1e-2)
    assert any("begins as NLinear, solved for on" in told for told in heard.messages)
    assert any("before the first epoch: val_loss" in told for told in heard.messages)


@pytest.mark.parametrize("quantile", [(0.1, 0.5, 0.9), (0.05, 0.1, 0.5), (0.5, 0.6), (0.3,), (0.1, 0.9)])
def test_quantiles_begin_at_those_of_the_residuals_of_the_training_windows(tmp_path, quantile):
    path, heard = table(tmp_path / "d.csv"), Heard()
    fit(path, rate=NEVER, quantile=quantile, target=["wind", "load"], display=heard)
    said = [told for told in heard.messages if "has no 0.5" in told]
    assert len(said) == (0.5 not in quantile)
    assert all(("between 0.1 and 0.9" in told) == (len(quantile) == 2) for told in said)
    model = forecaster_of(open_model(path.with_suffix(".keras")))
    data = model.open([path])
    split = model.options.split(data)
    ((_, begin, stop),) = split.train.bounds
    linear = Baselines.fit(split.train, WINDOW, HORIZON, model.options.season)
    origins = np.arange(begin + WINDOW, stop - HORIZON + 1)
    values = np.asarray(data.values, np.float64)[:, list(data.target_columns)]
    past = values[origins[:, None] + np.arange(-WINDOW, 0)]
    scale = np.repeat(linear.scales[""][None], len(past), axis=0)
    left = values[origins[:, None] + np.arange(HORIZON)] - linear.forecast("nlinear", past, scale)
    expected = np.moveaxis(np.quantile(left, quantile, axis=0), 0, -1)
    made = model.forecast_at(data, origins) - linear.forecast("nlinear", past, scale)[..., None]
    unit = model.settings.scaler.scale[list(data.target_columns)][:, None]
    assert np.abs((made - expected) / unit).max() < 1e-3


@pytest.mark.parametrize(
    ("target", "feature", "unseen"),
    [
        (["wind", "load"], ["load"], "wind"),
        (["wind", "load"], ["load", "wind"], None),
        (["wind"], ["load"], None),
    ],
)
def test_targets_without_the_map_because_of_another_one_are_said(tmp_path, target, feature, unseen):
    path, heard = table(tmp_path / "d.csv"), Heard()
    fit(path, display=heard, target=target, feature=feature)
    said = [told for told in heard.messages if told.startswith("not among the features (feature): ")]
    assert [told.split(": ")[1].split(". ")[0] for told in said] == ([unseen] if unseen else [])


@pytest.mark.backends
def test_epoch_that_is_clearly_better_takes_the_place_of_the_start(tmp_path):
    values = np.empty(600)
    values[0] = 0.4
    for row in range(1, 600):
        # The next rows are not a linear function of those before.
        values[row] = 3.9 * values[row - 1] * (1 - values[row - 1])
    path = table(tmp_path / "d.csv", 600, load=values)
    run = fit(path, epochs=30, rate=0.02, feature=["load"], horizon=1)
    assert run.training.best_epoch > 0
    assert run.test["model"]["mae"] < 0.9 * run.test["nlinear"]["mae"]
    trained, _ = load_model(path.with_suffix(".keras"))
    assert trained.get_layer("linear").trainable
    # The linear map itself stays the least squares solution.
    fit(table(tmp_path / "e.csv", 600, load=values), rate=NEVER, feature=["load"], horizon=1)
    start, _ = load_model(tmp_path / "e.keras")
    for one, other in zip(
        *(model.get_layer("linear").get_weights() for model in (trained, start)), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert np.abs(trained.get_layer("center").get_weights()[0]).max() > 0
    assert np.abs(start.get_layer("center").get_weights()[0]).max() == 0


class StopAt(keras.callbacks.Callback):
    """Interrupts a run at a step."""

    def __init__(self, epoch, step):
        super().__init__()
        self._place, self._epoch = (epoch, step), 0

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self._epoch, batch) == self._place:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.backends
@pytest.mark.parametrize("place", [(0, 2), (1, 2)])
def test_resumed_run_is_not_begun_again_and_makes_what_the_whole_one_makes(tmp_path, monkeypatch, place):
    whole, cut = table(tmp_path / "whole.csv"), table(tmp_path / "cut.csv")
    settings = {"epochs": 3, "quantile": (0.2, 0.5, 0.8)}
    fit(whole, **settings)
    assert fit(cut, callbacks=[StopAt(*place)], **settings).training.status == "interrupted"

    def refused(*_):
        raise AssertionError("it begins again")

    monkeypatch.setattr(linear_start.LinearStart, "__call__", refused)
    again = fit(cut, resume=True, **settings)
    assert again.training.status == "finished"
    lines = [
        [json.loads(line) for line in (tmp_path / f"{name}.run/history.jsonl").read_text().splitlines()]
        for name in ("whole", "cut")
    ]
    for one, other in zip(*lines, strict=True):
        assert [one[key] for key in ("loss", "val_loss", "best")] == [
            other[key] for key in ("loss", "val_loss", "best")
        ]
    one, other = (load_model(tmp_path / f"{name}.keras")[0] for name in ("whole", "cut"))
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "changes", [{"linear": False}, {"target": ["wind"], "feature": ["load"]}], ids=["no-linear", "not-seen"]
)
def test_forecaster_without_a_linear_map_begins_as_before(tmp_path, changes):
    heard = Heard()
    run = fit(table(tmp_path / "d.csv"), display=heard, **changes)
    assert run.training.best_epoch == 1
    assert not any("begins" in told or "before the first epoch" in told for told in heard.messages)


def test_forecaster_with_too_few_windows_for_the_linear_map_begins_at_the_last_value(tmp_path, monkeypatch):
    monkeypatch.setattr(linear_start, "fit_linear", lambda *_, **__: None)
    heard = Heard()
    run = fit(table(tmp_path / "d.csv"), display=heard)
    assert run.training.best_epoch == 1
    assert not any("begins" in told for told in heard.messages)


def test_run_without_validation_keeps_its_last_epoch(tmp_path):
    run = fit(table(tmp_path / "d.csv"), epochs=2, validation_fraction=0.0)
    assert run.training.best_epoch == 2


def test_time_limit_counts_what_the_start_takes(tmp_path, monkeypatch):
    begin = linear_start.LinearStart.__call__
    moments = []

    def slow(self, model):
        moments.append(model)
        import time

        time.sleep(0.3)
        return begin(self, model)

    monkeypatch.setattr(linear_start.LinearStart, "__call__", slow)
    run = fit(table(tmp_path / "d.csv"))
    assert len(moments) == 1
    assert run.training.seconds > 0.3
