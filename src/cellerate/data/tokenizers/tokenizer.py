"""Text to numbers and back: the interface of a tokenizer, and the character and byte tokenizers.

A trained model carries its tokenizer, so training, generation and the deployed runtime import this module. It
must not import the readers and caches of `data.text`. `file_tokenizer` has the tokenizers of the package
`tokenizers`, and `data.tokenizers` opens any kind by its name or record.
"""

from __future__ import annotations

import abc
import codecs
import collections
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from cellerate.data.files import with_newlines
from cellerate.data.tokenizers.nearest_characters import nearest_known
from cellerate.errors import DataError

CODE_POINTS = 0x110000
_NAMED = 5  # unknown characters that a message names


class StreamDecoder(Protocol):
    """Turns ids into text one by one, holding back what is not a whole character yet."""

    def push(self, token: int) -> str:
        """Takes the next id and returns the text that can be shown now, perhaps none."""

    def push_all(self, tokens: np.ndarray) -> str:
        """Takes (N,) ids and returns the text that `push` would return for them one by one."""

    def finish(self) -> str:
        """Returns the text still held back; an unfinished character becomes U+FFFD."""


class StreamEncoder(Protocol):
    """Turns a long text into ids chunk by chunk; the ids do not depend on where the chunks were cut."""

    def push(self, text: str) -> np.ndarray:
        """Takes the next chunk of text and returns the ids that are certain now."""

    def finish(self) -> np.ndarray:
        """Returns the ids of the text still held back."""


class Tokenizer(abc.ABC):
    """The methods of every tokenizer.

    Attributes:
        kind: "characters", "bytes" or "file", as `to_config` writes it.
        unit: What one id stands for, in displays: "characters", "bytes" or "tokens".
        vocabulary_size: Ids are in [0, vocabulary_size).
        dtype: The narrowest unsigned integer type that holds every id.
    """

    kind: ClassVar[str]
    unit: ClassVar[str]
    vocabulary_size: int

    @property
    def dtype(self) -> np.dtype:
        """The narrowest unsigned integer type that holds every id."""
        return narrowest_dtype(self.vocabulary_size)

    def encode(self, text: str) -> np.ndarray:
        """Turns text into ids.

        Args:
            text: Any text.

        Returns:
            Ids, shape `(N,)`, of type `dtype`.

        Raises:
            DataError: A character has no id, or the text holds a lone surrogate.
        """
        encoder = self.stream_encoder()
        return np.concatenate([encoder.push(text), encoder.finish()])

    def prompt_text(self, text: str) -> str:
        """The text with the line ends that files of texts are read with: carriage returns become newlines."""
        return with_newlines(text)

    def encode_prompt(self, text: str) -> np.ndarray:
        """The ids of `prompt_text(text)`."""
        return self.encode(self.prompt_text(text))

    def decode(self, ids: Iterable[int]) -> str:
        """Turns ids into text; bytes that are not UTF-8 become U+FFFD.

        Raises:
            DataError: An id is outside the vocabulary.
        """
        return self._decode(_checked_ids(ids, self.vocabulary_size))

    def known(self, text: str) -> str:
        """The text without the characters that have no id."""
        return text

    @abc.abstractmethod
    def stream_encoder(self) -> StreamEncoder:
        """An encoder for a text that comes in chunks."""

    @abc.abstractmethod
    def stream_decoder(self, before: Sequence[int] | np.ndarray = ()) -> StreamDecoder:
        """A decoder for ids that come one by one.

        Args:
            before: Ids of the text that they continue, whose text is not returned.
        """

    def token_text(self, token: int) -> str:
        """The text of an id within a text; of half a character, U+FFFD."""
        return self.decode([token])

    def to_config(self) -> dict[str, Any]:
        """Everything `tokenizer_from_config` needs, ready for JSON."""
        return {"kind": self.kind}

    @abc.abstractmethod
    def _decode(self, ids: np.ndarray) -> str: ...


class CharacterTokenizer(Tokenizer):
    """One id per character; the ids are in the order of the characters' code points, or as given.

    Args:
        characters: The vocabulary, in any order; repeated characters count once.
        in_order: Whether the order given is that of the ids; then each character comes once.

    Raises:
        DataError: The vocabulary is empty, holds a lone surrogate, or, with `in_order`, repeats a character.
    """

    kind = "characters"
    unit = "characters"

    def __init__(self, characters: str, *, in_order: bool = False) -> None:
        check_text(characters)
        self.characters = characters if in_order else "".join(sorted(set(characters)))
        if not self.characters:
            raise DataError("the character vocabulary is empty: expected at least one character.")
        if len(set(self.characters)) < len(self.characters):
            ((twice, _),) = collections.Counter(self.characters).most_common(1)
            raise DataError(f"the character vocabulary has {twice!r} more than once: expected each once.")
        self.vocabulary_size = len(self.characters)
        self._codes = character_codes(self.characters)
        # Code points above the vocabulary's largest are clipped to the last entry, which stands for "unknown".
        self._table = np.full(
            int(self._codes.max()) + 2, self.vocabulary_size, narrowest_dtype(self.vocabulary_size + 1)
        )
        self._table[self._codes] = np.arange(self.vocabulary_size)

    def prompt_text(self, text: str) -> str:
        """As for all tokenizers, unless carriage returns are in the vocabulary."""
        return text if "\r" in self.characters else super().prompt_text(text)

    def lookup(self, text: str) -> np.ndarray:
        """The id of each character, or `vocabulary_size` for a character without one."""
        return self._table.take(character_codes(text), mode="clip")

    def known(self, text: str) -> str:
        """The text without the characters that have no id."""
        return self.decode(ids[ids < self.vocabulary_size]) if (ids := self.lookup(text)).size else text

    def unknown(
        self,
        text: str,
        place: int,
        position: int,
        remedy: str = "train with text that has it or with the bytes tokenizer",
    ) -> DataError:
        """The error for a text with characters that have no id, each with the nearest that has one.

        Args:
            text: The text.
            place: The index of the first of them in `text`.
            position: The position of that character as the user counts.
            remedy: What to do instead of leaving characters out.
        """
        others = text[place:]
        unknown = self.lookup(others) == self.vocabulary_size
        found = list(dict.fromkeys(one for one, new in zip(others, unknown.tolist(), strict=True) if new))
        named = ", ".join(map(self._with_nearest, found[:_NAMED]))
        if len(found) == 1:
            subject = f"character {named} at position {position} is"
        else:
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            subject = f"characters {named}{more}, the first at position {position}, are"
        return DataError(
            f"{subject} not in the vocabulary of {self.vocabulary_size} characters, which is made of the characters of "
            f"the training text. Leave out what is not in it, or {remedy}."
        )

    def _with_nearest(self, character: str) -> str:
        near = nearest_known(character, self.characters)
        nearest = f", nearest {near!r}" if near is not None else ""
        return f"{character!r} (U+{ord(character):04X}{nearest})"

    def _decode(self, ids: np.ndarray) -> str:
        return self._codes[ids].astype("<u4").tobytes().decode("utf-32-le")

    def stream_encoder(self) -> StreamEncoder:
        """An encoder that holds nothing back."""
        return _CharacterEncoder(self)

    def stream_decoder(self, before: Sequence[int] | np.ndarray = ()) -> StreamDecoder:
        """A decoder that holds nothing back."""
        return _CharacterDecoder(self)

    def to_config(self) -> dict[str, Any]:
        """The vocabulary."""
        return {"kind": self.kind, "characters": self.characters}


class ByteTokenizer(Tokenizer):
    """One id per byte of the text's UTF-8: 256 ids, for any text at all."""

    kind = "bytes"
    unit = "bytes"
    vocabulary_size = 256

    def _decode(self, ids: np.ndarray) -> str:
        return ids.astype(np.uint8).tobytes().decode("utf-8", "replace")

    def stream_encoder(self) -> StreamEncoder:
        """An encoder that holds nothing back."""
        return _ByteEncoder()

    def stream_decoder(self, before: Sequence[int] | np.ndarray = ()) -> StreamDecoder:
        """A decoder that holds back the bytes of an unfinished character."""
        return _ByteDecoder()


def character_codes(text: str) -> np.ndarray:
    """The code point of each character, shape `(len(text),)`; a lone surrogate counts as one code point."""
    if text.isascii():
        return np.frombuffer(text.encode("ascii"), np.uint8)
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def narrowest_dtype(size: int) -> np.dtype:
    """The narrowest unsigned integer type that holds the ids 0 to size - 1."""
    return np.min_scalar_type(max(size - 1, 0))


def check_text(text: str) -> None:
    """Raises `DataError` if `text` holds a lone surrogate, as a command-line argument that is not UTF-8 does."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"the text has a lone surrogate (U+{ord(text[error.start]):04X}) at position {error.start}, "
            "which no file in UTF-8 can hold. It usually stands for a byte typed in a terminal that is not "
            "set to UTF-8: give the text in UTF-8."
        ) from error


def _checked_ids(ids: Iterable[int], size: int) -> np.ndarray:
    found = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids))
    if not found.size:
        return np.array([], np.intp)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise DataError(f"ids must be a flat sequence of integers, not {found.dtype} {found.shape}.")
    if int(found.min()) < 0 or int(found.max()) >= size:
        wrong = found[(found < 0) | (found >= size)][0]
        raise DataError(f"id {wrong} is outside the vocabulary of {size} ids.")
    return found


class _CharacterEncoder:
    """Holds nothing back; counts characters, so that an unknown one is reported at its place in the whole text."""

    def __init__(self, tokenizer: CharacterTokenizer) -> None:
        self._tokenizer = tokenizer
        self._position = 0

    def push(self, text: str) -> np.ndarray:
        ids = self._tokenizer.lookup(text)
        size = self._tokenizer.vocabulary_size
        if ids.size and ids.max() == size:
            check_text(text)
            place = int(np.argmax(ids == size))
            raise self._tokenizer.unknown(text, place, self._position + place)
        self._position += len(text)
        return ids.astype(self._tokenizer.dtype, copy=False)

    def finish(self) -> np.ndarray:
        return np.array([], self._tokenizer.dtype)


class _ByteEncoder:
    def push(self, text: str) -> np.ndarray:
        check_text(text)
        return np.frombuffer(text.encode("utf-8"), np.uint8)

    def finish(self) -> np.ndarray:
        return np.array([], np.uint8)


class _CharacterDecoder:
    def __init__(self, tokenizer: CharacterTokenizer) -> None:
        self._tokenizer = tokenizer

    def push(self, token: int) -> str:
        return self._tokenizer.decode([token])

    def push_all(self, tokens: np.ndarray) -> str:
        return self._tokenizer.decode(tokens)

    def finish(self) -> str:
        return ""


class _ByteDecoder:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self.push_all(np.array([token]))

    def push_all(self, tokens: np.ndarray) -> str:
        return self._decoder.decode(_checked_ids(tokens, 256).astype(np.uint8).tobytes())

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)
