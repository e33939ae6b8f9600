"""The common part of the verbs of `cellerate sweep`: the options that can be swept, and the display of a sweep."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from cellerate.cli.options import Backend, Json, Quiet, with_parameters, with_settings
from cellerate.cli.output import INTERRUPTED, command_to_resume, notify, print_json, print_result
from cellerate.cli.running import Tasks, progress_bar
from cellerate.listener import Callbacks
from cellerate.machine.environment import require
from cellerate.optimization.sweep import Axis, SweepSettings, axes_of, lines_of, sweep, written
from cellerate.settings import changed_fields
from cellerate.training.settings import TrainingSettings

_F = TypeVar("_F", bound=Callable[..., Any])

_UNUSED = (
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


class TaskOrModel(Tasks):
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


@dataclasses.dataclass(frozen=True)
class SweepOptions:
    """The options that all verbs of `sweep` take beside settings; they are declared here."""

    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder of the sweep: its record, page and charts.")
    ] = Path("sweep")
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the sweep in the folder, with the same settings.")
    ] = False
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the sweep in the folder.")] = False
    backend: Backend = None
    json: Json = False
    quiet: Quiet = False


@dataclasses.dataclass(frozen=True)
class Asked:
    """The options of a sweep that all of its verbs share.

    Attributes:
        axes: The values of the swept settings, by name.
        settings: The settings of the sweep.
        training: The settings of the training.
        how: The other options.
    """

    axes: Mapping[str, str]
    settings: SweepSettings
    training: TrainingSettings
    how: SweepOptions


def swept(*tasks: str) -> tuple[str, ...]:
    """The names of the options that take several values, for the records' own to be left out."""
    return tuple(dict.fromkeys(name for task in tasks for name in axes_of(task)))


def task_axes(task: str) -> dict[str, tuple[Axis, str]]:
    """The settings of a task that can be swept, for `sweep_verb`."""
    return {name: (axis, task) for name, axis in axes_of(task).items()}


def sweep_verb(axes: Mapping[str, tuple[Axis, str]], *tasks: str) -> Callable[[_F], _F]:
    """Adds the options that all sweeps have to a verb, which receives them as `asked`.

    Args:
        axes: The settings that can be swept by name, each with the task whose words it is described in.
        tasks: The tasks whose settings of training the verb takes.

    Returns:
        A decorator.
    """
    hints = get_type_hints(SweepOptions, include_extras=True)
    shared = [_parameter(one.name, one.default, hints[one.name]) for one in dataclasses.fields(SweepOptions)]
    varied = [_axis_parameter(axis, task) for axis, task in axes.values()]
    parts = [_parameter(one.name) for one in dataclasses.fields(Asked)]
    left_out = [*_UNUSED, *swept(*tasks)]

    def decorate(function: _F) -> _F:
        for add in (
            with_parameters("asked", parts, lambda values: Asked(**values)),
            with_parameters("how", shared, lambda values: SweepOptions(**values)),
            with_parameters("axes", varied, _given),
            with_settings("settings", SweepSettings, panel="Sweep"),
            with_settings("training", TrainingSettings, leave_out=left_out, panel="Training"),
        ):
            function = add(function)
        return function

    return decorate


def _axis_parameter(axis: Axis, task: str) -> inspect.Parameter:
    option = typer.Option(
        f"--{axis.name.replace('_', '-')}",
        help=axis.help(task),
        metavar="VALUES",
        show_default=written(axis.default(task)),
        rich_help_panel="Swept",
    )
    return _parameter(axis.name, None, Annotated[str | None, option])


def _parameter(name: str, default: Any = None, annotation: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def run_sweep(subject: str, paths: Sequence[str], asked: Asked, *records: Any) -> None:
    """Run a sweep, and show its results.

    Args:
        subject: The task, or the file of a model.
        paths: The files of the data.
        asked: The options that all sweeps have.
        records: The settings of the task.
    """
    how, options = asked.how, dict[str, Any](asked.axes)
    for part in (asked.settings, asked.training, *records):
        options |= changed_fields(part)
    for package in ("jinja2", "psutil"):
        require(package, "train", "a sweep")
    with progress_bar("trials" if asked.settings.search else "turns", how.quiet) as bar:
        try:
            record = sweep(
                subject,
                paths,
                how.output,
                resume=how.resume,
                overwrite=how.overwrite,
                backend=how.backend,
                listener=Callbacks(None if how.quiet else notify, bar),
                **options,
            )
        except KeyboardInterrupt:
            # A folder without a measurement goes.
            if how.output.is_dir():
                notify(f"interrupted; what was measured is kept. To go on:\n  {command_to_resume()}")
            else:
                notify("interrupted before anything was measured, so nothing is kept.")
            raise typer.Exit(INTERRUPTED) from None
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
