"""The record of a GPU suite run, made from its journals: `gpu-<date>.json`, and its printed summary."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu.device import KERNELS
from benchmarks.gpu.goals import goals
from benchmarks.gpu.journal import ENDS, Reader
from benchmarks.records import new_record

Record = dict[str, Any]
_MOST_TOLD = 20


def summarised(folder: Path, head: Record | None = None) -> Record:
    """The record made from the journals of a folder.

    Args:
        folder: The folder.
        head: The first fields of the record; None for those of the folder's record, or new ones.
    """
    parts: dict[str, dict[str, Any]] = {}
    result: dict[str, Any] = {}
    damaged = 0
    for file in sorted(folder.glob("*.jsonl")):
        reader = Reader(file)
        for line in reader.lines():
            name = line["part"]
            part = parts.setdefault(
                name, {"names": set(), "known": set(), "done": 0, "failed": {}, "left_out": {}}
            )
            _add(line, part, result.setdefault(name, []))
        damaged += reader.damaged
    record = {**(head or _head(folder)), "parts": {}, "result": result}
    for name, part in parts.items():
        names, known = part.pop("names"), part.pop("known")
        record["parts"][name] = {"items": len(names | known), **part, "not_begun": sorted(names - known)}
    _tell_machine(record)
    if damaged:
        record["damaged_lines"] = damaged
    result["goals"] = list(goals(result))
    return record


def _add(line: dict[str, Any], part: dict[str, Any], found: list[dict[str, Any]]) -> None:
    """Add a journal line to the facts and the findings of its part."""
    event, item = line["event"], line.get("item")
    if event == "items":
        part["names"].update(line["items"])
    elif event == "end":
        part |= {"ended": line["reason"], "seconds": line["seconds"]}
    if event not in ENDS:
        return
    # A line without an item belongs to the part.
    if item is not None:
        part["known"].add(item)
    if event == "done":
        part["done"] += 1
        # Readers have no use for the sizes of hundreds of compiled kernels.
        if line["part"] != "compiled":
            words = {name: line[name] for name in ("not_finite",) if name in line}
            found.append({"item": item, **line["found"], **words})
        if not line["found"].get("right", True):
            part["failed"][item] = {"type": "Wrong", "message": _short(line["found"])}
    elif event == "failed":
        part["failed"][item or "the part itself"] = line["error"]
    else:
        part["left_out"][item or "the part itself"] = line["reason"]


def _head(folder: Path) -> Record:
    """The head of the newest record of a folder; without a record, the run was on another machine."""
    for file in sorted(folder.glob("gpu-*.json"), reverse=True):
        try:
            return dict(json.loads(file.read_text()))
        except ValueError:
            continue
    return new_record("gpu") | {"machine": None, "versions": {}, "commit": "unknown"}


def _tell_machine(record: Record) -> None:
    """Move the facts about the GPU to the machine and the versions."""
    for one in record["result"].get("device", ()):
        record["versions"] |= one.get("versions", {})
        if one["item"] == KERNELS:
            record["gpu"] = one["gpu"]


def failures(record: Record) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each failed or wrong item, with the reason."""
    for name, part in record["parts"].items():
        for item, error in part["failed"].items():
            yield f"{name}: {item}", error


def report_lines(record: Record) -> Iterator[str]:
    """The printed lines of a record: parts, failures, and goals."""
    for name, part in record["parts"].items():
        ended = f"{part.get('ended', 'it was cut off')}, {part.get('seconds', 0):.0f} s"
        counts = f"{part['done']} of {part['items']} items, {len(part['failed'])} failed"
        yield f"{name}: {counts}, {len(part['left_out'])} left out; {ended}"
        yield from _some([f"  left out: {item}: {why}" for item, why in part["left_out"].items()])
    yield from _some([_failure_line(name, error) for name, error in failures(record)])
    found = record["result"]["goals"]
    for one in found:
        if one["figure"] is not None:
            state = "reached" if one["reached"] else "MISSED "
            yield f"{state} {one['goal']}: {one['figure']:,.2f} (at {one['at']} {one['limit']:,})"
    reached, missing = sum(one["reached"] for one in found), sum(one["figure"] is None for one in found)
    yield f"{reached} of {len(found)} goals are reached; {missing} were not measured"


def _some(lines: list[str]) -> list[str]:
    """The failures to print; the record has all."""
    more = len(lines) - _MOST_TOLD
    return lines if more <= 0 else [*lines[:_MOST_TOLD], f"  and {more} more"]


def _failure_line(where: str, error: dict[str, Any]) -> str:
    return f"FAILED {where}: {error['type']}: {error['message'][:200]}"


def event_line(line: dict[str, Any]) -> str | None:
    """The text printed for a new journal line; None for a line without news."""
    where = f"{line['part']}: {line.get('item') or 'the part itself'}"
    if line["event"] == "done":
        mark = "" if line["found"].get("right", True) else "WRONG "
        return f"{mark}{where} ({line['seconds']:.1f} s): {_short(line['found'])}"
    if line["event"] == "failed":
        return _failure_line(where, line["error"])
    if line["event"] == "left out":
        return f"left out {where}: {line['reason']}"
    return None


def _short(found: dict[str, Any]) -> str:
    text = json.dumps(found)
    return text if len(text) <= 160 else f"{text[:157]}..."
