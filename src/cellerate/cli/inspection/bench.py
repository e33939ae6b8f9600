"""`cellerate bench`: our cases on this machine beside every peer that is installed, and two such runs compared."""

from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cellerate.cli.options import Json, option
from cellerate.cli.output import command_to_repeat, notify, print_json, print_result
from cellerate.errors import BackendError, CellerateError, ConfigError
from cellerate.files import check_writable
from cellerate.machine.environment import BACKENDS, installed_backends, require
from cellerate.messages import argument
from cellerate.settings import check_choice, check_number

if TYPE_CHECKING:
    from cellerate.observe.bench.cases import BenchPlan
    from cellerate.observe.bench.compare import RecordComparison
    from cellerate.observe.bench.record import Record


def bench(
    only: Annotated[
        list[str] | None, option("A case: train, infer or generate; may be repeated. Default: all.")
    ] = None,
    backend: Annotated[
        list[str] | None, option("A Keras backend; may be repeated. Default: all installed.")
    ] = None,
    output: Annotated[
        Path | None,
        option(
            "The record, *.json, with its page beside it. Default: bench-TIME.json; a comparison is only printed.",
            "--output",
            "-o",
        ),
    ] = None,
    time_budget: Annotated[
        float, typer.Option(help="Seconds within which sessions begin anew; the first always runs.")
    ] = 540.0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Try in a minute whether everything runs; tells nothing of speed.")
    ] = False,
    compare: Annotated[
        tuple[Path, Path] | None,
        option("Compare two records of this machine.", "--compare", metavar="A.json B.json"),
    ] = None,
    against: Annotated[
        str | None,
        option(
            "Measure the Cellerate of another environment, too, turn by turn, and compare with it.",
            metavar="PYTHON",
        ),
    ] = None,
    threshold: Annotated[
        float, typer.Option(help="From which slowdown on a difference counts, as a share.")
    ] = 0.05,
    fail_on_regression: Annotated[
        bool,
        typer.Option(
            "--fail-on-regression",
            help="A comparison: end with 1 if Cellerate became slower, or nothing can be judged.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Measure this machine: Cellerate beside every installed peer, each checked against float64 first.

    Examples:
        cellerate bench -o today.json

        cellerate bench --compare before.json today.json --fail-on-regression
    """
    for package in ("jinja2", "pydantic"):
        require(package, "report", "bench")
    check_number("threshold", threshold, above=0, at_most=1)
    check_number("time_budget", time_budget, above=0)
    if output is not None and output.suffix != ".json":
        raise ConfigError(
            f"{argument('output')} is {str(output)!r}; expected a name that ends in '.json'. The page goes beside it."
        )
    if fail_on_regression and compare is None and against is None:
        raise ConfigError(
            "--fail-on-regression needs a comparison: give --compare A.json B.json, or --against."
        )
    if compare is not None:
        if only or backend or quick or against:
            raise ConfigError(
                "--compare reads two records and measures nothing: leave out --only, --backend, --quick and --against."
            )
        if output is not None and output.resolve() in {path.resolve() for path in compare}:
            raise ConfigError(
                f"{argument('output')} is {str(output)!r}, one of the records to compare; give another name."
            )
        _compare(*compare, threshold, output, fail_on_regression, json)
        return
    plan = _plan(only or (), backend or (), time_budget, quick, against)
    _run(plan, output, threshold, fail_on_regression, json)


def _run(
    plan: "BenchPlan", output: Path | None, threshold: float, fail_on_regression: bool, json: bool
) -> None:
    import datetime

    from cellerate.observe.bench.compare import compare
    from cellerate.observe.bench.process import check_other
    from cellerate.observe.bench.race import Race
    from cellerate.observe.bench.record import to_json
    from cellerate.observe.bench.view import lines

    target = output or Path(f"bench-{datetime.datetime.now():%Y-%m-%dT%H%M%S}.json")
    targets = [target, *([target.with_name(f"{target.stem}-against.json")] if plan.against else [])]
    pages = [path.with_suffix(".html") for path in targets]
    compared = target.with_name(f"{target.stem}-compared.html")
    for path in [*targets, *pages, *([compared] if plan.against else [])]:
        check_writable(path)
    if plan.against:
        check_other(plan.against)
    found = Race(plan, notify).run(command_to_repeat())
    for record, path, page in zip(found, targets, pages, strict=True):
        _write(record, path, page)
    files = [str(path) for both in zip(targets, pages, strict=True) for path in both]
    comparison = None
    if plan.against:
        comparison = compare(found[1], found[0], threshold)
        files.append(str(_draw(comparison, compared)))
    if json:
        result: dict[str, Any] = {"files": files, **to_json(found[0])}
        print_json(result | ({} if comparison is None else {"comparison": comparison.to_json()}))
    else:
        for line in lines(found[0]):
            print_result(line)
        print_result("")
        _show(comparison, files)
    if any(one.ours and one.wrong for one in found[0].left_out):
        raise typer.Exit(1)
    _end(comparison, fail_on_regression)


def _compare(
    before: Path, after: Path, threshold: float, output: Path | None, fail_on_regression: bool, json: bool
) -> None:
    from cellerate.observe.bench.compare import compare
    from cellerate.observe.bench.record import read_record
    from cellerate.report.html import write_page

    found = compare(read_record(before), read_record(after), threshold)
    files: list[str] = []
    if output is not None:
        for path in (output, output.with_suffix(".html")):
            check_writable(path)
        content = dumps(found.to_json(), indent=1, ensure_ascii=False) + "\n"
        files = [str(write_page(output, content)), str(_draw(found, output.with_suffix(".html")))]
    if json:
        print_json({**found.to_json(), "files": files})
    else:
        _show(found, files)
    _end(found, fail_on_regression)


def _plan(
    only: Sequence[str], backends: Sequence[str], budget: float, quick: bool, against: str | None
) -> "BenchPlan":
    from cellerate.observe.bench.cases import CASES, BenchPlan, quick_plan

    for name in only:
        check_choice("only", name, tuple(CASES))
    for name in backends:
        if name not in BACKENDS:
            raise BackendError(f"unknown backend {name!r}: expected one of {', '.join(BACKENDS)}.")
        if name not in installed_backends():
            here = ", ".join(installed_backends()) or "none"
            raise BackendError(f"backend {name!r} is not installed (installed here: {here}).")
    plan = BenchPlan(
        cases=tuple(case for case in CASES if not only or case in only),
        backends=tuple(name for name in BACKENDS if not backends or name in backends),
        budget_s=budget,
        against=against or "",
    )
    return quick_plan(plan) if quick else plan


def _write(record: "Record", path: Path, page: Path) -> None:
    from cellerate.observe.bench.record import write_record
    from cellerate.observe.bench.view import page_of
    from cellerate.report.bench_page import bench_html
    from cellerate.report.html import write_page

    write_record(record, path)
    write_page(page, bench_html(page_of(record)))


def _draw(found: "RecordComparison", path: Path) -> Path:
    from cellerate.observe.bench.compare_view import comparison_page
    from cellerate.report.bench_page import bench_html
    from cellerate.report.html import write_page

    return write_page(path, bench_html(comparison_page(found)))


def _show(found: "RecordComparison | None", files: Sequence[str]) -> None:
    if found is not None:
        from cellerate.observe.bench.compare_view import comparison_lines

        for line in comparison_lines(found):
            print_result(line)
    for path in files:
        print_result(path)


def _end(found: "RecordComparison | None", fail_on_regression: bool) -> None:
    if found is None or not fail_on_regression:
        return
    if not found.judged:
        raise CellerateError(
            "--fail-on-regression: nothing could be judged, so that nothing is known of regressions. Give two runs of "
            "the same cases with at least three sessions each."
        )
    if found.regressions:
        raise typer.Exit(1)
