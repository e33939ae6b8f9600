"""A card of a model: its data, its training and its quality, for people and for programs.

The form is that of model hubs: Markdown with a front matter in YAML, whose values here are JSON, which YAML includes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cellerate.data.files import file_digest
from cellerate.errors import ConfigError
from cellerate.files import atomic_write
from cellerate.format import rounded, size
from cellerate.tasks.describe.facts import counts_of, settings_of

_KINDS = {"text": "text-generation", "series": "time-series-forecasting", "embed": "feature-extraction"}
_WORDS = {"text": "writes text", "series": "forecasts series", "embed": "gives a vector for each line"}
_USES = {
    "text": 'model.generate("...", max_tokens=200)',
    "series": "model.forecast(rows)  # the last rows of a series, in the units of its data",
    "embed": 'model.embed(["...", "..."])',
}


class CardFigure(NamedTuple):
    """The quality of a model on data that it was not chosen on.

    Attributes:
        metric: The measure, with its unit.
        data: The data, in words.
        value: The model's figure.
        original: The figures of the model that it was made from; None for a model without an original.
    """

    metric: str
    data: str
    value: float
    original: float | None = None


def check_card(card: str | os.PathLike[str]) -> None:
    """Check that a card is not written over a model, or over anything else that is not a page.

    Raises:
        ConfigError: The path has another suffix than `.md`.
    """
    if Path(card).suffix != ".md":
        raise ConfigError(f"a card is written to a path ending in '.md', not {str(card)!r}.")


def write_card(
    card: str | os.PathLike[str], facts: Mapping[str, Any], judged: Sequence[CardFigure] = ()
) -> None:
    """Write the card of a model's file.

    Args:
        card: The file to write, `*.md`.
        facts: The facts by `file_info`, of a `.cell` or `.keras` file.
        judged: The known figures of its quality.

    Raises:
        ConfigError: As `check_card`.
        DataError: The file cannot be read.
        OutputError: The card could not be written.
    """
    check_card(card)
    text = card_text(facts, file_digest(Path(facts["file"])), judged)
    with atomic_write(card) as beside:
        beside.write_text(text, encoding="utf-8")


def card_text(facts: Mapping[str, Any], digest: str, judged: Sequence[CardFigure] = ()) -> str:
    """The text of a card.

    Args:
        facts: The facts by `file_info`.
        digest: The SHA-256 of the file.
        judged: The known figures of its quality.
    """
    name = Path(facts["file"]).name
    record = {
        "file": name,
        "sha256": digest,
        **{key: facts.get(key) for key in ("task", "parameters", "dtype", "data", "training", "cellerate")},
        "quality": [one._asdict() for one in judged],
    }
    front = {
        "library_name": "cellerate",
        "pipeline_tag": _KINDS.get(facts["task"], "other"),
        "tags": ["lstm", "keras", facts["dtype"]],
        "cellerate": record,
    }
    lines = [f"{key}: {_yaml(value)}" for key, value in front.items()]
    packed = facts["format"] == "cell"
    kind = "packed model, which runs on NumPy without Keras" if packed else "Keras model"
    parts = [
        "---\n" + "\n".join(lines) + "\n---",
        f"# {Path(name).stem}",
        f"A {kind}, which {_WORDS.get(facts['task'], 'Cellerate did not train')}: {facts['parameters']:,} "
        f"parameters in {facts['dtype']}, {size(facts['bytes'])}.",
        "## Use",
        _use(name, facts["task"], packed),
        "## Data and training",
        _training(facts),
        "## Quality",
        "\n".join(map(_quality, judged)) or "Not judged in this file.",
        "## Limits",
        "Write here what the model is for, whom its data describe, and what it must not be used for.",
    ]
    return "\n\n".join(parts) + "\n"


def _yaml(value: Any) -> str:
    """A value as JSON on one line; in YAML, these three characters would end the line."""
    text = json.dumps(value, ensure_ascii=False)
    return re.sub("[\x85\u2028\u2029]", lambda found: f"\\u{ord(found[0]):04x}", text)


def _use(name: str, task: str | None, packed: bool) -> str:
    if not packed:
        return f'```python\nimport keras\n\nmodel = keras.saving.load_model("{name}")\n```'
    use = _USES.get(str(task), "model.predict(x)")
    return f'```python\nimport cellerate\n\nmodel = cellerate.load("{name}")\n{use}\n```'


def _training(facts: Mapping[str, Any]) -> str:
    data, training = facts.get("data"), facts.get("training")
    lines = []
    if isinstance(data, dict):
        lines.append(f"- Data: {counts_of(data)}; fingerprint `{data.get('fingerprint')}`.")
    if isinstance(training, dict):
        lines.append(f"- Training: {settings_of(training)}.")
    return "\n".join(lines) or "Not known: Cellerate did not train it."


def _quality(judged: CardFigure) -> str:
    before = "" if judged.original is None else f"; of the original {rounded(judged.original)}"
    return f"- {judged.metric} on {judged.data}: {rounded(judged.value)}{before}."
