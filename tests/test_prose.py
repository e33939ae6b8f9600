"""No text of the project has a phrase over which a native reader stumbles: code, comments, messages and pages."""

import re
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
