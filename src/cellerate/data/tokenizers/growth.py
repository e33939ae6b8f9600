"""A bound of how much longer a tokenizer file can make a text.

The package `tokenizers` runs what the file says, and ends the process if the memory does not suffice: a few
replacements, each of one character by many, one after another, are enough.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from cellerate.errors import DataError

MOST_GROWTH = 1024
"""The most characters that a character may become."""

_PARTS = ("normalizers", "pretokenizers", "decoders")
# The steps that may give characters other ones, of which each gives a few at most.
_OTHERS = ("NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "StripAccents", "BertNormalizer", "ByteLevel")


def check_growth(config: Any) -> None:
    """Refuses a tokenizer file that may make a text, or its decoded ids, many times as long.

    Args:
        config: The file's JSON values.

    Raises:
        DataError: A character may become more than `MOST_GROWTH`, or a table of characters claims another size.
    """
    if not isinstance(config, Mapping):
        return
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        if _growth(_steps(config.get(name))) > MOST_GROWTH:
            raise DataError(
                f"the {name} of the tokenizer file may make a text more than {MOST_GROWTH} times as long: expected "
                "replacements that hardly change the length."
            )


def _steps(part: Any) -> list[Mapping[str, Any]]:
    """The steps of a part, one after another."""
    found, left = [], [part]
    while left:
        step = left.pop()
        if not isinstance(step, Mapping):
            continue
        inner = [one for name in _PARTS if isinstance(step.get(name), list) for one in step[name]]
        left += reversed(inner)
        if not inner:
            found.append(step)
    return found


def _growth(steps: list[Mapping[str, Any]]) -> float:
    """A bound of the characters that one becomes in all steps.

    From the last step to the first: what becomes of each character in the steps from there on. A replaced text gives
    its share to each of its characters.
    """
    others, single = 1.0, dict[str, float]()
    for step in reversed(steps):
        content = str(step.get("content") or "") if "pattern" in step else ""
        most = max([others, *single.values()])
        if most > MOST_GROWTH:
            return most
        if step.get("type") == "Precompiled":
            others, single = most * _longest(step.get("precompiled_charsmap")), {}
        elif step.get("type") in _OTHERS:
            others, single = most, {}
        elif content:
            made = sum(single.get(one, others) for one in content)
            pattern = step.get("pattern")
            text = pattern.get("String") if isinstance(pattern, Mapping) else None
            if isinstance(text, str) and len(text) == 1:
                single[text] = made
            elif isinstance(text, str) and text:
                single |= {one: max(single.get(one, others), made / len(text)) for one in text}
            else:
                # A pattern may match a single character, and the empty text beside it.
                others, single = others + made, {one: size + made for one, size in single.items()}
    return max([others, *single.values()])


def _longest(charsmap: Any) -> int:
    """The longest text of a table of characters, which follows a trie whose size is in the first four bytes."""
    try:
        data = base64.b64decode(charsmap or "")
    except (binascii.Error, TypeError, ValueError):
        return 1
    size = int.from_bytes(data[:4], "little")
    if size > len(data):
        raise DataError(
            f"the tokenizer file is damaged: its table of characters has {len(data):,} bytes and says {size:,}, for "
            "which the package tokenizers would take memory. Save the tokenizer again."
        )
    texts = data[4 + size :]
    return max(1, *map(len, texts.split(b"\0")))
