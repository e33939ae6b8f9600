"""The pages and the chart that are made of the records hold what the records say."""

import json
import re
from xml.etree import ElementTree

import pytest

import headline
import tables


@pytest.fixture
def records():
    return {case: json.loads(tables.path_of(case).read_text()) for case in headline.CASES}


def faster(records, contestant, job, factor):
    for size in records["generate"]["result"]["sizes"]:
        for one in size["records"]:
            if (one["contestant"], one["job"]) == (contestant, job):
                one["characters_per_s"] *= factor


@pytest.mark.parametrize("path", [*tables.PAGES, tables.CHART], ids=lambda path: path.name)
def test_page_is_what_make_docs_makes_of_the_records(path):
    assert path.read_text() == tables.pages()[path]


def test_every_table_is_on_a_page_once():
    found = [case for page in tables.PAGES for case in re.findall(r"<!-- table: (\w+) -->", page.read_text())]
    assert sorted(found) == sorted(["headline", *tables.TABLES])


def test_keras_in_the_headline_is_its_fastest_backend(records):
    def loop():
        return next(row for row in headline.table(records) if row[0].endswith("compiled as one loop"))

    before = loop()
    assert "(tensorflow)" in before[1]
    faster(records, "jax", "loop", 2)
    after = loop()
    assert "(jax)" in after[1]
    assert float(after[3]) < float(before[3])


def test_chart_is_small_and_has_a_bar_for_each_speed(records):
    text = headline.chart(records)
    assert len(text.encode()) < 60_000
    root = ElementTree.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    bars = [one for one in root.iter(f"{space}rect") if one.get("class") in ("keras", "ours")]
    speeds = [one.text for one in root.iter(f"{space}text") if re.fullmatch(r"[\d.,]+( [kM])?", one.text)]
    assert len(bars) == len(speeds) == 19
    assert max(float(one.get("x")) + float(one.get("width")) for one in bars) < float(root.get("width"))


def test_case_without_a_record_says_so():
    with pytest.raises(FileNotFoundError, match=r"benchmarks/run\.py nothing"):
        tables.path_of("nothing")
    assert tables.table("nothing") == "Not measured yet."
