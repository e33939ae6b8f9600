"""`cellerate info`: what a file of Cellerate is."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cellerate.cli.backend import start_backend_for
from cellerate.cli.options import Backend, Json, operand, option
from cellerate.cli.output import print_json, print_result
from cellerate.errors import ConfigError
from cellerate.format import counted, one_line, size

_FORMATS = {"keras": "a Keras model", "cell": "a packed model", "series": "a packed series"}


def info(
    file: Annotated[
        Path, operand("A .keras file, of Cellerate or of anyone, a .cell, or a folder *.series.")
    ],
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Compare every value of a packed series with its checksums, not a sample."
        ),
    ] = False,
    card: Annotated[
        Path | None,
        option(
            "Also write a card of a model, *.md: Markdown with its data, training and SHA-256, for people and "
            "programs.",
            "--card",
        ),
    ] = None,
    backend: Backend = None,
    json: Json = False,
) -> None:
    """Say what a model or a packed series is: its task, sizes and types, and what it was trained on and how.

    Examples:
        cellerate info book.cell

        cellerate info book.cell --card book.md
    """
    if file.suffix in (".keras", ".h5", ".hdf5"):
        start_backend_for(file, backend)
    from cellerate.tasks.describe import file_info, write_card

    facts = file_info(file, check=check)
    if card is not None:
        if facts["format"] == "series":
            raise ConfigError(f"a card is of a model, and {file} is a packed series; leave --card out.")
        write_card(card, facts)
    if json:
        print_json(facts)
        return
    rows = list(_of_series(facts) if facts["format"] == "series" else _of_model(facts))
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print_result(f"{name:<{width}}  {one_line(text)}")


def _of_model(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    from cellerate.tasks.describe import counts_of, settings_of

    yield from _of_file(facts)
    yield "task", facts["task"] or "none: Cellerate did not train it"
    yield "parameters", f"{facts['parameters']:,} in {facts['dtype']}"
    for name in ("features", "targets"):
        if name in facts:
            yield name, ", ".join(facts[name])
    if "window" in facts:
        yield "window", f"{facts['window']:,} rows, to a horizon of {facts['horizon']:,}"
        yield "quantiles", ", ".join(f"{level:g}" for level in facts["quantiles"]) or "none"
    if "vocabulary_size" in facts:
        yield "vocabulary", f"{facts['vocabulary_size']:,} ids"
    for name in ("inputs", "outputs"):
        yield name, _tensors(facts[name]) or "not known before the model is called"
    data, training = facts["data"], facts["training"]
    if isinstance(data, dict):
        yield "trained on", f"{counts_of(data)} (fingerprint {data.get('fingerprint')})"
    if isinstance(training, dict):
        yield "trained with", settings_of(training)
    if facts.get("cellerate"):
        yield "packed by", f"Cellerate {facts['cellerate']}, from the model {facts['name']!r}"


def _of_series(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from _of_file(facts)
    stretches = counted(facts["segments"], "stretch", "stretches")
    yield "rows", f"{facts['rows']:,} in {facts['series']:,} series, {stretches} without a gap"
    yield "columns", f"{', '.join(facts['columns'])} ({facts['dtype']})"
    if facts["first_time"] is not None:
        yield "times", f"{facts['first_time']} to {facts['last_time']}, {_apart(facts['frequency'])}"
    given = {name: value for name, value in facts["settings"].items() if value not in (None, [])}
    yield "packed with", ", ".join(f"{name} {value}" for name, value in given.items())
    yield "checked", f"{facts['checked']} of it"


def _apart(frequency: str | None) -> str:
    """The distance of rows in words: "every day", "every 15 minutes", "in steps of 3"."""
    if frequency is None:
        return "not evenly apart"
    if frequency.startswith("steps"):
        return f"in {frequency}"
    return f"every {frequency if frequency[0].isdigit() else frequency.removesuffix('s')}"


def _of_file(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "file", f"{facts['file']}: {_FORMATS[facts['format']]}, {size(facts['bytes'])}"


def _tensors(shapes: Mapping[str, Any]) -> str:
    """Names with their shapes; a size that may be any is shown as "any"."""
    shown = []
    for name, shape in shapes.items():
        sizes = "" if shape is None else ", ".join("any" if one is None else str(one) for one in shape)
        shown.append(f"{name} ({sizes})" if sizes else name)
    return ", ".join(shown)
