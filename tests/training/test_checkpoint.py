import os

import keras
import numpy as np
import pytest

from cellerate.errors import CheckpointError
from cellerate.training.checkpoint import (
    Position,
    capture,
    check_identity,
    load_checkpoint,
    restore,
    save_checkpoint,
)

pytestmark = [pytest.mark.keras, pytest.mark.backends]


def small_model(units: int = 4) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units), keras.layers.Dropout(0.5)])
    model.compile("adam", "mse", metrics=["mae"])
    return model


def trained(units: int = 4) -> keras.Model:
    model = small_model(units)
    model.fit(np.ones((8, 3), "float32"), np.zeros((8, units), "float32"), batch_size=2, verbose=0)
    return model


def test_checkpoint_written_and_read_is_unchanged(tmp_path):
    model = trained()
    before = capture(model, Position(2, 7), {"a": 1}, {"history": [{"loss": 0.5}]})
    save_checkpoint(tmp_path / "c.safetensors", before)
    after = load_checkpoint(tmp_path / "c.safetensors")
    assert (after.position, after.identity, after.progress) == (
        before.position,
        before.identity,
        before.progress,
    )
    assert after.arrays.keys() == before.arrays.keys()
    for name, value in before.arrays.items():
        np.testing.assert_array_equal(after.arrays[name], value)


def test_restore_brings_back_weights_optimizer_and_dropout_seed(tmp_path):
    model = trained()
    point = capture(model, Position(), {}, {})
    fresh = small_model()
    restore(fresh, point)
    again = capture(fresh, Position(), {}, {})
    for name, value in point.arrays.items():
        if not name.startswith("metrics/"):
            np.testing.assert_array_equal(again.arrays[name], value)


def test_capture_is_a_copy_that_later_training_does_not_change():
    model = trained()
    point = capture(model, Position(), {}, {})
    kept = {name: value.copy() for name, value in point.arrays.items()}
    model.fit(np.ones((4, 3), "float32"), np.ones((4, 4), "float32"), verbose=0)
    for name, value in kept.items():
        np.testing.assert_array_equal(point.arrays[name], value)


def test_restore_into_another_model_names_the_first_variable_that_differs():
    with pytest.raises(CheckpointError, match="model/0"):
        restore(small_model(5), capture(trained(4), Position(), {}, {}))


def test_load_checkpoint_that_is_missing_says_so(tmp_path):
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        load_checkpoint(tmp_path / "none.safetensors")


def test_load_checkpoint_truncated_anywhere_is_a_checkpoint_error(tmp_path):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, capture(trained(), Position(), {}, {}))
    whole = path.read_bytes()
    for cut in np.linspace(0, len(whole) - 1, 25).astype(int):
        path.write_bytes(whole[:cut])
        with pytest.raises(CheckpointError):
            load_checkpoint(path)


@pytest.mark.parametrize("size, why", [(0, "empty"), (5, "shorter than its header says")])
def test_load_checkpoint_cut_before_its_header_says_why(tmp_path, size, why):
    path = tmp_path / "c.safetensors"
    path.write_bytes(bytes(size))
    with pytest.raises(CheckpointError, match=f"damaged: it is {why}"):
        load_checkpoint(path)


def test_check_identity_names_every_difference():
    check_identity({"a": [1, 2]}, {"a": (1, 2)})
    with pytest.raises(CheckpointError, match=r"a was 1, now 2; b was 'x', now None\. Resume with"):
        check_identity({"a": 1, "b": "x", "c": 0}, {"a": 2, "c": 0})


def test_check_identity_ignores_fields_that_an_earlier_version_lacks():
    check_identity({"a": 1}, {"a": 1, "b": 3})


def test_check_identity_explains_a_hash_unless_a_setting_differs():
    saved = {
        "units": 128,
        "learning_rate": 0.1,
        "model": "1f",
        "training data": "2e",
        "validation data": "3d",
    }
    with pytest.raises(CheckpointError) as raised:
        check_identity(saved, saved | {"units": 64, "model": "4c"})
    assert "data: units was 128, now 64. Resume" in str(raised.value)
    with pytest.raises(CheckpointError) as raised:
        check_identity(saved, saved | {"learning_rate": 0.2, "model": "4c", "training data": "5b"})
    said = "now 0.2; the model has other layers, or layers of other shapes; the training data differ."
    assert said in str(raised.value)
    assert "4c" not in str(raised.value)


def test_pipe_is_refused_as_a_checkpoint(tmp_path):
    os.mkfifo(tmp_path / "c.safetensors")
    with pytest.raises(CheckpointError, match="is not a regular file"):
        load_checkpoint(tmp_path / "c.safetensors")
