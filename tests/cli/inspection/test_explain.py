"""`explain` of models and of packed files."""

import json

import pytest

from support.error_lines import one_error

pytestmark = pytest.mark.keras


@pytest.mark.backends
def test_explain_names_every_recurrent_layer(cellerate, made):
    code, out, err = cellerate("explain", made / "text.keras", "--json")
    assert (code, err) == (0, "")
    assert "lstm_1" in json.dumps(json.loads(out))
    _, words, _ = cellerate("explain", made / "embed.keras")
    assert "encoder" in words
    assert "decoder" in words


def test_explain_of_a_trained_model_says_that_train_accelerated_it(cellerate, made, tmp_path):
    note = "accelerated by `cellerate train`, and explained so; in your own program call cellerate.accelerate(model)"
    code, out, _ = cellerate("explain", made / "text.keras")
    assert code == 0
    assert note in out.splitlines() and "kernel  cellerate-c" in out
    assert "'embedding': its " in out and "starts with a deviation" not in out
    import keras

    # Training sums the gradients, which matters on TensorFlow alone.
    assert ("is summed by row" in out) is (keras.backend.backend() == "tensorflow")

    own = keras.Sequential([keras.Input((4, 3)), keras.layers.LSTM(2)])
    own.save(tmp_path / "own.keras")
    code, out, _ = cellerate("explain", tmp_path / "own.keras")
    assert code == 0
    assert note not in out and "-> cellerate.accelerate(model)" in out


def test_explain_of_a_packed_model_measures_each_operation(cellerate, made, tmp_path):
    assert cellerate("pack", made / "text.keras", "-o", tmp_path / "t.cell", "--precision", "int8")[0] == 0
    words = ["explain", tmp_path / "t.cell", "--batch-size", "3", "--steps", "7"]
    code, out, err = cellerate(*words, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["precision"], found["batch"]) == ("int8", 3)
    assert list(found["inputs"].values()) == [[3, 7]]
    code, table, _ = cellerate(*words)
    assert code == 0
    for one in found["operations"]:
        assert f"{one['name']} ({one['operation']})" in table
    code, _, err = cellerate("explain", tmp_path / "t.cell", "--batch-size", "0")
    assert code == 2
    assert "--batch-size must be" in one_error(err)
