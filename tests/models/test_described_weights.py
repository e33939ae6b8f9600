"""Model files that describe far more weights than they hold: refused before Keras builds, and so allocates, them."""

import zipfile
from pathlib import Path

import h5py
import keras
import pytest
from keras import layers

from cellerate.errors import ModelError
from cellerate.models.storage import load_model

pytestmark = [
    pytest.mark.keras,
    # Keras 3.15 variables have the __array__ of NumPy 1; saving and reading weights meets it.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]


def forge(path: Path, named: str, forged: str) -> None:
    """Replaces a part of the description in a model's file."""
    if path.suffix == ".h5":
        with h5py.File(path, "r+") as file:
            config = file.attrs["model_config"]
            assert named in config
            file.attrs["model_config"] = config.replace(named, forged)
        return
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    assert named.encode() in entries["config.json"]
    entries["config.json"] = entries["config.json"].replace(named.encode(), forged.encode())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize(
    ("layer", "named", "forged"),
    [
        (layers.Embedding(5, 4), '"output_dim": 4', '"output_dim": 4000000000000000'),
        # Only the input is wide, as no layer's own settings say.
        (layers.LSTM(2), "null, 7, 3", "null, 7, 9000000000000000"),
        (layers.Conv1D(2, 3), "null, 7, 3", "null, 7, 9000000000000000"),
        (layers.Bidirectional(layers.LSTM(2)), "null, 7, 3", "null, 7, 9000000000000000"),
    ],
)
def test_model_of_an_absurdly_large_layer_is_refused_before_building_it(
    layer, named, forged, suffix, tmp_path
):
    ids = isinstance(layer, layers.Embedding)
    model = keras.Sequential([keras.Input((7,), dtype="int32") if ids else keras.Input((7, 3)), layer])
    whole, path = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    for each in (whole, path):
        model.save(each)
    forge(path, named, forged)
    with pytest.raises(
        ModelError,
        match=r"^\S+ is damaged or not a model file: it describes \d+,000,000,000,00\d,\d\d\d weights",
    ):
        load_model(path)
    # Nothing of the forged model is created later.
    loaded, _ = load_model(whole)
    assert loaded.count_params() == model.count_params()


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_model_of_a_large_layer_before_one_that_cannot_be_built_is_refused_before_building_it(
    suffix, tmp_path
):
    model = keras.Sequential([keras.Input((7, 3)), layers.LSTM(5), layers.Reshape((5, 1)), layers.Dense(2)])
    path = tmp_path / f"a{suffix}"
    model.save(path)
    # The other layers still expect five features.
    forge(path, '"units": 5', '"units": 5000000')
    with pytest.raises(ModelError, match=r"it describes 100,000,080,000,\d\d\d weights"):
        load_model(path)
