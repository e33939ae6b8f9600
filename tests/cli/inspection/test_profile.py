"""`cellerate profile`: of a training, of a plain Keras model, of a packed one, and with wrong arguments."""

import json

import keras
import pytest

from cellerate.cli.main import main
from support.servers import text_cell

pytestmark = pytest.mark.keras


def run(monkeypatch, capsys, *words):
    monkeypatch.setattr("sys.argv", ["cellerate", "profile", *map(str, words)])
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.fixture
def anyones(tmp_path):
    """A model file written by plain Keras."""
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.LSTM(8, return_sequences=True, name="memory")(keras.layers.Embedding(11, 4)(ids))
    model = keras.Model(ids, keras.layers.Dense(11, activation="softmax")(x))
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.save(tmp_path / "mine.keras")
    return tmp_path / "mine.keras"


def test_plain_keras_model_is_profiled_on_synthetic_batches_with_a_chart(
    anyones, tmp_path, monkeypatch, capsys
):
    before = anyones.read_bytes()
    page, trace = tmp_path / "profile.html", tmp_path / "trace"
    code, out, err = run(
        monkeypatch,
        capsys,
        anyones,
        *("--batch-size", 8, "--steps", 10, "-o", page, "--trace", trace, "--no-changes"),
    )
    assert code == 0, err
    assert "optimizer (SGD)" in out
    assert "memory" in out and "training step of 8 rows" in out and "measuring: steps as they are" in err
    drawn = page.read_text()
    assert drawn.count("<svg") >= 2 and "where the time goes" in drawn.lower() and "<script" not in drawn
    assert any(trace.rglob("*.pb")) or any(trace.rglob("*.json"))
    assert anyones.read_bytes() == before


def test_json_has_all_figures(anyones, monkeypatch, capsys):
    code, out, _ = run(
        monkeypatch, capsys, anyones, "--batch-size", 8, "--steps", 5, "--json", "-q", "--no-changes"
    )
    assert code == 0
    told = json.loads(out)
    assert told["schema"] == 1 and told["rows"] == 8
    assert sum(part["ms"] for part in told["parts"]) == pytest.approx(told["step_ms"], rel=0.1)


def test_packed_model_is_profiled_without_keras_options(tmp_path, monkeypatch, capsys):
    cell = text_cell(tmp_path / "text.cell")
    code, out, _ = run(monkeypatch, capsys, cell, "--no-changes", "-q", "-o", tmp_path / "p.html")
    assert code == 0 and "packed call" in out and (tmp_path / "p.html").exists()
    code, _, err = run(monkeypatch, capsys, cell, "--data", "book.txt")
    assert code != 0 and "leave out --data" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("missing.keras",), "missing.keras"),
        (("mine.keras", "-o", "profile.txt"), "*.html"),
        (("mine.keras", "--data", "none.txt"), "none.txt not found"),
        (("mine.keras", "--data", "mine.keras"), "no Cellerate record"),
        (("mine.keras", "--trace", "mine.keras"), "name a new folder"),
    ],
)
def test_wrong_arguments_give_one_error(words, told, anyones, monkeypatch, capsys):
    monkeypatch.chdir(anyones.parent)
    code, out, err = run(monkeypatch, capsys, *words, "-q")
    assert code != 0 and told in err and err.count("error:") == 1
    assert "Traceback" not in err and not out
