"""The tokenizer of a `tokenizer.json` from the `tokenizers` package, for text of any length.

Only this tokenizer needs that package, cuts a long text into pieces and has tokens that are not whole
characters. Everything else sees a `Tokenizer`.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from cellerate.data.tokenizers.growth import check_growth
from cellerate.data.tokenizers.tokenizer import StreamDecoder, StreamEncoder, Tokenizer, check_text
from cellerate.errors import DataError
from cellerate.machine import environment

_VOCABULARY_LIMIT = 1 << 24


@contextlib.contextmanager
def _told(message: str) -> Iterator[None]:
    """Turns an error of the package, a plain `Exception` or a panic, which is not one, into a `DataError`.

    For example, a pattern that backtracks too often on a text panics.
    """
    try:
        yield
    except Exception as error:
        raise DataError(message.format(error)) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise DataError(message.format(error)) from error


class FileTokenizer(Tokenizer):
    """A `tokenizer.json` of the `tokenizers` package.

    A long text is encoded in pieces of about eight thousand characters. A piece ends at a line break between
    two characters that are not white space. If there is none within a million characters, it ends at any line
    break; if there is none either, at a million characters. So memory is bounded and the ids depend on the
    text alone. They equal the ids of the whole text for every tokenizer that joins no characters across such
    a line break, except that one that puts a space before a text puts one before each piece. Special tokens
    are not added, and the file's truncation, padding and dropout of merges are switched off. The file itself
    decides what happens to characters it does not know.

    Args:
        json_text: The content of the file.

    Raises:
        BackendError: The package `tokenizers` is not installed.
        DataError: The text is not a tokenizer, its vocabulary is empty or unreasonably large, or it may make a text
            many times as long.
    """

    kind = "file"
    unit = "tokens"

    def __init__(self, json_text: str) -> None:
        environment.require("tokenizers", "tokenizers", "a tokenizer file")
        import tokenizers

        wrong = (
            "not a tokenizer file of the package tokenizers ({}). "
            "Expected the tokenizer.json that Tokenizer.save writes."
        )
        with _told(wrong):
            config = json.loads(json_text)
        check_growth(config)
        with _told(wrong):
            self._tokenizer = tokenizers.Tokenizer.from_str(json_text)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # With dropout, a text has other ids each time.
        if getattr(self._tokenizer.model, "dropout", None):
            self._tokenizer.model.dropout = None
        self._json = json_text
        # Ids may have gaps, so the count of tokens is not enough.
        self.vocabulary_size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        if not 0 < self.vocabulary_size <= _VOCABULARY_LIMIT:
            raise DataError(
                f"the tokenizer file has a vocabulary of {self.vocabulary_size} ids: "
                f"expected 1 to {_VOCABULARY_LIMIT}."
            )

    def encode_pieces(self, pieces: list[str]) -> np.ndarray:
        """The ids of all pieces, one after the other, each piece encoded by itself."""
        with _told("the tokenizer file cannot encode this text: {}"):
            found = self._tokenizer.encode_batch_fast(pieces, add_special_tokens=False)
        return np.concatenate([np.array([], self.dtype), *(np.array(one.ids, self.dtype) for one in found)])

    def _decode(self, ids: np.ndarray) -> str:
        with _told("the tokenizer file cannot decode these ids: {}"):
            return self._tokenizer.decode(ids.tolist(), skip_special_tokens=False)

    def stream_encoder(self) -> StreamEncoder:
        """An encoder that holds back the last piece until its end is certain."""
        return _PieceEncoder(self)

    def stream_decoder(self, before: Sequence[int] | np.ndarray = ()) -> StreamDecoder:
        """A decoder that holds back the tokens of an unfinished character."""
        return _TokenDecoder(self, before)

    def token_text(self, token: int) -> str:
        """The text of an id within a text, with the space before a word that many decoders drop at the beginning."""
        alone = self.decode([token])
        return alone if "\ufffd" in alone else self.decode([token, token])[len(alone) :]

    def to_config(self) -> dict[str, Any]:
        """The whole file."""
        return {"kind": self.kind, "json": self._json}


class _PieceEncoder:
    """Holds text back until it is certain where the piece ends; see `FileTokenizer`."""

    piece_characters: ClassVar[int] = 1 << 13
    longest_characters: ClassVar[int] = 1 << 20
    _pieces_per_call: ClassVar[int] = 32  # an encoding takes about a hundred bytes per token while it lives
    _line_break: ClassVar[re.Pattern[str]] = re.compile(r"(?<=\S)\n(?=\S)")

    def __init__(self, tokenizer: FileTokenizer) -> None:
        self._tokenizer = tokenizer
        self._held = ""

    def push(self, text: str) -> np.ndarray:
        return self._encode(text, final=False)

    def finish(self) -> np.ndarray:
        return self._encode("", final=True)

    def _encode(self, text: str, *, final: bool) -> np.ndarray:
        check_text(text)
        held = self._held + text
        pieces = []
        start = 0
        while start < len(held) and (end := self._end(held, start, final)) is not None:
            pieces.append(held[start:end])
            start = end
        self._held = held[start:]
        step = self._pieces_per_call
        parts = [self._tokenizer.encode_pieces(pieces[i : i + step]) for i in range(0, len(pieces), step)]
        return np.concatenate([np.array([], self._tokenizer.dtype), *parts])

    def _end(self, held: str, start: int, final: bool) -> int | None:
        """Where the piece that begins at `start` ends; None while later text could still decide."""
        left = len(held) - start
        limit = start + self.longest_characters
        if left > self.piece_characters:
            # The pattern looks one character ahead, inside `limit`, so more text never changes an earlier match.
            if match := self._line_break.search(held, start + self.piece_characters, limit):
                return match.end()
            if left > self.longest_characters:
                return held.rfind("\n", start + self.piece_characters, limit) + 1 or limit
        return len(held) if final else None


class _TokenDecoder:
    """Shows the growth of the decoded text, with the last shown tokens as context.

    A token's text can depend on the token before (a leading space, a piece of a UTF-8 character), so the
    tokens shown last are decoded again together with the new ones, and only the difference is shown.

    Args:
        tokenizer: The tokenizer of the ids.
        before: The ids that come before, of which only the last are a context.
    """

    _longest_wait: ClassVar[int] = 16  # tokens: more than the four bytes of a character can need

    def __init__(self, tokenizer: FileTokenizer, before: Sequence[int] | np.ndarray) -> None:
        self._tokenizer = tokenizer
        self._shown: list[int] = list(map(int, before[-self._longest_wait :]))
        self._waiting: list[int] = []

    def push(self, token: int) -> str:
        self._waiting.append(token)
        text = self._growth()
        unfinished = not text or text.endswith("\ufffd")
        if unfinished and len(self._waiting) < self._longest_wait:
            return ""
        # Tokens without text, such as ids that the file lacks, are not a context for what comes after them.
        if text:
            self._shown = self._waiting
        self._waiting = []
        return text

    def push_all(self, tokens: np.ndarray) -> str:
        return "".join(map(self.push, tokens.tolist()))

    def finish(self) -> str:
        text = self._growth()
        self._shown, self._waiting = self._waiting, []
        return text

    def _growth(self) -> str:
        before = self._tokenizer.decode(self._shown)
        return self._tokenizer.decode(self._shown + self._waiting)[len(before) :]
