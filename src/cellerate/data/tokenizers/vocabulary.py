"""Opens the vocabulary of a model that has no record of its own: what its ids mean, as its owner keeps it.

Scripts keep it as the text itself, whose characters they sort, as a list or as a dictionary; `data.tokenizers` opens
the tokenizers that Cellerate records.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from cellerate.data.files import read_text
from cellerate.data.tokenizers.opening import open_tokenizer
from cellerate.data.tokenizers.tokenizer import ByteTokenizer, CharacterTokenizer, Tokenizer
from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.messages import Message, argument, marked

Vocabulary: TypeAlias = str | os.PathLike[str] | Sequence[str] | Mapping[str, int] | Mapping[int, str]
"""The forms of a vocabulary that `open_vocabulary` takes."""

HAS_OWN_VOCABULARY = Message(
    f"{argument('vocabulary')} is for a model without one, and this one has its own: leave it out."
)
"""The message for a vocabulary that is not needed."""

# Keras's lookup layers have two entries that are not characters: the padding, and the one for unknown characters.
_SPECIAL = {"": "\0", "[UNK]": "\ufffd"}
_EXPECTED = (
    "expected the path of the text that the model was trained on, a list of its characters in the order of their ids "
    "(or a JSON file with it), the path of a tokenizer.json, or 'bytes'"
)


def open_vocabulary(spec: Vocabulary, size: int) -> Tokenizer:
    """Opens a vocabulary.

    Args:
        spec: What the ids mean, in one of these forms:

            - the path of the text that the model was trained on: ids are positions in sorted(set(text)), or in
              sorted(set(text.lower())) where only that has as many entries as the model has ids;
            - a list of characters in the order of their ids; "[UNK]" and "", as Keras's lookup layers have them,
              stand for U+FFFD and U+0000;
            - a dictionary from characters to ids, or from ids to characters; ids from 1 on leave 0 to the padding;
            - the path of a JSON file (`*.json`) with such a list or dictionary, or with a tokenizer of the package
              `tokenizers`;
            - "bytes".
        size: How many ids the model predicts.

    Raises:
        ConfigError: `spec` has none of these forms.
        DataError: The file cannot be used.
        ModelError: The model predicts another number of ids.
        BackendError: The package `tokenizers` is needed and not installed.
    """
    if isinstance(spec, Mapping):
        return _of_size(_from_list(_in_order(spec)), "vocabulary", size)
    if not isinstance(spec, str | os.PathLike):
        # A set has another order in each process.
        if isinstance(spec, set | frozenset) or not isinstance(spec, Iterable):
            raise ConfigError(f"{argument('vocabulary')} is a {type(spec).__name__}; {_EXPECTED}.")
        return _of_size(_from_list(list(spec)), "vocabulary", size)
    name = os.fspath(spec)
    if name == "bytes":
        return _of_size(ByteTokenizer(), "bytes", size)
    path = Path(name)
    if not path.is_file():
        raise DataError(f"vocabulary {name!r} not found: {_EXPECTED}.")
    return _from_json(path, size) if path.suffix == ".json" else _from_text(path, size)


def _from_text(path: Path, size: int) -> Tokenizer:
    """The vocabulary of a text, in lower case if only that has the size."""
    distinct: set[str] = set()
    lower: set[str] = set()
    try:
        for text in read_text(path):
            distinct.update(text)
            lower.update(text.lower())
    except DataError as error:
        if isinstance(error.__cause__, OSError):
            raise
        # The arguments that the error names are of the training, where they say how a text is read.
        raise DataError(
            f"{path} is not UTF-8: convert it, or give a list of its characters in the order of their ids."
        ) from error
    if not distinct:
        raise DataError(f"{path} is empty: expected the text that the model was trained on.")
    if len(distinct) != size == len(lower):
        distinct = lower
    if len(distinct) != size:
        raise ModelError(
            f"{path} has {len(distinct):,} distinct characters ({len(lower):,} in lower case), and the model predicts "
            f"{size:,} different ids: give the text that it was trained on, or a list of its characters in the order "
            "of their ids."
        )
    return CharacterTokenizer("".join(distinct))


def _from_json(path: Path, size: int) -> Tokenizer:
    try:
        content = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}. Give a text another suffix.") from error
    if isinstance(content, dict) and "model" in content:
        found = open_tokenizer(os.fspath(path))
        assert found is not None  # noqa: S101 (a path names one)
        return _of_size(found, f"{path}", size)
    if isinstance(content, dict):
        content = _in_order(content)
    if not isinstance(content, list):
        raise DataError(f"{path} holds a {type(content).__name__}: expected a list of characters.")
    return _of_size(_from_list(content), f"{path}", size)


def _from_list(entries: Sequence[Any]) -> Tokenizer:
    characters = [_SPECIAL.get(one, one) if isinstance(one, str) else one for one in entries]
    for place, one in enumerate(characters):
        if not isinstance(one, str) or len(one) != 1:
            raise ConfigError(
                f"entry {place} of {argument('vocabulary')} is {one!r:.40}, which is not a single character; "
                "for words and pieces of words give the path of a tokenizer.json."
            )
    try:
        return CharacterTokenizer("".join(characters), in_order=True)
    except DataError as error:
        raise ConfigError(f"{argument('vocabulary')} cannot be used: {marked(error)}") from error


def _in_order(ids: Mapping[Any, Any]) -> list[Any]:
    """The entries of a dictionary from characters to ids, or from ids to characters, in the order of the ids."""
    to_ids = all(isinstance(one, int | np.integer) for one in ids.values())
    try:
        by_id = (
            {int(one): entry for entry, one in ids.items()}
            if to_ids
            else {int(n): one for n, one in ids.items()}
        )
    except (TypeError, ValueError):
        by_id = {}
    if 1 in by_id:
        by_id.setdefault(0, "")
    if len(by_id) < len(ids) or sorted(by_id) != list(range(len(by_id))):
        raise ConfigError(
            f"{argument('vocabulary')} is a dictionary of {len(ids):,} entries, and its ids are not 0, 1, 2 and so "
            f"on: {_EXPECTED}."
        )
    return [by_id[one] for one in range(len(by_id))]


def _of_size(tokenizer: Tokenizer, name: str, size: int) -> Tokenizer:
    if tokenizer.vocabulary_size != size:
        raise ModelError(
            f"{name} has {tokenizer.vocabulary_size:,} entries, and the model predicts {size:,} different ids: give "
            "the vocabulary that it was trained with."
        )
    return tokenizer
