"""What a browser makes of a report: accessibility, both colour schemes, a phone, and nothing in the console.

Needs what the fixture `browser` needs.
"""

import pytest

from cellerate.report.compare import compare
from cellerate.report.compare_page import comparison_html
from cellerate.report.html import html
from support.browser import browser

__all__ = ["browser"]
pytestmark = pytest.mark.slow

BACKGROUNDS = {"light": "rgb(253, 253, 252)", "dark": "rgb(20, 22, 26)"}


@pytest.fixture(scope="session", params=["report", "comparison"])
def page_of(request):
    return {"report": html, "comparison": lambda run: comparison_html(compare(run, run))}[request.param]


@pytest.mark.parametrize("width", [1280, 375])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_is_accessible_and_fits_and_the_console_stays_empty(
    browser, any_run, page_of, tmp_path, scheme, width
):
    from axe_playwright_python.sync_playwright import Axe

    path = tmp_path / "page.html"
    path.write_bytes(page_of(any_run).encode())
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, said = context.new_page(), []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: said.append(request.url) if request.url.startswith("http") else None)
    page.goto(path.as_uri())
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == BACKGROUNDS[scheme]
    for opened in (False, True):
        page.evaluate("open => document.querySelectorAll('details').forEach(one => one.open = open)", opened)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        found = Axe().run(page).response["violations"]
        assert [(one["id"], one["nodes"][0]["html"]) for one in found] == []
    assert said == []
    context.close()


def test_report_is_printed_in_few_pages_and_no_chart_is_cut(browser, text_run, tmp_path):
    path = tmp_path / "page.html"
    path.write_bytes(html(text_run).encode())
    page = browser.new_page()
    page.goto(path.as_uri())
    page.emulate_media(media="print")
    for selector in ("figure", "tr", "pre", ".tiles li"):
        found = page.evaluate("s => getComputedStyle(document.querySelector(s)).breakInside", selector)
        assert found == "avoid", selector
    printed = page.pdf(prefer_css_page_size=True)
    assert 4 <= printed.count(b"/Type /Page\n") + printed.count(b"/Type /Page ") <= 14
    page.close()
