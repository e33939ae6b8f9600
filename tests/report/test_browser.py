"""What a browser makes of a report: accessibility, both colour schemes, a phone, and nothing in the console.

Needs what the fixture `browser` needs.
"""

import pytest

from cellerate.report.compare import compare
from cellerate.report.compare_page import comparison_html
from cellerate.report.html import html
from support.report.browser import browser, check_page

__all__ = ["browser"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="session", params=["report", "comparison"])
def page_of(request):
    return {"report": html, "comparison": lambda run: comparison_html(compare(run, run))}[request.param]


@pytest.mark.parametrize("width", [1280, 375])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_is_accessible_and_fits_and_the_console_stays_empty(
    browser, any_run, page_of, tmp_path, scheme, width
):
    path = tmp_path / "page.html"
    path.write_bytes(page_of(any_run).encode())
    check_page(browser, path, scheme, width)


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
