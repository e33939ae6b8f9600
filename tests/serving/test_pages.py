"""The pages of a server in a real browser: they work, are accessible, load nothing from elsewhere, and fit a phone."""

from collections.abc import Iterator
from typing import Any

import pytest

from cellerate.runtime.packed import load
from cellerate.serving.routes.operations import OPERATIONS
from support.graphs import draw
from support.report.browser import browser, fits, violations
from support.servers import SCALER, series_cell, serving, text_cell

__all__ = ["browser"]
pytestmark = pytest.mark.slow
CSV = "time,wind,load\n" + "\n".join(
    f"{n},{wind:.3f},{power:.3f}" for n, (power, wind) in enumerate(draw(30, 2) * SCALER.scale + SCALER.mean)
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("models")
    models = (text_cell(folder / "text.cell"), series_cell(folder / "series.cell", quantiles=(0.1, 0.5, 0.9)))
    with serving(*models) as running:
        yield running


@pytest.fixture(params=[(1280, "light"), (375, "dark")], ids=["wide-light", "phone-dark"])
def page(browser: Any, server: Any, request: Any) -> Iterator[Any]:
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, said = context.new_page(), []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda each: None if each.url.startswith(server.address) else said.append(each.url))
    yield page
    assert fits(page)
    assert violations(page) == []
    assert [line for line in said if not line.startswith("data:")] == []
    context.close()


def test_text_page_draws_each_character_with_its_probability(page, server, tmp_path):
    from playwright.sync_api import expect

    page.goto(server.address)
    page.fill("#prompt", "abc")
    page.fill("#max_tokens", "60")
    page.fill("#seed", "7")
    page.click("#draw")
    expect(page.locator("#text-told")).to_contain_text("60 drawn in")
    expect(page.locator("#text-told")).to_contain_text("ended: length")
    assert page.locator("#drawn .drawn").count() == 60
    right = load(text_cell(tmp_path / "text.cell")).generate("abc", max_tokens=60, seed=7, temperature=0.8)
    assert page.locator("#drawn").text_content() == "abc" + right
    assert "%" in page.locator("#drawn .drawn").first.get_attribute("title")


def test_page_shows_an_error_of_the_server(page, server):
    from playwright.sync_api import expect

    page.goto(server.address)
    page.fill("#prompt", "abc")
    # The browser logs an error status in its console, so this error comes in the middle of a stream.
    event = 'data: {"error": {"message": "no place"}}\n\n'
    page.route("**/v1/completions", lambda route: route.fulfill(status=200, body=event))
    page.click("#draw")
    expect(page.locator("#text-told")).to_have_text("no place")


def test_text_page_can_stop_a_long_text(page, server):
    from playwright.sync_api import expect

    page.goto(server.address)
    page.fill("#prompt", "abc")
    page.fill("#max_tokens", "100000")
    page.click("#draw")
    expect(page.locator("#drawn .drawn").nth(20)).to_be_attached()
    page.click("#stop")
    expect(page.locator("#text-told")).to_contain_text("drawn; stopped")


def test_series_page_forecasts_and_watches_row_by_row(page, server):
    from playwright.sync_api import expect

    page.goto(server.address)
    page.select_option("#model", "series")
    page.fill("#rows", CSV)
    page.click("#forecast")
    expect(page.locator("#charts svg .band")).to_have_count(2)
    expect(page.locator("#series-told")).to_contain_text("30 rows; forecast of 3")
    page.click("#play")
    expect(page.locator("#series-told")).to_contain_text("row 30 of 30; score", timeout=20_000)
    expect(page.locator("#sessions")).to_have_text("0 sessions")
    page.fill("#rows", "wind,price\n1,2")
    page.click("#forecast")
    expect(page.locator("#series-told")).to_have_text("The first row has no column load.")


def test_pages_list_all_routes(page, server):
    from playwright.sync_api import expect

    page.goto(f"{server.address}/docs")
    expect(page.locator("#routes tbody tr")).to_have_count(len(OPERATIONS))
    expect(page.locator("code", has_text="POST /v1/completions")).to_have_count(1)
