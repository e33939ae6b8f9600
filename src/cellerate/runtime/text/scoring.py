"""Scores texts: bits per character, id by id.

The whole text is known in advance, so many parts of it are read side by side.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np

from cellerate.errors import DataError, ModelError
from cellerate.kernels.decoder.arguments import MOST_STEPS, check_whole
from cellerate.kernels.decoder.contract import Steps
from cellerate.kernels.decoder.sampling import DIVERGED

CONTEXT = 512
"""Ids that a piece of a long text reads before its own first id."""

# Rows side by side, and ids of a call: together they bound the memory of a call, except for a text read in one go.
_ROWS, _IDS_PER_CALL = 64, 1 << 24
# A piece is at least this many times as long as its context, which is read but not scored.
_LEAST_CONTEXTS = 8


@dataclasses.dataclass(frozen=True)
class Score:
    """The score of a text.

    Attributes:
        bits_per_character: Mean of -log2 p over all ids but the first, times ids per character; less is better.
        nats_per_token: Mean of -ln p over all ids but the first.
        perplexity: e to the power of `nats_per_token`.
        tokens: How many ids were predicted: all but the first.
        characters: The number of characters of the whole text.
        log_probabilities: (tokens,) float32, ln p of each id but the first.
    """

    bits_per_character: float
    nats_per_token: float
    perplexity: float
    tokens: int
    characters: int
    log_probabilities: np.ndarray


def score_ids(
    steps: Steps, texts: Sequence[np.ndarray], characters: Sequence[int], *, context: int | None = CONTEXT
) -> list[Score]:
    """Scores texts, each from a state of zeros.

    A long text is read in pieces side by side. Every piece but the first starts `context` ids early, from a state
    of zeros, so that its own ids start from nearly the state that reading from the beginning would give: only what
    the model remembers for longer than `context` ids is missing.

    Args:
        steps: The model.
        texts: (N,) ids each, N at least 2.
        characters: How many characters each has.
        context: What a piece reads before its own ids; None reads each text from end to end in one go.

    Raises:
        ConfigError: `context` is below 1.
        DataError: A text has fewer than 2 ids, or an id is not in the vocabulary.
        ModelError: A logit is a NaN or an infinity.
    """
    if context is not None:
        check_whole("context", context, 1, MOST_STEPS)
    for number, ids in enumerate(texts):
        if len(ids) < 2:
            raise DataError(
                f"text {number} has {len(ids)} ids; expected at least 2, for the first has nothing before it."
            )
    pieces = [piece for number, ids in enumerate(texts) for piece in _pieces(number, len(ids), context)]
    # Pieces of similar length are read side by side.
    pieces.sort(key=lambda piece: piece.stop - piece.start)
    scores = [np.empty(len(ids) - 1, np.float32) for ids in texts]
    while pieces:
        longest = pieces[-1].stop - pieces[-1].start
        rows = max(1, min(_ROWS, _IDS_PER_CALL // longest))
        _score(steps, texts, pieces[-rows:], scores)
        del pieces[-rows:]
    return [_summary(*each) for each in zip(scores, characters, strict=True)]


@dataclasses.dataclass(frozen=True)
class _Piece:
    """Reads ids [start, stop) of a text and scores those from `first` on."""

    text: int
    start: int
    first: int
    stop: int


def _pieces(text: int, length: int, context: int | None) -> list[_Piece]:
    count = 1 if context is None else max(1, min(_ROWS, length // (_LEAST_CONTEXTS * context)))
    # A very long text has more pieces, to bound the memory.
    count = max(count, 1 if context is None else -(-length // (_IDS_PER_CALL // _ROWS)))
    ends = [1 + (length - 1) * n // count for n in range(count + 1)]
    return [
        _Piece(text, max(0, first - 1 - (context or 0)), first, stop)
        for first, stop in itertools.pairwise(ends)
    ]


def _score(steps: Steps, texts: Sequence[np.ndarray], pieces: list[_Piece], scores: list[np.ndarray]) -> None:
    lengths = np.array([piece.stop - piece.start for piece in pieces])
    ids = np.zeros((len(pieces), lengths.max()), np.int32)
    for row, piece in enumerate(pieces):
        ids[row, : lengths[row]] = texts[piece.text][piece.start : piece.stop]
    _, found = steps.log_probabilities(steps.initial_state(len(pieces)), ids, lengths)
    for row, piece in enumerate(pieces):
        scores[piece.text][piece.first - 1 : piece.stop - 1] = found[
            row, piece.first - 1 - piece.start : lengths[row] - 1
        ]


def _summary(log_probabilities: np.ndarray, characters: int) -> Score:
    nats = -float(log_probabilities.mean(dtype=np.float64))
    tokens = len(log_probabilities)
    if not math.isfinite(nats):
        raise ModelError(DIVERGED)
    return Score(
        bits_per_character=nats / math.log(2) * (tokens + 1) / characters,
        nats_per_token=nats,
        perplexity=math.exp(min(nats, 700.0)),
        tokens=tokens,
        characters=characters,
        log_probabilities=log_probabilities,
    )
