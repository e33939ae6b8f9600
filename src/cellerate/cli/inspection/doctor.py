"""`cellerate doctor`: what slows LSTMs down or breaks them on this machine, what it costs, and the fix."""

import dataclasses
from typing import TYPE_CHECKING

import typer

from cellerate.cli.inspection.env import without_kernels
from cellerate.cli.options import Json
from cellerate.cli.output import print_json, print_result

if TYPE_CHECKING:
    from cellerate.machine.doctor import Core, Finding


def doctor(json: Json = False) -> None:
    """Say what slows LSTMs down or breaks them on this machine, what it costs, and how to mend it.

    It looks at GPUs, the native core, versions of packages, settings, threads, memory, disks, and what else runs.
    Problems come first, then notes, then what is as it should be. Figures are measured now, unless other programs
    use the processors.

    The exit code is 1 if there is a problem, else 0.

    Examples:
        cellerate doctor

        cellerate doctor --json
    """
    from cellerate.machine.doctor import examine

    findings = examine(_core(), kernels=without_kernels)
    problems = sum(finding.status == "problem" for finding in findings)
    if json:
        print_json({"findings": [dataclasses.asdict(finding) for finding in findings], "problems": problems})
    else:
        for finding in findings:
            for line in _lines(finding):
                print_result(line)
        notes = sum(finding.status == "note" for finding in findings)
        print_result(f"{_counted(problems, 'problem')}, {_counted(notes, 'note')}")
    if problems:
        raise typer.Exit(1)


def _core() -> "Core":
    """The native core's facts about itself."""
    from cellerate.errors import ConfigError
    from cellerate.kernels import native
    from cellerate.machine.doctor import Core

    missing = native.why_unavailable()
    if missing is not None:
        return Core(missing=missing)
    try:
        return Core(
            target=native.target(),
            targets=tuple(native.available_targets()),
            threads=native.num_threads(),
            measure=_measure,
        )
    except ConfigError as error:
        return Core(refused=str(error))


def _measure(target: str, precision: str, threads: int) -> float:
    """The native core's peak on a target and some threads; what is set stays so for all else."""
    from cellerate.kernels import native

    before = native.target()
    native.set_target(target)
    try:
        return float(native.core().measure_peak(precision, threads))
    finally:
        native.set_target(before)


def _lines(finding: "Finding") -> list[str]:
    lines = [f"{finding.status:<8} {finding.topic}: {finding.found}"]
    lines += [f"         costs: {finding.cost}"] if finding.cost else []
    return lines + ([f"         fix:   {finding.fix}"] if finding.fix else [])


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
