"""The scaler of a series, and the batches that are scaled with it."""

import json

import numpy as np
import pytest

from cellerate.data.series.series import open_series
from cellerate.data.settings import Reading
from cellerate.data.windows.scaler import Scaler
from cellerate.data.windows.windows import SeriesBatches, WindowSettings
from cellerate.errors import ConfigError, DataError, ModelError
from support.data.hourly_tables import table


def test_scaler_is_fitted_on_the_training_part_only_in_float64(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "cellerate.data.windows.scaler._CHUNK_BYTES", 8 * 3 * 37
    )  # many chunks, the last one short
    rng = np.random.default_rng(0)
    values = (rng.normal(size=(1000, 3)) * [1, 100, 1e-3] + [1e4, -5, 0]).astype(np.float32)
    values[700:] = 1e6
    np.save(tmp_path / "v.npy", values)
    scaler = Scaler.fit(open_series(tmp_path / "v.npy", Reading(targets=["0"])).split(0.7, 0.1).train)
    wanted = values[:700].astype(np.float64)
    assert scaler.mean == pytest.approx(wanted.mean(axis=0), rel=1e-12)
    assert scaler.scale == pytest.approx(wanted.std(axis=0), rel=1e-9)


def test_scaler_of_constant_columns_has_scale_one(write):
    path = write("a,b,c\n" + "5,0,0.1\n" * 1000)
    scaler = Scaler.fit(open_series(path, Reading(targets=["a"])).whole())
    assert scaler.scale.tolist() == [1, 1, 1]
    assert np.abs(scaler.transform(np.array([[5, 0, 0.1]], np.float32))).max() == 0


def test_scaler_of_a_column_too_large_for_it_names_the_column(write):
    path = write("a,b\n" + "1,3e36\n2,-1e36\n" * 50)
    part = open_series(path, Reading(targets=["a"])).whole()
    with pytest.raises(DataError, match=r"column 'b' holds numbers of about 2e\+36, too large to be scaled"):
        Scaler.fit(part)


def test_scaler_inverse_takes_forecasts_and_quantiles_back():
    scaler = Scaler(["a", "b", "c"], [1, 2, 3], [10, 20, 30])
    values = np.random.default_rng(0).normal(size=(4, 5, 3)) * 50
    assert scaler.inverse_transform(scaler.transform(values)) == pytest.approx(values, abs=1e-4)
    forecast = np.ones((4, 5, 2), np.float32)
    assert scaler.inverse_transform(forecast, [2, 0])[0, 0].tolist() == [33, 11]
    quantiles = np.stack([forecast, 2 * forecast], axis=-1)
    assert scaler.inverse_transform(quantiles, (2, 0), quantiles=True)[0, 0].tolist() == [[33, 63], [11, 21]]
    assert scaler.transform(values.astype(np.float16)).dtype == np.float32


def test_scaler_survives_json_exactly():
    scaler = Scaler(["a", "b"], [0.1, 1e-20], [1 / 3, 7e12])
    again = Scaler.from_config(json.loads(json.dumps(scaler.to_config())))
    assert again == scaler
    assert again.columns == ("a", "b")


@pytest.mark.parametrize(
    "change",
    [
        {"mean": [1.0]},
        {"mean": "no"},
        {"mean": [1.0, float("nan")]},
        {"mean": [1.0, None]},
        {"mean": [True, 1.0]},
        {"mean": [[1.0], [2.0]]},
        {"scale": [0.0, 1.0]},
        {"scale": [-1.0, 1.0]},
        {"scale": [float("inf"), 1.0]},
        {"scale": [1e300, 1.0]},
        {"scale": {"a": 1}},
        {"columns": ["a", "a"]},
        {"columns": ["a", 2]},
        {"columns": "ab"},
        {"columns": []},
        {"more": 1},
    ],
)
def test_scaler_from_a_hostile_description_raises_model_error(change):
    config = Scaler(["a", "b"], [1, 2], [1, 2]).to_config()
    with pytest.raises(ModelError, match="damaged"):
        Scaler.from_config(config | change)
    with pytest.raises(ModelError):
        Scaler.from_config([])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_series_batches_are_scaled_naive_slices(shared_data, dtype):
    data = open_series(
        shared_data / "ETTh1.csv", Reading(targets=["OT", "HUFL"], features=["MUFL", "OT"], storage=dtype)
    )
    assert data.columns == ("MUFL", "OT", "HUFL")
    split = data.split(counts=(8640, 2880, 2880))
    scaler = Scaler.fit(split.train)
    form = WindowSettings(window=96, horizon=24, batch_size=32, seed=1)
    source = SeriesBatches(split.test, form, scaler)
    scaled = (data.values.astype(np.float64) - scaler.mean) / scaler.scale
    x, y = source.batch(0, 5)
    assert (x.shape, y.shape, x.dtype, y.dtype) == ((32, 96, 2), (32, 24, 2), np.float32, np.float32)
    starts = range(11_424, 14_400 - 120 + 1)
    for row in range(32):
        candidates = [s for s in starts if np.abs(scaled[s : s + 96, :2] - x[row]).max() < 1e-5]
        assert len(candidates) == 1
        first = candidates[0] + 96
        assert y[row] == pytest.approx(scaled[first : first + 24][:, [1, 2]], abs=1e-5)
    assert len(source) == (14_400 - 11_424 - 120 + 1) // 32


def test_series_fingerprint_depends_on_data_scaler_and_part(write):
    data = open_series(write(table(200)), Reading(targets=["a"]))
    split = data.split()
    fit = Scaler.fit(split.train)
    other = Scaler(fit.columns, fit.mean + 1, fit.scale)

    def fingerprint(part, scaler):
        return SeriesBatches(part, WindowSettings(window=4, horizon=1, batch_size=2), scaler).fingerprint()

    found = {
        fingerprint(*pair)
        for pair in ((split.train, fit), (split.train, other), (split.train, None), (split.test, fit))
    }
    assert len(found) == 4
    assert fingerprint(split.train, fit) in found


def test_series_batches_refuse_a_scaler_of_other_columns(write):
    data = open_series(write(table(50)), Reading(targets=["a"]))
    other = Scaler(["x", "y"], [0, 0], [1, 1])
    with pytest.raises(ConfigError, match="scaler is for the columns x, y, but the series has a, b"):
        SeriesBatches(data.whole(), WindowSettings(window=4, horizon=1, batch_size=2), other)
