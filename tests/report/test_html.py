import dataclasses
import json
import re
import subprocess
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import pytest

from cellerate.errors import OutputError
from cellerate.report import html, view
from cellerate.report.compare import compare
from cellerate.report.markdown import markdown
from cellerate.report.record import Curve, SampleOutput, StageRecord

STYLE = Path(html.__file__).parent / "templates" / "style.css"
ORDER = [
    "verdict",
    "use",
    "gains",
    "quality",
    "stages",
    "training",
    "models",
    "samples",
    "kernels",
    "conditions",
]


@pytest.fixture(scope="module")
def page(any_run, parse):
    return parse(html.html(any_run))


def sections(page):
    return [found.attributes["id"] for main in page.all("main") for found in main.all("section")]


def test_page_needs_nothing_from_elsewhere_and_runs_no_script(page):
    for found in page.all():
        assert found.tag not in (
            "script",
            "img",
            "iframe",
            "object",
            "embed",
            "base",
            "form",
            "audio",
            "video",
        )
        assert not [
            name for name in found.attributes if name.startswith("on") or name in ("src", "srcset", "style")
        ]
        assert found.attributes.get("href", "#")[0] == "#" or found.attributes["href"] == "data:,"
    (policy,) = page.all("meta", http_equiv="Content-Security-Policy")
    assert policy.attributes["content"].startswith(
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:;"
    )
    assert not re.search(r"url\(|@import|@font-face", STYLE.read_text())


def test_page_is_small(any_run):
    assert len(html.html(any_run).encode()) < 300_000


def test_page_has_landmarks_one_h1_and_headings_in_order(page):
    assert [len(list(page.all(tag))) for tag in ("header", "main", "footer", "h1")] == [1, 1, 1, 1]
    (skip,) = page.all("a", class_="skip")
    assert skip.attributes["href"] == "#main"
    level = 0
    for found in page.all():
        if re.fullmatch("h[1-6]", found.tag):
            assert int(found.tag[1]) <= level + 1, found.text
            assert found.text.strip()
            level = int(found.tag[1])


def test_ids_are_unique_and_everything_that_is_referred_to_is_there(page):
    ids = [found.attributes["id"] for found in page.all() if "id" in found.attributes]
    assert len(ids) == len(set(ids))
    for found in page.all():
        referred = found.attributes.get("aria-labelledby", "").split()
        if found.attributes.get("href", "").startswith("#"):
            referred.append(found.attributes["href"][1:])
        assert set(referred) <= set(ids)


def test_tables_have_a_caption_heads_and_rows_that_are_full(page):
    for table in page.all("table"):
        (caption,) = table.all("caption")
        assert caption.text.strip()
        (head,) = table.all("thead")
        heads = list(head.all("th", scope="col"))
        assert all(one.text.strip() for one in heads)
        (body,) = table.all("tbody")
        for row in body.all("tr"):
            assert [cell.tag for cell in row.all() if cell.tag in ("th", "td")] == ["th"] + ["td"] * (
                len(heads) - 1
            )
            assert [cell.attributes["scope"] for cell in row.all("th")] == ["row"]


def test_charts_are_well_formed_images_with_a_table_each(any_run, parse):
    shown = html.html(any_run)
    drawings = re.findall(r"<svg xmlns.*?</svg>", shown, re.DOTALL)
    for drawing in drawings:
        root = ElementTree.fromstring(drawing)
        assert root.get("role") == "img"
        assert root.find("{*}title").text.strip() and root.find("{*}desc").text.strip()
    for figure in parse(shown).all("figure", class_="wide"):
        assert len(list(figure.all("svg"))) == 2
        (details,) = figure.all("details")
        assert list(details.all("table"))


def test_text_run_has_every_section_in_order(text_run, parse):
    assert sections(parse(html.html(text_run))) == ORDER


def test_text_run_has_every_table(text_run, parse):
    captions = [found.text for found in parse(html.html(text_run)).all("caption")]
    for caption in (
        "Before and after, measured in this run", "Files, within the folder of this report", "Every stage of the run",
        "Training as it was measured", "Every model that was made", "Every way to call every model",
        "Which kernel ran each layer before", "Where all of this was measured", "Settings of the run",
    ):  # fmt: skip
        assert captions.count(caption) == 1, caption


def test_verdict_has_its_table_of_the_test_part(tested_run, text_run, parse):
    page = parse(html.html(tested_run))
    (verdict,) = page.all("section", id="verdict")
    captions = [found.text for found in verdict.all("caption")]
    assert captions == ["Before and after, measured in this run", "Quality on the test part"]
    assert "bad" in next(verdict.all("p", class_="verdict")).attributes["class"].split()
    # Where the test part is told of in the table, the part that was chosen by is not told as if it were all.
    assert "measured on 80 k of the validation part" not in verdict.text
    assert f"measured on {text_run.metric.source}" in parse(html.html(text_run)).text


def test_run_without_anything_says_so_and_has_no_empty_section(empty_run, parse):
    page = parse(html.html(empty_run))
    assert sections(page) == ["verdict"]
    (sentence,) = page.all("p", class_="verdict")
    assert sentence.text.startswith(
        "This run was interrupted before it came to a verdict; no stage was done."
    )
    assert not list(page.all("table"))


def test_failed_run_says_what_failed(failed_run, parse):
    page = parse(html.html(failed_run))
    (sentence,) = page.all("p", class_="verdict")
    reason = "ModelError: the layer 'gru' has no packed form."
    assert (
        sentence.text
        == f"This run failed before it came to a verdict; 3 of its stages were done: Packed: {reason}"
    )
    (article,) = page.all("article", class_="failed")
    assert "✗\N{NO-BREAK SPACE}failed" in article.text and reason in article.text
    assert "tiles" not in [found.attributes.get("class") for found in page.all("ul")]


@pytest.mark.parametrize(
    ("status", "begin"),
    [("interrupted", "This run was interrupted; so far: "), ("failed", "This run failed; so far: ")],
)
def test_verdict_of_a_run_that_did_not_end_is_told_as_such(text_run, status, begin):
    sentence, tone = view.outcome(dataclasses.replace(text_run, status=status))
    assert sentence == begin + text_run.verdict.sentence
    assert tone == "bad"


def test_verdict_rows_are_judged_in_words(text_run, parse):
    (section,) = parse(html.html(text_run)).all("section", id="verdict")
    (table,) = section.all("table")
    rows = [[cell.text for cell in row.all() if cell.tag in ("th", "td")] for row in table.all("tr")]
    assert rows[1] == [
        "training",
        "26.3 k characters/s",
        "186 k characters/s",
        "▲\N{NO-BREAK SPACE}7.09x faster",
    ]
    assert rows[2] == ["peak memory of training", "1.42 GB", "2.15 GB", "▼\N{NO-BREAK SPACE}1.51x larger"]
    assert rows[6][3] == "▼\N{NO-BREAK SPACE}0.77 % worse"


def test_commands_can_be_copied_as_they_are(text_run, parse):
    shown = [pre.text for pre in parse(html.html(text_run)).all("pre")]
    assert [one.replace(" \\\n ", "") for one in shown] == [
        text_run.verdict.training,
        text_run.command,
    ]
    assert max(len(line) for one in shown for line in one.splitlines()) < 100


@pytest.mark.parametrize(
    "command", ["a 'b", "a  b " + "-c " * 99, "a --b " + "c" * 200, "a " + "--b 'c -d' " * 20]
)
def test_long_command_on_several_lines_is_the_same_to_a_shell(command):
    shown = view.wrapped(command.strip())
    ends = [
        subprocess.run(["sh", "-c", 'printf "%s\\n" ' + one], capture_output=True).stdout
        for one in (command, shown)
    ]
    assert ends[0] == ends[1]


def test_hostile_text_is_shown_and_nothing_more(hostile_run, text_run, parse):
    hostile, plain = parse(html.html(hostile_run)), parse(html.html(text_run))
    (title,) = hostile.all("h1")
    assert title.text == hostile_run.model.replace("\x00", "�").replace("\ufffe", "�")
    allowed = {found.tag for found in plain.all()} | {"rect", "g", "line", "circle", "path", "text"}
    allowed |= {"h4", "ul", "li", "div", "figcaption"}
    assert {found.tag for found in hostile.all()} <= allowed
    assert "49" not in title.text


def test_text_of_a_sample_keeps_its_lines_and_an_endless_one_is_cut(text_run, parse):
    first = dataclasses.replace(
        text_run.candidates[0], sample=SampleOutput("a\n b", "c\n\n  d" + "x" * 10**6)
    )
    shown = html.html(dataclasses.replace(text_run, candidates=(first,)))
    given, written = parse(shown).all("div", class_="sample")
    assert given.text == "a\n b"
    assert written.text.startswith("c\n\n  dxxx") and "996,006 more characters" in written.text
    assert len(shown) < 200_000


def test_lines_that_come_back_are_marked_in_words(lines_run, parse):
    (section,) = parse(html.html(lines_run)).all("section", id="samples")
    rows = [[cell.text for cell in row.all() if cell.tag in ("th", "td")] for row in section.all("tr")]
    assert rows[0] == ["Line", "Original, Keras", "Packed, float32"]
    assert rows[1] == ["red hat", "✓ the same", "✓ the same"]
    assert rows[4] == ["ten bees", "✓ the same", "≠ ten beds"]


def test_forecasts_of_all_models_share_their_axes(series_run, parse):
    groups = list(parse(html.html(series_run)).all("article", class_="forecasts"))
    assert len(groups) == 3
    for group in groups:
        drawings = list(group.all("svg"))
        assert len(drawings) == len(series_run.candidates)
        ticks = [[t.text for t in svg.all("text", text_anchor="end")] for svg in drawings]
        assert ticks[0] == ticks[1] == ticks[2]
        assert len(list(group.all("path", class_="band"))) == 3


def test_curve_of_many_points_stays_small(text_run):
    many = tuple(float(n) for n in range(100_000))
    curve = Curve("Loss", "a", "step", "nats", many, many)
    run = dataclasses.replace(
        text_run, passes=(StageRecord("prune", "Pruned", "done", curves=(curve,)),), candidates=()
    )
    shown = html.html(run)
    assert len(shown) < 100_000
    assert "40 of 100,000 rows" in shown


def test_curve_that_is_no_curve_is_left_out(text_run, parse):
    odd = (
        Curve("none", "a", "x", "y", (), ()),
        Curve("short", "a", "x", "y", (1.0, 2.0), (5.0,), False, ((7, "no"),)),
    )
    run = dataclasses.replace(text_run, passes=(StageRecord("a", "A", "done", curves=odd),))
    titles = [found.text for found in parse(html.html(run)).all("h4")]
    assert titles == ["short"]


def test_chosen_model_that_is_not_there_breaks_nothing(text_run):
    verdict = dataclasses.replace(text_run.verdict, chosen="lost")
    assert "<h1>" in html.html(dataclasses.replace(text_run, verdict=verdict))


def test_write_html_gives_the_path_and_the_same_page_each_time(text_run, tmp_path):
    path = html.write_html(text_run, tmp_path / "new")
    assert path == tmp_path / "new" / "report.html"
    first = path.read_bytes()
    assert html.write_html(text_run, tmp_path / "new").read_bytes() == first
    assert [one.name for one in path.parent.iterdir()] == ["report.html"]


def test_write_html_into_a_file_is_an_output_error(text_run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="a part of the path is a file"):
        html.write_html(text_run, tmp_path / "file")


def test_text_that_utf8_cannot_hold_is_written_all_the_same(text_run, tmp_path):
    path = html.write_html(dataclasses.replace(text_run, model="a\ud800b"), tmp_path)
    assert "<h1>a�b</h1>" in path.read_text()


def _colours(text):
    return dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", text))


def _luminance(colour):
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one, other):
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
def test_colours_of_text_and_charts_have_enough_contrast(scheme):
    """WCAG 2.2, 1.4.3 and 1.4.11; axe-core cannot see into charts."""
    style = STYLE.read_text()
    light = _colours(style[: style.index("@media")])
    dark = light | _colours(re.search(r"color-scheme: dark\).*?\}\s*\}", style, re.DOTALL)[0])
    printed = light | _colours(style[style.index("@media print") :])
    colours = {"light": light, "dark": dark, "print": printed}[scheme]
    assert (colours["paper"] != light["paper"]) == (scheme != "light")
    texts = ["ink", "soft", "accent", "good", "bad", *(f"s{n}" for n in range(6))]
    for name in texts:
        for ground in ("paper", "raised"):
            assert _contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    assert _contrast(colours["ink"], colours["sunk"]) >= 4.5
    for name in ("ink", "warn"):
        assert _contrast(colours[name], colours["warn-soft"]) >= 4.5


EXTREMES = [0.0, -1.0, 1e-300, -1e300, 1e300, 1.7e308, -1.7e308, 5e-324, 0.5, 1e15, 1e-7]


def _upset(value, random):
    """The same record with some of its numbers extreme, some of its texts empty or endless, some tuples cut."""
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        kept = {f.name: getattr(value, f.name) for f in fields if f.name in ("status", "quantity", "schema")}
        changed = {f.name: _upset(getattr(value, f.name), random) for f in fields if f.name not in kept}
        return type(value)(**kept, **changed)
    if isinstance(value, tuple):
        whole = value and isinstance(value[0], str | int)
        cut = random.randrange(len(value) + 1) if random.random() < 0.1 and not whole else None
        return tuple(_upset(one, random) for one in value[:cut])
    if isinstance(value, float) and random.random() < 0.4:
        return random.choice(EXTREMES)
    if type(value) is int and random.random() < 0.3:
        return random.choice([0, 1, 2**62])
    if isinstance(value, str) and random.random() < 0.1:
        return random.choice(["", ">", " ", "x" * 300])
    return value


@pytest.mark.parametrize("seed", range(12))
def test_extreme_numbers_and_empty_texts_are_drawn_and_compared_all_the_same(text_run, series_run, seed):
    random = Random(seed)
    for run in (text_run, series_run):
        upset = _upset(run, random)
        for drawing in re.findall(r"<svg xmlns.*?</svg>", html.html(upset), re.DOTALL):
            places = re.findall(r' (?:x|y|x1|y1|x2|y2|cx|cy|d|width|height)="([^"]*)"', drawing)
            assert not [place for place in places if re.search("nan|inf|e", place)]
            ElementTree.fromstring(drawing)
        assert markdown(upset)
        json.dumps(compare(run, upset).to_json(), allow_nan=False)


def test_tables_of_changes_are_stacked_on_a_narrow_page_and_stay_tables_for_a_screen_reader(text_run):
    # Beside the name of a row there is no room for three cells on 375 px: the last was cut off.
    page = html.html(text_run)
    table = page[page.index('<table class="stacked"') :]
    table = table[: table.index("</table>")]
    assert "Before and after, measured in this run" in table
    assert table.startswith('<table class="stacked" role="table">')
    assert table.count('role="columnheader"') == 4
    assert table.count('role="row"') == 1 + table.count('role="rowheader"') == 1 + len(text_run.verdict.rows)
    assert table.count('role="cell"') == 3 * len(text_run.verdict.rows)
    style = page[page.index("@media screen and (max-width: 46rem)") :]
    assert ".stacked tr { display: grid;" in style[: style.index("@media (prefers-contrast")]
