"""A browser for the tests of pages.

The tests need a chromium (`CELLERATE_CHROMIUM` or one in the PATH) and `pip install --group browser`; without, they are
skipped.
"""

import os
import shutil

import pytest


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
        chromium = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()
