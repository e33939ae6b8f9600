"""The training and the held-out part of a text: are they large enough, and how well does counting predict?

Both come from one count of the ids of each part.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from cellerate.data.tokenizers import Tokenizer
from cellerate.messages import Message, argument, marked

_CHUNK = 1 << 22
# The least mean count of a character in a text that a model can learn well from; a megabyte of English has more than
# ten thousand of each.
_FEW_OF_EACH = 50
# With fewer held-out characters, the bits per character of a well trained model are uncertain by a tenth and more.
_FEW_TO_JUDGE = 500
_NAMED = 5
_BYTES = 256


@dataclasses.dataclass(frozen=True)
class TextSplit:
    """The two parts of a text, counted.

    Attributes:
        tokenizer: The tokenizer of the ids.
        head: (V,) the count of each id in the part to train on.
        tail: (V,) its count in the held-out part.
        asked: Whether a part was to be held out.
    """

    tokenizer: Tokenizer
    head: np.ndarray
    tail: np.ndarray
    asked: bool

    def remarks(self) -> list[str]:
        """The advice before training: a sentence for each part that is too small."""
        unit = self.tokenizer.unit
        trained, held = int(self.head.sum()), int(self.tail.sum())
        different = int(np.count_nonzero(self.head))
        said: list[str] = []
        if trained < _FEW_OF_EACH * different:
            smaller = (
                f", or a smaller vocabulary ({argument('tokenizer', 'bytes')} has {_BYTES})"
                if different > _BYTES
                else ""
            )
            said.append(
                Message(
                    f"the text is small for its vocabulary: {trained:,} {unit} to train on, {different:,} different "
                    f"ones, so each occurs {trained / max(1, different):.1f} times on average, where {_FEW_OF_EACH} "
                    f"and more are wanted. Give a longer text{smaller}."
                )
            )
        if not self.asked:
            return said
        if held < 2:
            return [
                *said,
                f"nothing is held out: of {trained + held:,} {unit} the share asked for is {held}. No epoch is judged.",
            ]
        unseen = np.flatnonzero((self.tail > 0) & (self.head == 0))
        if len(unseen):
            names = ", ".join(repr(self.tokenizer.decode([one])) for one in unseen[:_NAMED])
            more = f" and {len(unseen) - _NAMED} more" if len(unseen) > _NAMED else ""
            verb, them = ("occurs", "it") if len(unseen) == 1 else ("occur", "them")
            said.append(
                Message(
                    f"{names}{more} {verb} in the held-out part only, {self.tail[unseen].sum() / held:.1%} of it: the "
                    f"model cannot learn {them}, and is judged by {them}. Give a longer text, or hold out another "
                    f"share ({argument('validation_fraction')})."
                )
            )
        if held < _FEW_TO_JUDGE:
            said.append(
                Message(
                    f"the held-out part has {held:,} {unit}: too few to tell one model from another. Give a longer "
                    f"text, or hold out more ({argument('validation_fraction')})."
                )
            )
        return said

    def unigram_bits(self) -> float:
        """Bits per id of the held-out part for a model that knows only the counts of ids in the other part.

        One is added to each count, so that no id is impossible.
        """
        chances = (self.head + 1) / (self.head.sum() + len(self.head))
        return float(-(self.tail * np.log(chances)).sum() / self.tail.sum() / math.log(2))


def count_split(tokenizer: Tokenizer, head: np.ndarray, tail: np.ndarray, *, asked: bool) -> TextSplit:
    """Count both parts of a text; the arguments are those of `TextSplit`, with ids (N,) and (M,) for the counts."""
    size = tokenizer.vocabulary_size
    return TextSplit(tokenizer, _counts(head, size), _counts(tail, size), asked)


def counting_verdict(model: float, counting: float, why_not: str) -> dict[str, Any]:
    """Compare a text model with counting characters.

    Args:
        model: The model's bits per character.
        counting: The bits per character of a model that knows only how often each character occurs.
        why_not: The explanation for a model that is worse.

    Returns:
        `beats_counting` and the `sentence`.
    """
    better = model < counting
    values = f"{model:,.2f} bits per character against {counting:.2f} by how often each occurs"
    worse = f"Worse than counting: {values}. {marked(why_not)}".strip()
    return {
        "beats_counting": better,
        "sentence": Message(f"Better than counting: {values}." if better else worse),
    }


def _counts(ids: np.ndarray, size: int) -> np.ndarray:
    found = np.zeros(size, np.int64)
    for start in range(0, len(ids), _CHUNK):
        found += np.bincount(ids[start : start + _CHUNK], minlength=size)
    return found
