"""The page of `bench` shows what it is given, literally, and its charts hold whatever comes."""

import re
from xml.etree import ElementTree

import pytest

from cellerate.report.bench_page import BenchPage, Section, bench_html
from cellerate.report.svg import Bar, BarChart, RatioChart
from cellerate.report.tables import Figure, FigureTable, TableCell, cells
from cellerate.report.view import HeadlineFigure
from support.report.browser import browser, fits, violations

__all__ = ["browser"]
HOSTILE = (
    "</title></style><script>alert(1)</script><img src=x onerror=alert(2)>\"'`|&amp;{{7*7}}\n\x00\u202e\ufffe"
)
BACKGROUNDS = {"light": "rgb(253, 253, 252)", "dark": "rgb(20, 22, 26)"}


def bars(*values, name="Cellerate on jax, a batch of fit"):
    return tuple(
        Bar(f"{name} {n}", value, 0.9 * value, 1.1 * value, f"{value:.3g}", n == 0)
        for n, value in enumerate(values)
    )


CHARTS = {
    "bars": BarChart("Speed", "It is fast.", bars(158e3, 105e3, 53.3e3, 19.1), "characters/s"),
    "one bar": BarChart("Speed", "It is fast.", bars(1.0), "characters/s"),
    "bars-extreme": BarChart("Speed", "", bars(1e308, 1e-300), "characters/s"),
    "bars-hostile": BarChart(HOSTILE, HOSTILE, bars(2.0, 1.0, name=HOSTILE), HOSTILE),
    "bars-many": BarChart("Speed", "", bars(*range(1, 200)), "characters/s"),
    "ratios": RatioChart("Ratios", "", bars(1.081, 1.002, 0.971), 1.05, "after / before"),
    "ratios-apart": RatioChart("Ratios", "", bars(20.0, 0.1), 1.05, "after / before"),
    "ratios-extreme": RatioChart("Ratios", "", bars(1e200, 1e-200), 1.05, "after / before"),
    "ratios-hostile": RatioChart(HOSTILE, HOSTILE, bars(1.0, name=HOSTILE), 1.05, HOSTILE),
}


def page(chart=None, words="Cellerate"):
    table = FigureTable(
        words, ("Contestant", ">characters/s"), (cells(words, TableCell("158 k", note=words, tone="good")),)
    )
    figures = (Figure(chart or CHARTS["bars"], table, wide=True),)
    return BenchPage(
        title=f"{words} beside others",
        facts=(words, "2 cores"),
        sentence=f"{words} is ahead.",
        tone="good",
        tiles=(HeadlineFigure("1.51", "times as fast as", words, "158 k beside 105 k", "good"),),
        warnings=(f"{words} was busy.",),
        sections=(Section("Training", (words,), figures, (table,), (words,)),),
        command="cellerate bench",
    )


@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize("width", [1072.0, 340.0])
def test_chart_is_whole_and_within_its_width(name, width):
    drawn = ElementTree.fromstring(CHARTS[name].draw(width, "c"))
    _, _, wide, high = map(float, drawn.attrib["viewBox"].split())
    assert wide == width and 0 < high < 4000
    for element in drawn.iter():
        for key, value in element.attrib.items():
            if key in ("x", "x1", "x2", "cx"):
                assert -1 <= float(value) <= width + 1, (element.tag, key)
            if key in ("y", "y1", "y2", "cy"):
                assert 0 <= float(value) <= high, (element.tag, key)


def test_bar_is_as_long_as_its_value():
    drawn = ElementTree.fromstring(CHARTS["bars"].draw(1072.0, "c"))
    long = [
        float(one.attrib["width"])
        for one in drawn.iter()
        if one.attrib.get("class") in ("bar total", "dot original")
    ]
    assert long[1] / long[0] == pytest.approx(105 / 158, rel=1e-2)
    assert long[3] == 1.5  # too short to be seen otherwise


def test_ratio_lies_on_its_side_of_one_and_of_the_limit():
    drawn = ElementTree.fromstring(CHARTS["ratios"].draw(1072.0, "c"))
    lines = {
        one.attrib.get("class"): float(one.attrib["x1"])
        for one in drawn.iter()
        if one.tag.endswith("line") and one.attrib.get("class") in ("gate", "axis")
    }
    circles = [float(one.attrib["cx"]) for one in drawn.iter() if one.tag.endswith("circle")]
    assert lines["axis"] < circles[0] < lines["gate"]
    assert circles[1] < lines["axis"]


def test_page_has_its_parts_and_no_script():
    text = bench_html(page())
    for words in (
        "Cellerate is ahead.",
        "1.51",
        "Cellerate was busy.",
        'href="#s1"',
        "To measure again",
        "Training",
    ):
        assert words in text
    assert "<script" not in text
    assert set(re.findall(r'"(https?:[^"]*)"', text)) == {"http://www.w3.org/2000/svg"}


def test_hostile_words_are_shown_and_do_nothing():
    text = bench_html(page(CHARTS["bars-hostile"], HOSTILE))
    assert "<script" not in text and "<img" not in text and "&lt;script&gt;" in text
    assert text.count("{{7*7}}") >= 10 and "\x00" not in text


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 375])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["bars", "bars-many", "ratios", "bars-hostile"])
def test_page_is_accessible_and_fits_and_the_console_stays_empty(browser, tmp_path, name, scheme, width):
    path = tmp_path / "page.html"
    path.write_bytes(bench_html(page(CHARTS[name], HOSTILE if "hostile" in name else "Cellerate")).encode())
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    shown, said = context.new_page(), []
    shown.on("console", lambda message: said.append(message.text))
    shown.on("pageerror", lambda error: said.append(str(error)))
    shown.on("request", lambda request: said.append(request.url) if request.url.startswith("http") else None)
    shown.goto(path.as_uri())
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == BACKGROUNDS[scheme]
    for opened in (False, True):
        shown.evaluate("open => document.querySelectorAll('details').forEach(one => one.open = open)", opened)
        assert fits(shown)
        assert violations(shown) == []
    assert said == []
    context.close()
