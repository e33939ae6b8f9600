"""The common part of the verbs of `cellerate sweep`: the options of what can be swept, and what is shown of a sweep."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import typer
from typer.core import TyperGroup

from cellerate.cli.output import command_to_resume, notify, print_json, print_result
from cellerate.cli.running import progress_bar
from cellerate.listener import Callbacks
from cellerate.machine.environment import require
from cellerate.optimization.sweep import Axis, SweepSettings, axes_of, lines_of, sweep, written

_F = TypeVar("_F", bound=Callable[..., Any])
_INTERRUPTED = 130

UNUSED = (
    "max_seconds",
    "time_budget",
    "patience",
    "plateau_patience",
    "plateau_factor",
    "checkpoint_every_s",
    "keep_checkpoints",
    "log_every",
    "track",
)
"""The settings of training that a sweep has no use for: how a run ends, and what it keeps."""

Folder = Annotated[
    Path, typer.Option("--output", "-o", help="The folder of the sweep: its record, page and charts.")
]
ResumeSweep = Annotated[
    bool, typer.Option("--resume", help="Go on with the sweep in the folder, with the same settings.")
]
OverwriteSweep = Annotated[bool, typer.Option("--overwrite", help="Replace the sweep in the folder.")]


class TaskOrModel(TyperGroup):
    """The verb `sweep`: a task, or at once the file of a model.

    Attributes:
        default: The command that takes the file.
    """

    default = "model"

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Takes what ends like a model's file as the argument of `default`."""
        if args and args[0] not in self.commands and args[0].endswith(".keras"):
            args = [self.default, *args]
        return super().resolve_command(ctx, args)


def swept(*tasks: str) -> tuple[str, ...]:
    """The names of the options that take several values, for the records' own to be left out."""
    return tuple(dict.fromkeys(name for task in tasks for name in axes_of(task)))


def with_axes(keyword: str, axes: Mapping[str, tuple[Axis, str]], *, panel: str) -> Callable[[_F], _F]:
    """Adds an option for each setting that can be swept, to a verb.

    Args:
        keyword: The verb's argument that receives what was given, by name.
        axes: The settings by name, each with the task whose words it is described in.
        panel: The heading of these options in the help.

    Returns:
        A decorator.
    """

    def decorate(function: _F) -> _F:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.name != keyword]
        added = [_parameter(axis, task, panel) for axis, task in axes.values()]

        def verb(*arguments: Any, **options: Any) -> Any:
            values = {name: options.pop(name) for name in axes}
            given = {name: value for name, value in values.items() if value is not None}
            return function(*arguments, **options, **{keyword: given})

        verb.__name__, verb.__doc__, verb.__module__ = (
            function.__name__,
            function.__doc__,
            function.__module__,
        )
        verb.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        verb.__annotations__ = {one.name: one.annotation for one in [*own, *added]}
        return cast(_F, verb)

    return decorate


def task_axes(task: str) -> dict[str, tuple[Axis, str]]:
    """The settings of a task that can be swept, for `with_axes`."""
    return {name: (axis, task) for name, axis in axes_of(task).items()}


def _parameter(axis: Axis, task: str, panel: str) -> inspect.Parameter:
    option = typer.Option(
        f"--{axis.name.replace('_', '-')}",
        help=axis.help(task),
        metavar="VALUES",
        show_default=written(axis.default(task)),
        rich_help_panel=panel,
    )
    return inspect.Parameter(
        axis.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option]
    )


def given_fields(*records: Any) -> dict[str, Any]:
    """The fields of records that are not the defaults."""
    found = {}
    for record in records:
        for field in dataclasses.fields(record):
            value, default = getattr(record, field.name), cast(Any, field.default)
            same = list(value) == list(default) if isinstance(value, list | tuple) else value == default
            if not same:
                found[field.name] = value
    return found


@dataclasses.dataclass(frozen=True)
class SweepOptions:
    """The options that all verbs of `sweep` take beside settings.

    Attributes:
        output: The folder.
        resume: Whether to go on.
        overwrite: Whether to replace what is there.
        backend: The Keras backend.
        json: Whether to print the record.
        quiet: Whether to show no progress.
    """

    output: Path
    resume: bool
    overwrite: bool
    backend: str | None
    json: bool
    quiet: bool


def run_sweep(
    subject: str,
    paths: Sequence[str],
    settings: SweepSettings,
    options: Mapping[str, Any],
    how: SweepOptions,
) -> None:
    """Sweeps, and shows what came of it.

    Args:
        subject: The task, or the file of a model.
        paths: The files of the data.
        settings: Those of the sweep.
        options: Those of the training.
        how: What all verbs take.
    """
    for package in ("jinja2", "psutil"):
        require(package, "train", "a sweep")
    with progress_bar("trials" if settings.search else "turns", how.quiet) as bar:
        try:
            record = sweep(
                subject,
                paths,
                how.output,
                resume=how.resume,
                overwrite=how.overwrite,
                backend=how.backend,
                listener=Callbacks(None if how.quiet else notify, bar),
                **given_fields(settings),
                **options,
            )
        except KeyboardInterrupt:
            # A folder without a measurement goes.
            if how.output.is_dir():
                notify(f"interrupted; what was measured is kept. To go on:\n  {command_to_resume()}")
            else:
                notify("interrupted before anything was measured, so nothing is kept.")
            raise typer.Exit(_INTERRUPTED) from None
    if how.json:
        print_json(record.as_json())
        return
    for line in lines_of(record):
        print_result(line)
    print_result(record.verdict["sentence"])
    if how.quiet or record.status == "helped":
        return
    if command := record.verdict.get("command"):
        notify(f"to train {record.verdict['chosen']}:\n  {command}")
    notify(f"page: {how.output / 'sweep.html'}   record: {how.output / 'sweep.json'}")
