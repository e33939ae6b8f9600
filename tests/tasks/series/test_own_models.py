"""A user's own Keras models as forecasters."""

import keras
import numpy as np
import pytest

import cellerate
from cellerate.errors import ModelError
from cellerate.models.storage import TaskRecord, save_model
from cellerate.models.text import build_text_model
from cellerate.tasks.inference import forecast
from cellerate.tasks.opening import forecaster_of, open_model
from support.runs.wave_runs import HORIZON, WINDOW, fit, recomputed, wave

pytestmark = pytest.mark.keras


def own_model(output, *, features=2, window=WINDOW, batch_size=None):
    return keras.Sequential(
        [
            keras.Input((window, features), batch_size),
            keras.layers.LSTM(4),
            keras.layers.Dense(int(np.prod(output))),
            keras.layers.Reshape(output),
        ]
    )


def test_own_model_of_one_target_without_a_last_axis_trains_and_forecasts(data):
    run = fit(data, model=own_model((HORIZON,)))
    values = {"load": wave(), "other": wave(seed=1, level=-3.0)}
    _, expected, _ = recomputed(
        data.parent / "m.keras", values, ["load", "other"], rows=(192, 240), train_rows=168
    )
    expected = expected["model"]
    assert {key: run.test["model"][key] for key in expected} == pytest.approx(expected, rel=1e-4)
    assert run.training.history[0]["val_loss"] < 3
    (found,) = forecast(data.parent / "m.keras", [data])
    assert found.forecast.shape == (HORIZON, 1)
    cellerate.pack(data.parent / "m.keras", data.parent / "m.cell")
    (packed,) = cellerate.load(data.parent / "m.cell").forecast_files([data])
    np.testing.assert_allclose(packed.forecast, found.forecast, atol=1e-5 * np.ptp(found.past), rtol=0)


def test_own_model_of_a_file_trains(data):
    own_model((HORIZON, 1)).save(data.parent / "own.keras")
    assert fit(data, model=data.parent / "own.keras").test["windows"] == 46


@pytest.mark.parametrize(
    "model",
    [
        lambda: own_model((HORIZON + 1,)),
        lambda: own_model((HORIZON, 2)),
        lambda: own_model((HORIZON,), features=3),
        lambda: own_model((HORIZON,), window=WINDOW + 1),
        lambda: own_model((HORIZON,), batch_size=16),
        lambda: build_text_model(5, embedding=2, units=3),
        lambda: keras.Sequential([keras.layers.LSTM(4)]),
    ],
    ids=["horizon", "targets", "features", "window", "batch", "text", "unbuilt"],
)
def test_own_model_that_does_not_fit_raises_before_training(data, model):
    with pytest.raises(ModelError, match=f"{WINDOW}, 2"):
        fit(data, model=model())
    assert not list(data.parent.glob("m.*"))


def test_own_point_model_with_quantiles_raises(data):
    with pytest.raises(ModelError, match=r"\(None, 3, 1, 2\)"):
        fit(data, model=own_model((HORIZON, 1)), quantile=(0.1, 0.9))


def test_model_of_another_task_and_a_damaged_record_raise(tmp_path):
    save_model(build_text_model(5, embedding=2, units=3), tmp_path / "t.keras", TaskRecord("text", {}))
    with pytest.raises(ModelError, match="holds a text model"):
        forecaster_of(open_model(tmp_path / "t.keras"))
    for number, payload in enumerate(({}, {"options": {"windows": 3}, "quantiles": [], "scaler": {}})):
        path = tmp_path / f"bad{number}.keras"
        save_model(own_model((HORIZON,)), path, TaskRecord("series", payload))
        with pytest.raises(ModelError, match=r"bad\d.keras is damaged"):
            forecaster_of(open_model(path))
