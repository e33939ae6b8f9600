"""`cellerate info`: what a file of Cellerate is."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cellerate.cli.backend import start_backend
from cellerate.cli.options import Backend, Config, Json
from cellerate.cli.output import print_json, print_result
from cellerate.format import one_line, size

_FORMATS = {"keras": "a Keras model", "cell": "a packed model", "series": "a packed series"}
_SHOWN = ("epochs", "optimizer", "learning_rate", "precision", "implementation", "backend", "seed")


def info(
    file: Annotated[
        Path,
        typer.Argument(
            help="A .keras file, of Cellerate or of anyone, a .cell, or a folder *.series.",
            show_default=False,
        ),
    ],
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Compare every value of a packed series with its checksums, not a sample."
        ),
    ] = False,
    backend: Backend = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Say what a model or a packed series is: its task, sizes and types, and what it was trained on and how.

    Example:
        cellerate info book.cell
    """
    if file.suffix in (".keras", ".h5", ".hdf5"):
        start_backend(backend)
    from cellerate.tasks.file_info import file_info

    told = file_info(file, check=check)
    if json:
        print_json(told)
        return
    rows = list(_of_series(told) if told["format"] == "series" else _of_model(told))
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print_result(f"{name:<{width}}  {one_line(text)}")


def _of_model(told: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from _of_file(told)
    yield "task", told["task"] or "none: Cellerate did not train it"
    yield "parameters", f"{told['parameters']:,} in {told['dtype']}"
    for name in ("features", "targets"):
        if name in told:
            yield name, ", ".join(told[name])
    if "window" in told:
        yield "window", f"{told['window']:,} rows, to a horizon of {told['horizon']:,}"
        yield "quantiles", ", ".join(f"{level:g}" for level in told["quantiles"]) or "none"
    if "vocabulary_size" in told:
        yield "vocabulary", f"{told['vocabulary_size']:,} ids"
    for name in ("inputs", "outputs"):
        yield name, _tensors(told[name]) or "not known before the model is called"
    data, training = told["data"], told["training"]
    if isinstance(data, dict):
        counts = [f"{value:,} {name}" for name, value in data.items() if isinstance(value, int)]
        yield "trained on", f"{', '.join(counts)} (fingerprint {data.get('fingerprint')})"
    if isinstance(training, dict):
        yield "trained with", ", ".join(f"{name} {training[name]}" for name in _SHOWN if name in training)
    if told.get("cellerate"):
        yield "packed by", f"Cellerate {told['cellerate']}, from the model {told['name']!r}"


def _of_series(told: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from _of_file(told)
    yield (
        "rows",
        f"{told['rows']:,} in {told['series']:,} series, {told['segments']:,} stretches without a gap",
    )
    yield "columns", f"{', '.join(told['columns'])} ({told['dtype']})"
    if told["first_time"] is not None:
        yield "times", f"{told['first_time']} to {told['last_time']}, {_apart(told['frequency'])}"
    yield "packed with", ", ".join(f"{name} {value}" for name, value in told["settings"].items())
    checked = told["checked"]
    yield "checked", f"{checked} of it" if checked else "no: packed by an earlier version, without checksums"


def _apart(frequency: str | None) -> str:
    """The distance of rows in words: "every day", "every 15 minutes", "in steps of 3"."""
    if frequency is None:
        return "not evenly apart"
    if frequency.startswith("steps"):
        return f"in {frequency}"
    return f"every {frequency if frequency[0].isdigit() else frequency.removesuffix('s')}"


def _of_file(told: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "file", f"{told['file']}: {_FORMATS[told['format']]}, {size(told['bytes'])}"


def _tensors(shapes: Mapping[str, Any]) -> str:
    """Names with their shapes; a size that may be any is shown as "any"."""
    told = []
    for name, shape in shapes.items():
        sizes = "" if shape is None else ", ".join("any" if one is None else str(one) for one in shape)
        told.append(f"{name} ({sizes})" if sizes else name)
    return ", ".join(told)
