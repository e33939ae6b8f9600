"""Files that Keras 2 wrote: those whose layers Keras 3 has are read and compute the same, the others refused in words.

Most are files of Keras 3 with Keras 2's arguments in their description; some are written by Keras 2 itself.
"""

import functools
import json
import warnings
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
from tests.support.keras_models.keras2_writer import written_by_keras_2

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
        ("ReLU", lambda node: node["config"].update(alpha=0.1), "write negative_slope="),
        ("ReLU", lambda node: node.update(class_name="ThresholdedReLU"), r"ReLU\(threshold=...\)"),
    ],
    ids=["time_major", "alpha", "ThresholdedReLU"],
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


def test_layers_of_cudnn_in_the_newer_format_are_refused_with_their_replacement(tmp_path: Path) -> None:
    path = as_keras_2(
        tmp_path / "old.keras", replaced("LSTM", lambda node: node.update(class_name="CuDNNLSTM"))
    )
    with pytest.raises(ModelError, match=r"of Keras 2: .*write keras\.layers\.LSTM"):
        load_model(path)


# The numbers of layers of cuDNN, which run on a GPU only, are those of plain layers that Keras 2 loads their file into.
WRITE = """
import numpy as np
import tf_keras
from tf_keras.src.layers.rnn.cudnn_gru import CuDNNGRU
from tf_keras.src.layers.rnn.cudnn_lstm import CuDNNLSTM

layers, random = tf_keras.layers, np.random.default_rng(0)


def keep(name, x, y):
    np.savez(f"{name}.npz", x=x, y=y)


def drawn(model):
    for weight in model.weights:
        weight.assign(random.normal(0, 0.4, weight.shape))
    return model


def cudnn(layer, **options):
    return drawn(tf_keras.Sequential([
        layers.Input((5, 3)),
        layer(4, return_sequences=True, name="a", **options),
        layers.Bidirectional(layer(2, **options), name="b"),
        layers.Dense(2, name="d"),
    ]))


x = random.normal(size=(6, 5, 3)).astype("f4")
for name, layer, plain in (("lstm", CuDNNLSTM, layers.LSTM), ("gru", CuDNNGRU, layers.GRU)):
    cudnn(layer).save(f"{name}.h5")
    same = cudnn(plain)
    same.load_weights(f"{name}.h5")
    keep(f"{name}.h5", x, same(x))

for end in ("h5", "keras"):
    given = layers.Input(batch_shape=(5, None, 3))
    y = layers.LSTM(4, time_major=True, return_sequences=True)(given)
    y = layers.Bidirectional(layers.LSTM(3, time_major=True, return_sequences=True))(layers.LayerNormalization()(y))
    model = drawn(tf_keras.Model(given, layers.Dense(2)(y)))
    model.save(f"time.{end}")
    keep(f"time.{end}", x, np.transpose(model(np.transpose(x, (1, 0, 2))), (1, 0, 2)))
    last = drawn(tf_keras.Sequential([
        layers.LSTM(4, time_major=True, batch_input_shape=(5, 6, 3)), layers.Dense(2)
    ]))
    last.save(f"last.{end}")
    keep(f"last.{end}", x, last(np.transpose(x, (1, 0, 2))))
    mixed = drawn(tf_keras.Sequential([
        layers.LSTM(4, time_major=True, return_sequences=True, batch_input_shape=(5, 6, 3)), layers.LSTM(2)
    ]))
    mixed.save(f"mixed.{end}")
    plain = tf_keras.Sequential([layers.Input((5, 3)), layers.LSTM(4)])
    functional = drawn(tf_keras.Model(plain.inputs, layers.Dense(2)(plain.outputs[0])))
    functional.save(f"plain.{end}")
    keep(f"plain.{end}", x, functional(x))
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written_by_keras_2(WRITE, tmp_path_factory.mktemp("keras2"))


@pytest.mark.parametrize(
    "name", ["lstm.h5", "gru.h5", "time.h5", "time.keras", "last.h5", "last.keras", "plain.h5", "plain.keras"]
)
def test_file_of_keras_2_itself_computes_the_same(written: Path, name: str) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model, _ = load_model(written / name)
    turned = [str(one.message) for one in told if "time_major=True" in str(one.message)]
    assert bool(turned) == name.startswith(("time", "last"))
    expected = np.load(written / f"{name}.npz")
    found = model.predict_on_batch(expected["x"])
    np.testing.assert_allclose(found, expected["y"], rtol=1e-5, atol=2e-6)
    assert {type(layer).__module__.split(".")[0] for layer in model.layers} == {"keras"}
    assert not any("cudnn" in type(layer).__name__.lower() for layer in model.layers)


@pytest.mark.parametrize("name", ["mixed.h5", "mixed.keras"])
def test_model_that_is_time_major_in_part_is_refused_in_words(written: Path, name: str) -> None:
    with pytest.raises(ModelError, match="of Keras 2: leave time_major out"):
        load_model(written / name)


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
