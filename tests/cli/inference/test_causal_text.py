"""A Keras model with a causal convolution, from `train text` to the `generate` that it announces."""

import keras
import pytest

pytestmark = pytest.mark.keras


def test_generate_runs_what_train_text_announces(cellerate, tmp_path):
    text = "the cat sat on the mat.\n" * 40
    vocabulary = len(set(text))
    (tmp_path / "book.txt").write_text(text)
    layers = [
        keras.layers.Embedding(vocabulary, 4),
        keras.layers.Conv1D(6, 3, padding="causal"),
        keras.layers.LSTM(8, return_sequences=True),
        keras.layers.Dense(vocabulary),
    ]
    keras.Sequential([keras.Input((None,), dtype="int32"), *layers]).save(tmp_path / "own.keras")
    trained, packed = tmp_path / "m.keras", tmp_path / "m.cell"
    words = ["--model", tmp_path / "own.keras", "-o", trained, "--epochs", "1"]
    code, out, err = cellerate("train", "text", tmp_path / "book.txt", *words)
    assert code == 0
    assert f"cellerate generate {trained}" in out + err
    assert cellerate("pack", trained, "-o", packed)[0] == 0
    options = ["the ", "-n", "30", "--seed", "1"]
    code, said, _ = cellerate("generate", trained, *options)
    assert (code, len(said.strip("\n")) > 20) == (0, True)
    assert cellerate("generate", packed, *options)[:2] == (0, said)
    assert cellerate("evaluate", packed, tmp_path / "book.txt")[0] == 0
