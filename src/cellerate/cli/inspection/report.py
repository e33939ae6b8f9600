"""`cellerate report`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cellerate.cli.gains import print_gains
from cellerate.cli.options import Json, operand, option
from cellerate.cli.output import print_json, print_result
from cellerate.errors import CellerateError, ConfigError
from cellerate.machine.environment import require


def report(
    folders: Annotated[
        list[Path], operand("The folder of a run of `cellerate optimize`, or of two to compare.")
    ],
    output: Annotated[
        Path | None,
        option(
            "A folder to write to. Default: that of the run; a comparison is only printed.", "--output", "-o"
        ),
    ] = None,
    fail_on_regression: Annotated[
        bool,
        typer.Option(
            "--fail-on-regression",
            help="Two runs: end with 1 if anything became worse, or nothing can be compared.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Draw the report of a run of `optimize` again, or compare two runs.

    Examples:
        cellerate report out/

        cellerate report before/ after/ -o compared/ --fail-on-regression
    """
    for package in ("jinja2", "pydantic"):
        require(package, "report", "a report")
    if len(folders) > 2:
        raise ConfigError(
            f"report takes the folder of one run, or of two to compare; {len(folders)} are given."
        )
    if len(folders) == 2:
        _compare(folders[0], folders[1], output, fail_on_regression, json)
        return
    if fail_on_regression:
        raise ConfigError("--fail-on-regression needs two runs: give the folder of the one before, too.")
    _draw(folders[0], output, json)


def _draw(source: Path, output: Path | None, json: bool) -> None:
    from cellerate.format import one_line
    from cellerate.report.html import write_html
    from cellerate.report.markdown import write_markdown
    from cellerate.report.record import read_run
    from cellerate.report.view import outcome

    run = read_run(source)
    folder = output or (source if source.is_dir() else source.parent)
    sentence, _ = outcome(run)
    html, markdown = write_html(run, folder), write_markdown(run, folder)
    if json:
        found: dict[str, Any] = {"model": run.model, "status": run.status, "verdict": sentence}
        print_json({**found, "html": str(html), "markdown": str(markdown)})
        return
    print_result(one_line(sentence))
    print_result(str(html))
    print_result(str(markdown))
    print_gains(run)


def _compare(before: Path, after: Path, output: Path | None, fail_on_regression: bool, json: bool) -> None:
    from cellerate.report.compare import compare
    from cellerate.report.compare_page import comparison_lines, write_comparison
    from cellerate.report.record import read_run

    found = compare(read_run(before), read_run(after))
    written = write_comparison(found, output) if output is not None else ()
    if json:
        print_json({**found.to_json(), "files": [str(path) for path in written]})
    else:
        for line in comparison_lines(found):
            print_result(line)
        for path in written:
            print_result(str(path))
    if fail_on_regression and not found.judged:
        raise CellerateError(
            f"--fail-on-regression: nothing of {before} and {after} could be compared, so that nothing is known of "
            "regressions. Give two runs of one task that measured something."
        )
    if fail_on_regression and found.regressions:
        raise typer.Exit(1)
