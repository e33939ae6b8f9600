"""`cellerate info`: the description of a file."""

import hashlib
import json

import pytest
import yaml

from support.error_lines import one_error

pytestmark = [pytest.mark.keras, pytest.mark.usefixtures("cellerate")]


def test_info_describes_a_text_model_and_its_packed_form(cellerate, made, tmp_path):
    model, packed = made / "text.keras", tmp_path / "t.cell"
    assert cellerate("pack", model, "-o", packed, "--precision", "int8")[0] == 0
    said = []
    for path in (model, packed):
        code, out, err = cellerate("info", path, "--json")
        assert (code, err) == (0, "")
        said.append(json.loads(out))
    keras_model, cell = said
    assert (keras_model["format"], cell["format"]) == ("keras", "cell")
    assert (keras_model["dtype"], cell["dtype"]) == ("float32", "int8")
    for name in ("task", "parameters", "vocabulary_size", "data", "training"):
        assert keras_model[name] == cell[name]
    assert cell["task"] == "text" and cell["bytes"] == packed.stat().st_size
    assert cell["training"]["epochs"] == 1 and cell["data"]["characters"] > 100
    assert cell["inputs"] == {"ids": [None, None]}
    code, out, _ = cellerate("info", packed)
    assert code == 0
    for part in (
        f"{cell['parameters']:,} in int8",
        f"{cell['vocabulary_size']} ids",
        "epochs 1",
        "packed by",
    ):
        assert part in out


def test_info_of_a_forecaster_shows_its_columns_and_sizes(cellerate, made):
    code, out, _ = cellerate("info", made / "series.keras")
    assert code == 0
    for part in ("window", "6 rows, to a horizon of 2", "load", "quantiles"):
        assert part in out


def test_info_of_a_packed_series_shows_its_rows_and_times(cellerate, here):
    assert cellerate("data", "pack", "s.csv", "-o", "s.series", "-q")[0] == 0
    code, out, _ = cellerate("info", "s.series", "--json")
    told = json.loads(out)
    assert code == 0
    assert (told["format"], told["rows"], told["columns"]) == ("series", 120, ["load", "other"])
    assert told["first_time"].startswith("2024-01-01 00:00")
    assert told["frequency"] == "hours"
    code, out, _ = cellerate("info", "s.series")
    assert code == 0 and "120 in 1 series" in out and "load, other (float32)" in out
    assert "2024-01-05 23:00:00, every hour\n" in out and "a sample of it\n" in out
    code, out, _ = cellerate("info", "s.series", "--check")
    assert code == 0 and "all of it\n" in out


@pytest.mark.parametrize(
    ("times", "apart"),
    [
        (["2024-01-01 00:00", "2024-01-01 00:15", "2024-01-01 00:30"], "every 15 minutes"),
        (["2024-01-31", "2024-02-29", "2024-03-31", "2024-04-30"], "every month"),
        (["3", "6", "9"], "in steps of 3"),
    ],
)
def test_info_of_a_packed_series_shows_the_interval_between_rows(
    cellerate, tmp_path, monkeypatch, times, apart
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.csv").write_text("time,y\n" + "".join(f"{time},{n}\n" for n, time in enumerate(times)))
    assert cellerate("data", "pack", "s.csv", "--time-column", "time", "-o", "s.series", "-q")[0] == 0
    assert f", {apart}\n" in cellerate("info", "s.series")[1]


def test_info_of_a_plain_keras_model_says_that_it_has_no_task(cellerate, tmp_path):
    import keras

    model = keras.Sequential([keras.Input((4, 3), name="x"), keras.layers.LSTM(2, name="out")])
    model.save(tmp_path / "own.keras")
    code, out, _ = cellerate("info", tmp_path / "own.keras")
    assert code == 0
    assert "none: Cellerate did not train it" in out and "x (any, 4, 3)" in out and "out (any, 2)" in out


@pytest.mark.filterwarnings("ignore:You are saving a model that has not yet been built")
def test_info_of_an_unbuilt_model_says_that_its_inputs_are_unknown(cellerate, tmp_path):
    import keras

    keras.Sequential([keras.layers.LSTM(2)]).save(tmp_path / "own.keras")
    code, out, _ = cellerate("info", tmp_path / "own.keras")
    assert code == 0
    assert "inputs      not known before the model is called\n" in out


@pytest.mark.parametrize(
    ("name", "code", "hint"),
    [
        ("none.cell", 3, "there is no file"),
        ("none.keras", 4, "there is no model file"),
        ("none.series", 3, "cellerate data pack"),
        ("notes.txt", 3, "is not a .keras file, a .cell file"),
    ],
)
def test_info_of_an_unknown_file_gives_one_clear_error(cellerate, here, name, code, hint):
    ended, out, err = cellerate("info", name)
    assert (ended, out) == (code, "")
    assert err.startswith("error: ") and hint in err and err.count("\n") == 1


def test_info_and_pack_write_model_cards(cellerate, made, tmp_path):
    packed, card = tmp_path / "t.cell", tmp_path / "card.md"
    assert cellerate("pack", made / "text.keras", "-o", packed, "--card", card)[0] == 0
    text = card.read_text()
    assert (
        yaml.safe_load(text.split("---\n")[1])["cellerate"]["sha256"]
        == hashlib.sha256(packed.read_bytes()).hexdigest()
    )
    code, out, _ = cellerate("info", packed, "--card", tmp_path / "again.md", "--json")
    assert code == 0 and json.loads(out)["task"] == "text"
    assert (tmp_path / "again.md").read_text() == text
    assert cellerate("info", made / "text.keras", "--card", card)[0] == 0
    assert "keras.saving.load_model" in card.read_text()
    (tmp_path / "folder.md").mkdir()
    code, _, err = cellerate("info", packed, "--card", tmp_path / "folder.md")
    assert code == 6 and "a folder of that name" in one_error(err)


def test_card_over_a_model_is_refused_before_anything_is_written(cellerate, made, tmp_path):
    model, packed = made / "text.keras", tmp_path / "new.cell"
    before = model.read_bytes()
    for given in (("pack", model, "-o", packed, "--card", model), ("info", model, "--card", model)):
        code, _, err = cellerate(*given)
        assert code == 2 and "a card is written to a path ending in '.md'" in one_error(err)
    assert model.read_bytes() == before and not packed.exists()
