"""A card of a model says what people need and what programs read."""

import pytest

from cellerate.tasks.describe import CardFigure
from cellerate.tasks.describe.model_card import card_text

FACTS = {
    "file": "models/book.cell",
    "format": "cell",
    "bytes": 33_128,
    "task": "text",
    "parameters": 23_751,
    "dtype": "int8",
    "data": {"fingerprint": "c4cf", "characters": 19_600},
    "training": {"epochs": 1, "optimizer": "adam", "seed": 0, "track": []},
    "cellerate": "0.2.0",
}


def front_matter(text):
    yaml = pytest.importorskip("yaml")
    _, front, _ = text.split("---\n", 2)
    return yaml.safe_load(front)


def test_front_matter_is_yaml_with_the_facts_and_the_quality():
    text = card_text(FACTS, "ab" * 32, [CardFigure("bits per character", "the test part", 2.02, 2.0)])
    found = front_matter(text)
    assert (found["pipeline_tag"], found["tags"]) == ("text-generation", ["lstm", "keras", "int8"])
    record = found["cellerate"]
    assert (record["sha256"], record["data"], record["training"]) == (
        "ab" * 32,
        FACTS["data"],
        FACTS["training"],
    )
    assert record["quality"] == [
        {"metric": "bits per character", "data": "the test part", "value": 2.02, "original": 2.0}
    ]
    for part in (
        "# book\n",
        "23,751 parameters in int8, 33.1 kB",
        "- Data: 19,600 characters; fingerprint `c4cf`.",
        "- Training: epochs 1, optimizer adam, seed 0.",
        "- bits per character on the test part: 2.02; of the original 2.00.",
    ):
        assert part in text


def test_names_that_look_like_yaml_stay_names():
    facts = FACTS | {
        "file": "a: b # c\u2028\U0001f600.cell",
        "data": {"fingerprint": "no", "name: x": "- y\n---"},
    }
    found = front_matter(card_text(facts, "00"))
    assert found["cellerate"]["file"] == "a: b # c\u2028\U0001f600.cell"
    assert found["cellerate"]["data"] == facts["data"]
