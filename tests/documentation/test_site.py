"""The site of the documentation: its pages can be heard, moved through by keys, read on a phone, and load nothing."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.report.browser import browser, fits, violations

__all__ = ["browser"]
pytestmark = [pytest.mark.slow, pytest.mark.keras]
ROOT = Path(__file__).resolve().parents[2]
VERSIONS = {"CELLERATE_SITE": "latest", "CELLERATE_SITES": "latest 0.1.0"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx", reason="needs the packages of the group site: pip install --group site")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "-d", folder / "cache"]
    subprocess.run(
        [*command, ROOT / "docs", folder / "latest"], env=os.environ | VERSIONS, check=True, timeout=600
    )
    return folder / "latest"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1280])
def test_pages_are_accessible_and_fit_and_load_nothing(
    browser: Any, site: Path, scheme: str, width: int
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, found = context.new_page(), list[Any]()
    page.on("request", lambda request: found.append(request.url) if request.url.startswith("http") else None)
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    for path in pages:
        page.goto(path.as_uri())
        name = path.relative_to(site).as_posix()
        if not fits(page):
            found.append(f"{name} is wider than its window")
        # Between a phone and a screen nothing but the width is new.
        found += [(name, *each) for each in (violations(page) if width != 768 else [])]
    context.close()
    assert found == []


def test_pages_lead_to_other_versions(site: Path) -> None:
    assert '<a href="../../0.1.0/index.html">' in (site / "guide" / "data.html").read_text()
    assert '<a href="./../0.1.0/index.html">' in (site / "index.html").read_text()


def test_search_finds_a_warning_of_tensorflow(browser: Any, site: Path) -> None:
    page = browser.new_page()
    page.goto((site / "search.html").as_uri() + "?q=cuDNN+kernel")
    page.wait_for_selector("ul.search li a")
    assert any(
        "gpu-no-faster" in one
        for one in page.eval_on_selector_all("ul.search li a", "all => all.map(a => a.href)")
    )
    page.close()
