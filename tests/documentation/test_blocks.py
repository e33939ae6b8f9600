"""Each block of code on the pages runs, in the order of its page, in a folder with what it reads."""

import shlex
import shutil
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import pytest
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser

import cellerate
from cellerate.kernels import native
from support.runs.page_files import known_names, write_files
from support.runs.program import program_here

pytestmark = [
    pytest.mark.keras,
    pytest.mark.skipif(keras.backend.backend() != "torch", reason="a page names torch, and pages run once"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]
DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [page for folder in ("questions", "guide") for page in sorted((DOCS / folder).glob("*.md"))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pages")
    write_files(made)
    return made


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave the process as it was: pages switch on what holds for all models from then on."""
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    threads = native.num_threads()
    yield
    cellerate.disable()
    cellerate.set_num_threads(threads)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_run(
    page: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    run = program_here(monkeypatch, capsys)

    def run_commands(example: Example) -> None:
        for line in example.parsed.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                assert words[0] == "cellerate", f"{line}: another program; skip the block, with the reason"
                code, _, errors = run(*words[1:])
                assert code == 0, f"{line}\n{errors}"

    here = tmp_path / "here"
    shutil.copytree(folder, here)
    monkeypatch.chdir(here)
    parsers = [PythonCodeBlockParser(), CodeBlockParser("bash", run_commands), SkipParser()]
    document = Sybil(parsers=parsers).parse(page)
    document.namespace.update(known_names(page.stem))
    for example in document.examples():
        try:
            example.evaluate()
        except unittest.SkipTest as skipped:
            # The other blocks of the page run.
            assert str(skipped), f"{page.name}, line {example.line}: a block that is skipped says why"
