"""Reads files of JSON lines whose records hold texts: one object a line, and one of its fields is the text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from cellerate.data.files import Errors, with_newlines
from cellerate.errors import DataError
from cellerate.messages import argument

_SUFFIXES = (".jsonl", ".ndjson")
_SHOWN = 60


def is_json_lines(path: Path) -> bool:
    """True if a file's name says that it has JSON lines."""
    return path.suffix.lower() in _SUFFIXES


def field_texts(chunks: Iterable[str], path: Path, field: str | None, errors: Errors) -> Iterator[str]:
    """The text of each record; null is an empty text, and a line of white space is not a record.

    Args:
        chunks: The content of the file, cut anywhere.
        path: Its name, for messages.
        field: The field that has the text.
        errors: What to do with half of a surrogate pair, which JSON can write and a text cannot have: "strict" raises,
            "replace" puts U+FFFD.

    Raises:
        DataError: `field` is None; or a line is not a JSON object, or has no such field of text. The message names the
            line and what stands there.
    """
    for number, line in enumerate(_lines(chunks), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            # The parser's message ends with a line number within the record, which would mislead.
            reason = str(error).partition(": line ")[0]
            raise DataError(
                f"{place} is not JSON ({reason}): {_short(line)}. Each line must be an object."
            ) from error
        if not isinstance(record, dict):
            raise DataError(f"{place} is not a JSON object: {_short(line)}. Each line must be one.")
        if field is None:
            raise DataError(
                f"{path} has JSON lines: say which field has the text ({argument('field')}). Its first record has "
                f"{_fields(record)}."
            )
        if field not in record:
            raise DataError(
                f"{place} has no field {field!r}. It has {_fields(record)}: choose one ({argument('field')})."
            )
        value = record[field]
        if value is not None and not isinstance(value, str):
            raise DataError(
                f"{place}: the field {field!r} is {_short(json.dumps(value))}, not a text. The record has "
                f"{_fields(record)}."
            )
        yield _whole(value or "", errors, place, field)


def _lines(chunks: Iterable[str]) -> Iterator[str]:
    begun: list[str] = []
    for chunk in chunks:
        *ended, last = chunk.split("\n")
        for line in ended:
            yield "".join([*begun, line])
            begun = []
        begun.append(last)
    yield "".join(begun)


def _whole(text: str, errors: Errors, place: str, field: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if errors == "strict":
            code = ord(text[error.start])
            raise DataError(
                f"{place}: the field {field!r} has half of a surrogate pair (\\u{code:04x}), which is not a character. "
                f"Mend it, or pass {argument('errors', 'replace')} to read it as U+FFFD."
            ) from error
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return with_newlines(text)


def _fields(record: dict[str, Any]) -> str:
    kinds = {str: "text", bool: "true or false", int: "number", float: "number", list: "list", dict: "object"}
    return (
        ", ".join(f"{name!r} ({kinds.get(type(value), 'null')})" for name, value in record.items())
        or "no field"
    )


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")
