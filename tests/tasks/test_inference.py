"""One call for a model in every form: a file, a Keras model with its record, a packed file, a packed model."""

import json
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

import cellerate
from cellerate.data.text.lines import LineVocabulary
from cellerate.data.tokenizers.tokenizer import CharacterTokenizer
from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.models.autoencoder import build_autoencoder
from cellerate.models.text import build_text_model

pytestmark = pytest.mark.keras

LINES = ["red hat", "blue", "", "hat"]
SERIES = "\n".join(["a,b", *(f"{np.sin(i / 3):.6f},{np.cos(i / 5):.6f}" for i in range(160))])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of each task, as Keras file and packed, and data for each."""
    folder = tmp_path_factory.mktemp("models")
    text = build_text_model(4, embedding=2, units=3, seed=1)
    payload = {
        "tokenizer": CharacterTokenizer("\nabc").to_config(),
        "length": 5,
        "validation_fraction": 0.25,
        "include": [],
        "exclude": [],
    }
    cellerate.save_model(text, folder / "text.keras", cellerate.TaskRecord("text", payload))
    vocabulary = LineVocabulary.from_lines(LINES)
    lines = build_autoencoder(vocabulary.size, embedding=3, units=4, latent=5, seed=1)
    payload = {"vocabulary": vocabulary.to_config(), "max_length": 8, "padding": "right"}
    cellerate.save_model(lines, folder / "embed.keras", cellerate.TaskRecord("embed", payload))
    (folder / "series.csv").write_text(SERIES)
    cellerate.train_series(
        str(folder / "series.csv"),
        folder / "series.keras",
        target="a",
        window=6,
        horizon=3,
        units=4,
        epochs=1,
    )
    (folder / "text.txt").write_text("abcab\n" * 20)
    (folder / "lines.txt").write_text("\n".join(LINES))
    for task in ("text", "series", "embed"):
        cellerate.pack(folder / f"{task}.keras", folder / f"{task}.cell")
    return folder


def forms(folder, task):
    """The arguments that name one model, in each form."""
    model, record = cellerate.load_model(folder / f"{task}.keras")
    yield {"model": folder / f"{task}.keras"}
    yield {"model": str(folder / f"{task}.keras")}
    yield {"model": model, "record": record}
    yield {"model": folder / f"{task}.cell"}
    yield {"model": cellerate.load(folder / f"{task}.cell")}


@pytest.mark.backends
def test_generate_gives_one_text_for_every_form(folder):
    texts = {cellerate.generate(**form, prompt="ab", max_tokens=50, seed=3) for form in forms(folder, "text")}
    model, _ = cellerate.load_model(folder / "text.keras")
    texts.add(cellerate.generate(model, "ab", vocabulary=["\n", "a", "b", "c"], max_tokens=50, seed=3))
    assert len(texts) == 1
    assert len(texts.pop()) == 50


def test_forecast_gives_one_forecast_for_every_form(folder):
    found = [cellerate.forecast(**form, data=folder / "series.csv") for form in forms(folder, "series")]
    for (one,) in found:
        assert one.forecast.shape == (3, 1)
        np.testing.assert_allclose(one.forecast, found[0][0].forecast, rtol=1e-5, atol=1e-6)


def test_embed_gives_the_same_vectors_for_every_form_and_from_a_file(folder):
    found = [cellerate.embed(**form, lines=LINES) for form in forms(folder, "embed")]
    found += [cellerate.embed(**form, lines=folder / "lines.txt") for form in forms(folder, "embed")]
    for one in found:
        assert one.shape == (4, 5)
        np.testing.assert_allclose(one, found[0], atol=1e-5)


@pytest.mark.parametrize("part", ["all", "held-out"])
def test_evaluate_judges_a_text_model_in_every_form(folder, part):
    found = [
        cellerate.evaluate(**form, data=str(folder / "text.txt"), part=part) for form in forms(folder, "text")
    ]
    assert [one["task"] for one in found] == ["text"] * 5
    # Keras models read windows of 5 characters, and packed ones the text from end to end.
    assert found[0] == found[1] == found[2]
    assert found[3] == found[4]
    text = (folder / "text.txt").read_text()
    read = text if part == "all" else text[-(len(text) // 4) :]
    score = cellerate.load(folder / "text.cell").score(read)
    assert (found[3]["tokens"], found[3]["characters"]) == (score.tokens, score.characters)
    assert found[3]["bits_per_character"] == pytest.approx(score.bits_per_character)
    assert found[3]["bits_per_character"] != pytest.approx(found[0]["bits_per_character"], rel=1e-6)


def test_evaluate_judges_a_series_model_and_a_line_model_that_is_in_memory(folder):
    for task, data in (("series", "series.csv"), ("embed", "lines.txt")):
        model, record = cellerate.load_model(folder / f"{task}.keras")
        found = cellerate.evaluate(model, [folder / data], record=record)
        assert found == cellerate.evaluate(folder / f"{task}.keras", [folder / data])
        assert found["task"] == task
        if task == "series":
            packed = cellerate.evaluate(folder / "series.cell", folder / data)
            assert packed["model"] == pytest.approx(found["model"], rel=1e-4)
            assert packed["last_value"] == found["last_value"]
    with pytest.raises(ModelError, match=r"packed model of the task 'embed'.* of text and of series only"):
        cellerate.evaluate(folder / "embed.cell", folder / "lines.txt")


def test_embed_takes_lines_in_whatever_holds_texts(folder):
    table = pa.table({"number": range(len(LINES)), "title": LINES})
    expected = cellerate.embed(folder / "embed.cell", LINES)
    for form in forms(folder, "embed"):
        for lines in (pa.array(LINES), pa.chunked_array([LINES]), np.array(LINES), table):
            np.testing.assert_allclose(cellerate.embed(**form, lines=lines), expected, rtol=1e-4, atol=1e-5)
        with pytest.raises(ConfigError, match=r"list of texts, and line 1 is None"):
            cellerate.embed(**form, lines=[LINES[0], None])


def test_embed_reads_a_file_of_json_lines_in_its_encoding(folder, tmp_path):
    records = "".join(json.dumps({"title": line}) + "\n" for line in LINES)
    (tmp_path / "l.jsonl").write_text(records, encoding="utf-16")
    found = cellerate.embed(folder / "embed.cell", tmp_path / "l.jsonl", field="title", encoding="utf-16")
    np.testing.assert_array_equal(found, cellerate.embed(folder / "embed.cell", LINES))
    with pytest.raises(ConfigError, match="field is for a file of JSON lines"):
        cellerate.embed(folder / "embed.cell", LINES, field="title")


def test_model_of_another_task_is_refused_in_every_form(folder):
    for form in forms(folder, "series"):
        with pytest.raises(ModelError, match=r"use `forecast`|Use it with `cellerate forecast`"):
            cellerate.generate(**form, prompt="a")
        with pytest.raises(ModelError, match="embed"):
            cellerate.embed(**form, lines=LINES)
    for form in forms(folder, "text"):
        with pytest.raises(ModelError, match="series"):
            cellerate.forecast(**form, data=folder / "series.csv")


def test_generate_searches_and_leaves_unknown_characters_out_in_every_form(folder):
    best = cellerate.load(folder / "text.cell").beam_search("ab", beams=3, max_tokens=9)[0].text
    for form in forms(folder, "text"):
        assert cellerate.generate(**form, prompt="ab", beams=3, max_tokens=9) == best
        drawn = cellerate.generate(**form, prompt="ab", max_tokens=9, seed=1)
        ignoring = cellerate.generate(**form, prompt="a\u2603b", max_tokens=9, seed=1, errors="ignore")
        assert ignoring == drawn
        with pytest.raises(DataError, match=r"U\+2603.* errors='ignore' leaves such characters out"):
            cellerate.generate(**form, prompt="a\u2603b")
        with pytest.raises(ConfigError, match="draws nothing: leave out either beams or temperature"):
            cellerate.generate(**form, prompt="ab", beams=3, temperature=0.5)
        with pytest.raises(ConfigError, match="beams needs the native engine"):
            cellerate.generate(**form, prompt="ab", beams=3, implementation="keras")
        with pytest.raises(ConfigError, match="errors must be one of strict, ignore, not 'replace'"):
            cellerate.generate(**form, prompt="ab", errors="replace")


def test_generate_takes_a_device_for_a_packed_file_only(folder):
    with pytest.raises(ConfigError, match=r"not packed, and device='cuda' .*implementation='cellerate-cuda'"):
        cellerate.generate(folder / "text.keras", "ab", device="cuda")
    with pytest.raises(ConfigError, match="device is 'cuda', but the packed model is on device 'cpu'"):
        cellerate.generate(cellerate.load(folder / "text.cell"), "ab", device="cuda")
    with pytest.raises(ConfigError, match=r"'cuda:N'"):
        cellerate.generate(folder / "text.cell", "ab", device="gpu")


def test_record_belongs_to_a_keras_model_and_has_to_fit_it(folder):
    model, record = cellerate.load_model(folder / "text.keras")
    for given in (folder / "text.keras", folder / "text.cell", cellerate.load(folder / "text.cell")):
        with pytest.raises(ConfigError, match="leave it out"):
            cellerate.generate(given, "a", record=record)
    with pytest.raises(ConfigError, match=r"'.*' does not say which characters.*vocabulary='book\.txt'"):
        cellerate.generate(model, "a")
    with pytest.raises(ConfigError, match="has its own"):
        cellerate.generate(model, "a", record=record, vocabulary="bytes")
    with pytest.raises(ModelError, match="plain Keras model"):
        cellerate.evaluate(model, folder / "text.txt")
    _, other = cellerate.load_model(folder / "series.keras")
    with pytest.raises(ModelError, match="belongs to another model"):
        cellerate.forecast(model, folder / "series.csv", record=other)
    for wrong in (3, None, ["text.keras"]):
        with pytest.raises(ConfigError, match="a path, a Keras model or a packed model"):
            cellerate.embed(wrong, LINES)


def test_packed_models_are_used_without_keras(folder):
    program = f"""
import sys
sys.modules["keras"] = None
import cellerate
print(cellerate.generate({str(folder / "text.cell")!r}, "ab", max_tokens=5, seed=1))
print(cellerate.forecast({str(folder / "series.cell")!r}, {str(folder / "series.csv")!r})[0].forecast.shape)
print(cellerate.embed({str(folder / "embed.cell")!r}, ["red"]).shape)
print(cellerate.evaluate({str(folder / "text.cell")!r}, {str(folder / "text.txt")!r})["task"])
"""
    env = {key: value for key, value in os.environ.items() if key != "KERAS_BACKEND"}
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env
    )
    assert found.stdout.splitlines()[-3:] == ["(3, 1)", "(1, 5)", "text"]
