"""`cellerate profile`: where the time of a model goes, and what would shorten it most."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cellerate.cli.backend import start_backend_for
from cellerate.cli.options import Backend, Json, Quiet, operand, option, with_settings
from cellerate.cli.output import notify, print_json, print_result
from cellerate.cli.tables import check_read
from cellerate.data.settings import TableOptions
from cellerate.errors import ConfigError
from cellerate.machine.environment import require
from cellerate.tasks.settings import ReadingOptions

if TYPE_CHECKING:
    from cellerate.observe.profiling.record import Profile
    from cellerate.optimization.workloads.base import Workload


@with_settings("reading", ReadingOptions, panel="Reading of series")
@with_settings("table", TableOptions, panel="Tables")
def profile(
    model: Annotated[Path, operand("A .keras file, of Cellerate or of anyone, or a .cell.")],
    reading: ReadingOptions,
    table: TableOptions,
    data: Annotated[
        list[str] | None,
        option(
            "Data of the model's task, for its own training; may be repeated. Without any, or for a "
            "model of anyone, batches are made up and lie in memory.",
            "--data",
            "-d",
        ),
    ] = None,
    batch_size: Annotated[
        int | None, option("Rows. Default: those of its training, else 32; for a .cell 1.", min=1)
    ] = None,
    steps: Annotated[
        int | None,
        option("Time steps of a row, where they are free. Default: those of its training, else 100.", min=1),
    ] = None,
    implementation: Annotated[
        Literal["auto", "keras"] | None,
        option(
            "auto: with Cellerate's kernels, as `train` does; keras: without. Default: auto for a model that "
            "`train` wrote, else keras."
        ),
    ] = None,
    changes: Annotated[
        bool, typer.Option("--changes/--no-changes", help="Try what would shorten it.")
    ] = True,
    output: Annotated[Path | None, option("A page to write, *.html.", "--output", "-o")] = None,
    trace: Annotated[
        Path | None, option("A folder for the backend's own trace: TensorBoard and Perfetto.")
    ] = None,
    backend: Backend = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say where the time of a training step goes, or of a call of a packed model, and what would shorten it most.

    A few steps are timed as they are, then under the backend's own profiler, then with each change that may help. The
    file of the model is not changed.

    Examples:
        cellerate profile book.keras --data book.txt -o profile.html

        cellerate profile mine.keras --batch-size 64 --steps 200 --backend jax

        cellerate profile book.cell --batch-size 16
    """
    if output is not None:
        _check_page(output)
    check_read(data, reading, table)
    announce = (lambda text: None) if quiet else (lambda text: notify(f"measuring: {text}"))
    if model.suffix == ".cell":
        if data or trace or implementation:
            raise ConfigError(
                "a packed model is profiled in calls on made-up inputs: leave out --data, --trace and --implementation."
            )
        from cellerate.observe.profiling.packed import profile_packed
        from cellerate.runtime.packed import load

        found = profile_packed(
            load(model), batch_size=batch_size or 1, steps=steps, changes=changes, notify=announce
        )
    else:
        require("psutil", "train", "measuring memory")
        # torch's profiler would announce its beginning and end on stderr.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        start_backend_for(model, backend, data or ())
        found = _training(
            model,
            _opened(model, data, reading, table) if data else None,
            batch_size,
            steps,
            implementation,
            changes=changes,
            trace=trace,
            notify=announce,
        )
    if output is not None:
        from cellerate.report.profile_page import write_profile

        write_profile(found, output)
    if json:
        print_json(found.to_dict())
        return
    print_result(str(found))
    if output is not None:
        notify(f"page: {output}")
    if trace is not None:
        notify(f"trace: {trace}  (tensorboard --logdir {trace})")


def _check_page(output: Path) -> None:
    from cellerate.files import check_writable

    require("jinja2", "report", "a page")
    if output.suffix != ".html":
        raise ConfigError(f"the page is written as .html, not {output.name!r}: name it *.html.")
    check_writable(output)


def _opened(path: Path, data: list[str], reading: ReadingOptions, table: TableOptions) -> "Workload":
    """Opens a model and data of its task."""
    from cellerate.optimization.workloads.opening import open_workload

    return open_workload(path, data, seed=0, reading=reading, table=table)


def _training(
    path: Path,
    work: "Workload | None",
    batch_size: int | None,
    steps: int | None,
    implementation: str | None,
    *,
    changes: bool,
    trace: Path | None,
    notify: Any,
) -> "Profile":
    """Profiles the training of a model: its own with data of its task, else on batches that are made up."""
    from cellerate.data.pipeline import KerasBatches
    from cellerate.layers.accelerate import accelerate
    from cellerate.models.storage import load_model
    from cellerate.observe.profiling.made_up import made_up_batches
    from cellerate.observe.profiling.training import profile as profile_training
    from cellerate.training.optimizers import build_optimizer
    from cellerate.training.settings import TrainingSettings

    common: dict[str, Any] = {"shuffle": False, "changes": changes, "trace": trace, "notify": notify}
    if work is not None:
        from cellerate.optimization.training import settings_of

        loaded, rows = work.model, batch_size or work.batch_size
        _check_sizes(loaded, rows, steps)
        source, held_out = work.source(loaded, rows, steps), work.validation(loaded, rows)
        feed: Any = KerasBatches(source)
        common["validation_data"] = None if held_out is None else KerasBatches(held_out)
        optimizer = build_optimizer(settings_of(work.record), len(source), loaded.dtype_policy.name)
        loaded.compile(optimizer=optimizer, loss=work.loss(loaded))
        ours = True
    else:
        loaded, record = load_model(path)
        ours = record is not None
        if not ours:
            # Its own loss, optimizer and settings.
            loaded, _ = load_model(path, compiled=True)
        _check_sizes(loaded, batch_size, steps)
        compiled = loaded.compiled
        feed, loss = made_up_batches(loaded, batch_size or 32, steps, loaded.loss if compiled else None)
        if not compiled:
            loaded.compile(build_optimizer(TrainingSettings(), 1, loaded.dtype_policy.name), loss)
    if implementation == "auto" or (implementation is None and ours):
        accelerate(loaded)
    return profile_training(loaded, feed, **common)


def _check_sizes(model: Any, rows: int | None, steps: int | None) -> None:
    """Refuses sizes that a model does not leave open."""
    shapes = [tensor.shape for tensor in getattr(model, "inputs", None) or ()]
    for name, place, given in (("--batch-size", 0, rows), ("--steps", 1, steps)):
        for shape in shapes:
            if given is not None and len(shape) > place and shape[place] not in (None, given):
                raise ConfigError(
                    f"{name} is {given}, but the model takes {shape[place]} and no other: leave {name} out."
                )
