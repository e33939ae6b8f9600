"""Write the tables of README.md and docs/, and the chart: `python benchmarks/pages.py`.

They are made of the publishable records in `results/` alone, so a copy without git makes the same pages. `--stale`
lists the tables whose code has changed since, a list that would differ after each commit.
"""

import argparse
import functools
import os
import re
import sys
from collections.abc import Callable, Collection
from itertools import chain
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Started by its path, Python looks for modules in this folder instead of the project's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.gpu import figures
from benchmarks.measured import changed
from benchmarks.publishing import published, read
from benchmarks.records import RESULTS, ROOT
from benchmarks.tables import by_case, headline, standings
from cellerate.format import rounded

_MEASURED = ROOT / "docs" / "measured"
PAGES = (
    ROOT / "README.md",
    *(
        _MEASURED / f"{name}.md"
        for name in ("training", "running", "smaller", "data-and-forecasts", "gpus", "method")
    ),
    ROOT / "docs" / "guide" / "scale.md",
    *(
        ROOT / "docs" / "questions" / f"{name}.md"
        for name in ("slow-generation", "slow-training-on-a-cpu", "to-production")
    ),
)
CHART = _MEASURED / "headline.svg"
METHOD = _MEASURED / "method.md"
MARKED = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
# The facts that a GPU figure depends on.
_ON_A_GPU = ("jax", "torch", "tensorflow", "keras", "cudnn")
Record = dict[str, Any]


def markdown(rows: list[list[str]]) -> str:
    """A Markdown table."""
    head, *rest = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rest])


def measured_on(record: Record) -> str:
    """The machine in words, and the versions."""
    machine, versions = record["machine"], record["versions"]
    used = ", ".join(
        f"{name} {versions[name]}" for name in ("keras", "tensorflow", "jax", "torch") if name in versions
    )
    return f"{machine['processor']}; {machine['cores']} cores; {used or 'no framework'}"


def source_of(record: Record, page: Path, name: str = "Record") -> str:
    """The record as a link, its date and its commit."""
    return (
        f"[{name}]({_link(record['file'], page)}) of {record['date'][:10]} at commit {record['commit'][:7]}"
    )


def table(case: str, page: Path, folder: Path = RESULTS) -> str:
    """The tables of a case, one for each processor that it was measured on."""
    found = []
    for newest, *_ in published(case, folder).values():
        note = by_case.NOTES[case](newest["result"]) + "\n\n" if case in by_case.NOTES else ""
        found.append(
            f"{markdown(by_case.TABLES[case](newest['result']))}\n\n{note}{measured_on(newest)}. "
            f"{source_of(newest, page)}; again with `make bench CASE={case}`."
        )
    return "\n\n".join(found) or not_measured(page)


def first_tables(
    page: Path,
    folder: Path = RESULTS,
    rows_of: Callable[[headline.Records], list[list[str]]] = headline.table,
    cases: Collection[str] = tuple(headline.ROWS),
) -> str:
    """Tables of gains, one for each processor, with links to the newest records that they use."""
    found = []
    for records in by_processor(list(cases), folder).values():
        newest = {case: repeats[0] for case, repeats in records.items()}
        machines = " ".join(dict.fromkeys(f"{measured_on(record)}." for record in newest.values()))
        sources = ", ".join(source_of(record, page, case) for case, record in newest.items())
        found.append(f"{markdown(rows_of(records))}\n\n{machines} Records: {sources}.")
    return "\n\n".join(found) or not_measured(page)


def worst_tables(page: Path, folder: Path = RESULTS) -> str:
    """The worst result of each case, a row for each, the smallest ratio first; one table for each processor."""
    found = []
    for records in by_processor([*standings.CONTESTS], folder).values():
        pairs = {case: standings.worst(case, repeats[0]["result"]) for case, repeats in records.items()}
        rows = [["Case", "Where", "Cellerate", "the best opponent", "ratio"]]
        for case, one in sorted(pairs.items(), key=lambda pair: pair[1].ratio if pair[1] else 0.0):
            if one is not None:
                where = f"{one.contest.what}, {one.ours.precision}"
                told = [one.contest.shown(each) for each in (one.ours, one.opponent)]
                rows.append([source_of(records[case][0], page, case), where, *told, rounded(one.ratio)])
        found.append(f"{markdown(rows)}\n\n{measured_on(next(iter(records.values()))[0])}.")
    return "\n\n".join(found) or not_measured(page)


def by_gpu(folder: Path = RESULTS) -> dict[str, list[Record]]:
    """The records of committed code by GPU, newest first; the load of these briefly lent machines is not watched."""
    found: dict[str, list[Record]] = {}
    for record in read("gpu", folder):
        if record["clean"]:
            found.setdefault(record["gpu"], []).append(record)
    return dict(sorted(found.items()))


def newest_with(records: list[Record], *parts: str) -> Record | None:
    """The first record with parts of the GPU suite."""
    return next((one for one in records if all(one["result"].get(part) for part in parts)), None)


def first_gpu_table(page: Path, folder: Path = RESULTS) -> str:
    """The README's table of the first GPU, with links to its records."""
    for gpu, records in by_gpu(folder).items():
        fit, beside = newest_with(records, "fit"), newest_with(records, "tensorflow")
        if fit and beside:
            rows = figures.first(fit["result"] | {"tensorflow": beside["result"]["tensorflow"]})
            sources = f"{source_of(fit, page, 'torch')}, {source_of(beside, page, 'TensorFlow')}"
            return f"{markdown(rows)}\n\nMillions of characters a second on an {gpu}. Records: {sources}."
    return not_measured(page)


def gpu_tables(page: Path, folder: Path = RESULTS) -> str:
    """Each table of each GPU, from the newest record that has it."""
    found = []
    for gpu, records in by_gpu(folder).items():
        used: list[Record] = []
        for table_of, parts in figures.TABLES.items():
            if record := newest_with(records, *parts):
                found.append(markdown(table_of(record["result"])))
                used += [record] if record not in used else []
        installed = dict(chain.from_iterable(record["versions"].items() for record in used))
        named = [f"{name} {installed[name]}" for name in _ON_A_GPU if name in installed]
        reached = [goal["reached"] for goal in used[0]["result"]["goals"]]
        found.append(
            f"{gpu}; {', '.join(named)}. "
            f"{sum(reached)} of {len(reached)} goals are reached. "
            f"{'. '.join(source_of(record, page) for record in used)}; again with `python -m benchmarks.gpu.suite`."
        )
    return "\n\n".join(found) or not_measured(page)


def not_measured(page: Path) -> str:
    """The text in place of a table without a publishable record."""
    return f"Not measured yet by [the rules]({_link(METHOD, page)}#the-rules)."


def by_processor(cases: list[str], folder: Path = RESULTS) -> dict[str, headline.Records]:
    """The publishable records of some cases, by processor and then by case."""
    found: dict[str, headline.Records] = {}
    for case in cases:
        for processor, records in published(case, folder).items():
            found.setdefault(processor, {})[case] = records
    return dict(sorted(found.items()))


def pages(folder: Path = RESULTS) -> dict[Path, str]:
    """Each file made from the records, with its expected content.

    In a page, the content between `<!-- table: CASE -->` and `<!-- end -->` is replaced.
    """
    made = {CHART: headline.chart(by_processor([*headline.ROWS], folder))}
    special = {
        "first": functools.partial(
            first_tables, rows_of=headline.first, cases=("typical", "typical-avx2", "generate", "inference")
        ),
        "gains_training": functools.partial(first_tables, cases=("typical", "typical-avx2")),
        "gains_generating": functools.partial(first_tables, cases=("generate", "smaller")),
        "gains_predicting": functools.partial(first_tables, cases=("inference", "quality")),
        "worst": worst_tables,
        "gpu": gpu_tables,
        "first_gpu": first_gpu_table,
    }
    for page in PAGES:

        def fill(found: re.Match[str], page: Path = page) -> str:
            case = found[2]
            text = special[case](page, folder) if case in special else table(case, page, folder)
            return f"{found[1]}{text}\n{found[3]}"

        made[page] = MARKED.sub(fill, page.read_text())
    return made


def stale(root: Path = ROOT, folder: Path = RESULTS) -> list[str]:
    """A line for each table without a publishable record, or whose measured code has changed since its record."""
    lines = []
    for case in by_case.TABLES:
        found = published(case, folder)
        if not found:
            count = len(read(case, folder))
            lines.append(f"{case}: no publishable record ({count} that are not)")
        for processor, (newest, *_) in found.items():
            if paths := changed(newest, root):
                lines.append(
                    f"{case}, {processor}: changed since {newest['commit'][:7]}, {newest['date'][:10]}: "
                    f"{', '.join(paths)}"
                )
    return lines


def _link(file: Path, page: Path) -> str:
    """The link from a page to a file, relative inside the project."""
    return Path(os.path.relpath(file, page.parent)).as_posix()


def main() -> None:
    """Write the pages, or list the stale tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--stale",
        action="store_true",
        help="write nothing; list the tables whose measured code has changed since, and exit with 1 if there are any",
    )
    if parser.parse_args().stale:
        lines = stale()
        print("\n".join(lines) or "every table is of the code as it is")
        sys.exit(bool(lines))
    for path, text in pages().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
