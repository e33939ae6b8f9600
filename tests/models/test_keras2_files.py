"""Files that Keras 2 wrote: those that differ in nothing that counts are read, the others refused in words.

Such a file is a file of Keras 3 with Keras 2's arguments in its description: files of tf_keras 2.21 hold the same.
"""

import functools
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
from keras import layers

from cellerate.errors import ModelError
from cellerate.models.keras2_files import advice
from cellerate.models.storage import load_model

pytestmark = [
    pytest.mark.keras,
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file"),
    pytest.mark.filterwarnings("ignore:Argument `input_length` is deprecated"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]
Change = Callable[[dict[str, Any]], None]


def build() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input(batch_shape=(2, 5), dtype="int32", name="ids"),
            layers.Embedding(7, 4),
            layers.Bidirectional(layers.LSTM(3, return_sequences=True)),
            layers.LSTM(3, stateful=True),
            layers.ReLU(),
        ]
    )


def as_keras_2(path: Path, change: Change) -> Path:
    """Writes a model, with the description of each of its layers changed."""
    model = build()
    model.save(path)
    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            entries = {name: archive.read(name) for name in archive.namelist()}
        config = json.loads(entries["config.json"])
        walk(config, change)
        entries["config.json"] = json.dumps(config).encode()
        with zipfile.ZipFile(path, "w") as archive:
            for name, entry in entries.items():
                archive.writestr(name, entry)
    else:
        with h5py.File(path, "r+") as file:
            config = json.loads(file.attrs["model_config"])
            walk(config, change)
            file.attrs["model_config"] = json.dumps(config).encode()
    return path


def walk(node: Any, change: Change) -> None:
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        walk(value, change)
    if isinstance(node, dict) and "class_name" in node and isinstance(node.get("config"), dict):
        change(node)


def of_keras_2(node: dict[str, Any], *, shapes: bool) -> None:
    """What Keras 2 writes; Keras 3 itself knows the shapes in an HDF5 file."""
    config = node["config"]
    if node["class_name"] == "LSTM":
        config["time_major"] = False
    if node["class_name"] == "InputLayer" and shapes:
        config["batch_input_shape"] = config.pop("batch_shape", None) or config["batch_input_shape"]
    if node["class_name"] == "Embedding":
        config |= {"input_length": 5} | ({"batch_input_shape": [2, 5]} if shapes else {})


def replaced(layer: str, change: Change) -> Change:
    return lambda node: change(node) if node["class_name"] == layer else None


@pytest.mark.parametrize("name", ["old.h5", "old.keras"])
def test_model_of_keras_2_computes_the_same(name: str, tmp_path: Path) -> None:
    keras.utils.set_random_seed(0)
    path = as_keras_2(tmp_path / name, functools.partial(of_keras_2, shapes=name.endswith("keras")))
    before = path.read_bytes()
    with pytest.raises((ValueError, TypeError), match="Unrecognized keyword"):
        keras.saving.load_model(path, compile=False)
    loaded, record = load_model(path)
    keras.utils.set_random_seed(0)
    ids = np.arange(10).reshape(2, 5) % 7
    np.testing.assert_array_equal(loaded.predict_on_batch(ids), build().predict_on_batch(ids))
    assert record is None and loaded.input_shape == (2, 5) and loaded.layers[2].stateful
    assert {type(layer).__module__.split(".")[0] for layer in loaded.layers} == {"keras"}
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["old.h5", "old.keras"])
@pytest.mark.parametrize(
    ("layer", "change", "said"),
    [
        ("LSTM", lambda node: node["config"].update(time_major=True), "leave time_major out"),
        ("LSTM", lambda node: node.update(class_name="CuDNNLSTM"), "write keras.layers.LSTM"),
        ("ReLU", lambda node: node["config"].update(alpha=0.1), "write negative_slope="),
        ("ReLU", lambda node: node.update(class_name="ThresholdedReLU"), r"ReLU\(threshold=...\)"),
    ],
    ids=["time_major", "CuDNNLSTM", "alpha", "ThresholdedReLU"],
)
def test_what_keras_3_lacks_is_refused_with_its_replacement(
    layer: str, change: Change, said: str, name: str, tmp_path: Path
) -> None:
    path = as_keras_2(tmp_path / name, replaced(layer, change))
    with pytest.raises(
        ModelError, match=rf"{name} cannot be read by Keras 3.*of Keras 2: .*{said}"
    ) as caught:
        load_model(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: keras.optimizers.Adam(lr=0.1), "the optimizer has lr=, of Keras 2: write learning_rate="),
        (
            lambda: layers.Dense(2, batch_input_shape=(2, 3)),
            "Dense has batch_input_shape=, of Keras 2: begin the model with keras.Input(batch_shape=...)",
        ),
        (lambda: layers.ReLU(alpha=0.1), "ReLU has alpha=, of Keras 2: write negative_slope="),
        (lambda: layers.LSTM(2, mine=True), None),
    ],
    ids=["lr", "batch_input_shape", "alpha", "unknown"],
)
def test_advice_names_the_replacement_of_what_keras_refuses(
    call: Callable[[], Any], said: str | None
) -> None:
    with pytest.raises(ValueError, match=r"Unrecognized|not recognized") as caught:
        call()
    assert advice(str(caught.value)) == said
