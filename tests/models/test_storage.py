import io
import json
import os
import random
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers

from cellerate.errors import ConfigError, ModelError, OutputError
from cellerate.models.autoencoder import build_autoencoder
from cellerate.models.forecast import build_forecast_model
from cellerate.models.losses import QuantileLoss
from cellerate.models.storage import TaskRecord, load_model, save_model
from cellerate.models.text import build_text_model

pytestmark = [
    pytest.mark.keras,
    # Keras 3.15 variables have the __array__ of NumPy 1; saving and reading weights meets it.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

RECORD = TaskRecord("text", {"tokenizer": {"kind": "characters", "characters": "añ€😀"}, "length": 100})


def tiny() -> keras.Model:
    """The cheapest model that passes for a text model."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    return keras.Model(ids, layers.Embedding(5, 4, name="table")(ids), name="tiny")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model.keras"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        save_model(tiny(), path, RECORD)
    return path


def rewritten(source: Path, target: Path, **changes: bytes | None) -> Path:
    """Copies an archive with entries replaced, added or (None) left out; `_` stands for "." in a name."""
    replaced = {name.replace("__", "."): data for name, data in changes.items()}
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            if name not in replaced:
                new.writestr(name, old.read(name))
        for name, data in replaced.items():
            if data is not None:
                new.writestr(name, data)
    return target


def table(model: keras.Model) -> np.ndarray:
    return np.asarray(model.get_layer("table").get_weights()[0])


@pytest.mark.backends
def test_save_model_then_load_model_gives_model_and_record_back(tmp_path):
    model = tiny()
    save_model(model, tmp_path / "new folder" / "a.keras", RECORD)
    loaded, record = load_model(tmp_path / "new folder" / "a.keras", need_task="text")
    assert record == RECORD
    np.testing.assert_array_equal(table(loaded), table(model))
    assert [p.name for p in (tmp_path / "new folder").iterdir()] == ["a.keras"]


@pytest.mark.parametrize("task", ["text", "series", "embed"])
def test_save_model_of_each_builder_loads_as_its_task(task, tmp_path):
    model = {
        "text": lambda: build_text_model(5, embedding=2, units=2),
        "series": lambda: build_forecast_model(3, 2, 2, 1, target_columns=[0], units=2, quantiles=(0.1, 0.5)),
        "embed": lambda: build_autoencoder(5, embedding=2, units=2, latent=2),
    }[task]()
    save_model(model, tmp_path / "a.keras", TaskRecord(task, {"a": [1, 2.5, None]}))
    loaded, record = load_model(tmp_path / "a.keras", need_task=task)
    assert record == TaskRecord(task, {"a": [1, 2.5, None]})
    for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.backends
def test_saved_files_open_without_cellerate_even_after_training_with_its_loss(tmp_path):
    model = build_forecast_model(3, 2, 2, 1, target_columns=[0], units=2, quantiles=(0.1, 0.5))
    model.compile("adam", QuantileLoss((0.1, 0.5)))
    model.train_on_batch(np.ones((2, 3, 2)), np.ones((2, 2, 1)))
    save_model(model, tmp_path / "a.keras", TaskRecord("series", {}))
    assert model.compiled
    text = build_text_model(5, embedding=2, units=3, tie_weights=True, layer_norm=True)
    save_model(text, tmp_path / "b.keras", TaskRecord("text", {}))
    code = (
        "import sys, keras; models = [keras.saving.load_model(path) for path in sys.argv[1:]]; "
        "assert not [n for n in sys.modules if n.startswith('cellerate')]; "
        "print(*(float(keras.ops.convert_to_numpy(keras.ops.sum(m.weights[0]))) for m in models))"
    )
    paths = [str(tmp_path / name) for name in ("a.keras", "b.keras")]
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = [float(m.get_weights()[0].sum()) for m in (model, text)]
    assert [float(n) for n in done.stdout.split()] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    with zipfile.ZipFile(tmp_path / "a.keras") as archive:
        assert b"optimizer" not in archive.read("model.weights.h5")


def test_save_model_of_a_compiled_sequential_drops_its_training_state(tmp_path):
    model = keras.Sequential([keras.Input((None,), dtype="int32"), layers.Embedding(5, 4, name="table")])
    model.compile("adam", "mse", weighted_metrics=["mae"])
    save_model(model, tmp_path / "a.keras", RECORD)
    with zipfile.ZipFile(tmp_path / "a.keras") as archive:
        assert b"cellerate" not in archive.read("config.json")
    np.testing.assert_array_equal(table(load_model(tmp_path / "a.keras")[0]), table(model))


@pytest.mark.backends
@pytest.mark.parametrize("written_on", ["torch", "another"])
def test_compiled_model_of_torch_trains_on_every_backend(tmp_path, written_on):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
    model.compile(keras.optimizers.AdamW(0.03, weight_decay=0.1), "mse", metrics=["mae"])
    model.train_on_batch(np.ones((2, 4)), np.ones((2, 1)))
    model.save(tmp_path / "a.keras")
    with zipfile.ZipFile(tmp_path / "a.keras") as archive:
        config = json.loads(archive.read("config.json"))
    module = {"torch": "keras.src.backend.torch.optimizers.torch_adamw", "another": "keras.optimizers"}
    config["compile_config"]["optimizer"]["module"] = module[written_on]
    rewritten(tmp_path / "a.keras", tmp_path / "b.keras", config__json=json.dumps(config).encode())
    found, _ = load_model(tmp_path / "b.keras", compiled=True)
    found.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
    settings = found.optimizer.get_config()
    assert (type(found.optimizer).__name__, settings["weight_decay"]) == ("AdamW", 0.1)
    assert settings["learning_rate"] == pytest.approx(0.03)
    assert "mae" in found.evaluate(np.ones((8, 4)), np.ones((8, 1)), verbose=0, return_dict=True)


def test_save_model_leaves_frozen_layers_and_the_compile_state_of_the_original_as_they_are(tmp_path):
    model = tiny()
    model.get_layer("table").trainable = False
    model.compile("adam", "mse")
    save_model(model, tmp_path / "a.keras", RECORD)
    assert model.compiled
    assert not model.get_layer("table").trainable
    assert not load_model(tmp_path / "a.keras")[0].get_layer("table").trainable


def test_save_model_without_a_record_writes_what_keras_writes(tmp_path):
    save_model(tiny(), tmp_path / "a.keras")
    assert load_model(tmp_path / "a.keras")[1] is None


def test_save_model_that_fails_leaves_the_file_that_was_there(tmp_path, saved):
    class Nameless(layers.Layer):
        def __init__(self, secret):
            super().__init__()
            self.secret = secret

        def call(self, x):
            return x

    target = tmp_path / "a.keras"
    target.write_bytes(saved.read_bytes())
    tensor = keras.Input((2,))
    model = keras.Model(tensor, Nameless(object())(tensor))
    with pytest.raises(ModelError, match="get_config"):
        save_model(model, target, RECORD)
    assert target.read_bytes() == saved.read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["a.keras"]


def test_save_model_into_a_file_as_folder_raises_output_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        save_model(tiny(), tmp_path / "file" / "a.keras", RECORD)


@pytest.mark.parametrize("name", ["a.h5", "a", "a.keras.zip"])
def test_save_model_to_another_suffix_raises_config_error(name, tmp_path):
    with pytest.raises(ConfigError, match=r"\.keras"):
        save_model(tiny(), tmp_path / name, RECORD)


def test_save_model_unbuilt_raises_model_error(tmp_path):
    with pytest.raises(ModelError, match="not built"):
        save_model(keras.Sequential([layers.Dense(2)]), tmp_path / "a.keras", RECORD)


@pytest.mark.parametrize("payload", [{"a": object()}, {"a": float("nan")}, {"a": {1, 2}}])
def test_save_model_with_a_payload_that_is_not_json_raises_config_error(payload, tmp_path):
    with pytest.raises(ConfigError, match="JSON"):
        save_model(tiny(), tmp_path / "a.keras", TaskRecord("text", payload))
    assert not (tmp_path / "a.keras").exists()


def test_save_model_with_a_payload_over_the_limit_raises_config_error(tmp_path, monkeypatch):
    monkeypatch.setattr("cellerate.models.storage._LARGEST_JSON", 1000)
    with pytest.raises(ConfigError, match="1,000"):
        save_model(tiny(), tmp_path / "a.keras", TaskRecord("text", {"a": "x" * 1000}))


def test_save_model_with_a_very_repetitive_payload_can_be_loaded_again(tmp_path):
    record = TaskRecord("text", {"a": "x" * 3_000_000})
    save_model(tiny(), tmp_path / "a.keras", record)
    assert load_model(tmp_path / "a.keras")[1] == record


@pytest.mark.parametrize(("task", "payload"), [("speech", {}), ("text", [])])
def test_task_record_of_an_unknown_task_or_payload_raises_config_error(task, payload):
    with pytest.raises(ConfigError):
        TaskRecord(task, payload)


def test_load_model_for_another_task_raises_model_error_naming_the_verb(saved):
    with pytest.raises(ModelError, match=r"holds a text model, but a series .*`cellerate generate`"):
        load_model(saved, need_task="series")


def test_load_model_for_a_task_without_record_raises_model_error(tmp_path):
    save_model(tiny(), tmp_path / "a.keras")
    with pytest.raises(ModelError, match="`cellerate train text`"):
        load_model(tmp_path / "a.keras", need_task="text")


def test_load_model_with_the_record_of_another_model_raises_model_error(tmp_path):
    tensor = keras.Input((3,))
    save_model(keras.Model(tensor, layers.Dense(2)(tensor)), tmp_path / "a.keras", TaskRecord("series", {}))
    with pytest.raises(ModelError, match="record belongs to another model"):
        load_model(tmp_path / "a.keras")


def test_load_model_of_a_missing_path_or_folder_raises_model_error(tmp_path):
    with pytest.raises(ModelError, match="no model file"):
        load_model(tmp_path / "a.keras")
    (tmp_path / "b.keras").mkdir()
    with pytest.raises(ModelError, match="folder"):
        load_model(tmp_path / "b.keras")


@pytest.mark.parametrize("content", [b"P", b"hello world", b"\x89HDF\r\n\x1a\n" + bytes(100), bytes(1000)])
def test_load_model_of_a_file_that_is_no_zip_raises_model_error(content, tmp_path):
    (tmp_path / "a.keras").write_bytes(content)
    with pytest.raises(ModelError, match=r"not a \.keras file"):
        load_model(tmp_path / "a.keras")


def test_load_model_of_another_suffix_raises_model_error(tmp_path, saved):
    (tmp_path / "a.zip").write_bytes(saved.read_bytes())
    with pytest.raises(ModelError, match=r"\.keras"):
        load_model(tmp_path / "a.zip")


@pytest.mark.parametrize("entry", ["config__json", "model__weights__h5"])
def test_load_model_with_an_entry_missing_raises_model_error(entry, saved, tmp_path):
    path = rewritten(saved, tmp_path / "a.keras", **{entry: None})
    with pytest.raises(ModelError, match="damaged"):
        load_model(path)


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{", b"\xff\xfe", b"[]", b"3", b"null", b"{}", b'{"schema": 0}', b'{"schema": "1"}'),
        b'{"schema": 1}',
        b'{"schema": 1, "task": "sing", "payload": {}}',
        b'{"schema": 1, "task": "text", "payload": []}',
        b'{"schema": 1, "task": ["text"], "payload": {}}',
        b"[" * 100_000,
    ],
    ids=lambda text: text[:20].decode("latin1"),
)
def test_load_model_with_a_nonsense_record_raises_model_error(text, saved, tmp_path):
    path = rewritten(saved, tmp_path / "a.keras", cellerate__json=text)
    with pytest.raises(ModelError, match="damaged") as caught:
        load_model(path)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"{}", b'{"class_name": "Functional"}', b"[" * 100_000])
def test_load_model_with_a_nonsense_description_raises_model_error(text, saved, tmp_path):
    path = rewritten(saved, tmp_path / "a.keras", config__json=text)
    with pytest.raises(ModelError, match="damaged"):
        load_model(path)


def test_load_model_of_a_newer_schema_raises_model_error_saying_to_upgrade(saved, tmp_path):
    text = json.dumps({"schema": 2, "cellerate": "9.1", "task": "dance"}).encode()
    path = rewritten(saved, tmp_path / "a.keras", cellerate__json=text)
    with pytest.raises(ModelError, match=r"newer Cellerate \(9.1, schema 2\).*--upgrade"):
        load_model(path)


def test_load_model_with_weights_of_another_shape_raises_model_error(saved, tmp_path):
    with zipfile.ZipFile(saved) as archive:
        config = archive.read("config.json").replace(b'"output_dim": 4', b'"output_dim": 6')
    path = rewritten(saved, tmp_path / "a.keras", config__json=config)
    with pytest.raises(ModelError, match="cannot rebuild"):
        load_model(path)


@pytest.mark.parametrize("weights", [b"", b"\x89HDF\r\n\x1a\n", bytes(5000)])
def test_load_model_with_nonsense_weights_raises_model_error(weights, saved, tmp_path):
    path = rewritten(saved, tmp_path / "a.keras", model__weights__h5=weights)
    with pytest.raises(ModelError, match="cannot rebuild" if weights else "holds 0 bytes"):
        load_model(path)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_load_model_with_a_lambda_layer_raises_model_error_and_runs_nothing(suffix, tmp_path, capsys):
    def loud(x):
        print("this code came from a file")
        return x + 1

    tensor = keras.Input((3,))
    # Keras stores the code of a function without a name only.
    loud.__name__ = "<lambda>"
    model = keras.Model(tensor, layers.Lambda(loud, output_shape=(3,))(tensor))
    path = tmp_path / f"a{suffix}"
    model.save(path)
    assert b"__lambda__" in (
        zipfile.ZipFile(path).read("config.json") if suffix == ".keras" else path.read_bytes()
    )
    capsys.readouterr()
    with pytest.raises(ModelError, match="does not run code"):
        load_model(path)
    assert capsys.readouterr() == ("", "")


def test_load_model_with_an_unknown_class_raises_model_error_saying_to_register_it(tmp_path):
    class Strange(layers.Layer):
        def call(self, x):
            return x

    tensor = keras.Input((3,))
    save_model(keras.Model(tensor, Strange()(tensor)), tmp_path / "a.keras")
    with pytest.raises(ModelError, match=r"Strange.*register_keras_serializable"):
        load_model(tmp_path / "a.keras")
    with keras.saving.custom_object_scope({"Strange": Strange}):
        assert load_model(tmp_path / "a.keras")[0].layers[-1].__class__ is Strange


@pytest.mark.parametrize("name", ["cellerate.json", "config.json", "model.weights.h5", "assets/extra"])
def test_load_model_of_a_zip_bomb_raises_model_error_before_unpacking_it(name, saved, tmp_path):
    zeros = bytes(65 * 2**20)
    path = rewritten(saved, tmp_path / "a.keras", **{name.replace(".", "__"): zeros})
    assert path.stat().st_size < 200_000
    with pytest.raises(ModelError, match="refused"):
        load_model(path)


def test_load_model_of_overlapping_entries_raises_model_error(saved, tmp_path):
    # 200 directory entries that all point at the same 2 MB: each is genuine, together they are 400 MB.
    buffer = io.BytesIO()
    data = random.Random(0).randbytes(2**21)
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("assets/0", data)
        only = archive.infolist()[0]
        for number in range(1, 200):
            copy = zipfile.ZipInfo(f"assets/{number}")
            for field in ("header_offset", "CRC", "compress_size", "file_size", "compress_type"):
                setattr(copy, field, getattr(only, field))
            archive.filelist.append(copy)
    (tmp_path / "a.keras").write_bytes(buffer.getvalue())
    with pytest.raises(ModelError, match="refused"):
        load_model(tmp_path / "a.keras")


def test_load_model_of_a_file_cut_anywhere_raises_model_error(saved, tmp_path):
    whole = saved.read_bytes()
    path = tmp_path / "a.keras"
    for number in range(20):
        path.write_bytes(whole[: len(whole) * number // 20])
        with pytest.raises(ModelError):
            load_model(path)


def test_load_model_of_a_file_with_a_flipped_byte_loads_the_same_or_raises_model_error(saved, tmp_path):
    whole, chance = saved.read_bytes(), random.Random(3)
    expected = table(load_model(saved)[0])
    # Half of the places in the directory at the end, where a flip does not merely break a checksum.
    places = [chance.randrange(len(whole)) for _ in range(25)]
    places += [chance.randrange(len(whole) - 300, len(whole)) for _ in range(25)]
    path, refused = tmp_path / "a.keras", 0
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            model, _ = load_model(path)
        except ModelError:
            refused += 1
        else:
            np.testing.assert_array_equal(table(model), expected)
    assert refused >= 25


def test_load_model_of_damage_prints_nothing(saved, tmp_path, capfd):
    whole = bytearray(saved.read_bytes())
    whole[len(whole) // 2] ^= 255
    (tmp_path / "a.keras").write_bytes(whole)
    with pytest.raises(ModelError, match="checksum"):
        load_model(tmp_path / "a.keras")
    assert capfd.readouterr() == ("", "")


def test_load_model_of_a_legacy_h5_file_gives_the_model_and_no_record(tmp_path):
    model = tiny()
    model.save(tmp_path / "a.h5")
    loaded, record = load_model(tmp_path / "a.h5")
    assert record is None
    np.testing.assert_array_equal(table(loaded), table(model))
    (tmp_path / "b.h5").write_bytes((tmp_path / "a.h5").read_bytes()[:3000])
    with pytest.raises(ModelError, match="damaged"):
        load_model(tmp_path / "b.h5")


def test_load_model_of_weights_alone_raises_model_error_saying_how_to_save_the_model(tmp_path):
    tiny().save_weights(tmp_path / "a.weights.h5")
    with pytest.raises(ModelError, match=r"holds weights only.*load_weights\('a\.weights\.h5'\)"):
        load_model(tmp_path / "a.weights.h5")


def test_load_model_of_hdf5_with_an_unknown_class_raises_model_error_saying_to_register_it(tmp_path):
    class Odd(layers.Layer):
        def call(self, x):
            return x

    tensor = keras.Input((3,))
    keras.Model(tensor, Odd()(tensor)).save(tmp_path / "a.h5")
    with pytest.raises(ModelError, match=r"not known here: Odd\..*register_keras_serializable"):
        load_model(tmp_path / "a.h5")


def test_load_model_of_a_newer_keras_that_cannot_be_rebuilt_says_to_upgrade(saved, tmp_path):
    with zipfile.ZipFile(saved) as archive:
        config = archive.read("config.json").replace(
            b'"output_dim": 4', b'"output_dim": 4, "of_the_future": 1'
        )
        metadata = json.loads(archive.read("metadata.json"))
    newer = json.dumps(metadata | {"keras_version": "99.0.1"}).encode()
    path = rewritten(saved, tmp_path / "a.keras", config__json=config, metadata__json=newer)
    with pytest.raises(ModelError, match=r"written by Keras 99\.0\.1.*of_the_future.*--upgrade keras"):
        load_model(path)
    path = rewritten(saved, tmp_path / "b.keras", config__json=config)
    with pytest.raises(ModelError, match="damaged"):
        load_model(path)


def test_load_model_names_the_cause_of_a_failure_and_not_the_text_of_keras_before_it(saved, tmp_path):
    with zipfile.ZipFile(saved) as archive:
        config = archive.read("config.json")
    wrong = config.replace(b'"embeddings_constraint": null', b'"embeddings_constraint": "odd"')
    with pytest.raises(ModelError) as caught:
        load_model(rewritten(saved, tmp_path / "a.keras", config__json=wrong))
    assert "constraint identifier: odd" in str(caught.value)
    assert "could not be deserialized" not in str(caught.value)
    wider = config.replace(b'"output_dim": 4', b'"output_dim": 6')
    with pytest.raises(ModelError, match=r"table.*\(5, 6\)"):
        load_model(rewritten(saved, tmp_path / "b.keras", config__json=wider))


def test_a_pipe_or_a_device_is_no_model(tmp_path):
    os.mkfifo(tmp_path / "m.keras")
    for path in (tmp_path / "m.keras", "/dev/zero"):
        with pytest.raises(ModelError, match="is not a regular file"):
            load_model(path)
