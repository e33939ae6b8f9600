"""Turns lines of text into batches of few shapes, for the autoencoder.

Lines differ in length, so they are sorted into buckets, padded to the bucket's bound and masked by weights.
All lines are held in memory; `data.text.line_files` reads them.

The bounds of the buckets are the 25, 50, 75, 90 and 100 % points of the lines' lengths, rounded up to a
multiple of 8. A bucket that would not fill one batch joins the next longer one. So a compiler sees at most five
shapes, and padding stays small.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cellerate.data.arrays import Permutation, derive_seed
from cellerate.data.files import Errors, check_errors
from cellerate.data.settings import Padding
from cellerate.data.tokenizers import CharacterTokenizer, character_codes, check_text, narrowest_dtype
from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.messages import argument, marked

PAD, BOS, EOS, UNK = range(4)
_FIRST_CHARACTER = 4
_BOUND_POINTS = (0.25, 0.5, 0.75, 0.9, 1.0)
BOUND_MULTIPLE = 8
_LINES_PER_BLOCK = 1 << 16


class LineVocabulary:
    """The ids of characters in lines: 0 padding, 1 begin, 2 end, 3 unknown, and the characters from 4 on.

    Args:
        characters: The vocabulary, in any order; repeated characters count once.

    Raises:
        DataError: There is no character, or one of them is a lone surrogate.
    """

    def __init__(self, characters: str) -> None:
        self._tokenizer = CharacterTokenizer(characters)
        self.characters = self._tokenizer.characters
        self.size = _FIRST_CHARACTER + len(self.characters)
        self._codes = np.array([0, 0, 0, 0xFFFD, *character_codes(self.characters)], np.uint32)

    @classmethod
    def from_lines(cls, lines: Sequence[str]) -> LineVocabulary:
        """The vocabulary of every character in `lines`."""
        return cls("".join(sorted(set().union(*lines))))

    def encode(self, line: str, max_length: int | None = None, *, errors: Errors = "strict") -> np.ndarray:
        """The ids of a line's first `max_length` characters (None: of all), without begin and end.

        Args:
            line: Any text.
            max_length: Characters to keep, at least 1.
            errors: What to do with an unknown character: "strict" raises, "replace" makes it id 3.

        Returns:
            Ids, shape `(length,)`, int32.

        Raises:
            DataError: A character is not in the vocabulary, or the line holds a lone surrogate.
        """
        check_errors(errors)
        text = line if max_length is None else line[: _positive("max_length", max_length)]
        return self._ids(text, [text], errors, 0).astype(np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of the ids up to the first end. Padding and begin are left out; unknown becomes U+FFFD.

        Raises:
            DataError: An id is outside the vocabulary.
        """
        found = np.asarray(ids, dtype=np.int64).reshape(-1)
        ends = np.flatnonzero(found == EOS)
        found = found[: ends[0]] if ends.size else found
        found = found[(found != PAD) & (found != BOS)]
        if found.size and (found.min() < 0 or found.max() >= self.size):
            wrong = found[(found < 0) | (found >= self.size)][0]
            raise DataError(f"id {wrong} is outside the vocabulary of {self.size} ids.")
        return self._codes[found].astype("<u4").tobytes().decode("utf-32-le")

    def to_config(self) -> dict[str, Any]:
        """Everything `from_config` needs, ready for JSON."""
        return {"characters": self.characters}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> LineVocabulary:
        """Makes the vocabulary that `to_config` described.

        Raises:
            ModelError: The configuration does not describe a vocabulary.
        """
        characters = config.get("characters") if isinstance(config, Mapping) else None
        try:
            if isinstance(characters, str):
                vocabulary = cls(characters)
                if vocabulary.characters == characters:
                    return vocabulary
        except DataError as error:
            raise ModelError(f"the model's line vocabulary cannot be used: {error}") from error
        raise ModelError(
            "the model's line vocabulary cannot be used: expected a mapping with 'characters', "
            "a string of sorted, distinct characters."
        )

    def _ids(self, text: str, lines: Sequence[str], errors: Errors, first: int) -> np.ndarray:
        """The ids of `text`, which is `lines` joined; `first` is the number of the first line."""
        ids = self._tokenizer.lookup(text)
        unknown = ids == len(self.characters)
        if unknown.any():
            check_text(text)
            if errors == "strict":
                place = int(np.argmax(unknown))
                ends = np.cumsum([len(line) for line in lines])
                number = int(np.searchsorted(ends, place, side="right"))
                position = place - int(ends[number]) + len(lines[number])
                error = self._tokenizer.unknown(text, place, position, "train with text that has it")
                raise DataError(
                    f"line {first + number + 1}: {marked(error)} {argument('errors', 'replace')} reads such characters "
                    "as unknown."
                )
        shifted = ids.astype(narrowest_dtype(self.size)) + narrowest_dtype(self.size).type(_FIRST_CHARACTER)
        shifted[unknown] = UNK
        return shifted


class LineBatches:
    """Batches of lines for training an autoencoder: every line once per epoch.

    A batch is `({"source": (B, S), "target_in": (B, S+1)}, target (B, S+1), sample_weight (B, S+1))`. Ids are
    int32, weights float32, and S is a bucket's bound. `source` is the line padded with 0; `target_in` is begin
    and then the line, `target` the line and then end, both padded on the right. Weights are 1 up to and
    including the end, and 0 after it. The last batch of a bucket is filled up with copies of its first line,
    with weight 0.

    Attributes:
        batch_size: Rows of every batch.
        item: "lines".
        items_per_batch: Lines in a full batch.
        bounds: Every length S that occurs, ascending.
        lines: The number of lines.
        truncated: The number of lines that were cut because they were longer than `max_length`.

    Args:
        lines: The lines; empty ones are allowed.
        vocabulary: The ids of the characters.
        batch_size: Rows of every batch, at least 1.
        max_length: Characters of a line to keep, at least 1.
        padding: Where the source is padded; "left" puts the end of each line last.
        seed: Shuffles within buckets, and the order of batches, anew for each epoch; None keeps the order.
        errors: What to do with an unknown character: "strict" raises, "replace" makes it id 3.

    Raises:
        ConfigError: A setting is out of range.
        DataError: There is no line, or a character is not in the vocabulary.
    """

    def __init__(
        self,
        lines: Sequence[str],
        vocabulary: LineVocabulary,
        *,
        batch_size: int,
        max_length: int,
        padding: Padding = "right",
        seed: int | None = None,
        errors: Errors = "strict",
    ) -> None:
        self._encoded = _EncodedLines(lines, vocabulary, max_length, padding, errors)
        self.batch_size = self.items_per_batch = _positive("batch_size", batch_size)
        self.item = "lines"
        self.lines = len(lines)
        self.truncated = self._encoded.truncated
        self.bounds, self._buckets = self._encoded.buckets(batch_size)
        self._seed = seed
        self._settings = [vocabulary.characters, batch_size, max_length, padding, seed]
        # (bucket, number of the batch within it) of each batch, in order
        self._places = [
            (bucket, number)
            for bucket, rows in enumerate(self._buckets)
            for number in range(-(-len(rows) // batch_size))
        ]

    def __len__(self) -> int:
        """Batches in an epoch; the same for every epoch."""
        return len(self._places)

    def batch(self, epoch: int, index: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """Batch `index` of `epoch`, the same at every call.

        Raises:
            IndexError: `index` is not one of the batches of an epoch.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} was asked for; an epoch has batches 0 to {len(self) - 1}")
        bucket, number = self._places[int(self._shuffled(np.array([index]), len(self), epoch, 0)[0])]
        rows = self._buckets[bucket]
        places = np.arange(number * self.batch_size, min((number + 1) * self.batch_size, len(rows)))
        chosen = rows[self._shuffled(places, len(rows), epoch, 1 + bucket)]
        filled = _filled(chosen, self.batch_size)
        bound = self.bounds[bucket]
        source, target, lengths = self._encoded.rows(filled, bound)
        target_in = np.empty_like(target)
        target_in[:, 0] = BOS
        target_in[:, 1:] = target[:, :-1]
        target_in[target_in == EOS] = PAD
        weight = (np.arange(bound + 1) <= lengths[:, None]).astype(np.float32)
        weight[len(chosen) :] = 0
        return {"source": source, "target_in": target_in}, target, weight

    def extremes(self, epoch: int) -> tuple[int, int]:
        """The numbers of two batches of `epoch`: one with the shortest lines and one with the longest."""
        order = self._shuffled(np.arange(len(self)), len(self), epoch, 0)
        buckets = np.array([bucket for bucket, _ in self._places])[order]
        return int(buckets.argmin()), int(buckets.argmax())

    def fingerprint(self) -> str:
        """Identifies lines and settings; a checkpoint from a source with another fingerprint is refused."""
        state = hashlib.blake2b(json.dumps(self._settings).encode(), digest_size=16)
        self._encoded.add_to(state)
        return state.hexdigest()

    def _shuffled(self, places: np.ndarray, count: int, epoch: int, use: int) -> np.ndarray:
        if self._seed is None:
            return places
        return Permutation(count, derive_seed(self._seed, epoch, use))(places)


def encode_batches(
    lines: Sequence[str],
    vocabulary: LineVocabulary,
    batch_size: int,
    max_length: int,
    padding: Padding = "right",
    *,
    errors: Errors = "strict",
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches for computing one vector per line: each line exactly once, with lines of similar length together.

    Args:
        lines: The lines; an empty one is a row of padding.
        vocabulary: The ids of the characters.
        batch_size: Rows of every batch, at least 1.
        max_length: Characters of a line to keep, at least 1.
        padding: Where the rows are padded, as in training.
        errors: What to do with an unknown character: "strict" raises, "replace" makes it id 3.

    Yields:
        `(numbers, source)`: `source` is int32 of shape `(batch_size, bound)`. Row i is line `numbers[i]`;
        rows from `len(numbers)` on only fill the batch up. So `vectors[numbers] = f(source)[:len(numbers)]`.

    Raises:
        ConfigError: A setting is out of range.
        DataError: There is no line, or a character is not in the vocabulary.
    """
    encoded = _EncodedLines(lines, vocabulary, max_length, padding, errors)
    bounds, buckets = encoded.buckets(_positive("batch_size", batch_size))
    # Returns a generator instead of being one, so that wrong arguments raise here and not at the first batch.
    return (
        (chosen, encoded.rows(_filled(chosen, batch_size), bound)[0])
        for bound, rows in zip(bounds, buckets, strict=True)
        for chosen in (rows[start : start + batch_size] for start in range(0, len(rows), batch_size))
    )


class _EncodedLines:
    """All lines as ids, one after the other in one array, each followed by an end."""

    def __init__(
        self,
        lines: Sequence[str],
        vocabulary: LineVocabulary,
        max_length: int,
        padding: Padding,
        errors: Errors,
    ) -> None:
        _positive("max_length", max_length)
        check_errors(errors)
        if padding not in ("right", "left"):
            raise ConfigError(f"{argument('padding')} must be 'right' or 'left', not {padding!r}.")
        if not len(lines):
            raise DataError("there is no line: expected at least one.")
        self._left = padding == "left"
        self._max_length = max_length
        full = np.fromiter((len(line) for line in lines), np.int64, len(lines))
        self._lengths = np.minimum(full, max_length)
        self.truncated = int((full > max_length).sum())
        stops = np.cumsum(self._lengths)
        self._starts = stops - self._lengths
        self._ids = np.zeros(int(stops[-1]) + 1, narrowest_dtype(vocabulary.size))
        for first in range(0, len(lines), _LINES_PER_BLOCK):
            block = [line[:max_length] for line in lines[first : first + _LINES_PER_BLOCK]]
            start = int(self._starts[first])
            ids = vocabulary._ids("".join(block), block, errors, first)
            self._ids[start : start + len(ids)] = ids

    def buckets(self, batch_size: int) -> tuple[tuple[int, ...], list[np.ndarray]]:
        """The bounds, ascending, and the numbers of each bucket's lines; the module docstring has the rule."""
        points = np.quantile(self._lengths, _BOUND_POINTS, method="higher")
        rounded = -(-np.maximum(points, 1) // BOUND_MULTIPLE) * BOUND_MULTIPLE
        candidates = np.unique(np.minimum(rounded, self._max_length)).astype(np.int64)
        kept: list[int] = []
        below = 0
        for bound in candidates.tolist():
            count = int((self._lengths <= bound).sum())
            if count - below >= batch_size or bound == candidates[-1]:
                kept.append(bound)
                below = count
        bucket = np.searchsorted(kept, self._lengths)
        return tuple(kept), [np.flatnonzero(bucket == i) for i in range(len(kept))]

    def rows(self, numbers: np.ndarray, bound: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The source `(B, bound)`, target `(B, bound + 1)` and lengths `(B,)` of the lines `numbers`."""
        lengths = self._lengths[numbers]
        starts = self._starts[numbers][:, None]
        steps = np.arange(bound + 1)
        inside = steps < lengths[:, None]
        target = np.where(inside, self._ids[np.where(inside, starts + steps, 0)], PAD).astype(np.int32)
        source = target[:, :bound].copy()
        if self._left:
            source = np.zeros_like(source)
            source[steps[:bound] >= bound - lengths[:, None]] = target[inside]
        target[np.arange(len(numbers)), lengths] = EOS
        return source, target, lengths

    def add_to(self, state: hashlib.blake2b) -> None:
        state.update(self._lengths.tobytes())
        state.update(self._ids.tobytes())


def _filled(numbers: np.ndarray, batch_size: int) -> np.ndarray:
    # Copies of a real line, not rows of padding: a fully masked row keeps some fast kernels from running.
    return np.concatenate([numbers, np.repeat(numbers[:1], batch_size - len(numbers))])


def _positive(name: str, value: int) -> int:
    if not isinstance(value, int | np.integer) or value < 1:
        raise ConfigError(f"{argument(name)} must be an integer of at least 1, not {value!r}.")
    return int(value)
