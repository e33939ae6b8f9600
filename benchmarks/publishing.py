"""The rules of docs/measured/method.md: which records may be published, and why the others may not.

The pages show only these records, and `run.py` reports the reasons to the person who measures.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.generation.race import bound
from benchmarks.inference.race import TOLERANCES
from benchmarks.quality.packing import GOALS
from benchmarks.records import RESULTS
from cellerate.format import percent

Record = dict[str, Any]

_LOAD = [f"load.{when}.{what}" for when in ("before", "during", "after") for what in ("others", "stolen")]
FIELDS = (
    *("case", "date", "command", "commit", "clean", "anyway", "measured", "kernel", "result", "seconds"),
    *(f"machine.{name}" for name in ("cpu", "processor", "cores", "memory_bytes", "memory_speed", "system")),
    *("versions.cellerate", "versions.numpy", "threads.core", "threads.environment"),
    *("allocator.library", "allocator.preloaded", "allocator.environment"),
    *("load.before.average", "load.after.average", *_LOAD),
)
"""The fields that a record must hold; a dot leads into a field."""
MAY_BE_NONE = ("machine.memory_speed", "threads.core")
"""Fields that may be empty: virtual machines hide the memory's speed, and a core may be missing."""
MOST_OTHERS, MOST_STOLEN = 0.05, 0.02
"""The largest shares of processor time that other processes and other virtual machines may take."""
UNTIMED = ("loss", "quality", "series", "embed", "compression")
"""Cases that publish model quality but no times, so other load on the machine does not change their figures."""
LOSS_APART = {"float32": 0.002, "mixed_bfloat16": 0.01}
"""The allowed relative difference between the losses on our kernels and on Keras's."""
CHECKED_BY = {"step": "loss", "small": "loss", "variants": "loss"}
"""Cases that are checked by another case."""


def unpublishable(record: Record) -> list[str]:
    """The reason against publishing a record; empty if it may be published."""
    missing = [name for name in FIELDS if not _has(record, name)]
    found = [f"it lacks {', '.join(missing)}"] if missing else []
    commit = str(record.get("commit", "unknown"))
    if not record.get("clean", True) or commit == "unknown" or commit.endswith("-dirty"):
        found.append(f"its code is not surely that of a commit ({commit})")
    if record.get("anyway"):
        found.append("it was written with --anyway")
    for name in _LOAD:
        share = _at(record, name)
        most = MOST_OTHERS if name.endswith("others") else MOST_STOLEN
        if record.get("case") not in UNTIMED and isinstance(share, int | float) and not share <= most:
            who = "other processes" if name.endswith("others") else "other virtual machines"
            when = name.split(".")[1]
            found.append(
                f"{who} took {percent(share)} of the processors' time {when} the run (at most {percent(most)})"
            )
    if not missing:
        found += red(record["case"], record["result"])
    return found


def _wrong(records: list[dict[str, Any]], what: str) -> list[str]:
    """The contestants whose error exceeds the limit of their precision."""
    found = []
    for one in records:
        most = TOLERANCES[one["precision"]]
        if not one["error"] <= most:
            told = f"{one['contestant']}, {what}, {one['precision']}"
            found.append(f"{told}: an error of {one['error']:.1e} (at most {most:.1e})")
    return found


def red(case: str, result: dict[str, Any]) -> list[str]:
    """The correctness checks of a case that its result doesn't pass, in words."""
    found: list[str] = []
    if case == "generate":
        for size in result["sizes"]:
            for name, about in size["contestants"].items():
                found += [f"{name}, {why}" for why in _errors_beyond(about)]
    elif case == "inference":
        for cell in result["cells"]:
            found += _wrong(cell["records"], f"{cell['model']}, B={cell['batch']}")
    elif case == "latency":
        for stack in result["stacks"]:
            found += _wrong(stack["records"], stack["stack"])
    elif case == "quality":
        for precision, goal in GOALS.items():
            worse = result["packed"][precision]["increase"]
            if not worse <= goal:
                found.append(f"{precision} is {percent(worse)} worse (at most {percent(goal)})")
    elif case == "loss":
        found += _losses_apart(result["losses"])
    elif case == "optimize":
        for task, run in result["runs"].items():
            for row in run["verdict"]["rows"]:
                if row["quantity"] is None:
                    drop = row["before"] - row["after"]
                    worse = (drop if row["higher_is_better"] else -drop) / abs(row["before"])
                    if not worse <= run["max_quality_loss"]:
                        most = percent(run["max_quality_loss"])
                        found.append(f"{task}: {row['label']} is {percent(worse)} worse (at most {most})")
    return found


def _errors_beyond(about: dict[str, Any]) -> Iterator[str]:
    """The errors of the jobs that took part; a key is a job, or the precision of several jobs."""
    judged = {name for job in about.get("jobs", ()) for name in (job, job.split()[-1])}
    for name, error in about.get("errors", {}).items():
        most = bound(name)
        if name in judged and not error <= most:
            yield f"{name}: an error of {error:.1e} (at most {most:.1e})"


def _losses_apart(losses: list[dict[str, Any]]) -> Iterator[str]:
    keras = {(one["backend"], one["steps"]): one for one in losses if one["implementation"] == "keras"}
    for one in losses:
        if one["implementation"].startswith("cellerate"):
            of_keras = keras[one["backend"], one["steps"]]["mean_of_last_20"]
            apart = abs(one["mean_of_last_20"] / of_keras - 1)
            most = LOSS_APART[one["policy"]]
            if not apart <= most:
                told = f"{one['backend']}, {one['policy']}: the loss is {percent(apart)} off Keras's"
                yield f"{told} (at most {percent(most)})"


def processor_of(record: Record) -> str:
    """The machine of a record in words, equal for records of the same kind of machine."""
    return f"{record['machine']['processor']}; {record['machine']['cores']} cores"


def read(case: str, folder: Path = RESULTS) -> list[Record]:
    """All records of a case, newest first, each with its "file"."""
    files = sorted(folder.glob(f"{case}-2*.json"), reverse=True)
    return [json.loads(file.read_text()) | {"file": file} for file in files]


def published(case: str, folder: Path = RESULTS) -> dict[str, list[Record]]:
    """The publishable records of a case by processor, newest first; only those of the same code and versions.

    A table shows the first of each list, and the whole list shows how far a figure varies. If another case checks this
    one, a processor on which the newest record of that check is red has no list.
    """
    found: dict[str, list[Record]] = {}
    for record in read(case, folder):
        if not unpublishable(record):
            found.setdefault(processor_of(record), []).append(record)
    if check := CHECKED_BY.get(case):
        for processor in _red_on(check, folder):
            found.pop(processor, None)
    return {
        processor: [one for one in records if _code(one) == _code(records[0])]
        for processor, records in sorted(found.items())
    }


def _red_on(case: str, folder: Path) -> set[str]:
    """The processors on which the newest whole record of a check is red."""
    newest: dict[str, Record] = {}
    for record in read(case, folder):
        if all(_has(record, name) for name in FIELDS):
            newest.setdefault(processor_of(record), record)
    return {processor for processor, record in newest.items() if red(case, record["result"])}


def _code(record: Record) -> tuple[Any, Any]:
    return record["measured"], record["versions"]


def _has(record: Record, name: str) -> bool:
    value = _at(record, name)
    return value is not ... and (value is not None or name in MAY_BE_NONE)


def _at(record: Record, name: str) -> Any:
    """The value of a field, or an ellipsis if there is none."""
    value: Any = record
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return ...
        value = value[part]
    return value
