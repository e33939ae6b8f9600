"""Exporting trained models, and what another runtime gives for their files."""

import importlib.util
import json
import re
import subprocess

import keras
import numpy as np
import onnx
import onnxruntime
import pytest

import cellerate
from cellerate.data.tokenizers.tokenizer import CharacterTokenizer
from cellerate.errors import BackendError, ConfigError, ModelError
from cellerate.exports.litert import LiteRt
from cellerate.exports.onnx import OnnxRuntime
from cellerate.exports.openvino_trial import tried_in_openvino
from cellerate.exports.trials import deviation, trials_of
from cellerate.keras_graph import program_layers
from cellerate.keras_graph.keras_layers import ALIKE, ROWS, LayerFacts
from cellerate.models.autoencoder import build_autoencoder
from cellerate.models.forecast import build_forecast_model
from cellerate.models.storage import TaskRecord, save_model
from cellerate.models.text import build_text_model
from cellerate.tasks.exporting import Quality
from cellerate.tasks.packing import packed

pytestmark = [
    pytest.mark.keras,
    # Keras's own convert_to_numpy calls np.array on a framework's tensor, which NumPy 2 warns about.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]

CHARACTERS = "abcdefghij"
RECORD = TaskRecord("text", {"tokenizer": CharacterTokenizer(CHARACTERS).to_config()})


def text_model():
    return build_text_model(len(CHARACTERS), embedding=6, units=19, layers=2, layer_norm=True, seed=1)


def session(path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def ids_of(*shape, low=0):
    return np.random.default_rng(0).integers(low, len(CHARACTERS), shape).astype(np.int32)


def assert_near(found, right, limit=1e-5):
    right = np.asarray(keras.ops.convert_to_numpy(right))
    np.testing.assert_allclose(found, right, atol=limit * max(1, np.abs(right).max()), rtol=0)


@pytest.mark.backends
def test_text_model_gives_in_onnx_runtime_what_keras_gives(tmp_path):
    model = text_model()
    save_model(model, tmp_path / "m.keras", RECORD)
    done = cellerate.export(tmp_path / "m.keras", tmp_path / "m.onnx")
    assert (done.inputs, done.outputs, done.precision, done.tolerance) == (
        ("ids",),
        ("logits",),
        "float32",
        1e-5,
    )
    assert done.error <= 1e-5
    for shape in ((1, 1), (3, 17), (2, 100)):
        (found,) = session(tmp_path / "m.onnx").run(None, {"ids": ids_of(*shape)})
        assert_near(found, model(ids_of(*shape), training=False))
    about = json.loads(onnx.load(tmp_path / "m.onnx").metadata_props[0].value)
    assert (about["task"], about["payload"]) == ("text", RECORD.payload)


@pytest.mark.backends
def test_masked_bidirectional_model_gives_what_keras_gives_whatever_the_padding(tmp_path):
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32", name="ids"),
            keras.layers.Embedding(len(CHARACTERS), 7, mask_zero=True),
            keras.layers.Bidirectional(keras.layers.LSTM(8, return_sequences=True)),
            keras.layers.Bidirectional(keras.layers.LSTM(9)),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    cellerate.export(model, tmp_path / "m.onnx")
    ids = ids_of(4, 12, low=1)
    ids[0, 5:], ids[1, :5], ids[2, 3:7] = 0, 0, 0
    (found,) = session(tmp_path / "m.onnx").run(None, {"ids": ids})
    assert_near(found, model(ids, training=False))


def test_forecaster_and_line_model_give_what_the_packed_ones_give(tmp_path):
    forecaster = build_forecast_model(12, 3, 4, 2, target_columns=(0, 2), units=9, seed=0)
    lines = build_autoencoder(len(CHARACTERS), embedding=6, units=7, latent=5, seed=0)
    for model, record in ((forecaster, None), (lines, TaskRecord("embed", {}))):
        done = cellerate.export(model, tmp_path / "m.onnx", record=record)
        program = packed(model, record).cell.program
        assert done.outputs == tuple(program.outputs)
        assert deviation(trials_of(program), OnnxRuntime(tmp_path / "m.onnx").run).error <= 1e-5
    assert "vector" in done.outputs


def test_stateful_export_gives_for_parts_what_the_model_gives_for_the_whole(tmp_path):
    model = text_model()
    done = cellerate.export(model, tmp_path / "m.onnx", stateful=True)
    run, ids = OnnxRuntime(tmp_path / "m.onnx").run, ids_of(2, 30)
    state = {name: np.zeros((2, 19), np.float32) for name in done.inputs if name != "ids"}
    assert sorted(state) == ["c_0", "c_1", "h_0", "h_1"]
    found = []
    for part in np.split(ids, [1, 2, 11], axis=1):
        results = run({"ids": part, **state})
        found.append(results["logits"])
        state = {name: results[f"{name}_next"] for name in state}
    assert_near(np.concatenate(found, axis=1), model(ids, training=False))


def test_int8_export_is_smaller_and_near(tmp_path):
    model = build_text_model(len(CHARACTERS), embedding=32, units=64, seed=1)
    whole = cellerate.export(model, tmp_path / "m.onnx")
    size = (tmp_path / "m.onnx").stat().st_size
    small = cellerate.export(model, tmp_path / "m.onnx", precision="int8")
    assert (tmp_path / "m.onnx").stat().st_size < 0.4 * size
    assert whole.error < 1e-5 < small.error < 0.05
    assert whole.largest_pair is None
    assert 255 * 127 < small.largest_pair < 2**15
    assert {node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node} >= {"DynamicQuantizeLSTM"}


def test_int8_weights_that_some_processors_multiply_wrongly_are_not_kept(tmp_path, monkeypatch):
    (tmp_path / "m.onnx").write_bytes(b"older")
    # Whole 8 bits, as they are exact on processors with VNNI alone.
    monkeypatch.setattr("cellerate.exports.onnx_int8._LARGEST_SUM", 254)
    with pytest.raises(ModelError, match=r"processors without VNNI hold 32767 at most\. Nothing was written"):
        cellerate.export(text_model(), tmp_path / "m.onnx", precision="int8")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("m.onnx", b"older")]


@pytest.mark.parametrize(("to", "name"), [("onnx", "m.onnx"), ("litert", "m.tflite")])
def test_int8_export_that_errs_far_more_than_our_own_int8_is_refused(tmp_path, to, name):
    model = build_text_model(len(CHARACTERS), embedding=32, units=64, seed=1)
    embedding = next(weight for weight in model.weights if weight.path.endswith("embeddings"))
    rows = np.array(embedding)
    # One scale a batch leaves the other rows two digits less.
    rows[::9] *= 100
    embedding.assign(rows)
    (tmp_path / name).write_bytes(b"older")
    with pytest.raises(
        ModelError, match=r"in 8 bits this model errs by 0\.\d+ in .*float32, or give data"
    ) as told:
        cellerate.export(model, tmp_path / name, to=to, precision="int8")
    theirs, ours, most = map(float, re.findall(r"0\.\d+", str(told.value)))
    assert theirs > most >= 3 * ours - 0.01
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(name, b"older")]
    # Data decide where they are given.
    taken = cellerate.export(
        model, tmp_path / name, to=to, precision="int8", judge=lambda _: Quality("loss", 1.0, 1.0, 0.0, 0.01)
    )
    assert taken.error > most and taken.own_error == pytest.approx(ours, rel=0.1)


def test_float16_litert_model_is_half_as_large_and_near(tmp_path):
    model = build_text_model(len(CHARACTERS), embedding=32, units=64, seed=1)
    whole = cellerate.export(model, tmp_path / "m.tflite", to="litert")
    size = (tmp_path / "m.tflite").stat().st_size
    small = cellerate.export(model, tmp_path / "m.tflite", to="litert", precision="float16")
    assert (tmp_path / "m.tflite").stat().st_size < 0.6 * size
    # Weights are off by up to 2^-11 of themselves, in sums of 96 products and a loop of 40 steps.
    assert whole.error < 1e-5 < small.error < 2e-3


@pytest.mark.parametrize("stateful", [False, True])
def test_int8_litert_model_is_a_quarter_as_large_and_near(tmp_path, stateful):
    model = build_text_model(len(CHARACTERS), embedding=64, units=128, seed=1)
    options = {"to": "litert", "stateful": stateful}
    whole = cellerate.export(model, tmp_path / "m.tflite", **options)
    size = (tmp_path / "m.tflite").stat().st_size
    small = cellerate.export(model, tmp_path / "m.tflite", precision="int8", **options)
    assert (tmp_path / "m.tflite").stat().st_size < 0.3 * size
    # Weights and inputs are off by up to 1/254 of the largest, in sums of 192 products and a loop of 40 steps.
    assert whole.error < 1e-5 < small.error < 0.05


def test_what_openvino_makes_of_it_is_told_where_it_is_installed(tmp_path, monkeypatch):
    pytest.importorskip("openvino", reason="needs the package of the group bench")
    done = cellerate.export(text_model(), tmp_path / "m.onnx")
    assert re.fullmatch(r"in OpenVINO, in float32: error \d\.\de-0[678]", done.elsewhere)
    model = keras.Sequential([keras.Input((None, 3)), keras.layers.LSTM(4, activation="softsign")])
    assert cellerate.export(model, tmp_path / "m.onnx").elsewhere.startswith("OpenVINO does not read it: ")
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "openvino" else find(name))
    assert cellerate.export(text_model(), tmp_path / "m.onnx").elsewhere == ""


def test_what_openvino_computes_wrongly_is_told_as_wrong(tmp_path, monkeypatch):
    done = subprocess.CompletedProcess([], 0, b'{"error": 0.46}')
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: done)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    found = tried_in_openvino(tmp_path / "m.onnx", [])
    assert found == "in OpenVINO, in float32: error 4.6e-01, which is wrong: do not use the file there"


def test_wrong_results_are_an_error_and_leave_the_older_file(tmp_path, monkeypatch):
    (tmp_path / "m.onnx").write_bytes(b"older")
    right = OnnxRuntime.run
    monkeypatch.setattr(
        OnnxRuntime, "run", lambda self, inputs: {n: a + 1e-4 for n, a in right(self, inputs).items()}
    )
    with pytest.raises(ModelError, match=r"its error is [\d.]+e-05, and at most 1e-05 is right"):
        cellerate.export(text_model(), tmp_path / "m.onnx")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("m.onnx", b"older")]


@pytest.mark.backends
@pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask:UserWarning")
def test_program_that_computes_something_else_than_keras_is_not_written(tmp_path, monkeypatch):
    """Such as one that multiplies what is masked, as programs did once."""
    x = keras.Input((6, 3))
    h = keras.layers.LSTM(4, return_sequences=True)(keras.layers.Masking()(x))
    gated = keras.layers.Multiply()([h, keras.layers.Dense(4, activation="sigmoid")(h)])
    model = keras.Model(x, keras.layers.Flatten()(gated))
    padded = np.random.default_rng(0).normal(size=(3, 6, 3)).astype(np.float32)
    padded[0, 3:] = 0
    cellerate.export(model, tmp_path / "m.onnx")
    found = OnnxRuntime(tmp_path / "m.onnx").run(dict.fromkeys(packed(model).inputs, padded))
    assert_near(next(iter(found.values())), model(padded, training=False))

    before = (tmp_path / "m.onnx").read_bytes()
    plain = LayerFacts(ALIKE, program_layers.merge("multiply"), per_step=True)
    monkeypatch.setitem(ROWS, keras.layers.Multiply, plain)
    with pytest.raises(ModelError, match=r"gives other numbers than in Keras: its error is 0\.\d+"):
        cellerate.export(model, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == before


def test_model_whose_states_grow_is_exported(tmp_path):
    keras.utils.set_random_seed(0)
    grows = keras.initializers.RandomNormal(stddev=3.0)
    layers = [
        keras.layers.LSTM(8, activation=activation, return_sequences=True, recurrent_initializer=grows)
        for activation in ("relu", "linear")
    ]
    model = keras.Sequential([keras.Input((None, 3)), *layers, keras.layers.Dense(1)])
    done = cellerate.export(model, tmp_path / "m.onnx")
    assert done.error <= 1e-5


@pytest.mark.backends
def test_stateful_model_of_a_fixed_batch_is_compared_with_keras_and_left_as_it_is(tmp_path):
    model = keras.Sequential([keras.Input(batch_shape=(4, 5, 3)), keras.layers.LSTM(8, stateful=True)])
    cellerate.export(model, tmp_path / "m.onnx")
    for state in model.layers[0].states:
        assert not np.asarray(keras.ops.convert_to_numpy(state)).any()


def test_what_onnx_does_not_have_is_refused_by_name(tmp_path):
    model = keras.Sequential([keras.Input((None, 3)), keras.layers.LSTM(4, activation="gelu", name="odd")])
    with pytest.raises(ModelError, match=r"^odd: ONNX's LSTM has no activation 'gelu'"):
        cellerate.export(model, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("batch_size", [1, 3])
def test_litert_model_gives_what_keras_gives_and_steps_with_states(tmp_path, batch_size):
    model = text_model()
    done = cellerate.export(model, tmp_path / "m.tflite", to="litert", batch_size=batch_size)
    assert (done.inputs, done.outputs, done.tolerance) == (("ids",), ("logits",), 1e-4)
    ids = ids_of(batch_size, 23)
    found = LiteRt(tmp_path / "m.tflite", done.outputs).run({"ids": ids})["logits"]
    assert_near(found, model(ids, training=False))
    stepping = cellerate.export(
        model, tmp_path / "s.tflite", to="litert", batch_size=batch_size, stateful=True
    )
    run = LiteRt(tmp_path / "s.tflite", stepping.outputs).run
    state = {name: np.zeros((batch_size, 19), np.float32) for name in stepping.inputs if name != "ids"}
    for t in range(5):
        results = run({"ids": ids[:, t : t + 1], **state})
        assert_near(results["logits"][:, 0], found[:, t])
        state = {name: results[f"{name}_next"] for name in state}


@pytest.mark.backends
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's own")
def test_saved_model_has_versions_and_a_signature_that_steps(tmp_path):
    from cellerate.exports.savedmodel import SavedModel

    model = text_model()
    for version in ("1", "2"):
        done = cellerate.export(model, tmp_path / "m", to="savedmodel", record=RECORD)
        assert done.path == tmp_path / "m" / version
    assert json.loads((done.path / "assets.extra" / "cellerate.json").read_text())["task"] == "text"
    ids = ids_of(3, 12)
    whole = SavedModel(done.path, "serving_default").run({"ids": ids})["logits"]
    assert_near(whole, model(ids, training=False))
    run = SavedModel(done.path, "step").run
    state = {f"{name}_{layer}": np.zeros((3, 19), np.float32) for name in "hc" for layer in range(2)}
    first = run({"ids": ids[:, :5], **state})
    second = run({"ids": ids[:, 5:], **{name: first[f"{name}_next"] for name in state}})
    assert_near(np.concatenate([first["logits"], second["logits"]], axis=1), whole)


@pytest.mark.backends
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's own")
def test_saved_model_that_cannot_step_has_no_such_signature_and_wrong_results_leave_nothing(
    tmp_path, monkeypatch
):
    from cellerate.exports.savedmodel import SavedModel

    model = keras.Sequential([keras.Input((None, 3)), keras.layers.Bidirectional(keras.layers.LSTM(4))])
    done = cellerate.export(model, tmp_path / "m", to="savedmodel")
    with pytest.raises(KeyError):
        SavedModel(done.path, "step")
    with pytest.raises(ModelError, match="reads backwards"):
        cellerate.export(model, tmp_path / "m", to="savedmodel", stateful=True)
    right = SavedModel.run
    monkeypatch.setattr(
        SavedModel, "run", lambda self, inputs: {n: a + 1e-4 for n, a in right(self, inputs).items()}
    )
    with pytest.raises(ModelError, match=r"its error is [\d.e-]+, and at most 1e-05 is right"):
        cellerate.export(model, tmp_path / "m", to="savedmodel")
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["1"]


def test_wrong_arguments_are_refused(tmp_path, monkeypatch):
    model = text_model()
    with pytest.raises(ConfigError, match=r"ending in '\.onnx', not 'm\.pb'"):
        cellerate.export(model, "m.pb")
    with pytest.raises(ConfigError, match="to must be one of onnx, savedmodel, litert, not 'coreml'"):
        cellerate.export(model, "m.onnx", to="coreml")
    with pytest.raises(ConfigError, match="float32 or int8 in an export to onnx, not 'bfloat16'"):
        cellerate.export(model, "m.onnx", precision="bfloat16")
    with pytest.raises(
        ConfigError, match="must be float32 or float16 or int8 in an export to litert, not 'bfloat16'"
    ):
        cellerate.export(model, "m.tflite", to="litert", precision="bfloat16")
    with pytest.raises(ConfigError, match="leave out either the data or stateful"):
        cellerate.export(model, "m.onnx", stateful=True, judge=lambda exported: None)
    with pytest.raises(ConfigError, match="batch_size must be a whole number at least 1, not 0"):
        cellerate.export(model, "m.tflite", to="litert", batch_size=0)
    save_model(model, tmp_path / "m.keras", RECORD)
    with pytest.raises(ConfigError, match="a file has its own"):
        cellerate.export(tmp_path / "m.keras", tmp_path / "m.onnx", record=RECORD)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BackendError, match=r"pip install 'cellerate\[onnx\]'"):
        cellerate.export(model, tmp_path / "m.onnx")


@pytest.mark.parametrize("to", ["onnx", "savedmodel", "litert"])
def test_model_with_a_gru_is_refused_by_name(tmp_path, to):
    model = keras.Sequential([keras.Input((4, 3)), keras.layers.GRU(2, name="gated")])
    target = tmp_path / ("m" + {"onnx": ".onnx", "savedmodel": "", "litert": ".tflite"}[to])
    with pytest.raises(ModelError, match=r"only LSTMs can be exported; this model has gated \(gru\)"):
        cellerate.export(model, target, to=to)
    assert not target.exists()
