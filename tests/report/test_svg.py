import itertools
import math
import re
from xml.etree import ElementTree

import pytest

from cellerate.format import milliseconds
from cellerate.report.svg import (
    Dot,
    ForecastChart,
    Line,
    LineChart,
    ScatterChart,
    WaterfallChart,
    WaterfallStep,
    canvas,
    labels,
)
from cellerate.report.svg.canvas import Box, Scale

HOSTILE = "</text></svg><script>alert(1)</script>\"' & \x00\ud800\ufffe"
NAMESPACE = "{http://www.w3.org/2000/svg}"


def line_chart(*lines, log_x=False, **axes):
    return LineChart("Speed", "It rises.", lines, "batch size", "characters a second", log_x, **axes)


def points(count, y=lambda n: float(n)):
    return tuple((float(n + 1), y(n)) for n in range(count))


def dot(latency, quality, kind="passes", name="int8", on_front=True):
    return Dot(name, latency, quality, quality - 0.01, quality + 0.01, kind, on_front)


CHARTS = {
    "line": line_chart(Line("a", points(5), ((2, "proposed"),))),
    "lines-many": line_chart(*(Line(f"line {n}", points(200, lambda k, n=n: k * n)) for n in range(9))),
    "line-one-point": line_chart(Line("a", ((7.0, 7.0),))),
    "line-flat-at-zero": line_chart(Line("a", ((0.0, 0.0), (1.0, 0.0)))),
    "line-log-of-nothing": line_chart(Line("a", ((-1.0, 2.0), (0.0, 3.0))), log_x=True),
    "line-log-both": line_chart(
        Line("a", ((1.0, 1e-3), (64.0, 2.0), (4096.0, 900.0))), log_x=True, log_y=True
    ),
    "line-log-both-nothing": line_chart(Line("a", ((0.0, 0.0), (-1.0, -2.0))), log_x=True, log_y=True),
    "line-tens": line_chart(Line("a", ((1e-4, 1.0), (1e-2, 2.0))), log_x=True, tens=True),
    "line-log-one": line_chart(Line("a", ((8.0, 3.0),)), log_x=True),
    "line-extreme": line_chart(Line("a", ((-1e300, -1e308), (0.0, 0.0), (1e300, 1e308)))),
    "line-tiny": line_chart(Line("a", ((1.0, 1e-300), (2.0, 2e-300)))),
    "line-close": line_chart(Line("a", ((1.0, 1e15), (2.0, 1e15 + 1)))),
    "line-hostile": line_chart(Line(HOSTILE, points(3), ((1, HOSTILE),)), Line("b", points(3))),
    "scatter": ScatterChart(
        "Q", "d", (dot(40.0, 2.0, "original"), dot(0.02, 2.01, "chosen"), dot(0.01, 2.4, "fails")), 2.02, "bits", False
    ),
    "scatter-one": ScatterChart("Q", "d", (dot(1.0, 0.0),), None, "bits", True),
    "scatter-extreme": ScatterChart(
        "Q", "d", (dot(1e-300, -1e300, name=HOSTILE), dot(1e300, 1e300)), 0.0, HOSTILE, True
    ),
    "waterfall": WaterfallChart(
        "W", "d", (WaterfallStep("a", 3.0, "3.00x faster"), WaterfallStep("b", 0.5, "2.00x slower")), "1.5x", 1.5
    ),
    "waterfall-worse": WaterfallChart("W", "d", (WaterfallStep("a", 0.25, "4.00x slower"),), "4.00x slower", 0.25),
    "waterfall-extreme": WaterfallChart(
        "W", "d", (WaterfallStep(HOSTILE, 1e200, HOSTILE), WaterfallStep("b", 1e-300, "")), HOSTILE, 1e-100
    ),
    "forecast": ForecastChart("F", "d", tuple(range(99)), (1.0, 2.0), (1.5, 2.5), (1.0, 2.0), (2.0, 3.0)),
    "forecast-of-nothing": ForecastChart("F", "d", (), (), ()),
    "forecast-without-past": ForecastChart("F", "d", (), (), (1.0,)),
    "forecast-of-one-step": ForecastChart("F", "d", (1.0, 2.0), (2.5,), (2.0,), (1.0,), (3.0,)),
    "forecast-of-one-step-without-past": ForecastChart("F", "d", (), (2.5,), (2.0,), (1.0,), (3.0,)),
    "forecast-odd": ForecastChart("F", "d", (1e300,), (1.0,) * 999, (-1e300, 5.0), (1.0,), (2.0, 3.0, 4.0)),
}  # fmt: skip


@pytest.fixture(params=CHARTS, ids=str)
def chart(request):
    return CHARTS[request.param]


@pytest.mark.parametrize("width", [340.0, 1072.0])
def test_chart_of_any_data_is_well_formed_and_stays_within_its_drawing(chart, width):
    drawn = chart.draw(width, "c1")
    root = ElementTree.fromstring(drawn.encode())
    wide, high = (float(part) for part in root.get("viewBox").split()[2:])
    assert wide == width
    assert not re.search("nan|inf", re.sub("<(title|desc|text).*?</", "", drawn))
    assert not list(root.iter(f"{NAMESPACE}script"))
    for found in root.iter():
        inside = any(found in group for group in root.iter(f"{NAMESPACE}g"))
        if inside or found.tag == f"{NAMESPACE}g":
            continue
        for key, limit in (("x", wide), ("x1", wide), ("cx", wide), ("y", high), ("y1", high), ("cy", high)):
            if found.get(key) is not None:
                assert -40 <= float(found.get(key)) <= limit + 40, (found.tag, key, found.get(key))


def test_chart_is_an_image_with_a_title_and_a_description(chart):
    root = ElementTree.fromstring(chart.draw(480.0, "c7").encode())
    assert root.get("role") == "img"
    names = [root.find(f"{NAMESPACE}{tag}") for tag in ("title", "desc")]
    assert (
        root.get("aria-labelledby").split() == [found.get("id") for found in names] == ["c7-title", "c7-desc"]
    )
    assert [found.text for found in names] == [chart.title, chart.description]


def test_lines_differ_in_more_than_their_colour():
    lines = [Line(f"line {n}", points(5, lambda k, n=n: k * n)) for n in range(canvas.SERIES)]
    root = ElementTree.fromstring(line_chart(*lines).draw(480.0, "c").encode())
    drawn = [p for p in root.iter(f"{NAMESPACE}path") if "line" in p.get("class").split()]
    assert len({p.get("stroke-dasharray") for p in drawn}) == canvas.SERIES
    names = [t.text for t in root.iter(f"{NAMESPACE}text") if "name" in (t.get("class") or "")]
    assert sorted(names) == [line.name for line in lines]


def test_names_of_lines_that_end_together_do_not_cover_each_other():
    lines = [Line(f"line {n}", points(5, lambda k: 1.0)) for n in range(5)]
    root = ElementTree.fromstring(line_chart(*lines).draw(480.0, "c").encode())
    places = sorted(
        float(t.get("y")) for t in root.iter(f"{NAMESPACE}text") if "name" in (t.get("class") or "")
    )
    assert len(places) == 5
    assert min(b - a for a, b in itertools.pairwise(places)) >= canvas.FONT


def places_of(path):
    numbers = [float(number) for number in path.get("d").removeprefix("M").split()]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


@pytest.mark.parametrize("steps", [1, 3])
def test_band_begins_where_the_past_ends_so_that_it_covers_an_area(steps):
    chart = ForecastChart("F", "d", (1.0, 2.0), (), (2.0,) * steps, (1.0,) * steps, (3.0,) * steps)
    root = ElementTree.fromstring(chart.draw(480.0, "c").encode())
    band, past, forecast = (
        next(places_of(p) for p in root.iter(f"{NAMESPACE}path") if p.get("class") == name)
        for name in ("band", "past", "forecast")
    )
    assert band[0] == past[-1] == forecast[0]
    assert len(band) == 1 + 2 * steps
    (left, right), (top, bottom) = ((min(axis), max(axis)) for axis in zip(*band, strict=True))
    assert right == forecast[-1][0] and right - left > 50 and bottom - top > 20


def test_band_of_one_step_without_a_past_is_a_line():
    root = ElementTree.fromstring(CHARTS["forecast-of-one-step-without-past"].draw(480.0, "c").encode())
    (line,) = [one for one in root.iter(f"{NAMESPACE}line") if one.get("class") == "interval"]
    assert line.get("x1") == line.get("x2")
    assert float(line.get("y1")) - float(line.get("y2")) > 20


def scatter_of(count):
    kinds = {count - 1: "original", count - 2: "chosen"}
    dots = tuple(
        Dot(
            f"Model {n}, pruned and then quantised to int8", 0.01 + 0.003 * (n * 37 % count),
            2.0 + 0.001 * (n * 91 % count), 1.99 + 0.001 * (n * 91 % count), 2.01 + 0.001 * (n * 91 % count),
            kinds.get(n, "passes"), n % 40 == 7,
        )
        for n in range(count)
    )  # fmt: skip
    return ScatterChart("Q", "d", dots, 2.02, "bits", False)


def test_scatter_of_many_models_labels_what_counts_and_names_the_others_where_they_are_pointed_at():
    chart = scatter_of(400)
    root = ElementTree.fromstring(chart.draw(1072.0, "c").encode())
    named = [t.text for t in root.iter(f"{NAMESPACE}text") if t.text.startswith("Model ")]
    pointed = [
        g.find(f"{NAMESPACE}title").text
        for g in root.iter(f"{NAMESPACE}g")
        if g.find(f"{NAMESPACE}title") is not None
    ]
    assert len(named) == 40
    assert set(named[:2]) == {dot.name for dot in chart.dots if dot.kind in ("original", "chosen")}
    assert set(named[2:12]) == {dot.name for dot in chart.dots if dot.on_front}
    assert sorted(named + pointed) == sorted(dot.name for dot in chart.dots)


def test_scatter_of_few_models_labels_all_of_them():
    root = ElementTree.fromstring(scatter_of(40).draw(1072.0, "c").encode())
    assert sum(t.text.startswith("Model ") for t in root.iter(f"{NAMESPACE}text")) == 40


def test_cost_of_a_scatter_grows_no_faster_than_its_models(monkeypatch):
    def asked(count):
        calls = []
        with monkeypatch.context() as patch:
            plain = Box.overlap
            patch.setattr(Box, "overlap", lambda *boxes: calls.append(None) or plain(*boxes))
            scatter_of(count).body(1072.0)
        return len(calls)

    assert asked(400) < 2.2 * asked(200)


def test_long_line_keeps_its_peak_and_few_points():
    many = [(float(n), 9.0 if n == 777 else 0.0) for n in range(10_000)]
    kept = canvas.thin(many)
    assert len(kept) <= 120
    assert (777.0, 9.0) in kept
    assert kept[0] == many[0] and kept[-1] == many[-1]


def test_bar_of_a_step_that_makes_worse_goes_back_and_looks_different():
    chart = CHARTS["waterfall"]
    root = ElementTree.fromstring(chart.draw(480.0, "c").encode())
    bars = [r for r in root.iter(f"{NAMESPACE}rect") if "bar" in r.get("class").split()]
    assert [bar.get("class") for bar in bars] == ["bar gain", "bar fall", "bar total"]
    left = [float(bar.get("x")) for bar in bars]
    right = [float(bar.get("x")) + float(bar.get("width")) for bar in bars]
    assert right[0] == pytest.approx(right[1], abs=0.2)
    assert left[0] < left[1] == pytest.approx(right[2], abs=0.2)


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0.0, 1.0, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (1.94, 2.14, ["1.95", "2.00", "2.05", "2.10"]),
        (0, 186_400, ["0", "50 k", "100 k", "150 k"]),
        (-3, 3, ["-2", "0", "2"]),
        (0, 4.1e9, ["0", "1 G", "2 G", "3 G", "4 G"]),
    ],
)
def test_linear_ticks_are_round(low, high, labels):
    assert [label for _, label in canvas.linear_ticks(Scale(low, high, 0, 100), 5)] == labels


def test_ticks_of_logarithms_are_powers():
    assert [label for _, label in canvas.log2_ticks(Scale(16, 512, 0, 100, True), 9)] == [
        "16",
        "32",
        "64",
        "128",
        "256",
        "512",
    ]
    assert [label for _, label in canvas.log2_ticks(Scale(16, 512, 0, 100, True), 3)] == ["16", "64", "256"]
    shown = [label for _, label in canvas.log_ticks(Scale(0.008, 60, 0, 100, True), 4, milliseconds)]
    assert shown == ["10 µs", "100 µs", "1 ms", "10 ms"]


def test_scale_of_logarithms_puts_equal_factors_equally_far_apart():
    scale = Scale(1.0, 100.0, 0.0, 10.0, log=True)
    assert scale(10.0) == pytest.approx(5.0)
    assert scale(0.0) == 0.0
    assert scale(1e9) == 10.0
    assert math.isfinite(scale(5e-324))


def test_label_keeps_away_from_what_is_there_and_a_line_leads_to_its_point():
    within = Box(0, 0, 400, 300)
    taken = [Box(90, 80, 400, 120), Box(0, 60, 400, 140)]
    drawn = labels.place_label("a label", 100, 100, taken, within, "mark")
    assert sum(taken[-1].overlap(other) for other in taken[:-1]) == 0
    assert 'class="lead"' in drawn


def test_text_is_escaped_in_elements_and_attributes():
    drawn = canvas.element("a", HOSTILE, title=HOSTILE)
    root = ElementTree.fromstring(drawn.encode())
    assert (
        root.text
        == root.get("title")
        == HOSTILE.replace("\x00", "�").replace("\ud800", "�").replace("\ufffe", "�")
    )


def test_label_of_a_dot_on_a_narrow_page_is_broken_into_lines_and_not_cut():
    name = "the same student of 25 %, trained without a teacher, int8"
    chart = ScatterChart("Q", "d", (dot(2.0, 1.9, name=name), dot(3.0, 2.0)), 2.02, "bits", False)
    root = ElementTree.fromstring(chart.draw(340.0, "c").encode())
    shown = " ".join(t.text for t in root.iter(f"{NAMESPACE}text"))
    assert name in shown
    assert "…" not in shown


def test_dots_of_names_that_would_cover_each_other_on_a_narrow_page_have_numbers_and_a_key():
    # As they come: all packed models take the same time, and the original a hundred times that.
    dots = [dot(0.0210 + n * 1e-4, 3.0 + 0.01 * n, name=f"pruned to {n} % of its units") for n in range(10)]
    chart = ScatterChart("Q", "d", (*dots, dot(2.7, 3.3, name="the model in Keras")), None, "bits", False)

    def texts(width):
        root = ElementTree.fromstring(chart.draw(width, "c").encode())
        assert all(float(t.get("y")) < float(root.get("height")) for t in root.iter(f"{NAMESPACE}text"))
        return [t.text for t in root.iter(f"{NAMESPACE}text")]

    found = texts(340.0)
    for number, one in enumerate(sorted(chart.dots, key=lambda one: -one.quality), 1):
        # Beside its dot, and before its name in the key.
        assert found.count(str(number)) == 2
        assert found[found.index(one.name) - 1] == str(number)
    assert "1" not in texts(1072.0)


def test_legend_and_title_of_an_axis_on_a_narrow_page_are_broken_into_lines_and_not_cut():
    names = (
        "the same student of 25 %, trained without a teacher",
        "a student of 25 % of the weights, taught by it",
    )
    lines = tuple(Line(name, ((1.0, 2.0), (2.0, 3.0))) for name in names)
    label = "mean absolute error of the forecasts (standard deviations)"
    root = ElementTree.fromstring(LineChart("L", "d", lines, "step", label).draw(340.0, "c").encode())
    texts = [t.text for t in root.iter(f"{NAMESPACE}text")]
    shown = " ".join(texts)
    for words in (*names, label):
        assert words in shown
    assert all(canvas.text_width(words) <= 340 for words in texts)


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("one two", 1000, ["one two"]),
        ("one two", 25, ["one", "two"]),
        ("one two three four", 60, ["one two", "three", "four"]),
        ("one two three four five", 25, ["one", "two", "th…"]),
        ("", 100, [""]),
    ],
)
def test_text_is_broken_between_words_and_cut_after_three_lines(text, width, lines):
    assert canvas.wrapped(text, width) == lines
