"""A browser for the tests of pages.

The tests need a chromium (`CELLERATE_CHROMIUM` or one in the PATH) and `pip install --group browser`, and are skipped
without them.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

EVIL = "evil.example"


@pytest.fixture(scope="module")
def browser():
    """A chromium; a machine without one skips.

    Until it is closed, Playwright's event loop counts as running, and no other test could start one of its own.
    """
    program = (
        os.environ.get("CELLERATE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    )
    if not program:
        pytest.skip("needs a chromium: install one, or name one in CELLERATE_CHROMIUM")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs the packages of the group browser: pip install --group browser"
    )
    pytest.importorskip(
        "axe_playwright_python", reason="needs the packages of the group browser: pip install --group browser"
    )
    with playwright.sync_playwright() as started:
        # A name that resolves to this machine, as an attacker's name may.
        arguments = ["--no-sandbox", f"--host-resolver-rules=MAP {EVIL} 127.0.0.1"]
        chromium = started.chromium.launch(executable_path=program, args=arguments)
        yield chromium
        chromium.close()


_BACKGROUNDS = {"light": "rgb(253, 253, 252)", "dark": "rgb(20, 22, 26)"}


def fits(page: Any) -> bool:
    """True if the page fits the width of its window."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def violations(page: Any) -> list[tuple[str, str]]:
    """The faults that axe-core finds in a page: the rule, and the first element that breaks it."""
    from axe_playwright_python.sync_playwright import Axe

    return [(one["id"], one["nodes"][0]["html"]) for one in Axe().run(page).response["violations"]]


def check_page(browser: Any, path: Path, scheme: str, width: int) -> None:
    """Check that a page of `report` follows the scheme, fits, is accessible, loads nothing and logs nothing."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, said = context.new_page(), []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: said.append(request.url) if request.url.startswith("http") else None)
    page.goto(path.as_uri())
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == _BACKGROUNDS[scheme]
    for opened in (False, True):
        page.evaluate("open => document.querySelectorAll('details').forEach(one => one.open = open)", opened)
        assert fits(page)
        assert violations(page) == []
    assert said == []
    context.close()
