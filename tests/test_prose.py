"""No text of the project has a phrase over which a native reader stumbles: code, comments, messages and pages."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "csrc", "benchmarks", "tests", "docs", "examples", "deploy")
SUFFIXES = {".py", ".h", ".cpp", ".cuh", ".md", ".sh", ".html", ".js"}
# "is no longer", "no better" and "there is no" are good English; "is no number" is not.
PHRASES = re.compile(
    r"(?<!there )\b(?:is|are|was|were) no (?!(?:longer|better|faster|slower|cheaper|worse|more|larger)\b)\w+"
    r"|\bif it is ours\b|\bwhoever\b|\bnobody's\b|\bits like\b|\bwhat is over\b|\bbe then as\b|\bamid\b"
    r"|\b(?:has|have) not(?=[,;.:)])",
    re.IGNORECASE,
)
# They say what the rules forbid, or what was decided when.
LEFT_OUT = {"tests/test_prose.py", "docs/decisions"}

PACKAGE = ROOT / "src/cellerate"
ROOMS = "|".join(sorted({path.stem for path in PACKAGE.iterdir()} - {"__init__", "__pycache__"}))
# A name in backticks that begins with a room, such as `tasks.judging.forecaster_report`.
DOTTED = re.compile(rf"`((?:{ROOMS})(?:\.\w+)+)(?<!\.json)(?<!\.md)`")


def stumbles(text: str) -> list[str]:
    """The phrases of a text; one may go over the end of a line, in a comment too."""
    return PHRASES.findall(re.sub(r"\n\s*(?:#|//)?\s*", " ", text))


def pages() -> list[str]:
    """The texts of the project by their paths."""
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")))
    names = [str(path.relative_to(ROOT)) for path in paths if path.suffix in SUFFIXES]
    return [name for name in names if not any(name.startswith(left_out) for left_out in LEFT_OUT)]


@pytest.mark.parametrize("name", [*pages(), "README.md", "CONTRIBUTING.md", "Makefile"])
def test_no_reader_stumbles(name: str) -> None:
    assert stumbles((ROOT / name).read_text()) == []


def test_planted_phrase_is_found_and_good_english_is_not() -> None:
    assert stumbles("a path that is no file") == ["is no file"]
    assert stumbles("# The values are no\n# numbers here.") == ["are no numbers"]
    assert stumbles("Whoever reads it, as ONNX has not.") == ["Whoever", "has not"]
    good = "There is no file. It is no longer there, and is no better. It has not ended. The loss is no\nlonger finite."
    assert stumbles(good) == []


def lost(text: str) -> list[str]:
    """The dotted names in a text that lead to no module, or to one in which the rest of the name does not occur."""
    return [name for name in DOTTED.findall(text) if not leads_somewhere(PACKAGE, name.split("."))]


def leads_somewhere(folder: Path, parts: list[str]) -> bool:
    first, *rest = parts
    if (folder / first).is_dir():
        return not rest or leads_somewhere(folder / first, rest)
    module = folder / f"{first}.py"
    return occur(rest, module) if module.exists() else occur([first], folder / "__init__.py")


def occur(names: Iterable[str], module: Path) -> bool:
    found = module.read_text()
    return all(re.search(rf"\b{name}\b", found) for name in names)


def test_modules_that_docstrings_name_are_there() -> None:
    found = {name: lost((ROOT / name).read_text()) for name in pages() if name.startswith(("src", "csrc"))}
    assert {name: names for name, names in found.items() if names} == {}


def test_planted_name_of_a_module_that_is_gone_is_found() -> None:
    there = "see `tasks.judging.forecaster_report`, `data.files` and `format.aligned`, not `loss.item`"
    assert lost(f"{there}, nor `tasks.series_errors.forecaster_report` and `data.files.nothing`") == [
        "tasks.series_errors.forecaster_report",
        "data.files.nothing",
    ]
