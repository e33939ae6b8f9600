"""Each block of code on the pages of questions runs, in the order of its page, in a folder with what it reads."""

import shlex
import shutil
import unittest
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser

import cellerate
from support.runs.program import program_here

pytestmark = [
    pytest.mark.keras,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]
ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs" / "questions").glob("*.md")), ROOT / "docs" / "guide" / "cell-format.md"]
TEXT = "Well, Prince, the snow falls on Genoa and Lucca. Chapter I: what comes next, and who asks so late?\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the blocks read: a text, a table, and models of both."""
    made = tmp_path_factory.mktemp("pages")
    (made / "book.txt").write_text(TEXT * 150)
    random = np.random.default_rng(0)
    rows = [
        f"2024-01-{1 + hour // 24:02}T{hour % 24:02}:00,{shop},{random.normal():.3f}"
        for shop in ("north", "south")
        for hour in range(400)
    ]
    (made / "prices.csv").write_text("\n".join(["time,shop,price", *rows]) + "\n")
    ids = keras.Input((None,), dtype="int32")
    hidden = keras.layers.LSTM(16, return_sequences=True)(keras.layers.Embedding(len(set(TEXT)), 8)(ids))
    model = keras.Model(ids, keras.layers.Dense(len(set(TEXT)))(hidden))
    for name in ("mine.keras", "old.h5"):
        model.save(made / name)
    cellerate.train_text(made / "book.txt", made / "book.keras", units=16, epochs=1)
    cellerate.pack(made / "book.keras", made / "book.cell")
    return made


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_run(
    page: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    run = program_here(monkeypatch, capsys)

    def run_commands(example: Example) -> None:
        for line in example.parsed.splitlines():
            words = shlex.split(line, comments=True)
            if words:
                assert words[0] == "cellerate", f"{line}: another program; skip the block, with the reason"
                code, _, errors = run(*words[1:])
                assert code == 0, f"{line}\n{errors}"

    here = tmp_path / "here"
    shutil.copytree(folder, here)
    monkeypatch.chdir(here)
    parsers = [PythonCodeBlockParser(), CodeBlockParser("bash", run_commands), SkipParser()]
    for example in Sybil(parsers=parsers).parse(page).examples():
        try:
            example.evaluate()
        except unittest.SkipTest as skipped:
            # The other blocks of the page run.
            assert str(skipped), f"{page.name}, line {example.line}: a block that is skipped says why"
