"""Packing a model and using what comes out, without Keras."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest

import cellerate
from cellerate.data.tokenizers.tokenizer import CharacterTokenizer
from cellerate.errors import CellerateError, ConfigError, ModelError
from cellerate.models.autoencoder import build_autoencoder, encoder_and_decoder
from cellerate.models.forecast import build_forecast_model
from cellerate.models.storage import TaskRecord, save_model
from cellerate.models.text import build_text_model
from cellerate.program import PRECISIONS
from cellerate.runtime import explanation
from cellerate.tasks.packing import packed as pack_in_memory
from support.optimization.small_models import filled

pytestmark = [
    pytest.mark.keras,
    # Keras's own convert_to_numpy calls np.array on a framework's tensor, which NumPy 2 warns about.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]

CHARACTERS = "abcdefghij"
RECORD = TaskRecord("text", {"tokenizer": CharacterTokenizer(CHARACTERS).to_config()})
IDS = np.random.default_rng(0).integers(0, len(CHARACTERS), (3, 17))


def text_model():
    return build_text_model(len(CHARACTERS), embedding=6, units=19, layers=2, layer_norm=True, seed=1)


def predicted(model, x):
    return np.asarray(keras.ops.convert_to_numpy(model(x, training=False)))


@pytest.mark.backends
def test_packed_file_of_a_trained_model_predicts_what_keras_does(tmp_path):
    model = text_model()
    save_model(model, tmp_path / "m.keras", RECORD)
    cellerate.pack(tmp_path / "m.keras", tmp_path / "m.cell")
    packed = cellerate.load(tmp_path / "m.cell")
    assert (packed.task, packed.precision, packed.outputs) == ("text", "float32", ("logits",))
    assert packed.inputs == {"ids": (-1, -1)}
    assert packed.tokenizer.decode([0, 3]) == "ad"
    expected = predicted(model, IDS)
    np.testing.assert_allclose(packed.predict(IDS), expected, atol=1e-5 * np.abs(expected).max(), rtol=0)


@pytest.mark.parametrize(("precision", "bits"), [("bfloat16", 8), ("int8", 7), ("int4", 4)])
def test_narrow_weights_change_the_logits_by_no_more_than_their_rounding(tmp_path, precision, bits):
    model = text_model()
    cellerate.pack(model, tmp_path / "m.cell", precision=precision)
    found = cellerate.load(tmp_path / "m.cell").predict(IDS)
    expected = predicted(model, IDS)
    error = np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2))
    # Each weight is off by up to 2^-bits of the largest of its column or group; three layers of products add up.
    assert 1e-6 < error < 3 * 2.0**-bits


@pytest.mark.parametrize("precision", PRECISIONS)
def test_packed_in_memory_is_what_the_file_opens_to(tmp_path, precision):
    model = text_model()
    cellerate.pack(model, tmp_path / "m.cell", precision=precision, record=RECORD)
    file, memory = cellerate.load(tmp_path / "m.cell"), pack_in_memory(model, RECORD, precision=precision)
    assert (memory.task, memory.precision) == ("text", precision)
    assert memory.cell.header == file.cell.header
    np.testing.assert_array_equal(memory.predict(IDS), file.predict(IDS))
    for one, other in zip(memory.cell.program.nodes, file.cell.program.nodes, strict=True):
        assert (one.op, one.options, one.arrays.keys()) == (other.op, other.options, other.arrays.keys())
        assert all(np.array_equal(array, other.arrays[name]) for name, array in one.arrays.items())


def test_packed_in_memory_keeps_the_weights_it_was_packed_with():
    model = text_model()
    packed = pack_in_memory(model)
    before = packed.predict(IDS)
    model.set_weights([2 * weights for weights in model.get_weights()])
    np.testing.assert_array_equal(packed.predict(IDS), before)
    assert not np.array_equal(pack_in_memory(model).predict(IDS), before)
    assert packed.task is None


def test_packing_in_memory_refuses_what_packing_a_file_refuses():
    with pytest.raises(ConfigError, match="float32, bfloat16, int8"):
        pack_in_memory(text_model(), precision="int2")
    model = keras.Sequential([keras.Input((8, 3)), keras.layers.Conv1DTranspose(4, 3, name="look_around")])
    with pytest.raises(ModelError, match="look_around"):
        pack_in_memory(model)


def test_forecasts_and_vectors_of_packed_models_are_those_of_keras(tmp_path):
    x = np.random.default_rng(0).normal(size=(5, 12, 3)).astype("float32")
    forecast = build_forecast_model(
        window=12,
        features=3,
        horizon=4,
        targets=2,
        target_columns=[2, 0],
        units=9,
        quantiles=[0.1, 0.5, 0.9],
        residual=True,
        seed=1,
    )
    # The head of a residual model starts as zeros.
    forecast.set_weights([w + np.float32(0.1) for w in forecast.get_weights()])
    lines = build_autoencoder(11, embedding=5, units=7, latent=6, seed=1)
    encode, _ = encoder_and_decoder(lines)
    source = np.array([[1, 4, 3, 0, 0], [2, 9, 9, 10, 1], [0, 0, 0, 0, 0]])
    for model, given in ((forecast, x), (encode, source)):
        cellerate.pack(model, tmp_path / "m.cell")
        expected = predicted(model, given)
        found = cellerate.load(tmp_path / "m.cell").predict(given)
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max(), rtol=0)


def test_loading_and_predicting_imports_no_framework(tmp_path):
    cellerate.pack(text_model(), tmp_path / "m.cell", record=RECORD)
    program = (
        "import sys, json, cellerate; m = cellerate.load(sys.argv[1]); "
        "y = m.predict(m.tokenizer.encode('abc')[None]); "
        "print(json.dumps([y.shape, [n for n in ('keras', 'jax', 'torch', 'tensorflow') if n in sys.modules]]))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "m.cell")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[1, 3, len(CHARACTERS)], []]


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"output": "m.keras"}, ConfigError, "'.cell'"),
        ({"precision": "int2"}, ConfigError, "float32, bfloat16, int8"),
        ({"model": "none.keras"}, ModelError, "none.keras"),
        ({"model": "none.keras", "record": RECORD}, ConfigError, "record"),
    ],
)
def test_what_cannot_be_packed_is_refused_and_nothing_is_written(tmp_path, arguments, kind, message):
    given = {"model": text_model(), "output": "m.cell"} | arguments
    given["output"] = tmp_path / given["output"]
    if isinstance(given["model"], str):
        given["model"] = tmp_path / given["model"]
    with pytest.raises(kind, match=message):
        cellerate.pack(**given)
    assert list(tmp_path.iterdir()) == []


def test_layers_that_cannot_be_packed_are_named(tmp_path):
    x = keras.Input((8, 3))
    y = keras.layers.Conv1DTranspose(4, 3, name="look_around")(x)
    model = keras.Model(x, keras.layers.LSTM(5)(y))
    with pytest.raises(ModelError, match="look_around"):
        cellerate.pack(model, tmp_path / "m.cell")
    assert list(tmp_path.iterdir()) == []


def test_diverged_weights_are_refused(tmp_path):
    model = text_model()
    weights = model.get_weights()
    weights[1][0, 0] = np.nan
    model.set_weights(weights)
    with pytest.raises(CellerateError, match="NaN"):
        cellerate.pack(model, tmp_path / "m.cell")


def test_a_model_without_a_tokenizer_says_so(tmp_path):
    cellerate.pack(text_model(), tmp_path / "m.cell")
    with pytest.raises(ModelError, match="no tokenizer"):
        _ = cellerate.load(tmp_path / "m.cell").tokenizer


def test_packing_a_packed_model_says_what_to_give(tmp_path):
    cellerate.pack(text_model(), tmp_path / "m.cell")
    with pytest.raises(ModelError, match="is a packed model, from which no Keras model can be made"):
        cellerate.pack(tmp_path / "m.cell", tmp_path / "n.cell")


def test_model_that_cannot_be_packed_leaves_no_file_and_no_folder(tmp_path):
    model = keras.Sequential([keras.Input((6, 3)), keras.layers.Conv1DTranspose(2, 2)])
    with pytest.raises(ModelError, match="cannot be packed"):
        cellerate.pack(model, tmp_path / "new" / "m.cell")
    assert not list(tmp_path.iterdir())


def test_wrong_precision_is_refused_before_the_model_is_read(tmp_path):
    with pytest.raises(
        ConfigError, match="precision must be one of float32, bfloat16, int8, int4, not 'int2'"
    ):
        cellerate.pack(tmp_path / "none.keras", tmp_path / "m.cell", precision="int2")


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_packed_gru_and_simple_rnn_come_back_from_their_file(tmp_path, precision):
    x = keras.Input((None, 5), name="x")
    chain = [
        keras.layers.LSTM(6, return_sequences=True),
        keras.layers.GRU(6, return_sequences=True),
        keras.layers.GRU(6, reset_after=False, return_sequences=True),
        keras.layers.SimpleRNN(6),
    ]
    y = x
    for layer in chain:
        y = layer(y)
    model = keras.Model(x, y)
    cellerate.pack(model, tmp_path / "m.cell", precision=precision)
    given = np.random.default_rng(0).normal(size=(3, 8, 5)).astype("float32")
    found = cellerate.load(tmp_path / "m.cell").predict(given)
    assert found.tobytes() == pack_in_memory(model, precision=precision).predict(given).tobytes()
    expected = predicted(model, given)
    limit = {"float32": 1e-5, "bfloat16": 3e-2, "int8": 6e-2}[precision]
    np.testing.assert_allclose(found, expected, atol=limit * np.abs(expected).max(), rtol=0)


COVARIATES = {"future": 2, "absolute": [0], "series_embedding": 3, "series": 2}


@pytest.mark.parametrize("quantiles", [None, (0.1, 0.5, 0.8, 0.9)])
@pytest.mark.parametrize(
    ("features", "columns", "more"),
    [
        *((features, columns, {}) for features, columns in ((1, [0]), (3, [2]), (3, [1, 2]), (2, [0, 1]))),
        *((3, [2, 0], more) for more in ({}, {"linear": False}, {"shared_linear": True}, COVARIATES)),
    ],
    ids=str,
)
def test_packed_forecaster_runs_as_one_call(features, columns, quantiles, more, monkeypatch):
    monkeypatch.setattr(explanation, "_MEASURED_S", 0.0)
    given = {"units": 5, "residual": True, "target_columns": columns, "quantiles": quantiles, **more}
    model = build_forecast_model(6, features, 4, len(columns), **given)
    packed = pack_in_memory(filled(model))
    assert packed.explain().reason == ""
    rng = np.random.default_rng(0)
    x = {
        "series": rng.normal(size=(3, 6, features)).astype("float32"),
        "future": rng.normal(size=(3, 4, 2)).astype("float32"),
        "series_id": np.array([[2], [0], [1]], np.int32),
    }
    x = x if more is COVARIATES else x["series"]
    right = predicted(model, x)
    np.testing.assert_allclose(packed.predict(x), right, atol=1e-6 * np.abs(right).max(), rtol=0)


def test_packed_gru_explains_itself():
    model = pack_in_memory(
        keras.Sequential([keras.Input((None, 5), name="x"), keras.layers.GRU(6, name="gated")])
    )
    told = str(model.explain(steps=4))
    assert "not as one call, because the core does not take gru here" in told
    assert "gated (gru)" in told and "6 units, 5 inputs" in told


def test_streams_of_a_packed_gru_and_simple_rnn_give_what_the_whole_sequence_gives():
    chain = [
        keras.layers.GRU(4, return_sequences=True),
        keras.layers.LSTM(3, return_sequences=True),
        keras.layers.SimpleRNN(5, return_sequences=True),
    ]
    model = pack_in_memory(keras.Sequential([keras.Input((None, 5), name="x"), *chain]))
    given = np.random.default_rng(0).normal(size=(3, 8, 5)).astype("float32")
    streams = model.streams(3)
    parts = [streams.push(given[:, begin : begin + 4]) for begin in (0, 4)]
    np.testing.assert_allclose(np.concatenate(parts, axis=1), model.predict(given), atol=1e-6)
