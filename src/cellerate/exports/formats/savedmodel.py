"""SavedModel: the next version in a folder of TensorFlow Serving, tried in TensorFlow."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from cellerate.errors import ModelError
from cellerate.exports.formats.base import ExportFormat, ExportRuntime, ExportSource, with_states
from cellerate.files import atomic_folder

if TYPE_CHECKING:
    from cellerate.program import Program

_STEP = "step"


def _programs(program: Program, stateful: bool) -> dict[str, Program]:
    programs = {"serving_default": program}
    try:
        programs[_STEP] = with_states(program)
    except ModelError:
        if stateful:
            raise
    return programs


def _next_version(target: Path) -> tuple[Path, AbstractContextManager[Path]]:
    versions = [int(path.name) for path in target.glob("*") if path.name.isdecimal()]
    version = target / str(max(versions, default=0) + 1)
    return version, atomic_folder(version)


def _write(source: ExportSource, precision: str, path: Path) -> None:
    from cellerate.exports.savedmodel import write_saved_model

    del precision
    write_saved_model(source.programs, source.trials, source.metadata, path)


def _open(source: ExportSource, path: Path, signature: str) -> ExportRuntime:
    from cellerate.exports.savedmodel import SavedModel

    del source
    return SavedModel(path, signature)


SAVEDMODEL = ExportFormat(
    name="savedmodel",
    suffix="",
    packages=("tensorflow",),
    extra="tensorflow",
    precisions=("float32",),
    tolerance=1e-5,
    runtime="TensorFlow",
    write=_write,
    open=_open,
    backend="tensorflow",
    programs=_programs,
    place=_next_version,
)
