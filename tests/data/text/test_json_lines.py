from pathlib import Path

import pytest

from cellerate.data.text.json_lines import field_texts, is_json_lines
from cellerate.errors import DataError

PATH = Path("a.jsonl")


def texts(content: str, field: str | None = "text", errors: str = "strict", size: int = 1000) -> list[str]:
    chunks = (content[at : at + size] for at in range(0, len(content), size))
    return list(field_texts(chunks, PATH, field, errors))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_field_of_each_record_is_a_text_wherever_the_chunks_are_cut(size: int) -> None:
    content = (
        '{"text": "one\\ntwo"}\n \n{"n": 1, "text": ""}\n{"text": null}\n{"text": "a\\r\\nb\\rc \\u00e9"}'
    )
    assert texts(content, size=size) == ["one\ntwo", "", "", "a\nb\nc é"]
    assert texts("") == []


@pytest.mark.parametrize(
    ("content", "field", "message"),
    [
        ('{"text": "a"}\n{"text": ', "text", r"^a\.jsonl, line 2 is not JSON \(Expecting value\): '\{\"text\": '\."),
        ("just text", "text", "line 1 is not JSON"),
        ('["a"]', "text", "line 1 is not a JSON object: "),
        ("7", "text", "line 1 is not a JSON object: '7'"),
        ('{"text": "a"}\n{"body": 1.5}', "text", r"line 2 has no field 'text'. It has 'body' \(number\)"),
        ("{}", "text", "It has no field"),
        ('{"text": ["a"], "title": "b"}', "text", r"the field 'text' is '\[\"a\"\]', not a text.*'title' \(text\)"),
        ('{"id": 1, "body": "b", "x": true, "y": null}', None, r"\(field\).*'body' \(text\).*'x' \(true or false\)"),
        ('{"text": "a\\ud83d"}', "text", r"half of a surrogate pair \(\\ud83d\)"),
        ("[" * 200_000, "text", "line 1 is not JSON"),
    ],
)  # fmt: skip
def test_record_that_cannot_be_used_is_named_with_its_line(
    content: str, field: str | None, message: str
) -> None:
    with pytest.raises(DataError, match=message) as raised:
        texts(content, field)
    assert len(str(raised.value)) < 400


def test_half_of_a_surrogate_pair_is_replaced_on_request() -> None:
    assert texts('{"text": "a\\ud83d b \\ud83d\\ude00"}', errors="replace") == ["a\ufffd b 😀"]


def test_json_lines_are_known_by_their_name() -> None:
    assert [is_json_lines(Path(n)) for n in ("a.jsonl", "a.NDJSON", "a.json", "jsonl")] == [
        True,
        True,
        False,
        False,
    ]
