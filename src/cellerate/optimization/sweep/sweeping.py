"""`sweep`: trains with several settings side by side, and measures their effects."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cellerate.data.files import check_paths
from cellerate.errors import ConfigError
from cellerate.files import LOCK, exclusive, is_taken
from cellerate.listener import SILENT, Listener
from cellerate.machine.environment import machine, select_backend, versions
from cellerate.messages import argument
from cellerate.optimization.sweep.command import train_command_of
from cellerate.optimization.sweep.devices import check_devices
from cellerate.optimization.sweep.plan import Base, Plan, plan, read_settings, settings_of_point
from cellerate.optimization.sweep.points import STATES
from cellerate.optimization.sweep.record import FILE_NAME, PointRecord, SweepRecord, read_record
from cellerate.optimization.sweep.run import Sweep
from cellerate.optimization.sweep.search import Search
from cellerate.optimization.sweep.settings import SweepSettings
from cellerate.optimization.sweep.space import Dimension, space_of
from cellerate.optimization.sweep.study import FILE as STUDY, Study, check_optuna
from cellerate.optimization.sweep.trained import trained_settings
from cellerate.optimization.sweep.verdict import judge
from cellerate.optimization.sweep.view import CHART, PAGE, draw
from cellerate.tasks.settings import RECORDS

_Path = str | os.PathLike[str]
# The settings in which a continued sweep may differ.
_FREE_ON_RESUME = ("time_budget", "trials")


def sweep(
    subject: _Path,
    data: _Path | Sequence[_Path],
    output: _Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    backend: str | None = None,
    listener: Listener = SILENT,
    **options: Any,
) -> SweepRecord:
    """Train a model with several settings side by side, briefly and equally long, and report the effect of each.

    Each point trains in its own process, which reads the files of the data. The points take turns, so that a slow
    minute of the machine affects all of them. They are judged on held-out data: see the guide, "Sweeping".

    Args:
        subject: "text", "series" or "embed" for a new model of that task; or the file of a model that Cellerate
            trained, which each point continues.
        data: The files of the data, as `train_text`, `train_series` or `train_embed` take them.
        output: The folder of the sweep: `sweep.json`, `sweep.html` and the charts.
        resume: Continues an interrupted sweep of the same settings.
        overwrite: Replaces a sweep that is in the folder.
        backend: The Keras backend; None for the default of training.
        listener: Receives progress.
        options: The settings of the sweep (`SweepSettings`) and those of the training. A setting that can be swept
            takes one value, a list such as `[32, 64]`, or a range such as `"1..4096"`; `device` and `implementation`
            are settings, too.

    Returns:
        The record of the sweep; its `verdict` has the sentence, and the command that trains the chosen point.

    Raises:
        CellerateError: The settings, the data or the folder cannot be used.

    Example:
        >>> found = cellerate.sweep("series", "ETTh1.csv", "sweep", target="OT", batch_size="16..256")
        >>> found.verdict["sentence"]
    """
    own = {field.name for field in dataclasses.fields(SweepSettings)}
    settings = SweepSettings(**{name: value for name, value in options.items() if name in own})
    given = {name: value for name, value in options.items() if name not in own}
    paths = [os.fspath(path) for path in check_paths(data)]
    base, several = _read(os.fspath(subject), paths, given, select_backend(backend))
    if settings.search:
        check_optuna()
        space = space_of(base, given)
        check_devices([*several.get("device", ()), base.value("device")], base.backend)
        # A search may draw the largest values of all ranges together.
        settings_of_point(base, {one.axis.name: max(one.values) for one in space if one.axis.kind == "count"})
        return _searched(
            base, space, settings, Path(output), resume=resume, overwrite=overwrite, listener=listener
        )
    made = plan(base, several, settings)
    check_devices([point.values.get("device", base.value("device")) for point in made.points], base.backend)
    for point in made.points:
        settings_of_point(base, point.values)
    folder = Path(output)
    with _own_folder(folder, resume=resume, overwrite=overwrite):
        record = _record_of(made, settings, folder, resume=resume)
        _announce(made, listener)
        try:
            Sweep(made, settings, record, folder, listener).run()
        finally:
            if any(point.measured for point in record.points):
                record.verdict = judge(record)
            _conclude(record, folder, listener)
    return record


def _searched(
    base: Base,
    space: tuple[Dimension, ...],
    settings: SweepSettings,
    folder: Path,
    *,
    resume: bool,
    overwrite: bool,
    listener: Listener,
) -> SweepRecord:
    """Searches, or helps another process that searches there."""
    made = Plan(base, {one.axis.name: one.values for one in space}, ())
    identity = {
        **{field.name: getattr(base, field.name) for field in dataclasses.fields(base)},
        "space": [(one.axis.name, one.values, one.ranged) for one in space],
        "rounds": settings.rounds,
        "seconds": settings.seconds,
    }
    seed = int(base.parts.get("training", {}).get("seed", 0))
    if is_taken(folder):
        record = _new_record(made, settings)
        _help(
            Search(
                base,
                space,
                settings,
                record,
                folder,
                Study(folder, settings.study, identity, None, joins=True),
                listener,
            )
        )
        return record
    with _own_folder(folder, resume=resume, overwrite=overwrite):
        record = _record_of(made, settings, folder, resume=resume)
        study = Study(folder, settings.study, identity, seed)
        search = Search(base, space, settings, record, folder, study, listener)
        if study.has_begun and not resume:
            # A process of another folder that shares the database began the search.
            _help(search)
            return record
        try:
            search.run()
        finally:
            _conclude(record, folder, listener)
    return record


def _conclude(record: SweepRecord, folder: Path, listener: Listener) -> None:
    """Write the record with its command, the page and the charts; remove a sweep without measurements."""
    if any(point.measured for point in record.points):
        record.verdict["command"] = train_command_of(record)
        record.write(folder)
        draw(record, folder, listener)
    else:
        _clear(folder)


def _help(search: Search) -> None:
    """Trains trials for the search of another process."""
    search.listener.message("another process searches there already: this one helps it")
    count = search.help()
    search.record.status = "helped"
    search.record.verdict = {
        "sentence": f"{count} trials were trained for the search of another process, which reports what was found."
    }


def _read(
    subject: str, paths: Sequence[str], given: Mapping[str, Any], backend: str
) -> tuple[Base, dict[str, tuple[Any, ...]]]:
    """Read the settings of a task or of a trained model."""
    if given.get("carry_states"):
        raise ConfigError(
            f"{argument('carry_states')} cannot be swept: points train on shuffled windows. Leave it out."
        )
    if subject in RECORDS:
        return read_settings(subject, paths, given, backend=backend)
    if not Path(subject).is_file():
        raise ConfigError(
            f"{subject!r} is neither a task nor the file of a model: give {', '.join(RECORDS)}, or a .keras file."
        )
    task, recorded = trained_settings(subject, given)
    return read_settings(
        task, paths, given, backend=backend, model=str(Path(subject).absolute()), recorded=recorded
    )


@contextlib.contextmanager
def _own_folder(folder: Path, *, resume: bool, overwrite: bool) -> Iterator[None]:
    """Lock the folder for this sweep, and remove an earlier sweep that it replaces."""
    there = (folder / FILE_NAME).is_file() or (folder / STUDY).is_file()
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; a sweep writes a folder: give another {argument('output')}.")
    if there and not (resume or overwrite):
        raise ConfigError(
            f"{folder} holds a sweep already: go on with it ({argument('resume', True)}), replace it "
            f"({argument('overwrite', True)}), or give another {argument('output')}."
        )
    if resume and not there:
        raise ConfigError(
            f"{folder} does not hold a sweep to continue: leave {argument('resume', True)} out."
        )
    if folder.is_dir() and not there and any(path.name != LOCK for path in folder.iterdir()):
        raise ConfigError(f"{folder} holds other files: give a new folder as {argument('output')}.")
    with exclusive(folder):
        if there and overwrite and not resume:
            _clear(folder)
        try:
            yield
        finally:
            # A folder without measurements is removed.
            if not ((folder / FILE_NAME).is_file() or (folder / STUDY).is_file()):
                with contextlib.suppress(OSError):
                    (folder / LOCK).unlink()
                    folder.rmdir()


def _clear(folder: Path) -> None:
    """Removes a sweep from its folder."""
    shutil.rmtree(folder / STATES, ignore_errors=True)
    for name in (FILE_NAME, STUDY, PAGE, f"{CHART}.png", f"{CHART}.svg"):
        (folder / name).unlink(missing_ok=True)


def _record_of(made: Plan, settings: SweepSettings, folder: Path, *, resume: bool) -> SweepRecord:
    """Return a new record, or the record of the continued sweep.

    Raises:
        ConfigError: The sweep in the folder has other settings or is finished.
    """
    new = _new_record(made, settings)
    if not resume or not (folder / FILE_NAME).is_file():
        return new
    found = read_record(folder)
    _check_same(found, new, folder)
    if found.status == "finished" and all(point.status != "left out" for point in found.points):
        raise ConfigError(f"the sweep in {folder} has been finished: there is nothing left to do.")
    found.settings, found.status = new.settings, "running"
    for point in found.points:
        if point.status == "left out":
            point.status, point.reason = "waiting", ""
    # A continued sweep has its whole budget for the remaining points.
    found.notes, found.seconds = [], 0.0
    return found


def _new_record(made: Plan, settings: SweepSettings) -> SweepRecord:
    """Return the record of a sweep before it begins."""
    base = made.base
    return SweepRecord(
        task=base.task,
        data=list(base.paths),
        model=base.model or "",
        backend=base.backend,
        parts={part: dict(fields) for part, fields in base.parts.items()},
        axes={name: list(values) for name, values in made.axes.items()},
        settings=dataclasses.asdict(settings),
        machine=machine(),
        versions=versions(),
        began=datetime.now(UTC).isoformat(timespec="seconds"),
        points=[PointRecord(point.label, dict(point.values), point.control) for point in made.points],
    )


def _check_same(found: SweepRecord, new: SweepRecord, folder: Path) -> None:
    """Raises `ConfigError` if a sweep is to go on with other settings."""
    before, now = found.as_json(), new.as_json()
    for record in (before, now):
        own = record.pop("settings")
        record["settings"] = {name: value for name, value in own.items() if name not in _FREE_ON_RESUME}
    # As JSON has them: lists, not tuples.
    now = json.loads(json.dumps(now))
    for name in ("task", "data", "model", "backend", "parts", "axes", "settings"):
        if before[name] != now[name]:
            one, other = _differing(name, before[name], now[name])
            raise ConfigError(
                f"the sweep in {folder} is another one: {one} there, {other} now. Go on with the same settings, or "
                f"sweep into another folder ({argument('output')})."
            )


def _differing(name: str, before: Any, now: Any) -> tuple[str, str]:
    """The first difference of two settings, in words."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*before, *now]):
            if before.get(key) != now.get(key):
                return _differing(key, before.get(key), now.get(key))
    return f"{name} is {before}", f"{name} is {now}"


def _announce(made: Plan, listener: Listener) -> None:
    count = len(made.points)
    axes = ", ".join(f"{len(values)} of {name.replace('_', ' ')}" for name, values in made.axes.items())
    listener.message(f"{count} points: {axes}; the control is {made.points[0].label}")
