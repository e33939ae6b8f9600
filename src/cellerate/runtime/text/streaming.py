"""Generated ids as text that can be shown at once: whole characters only, and no part of a stop text.

Whatever generates (a Keras model, a packed one, a server) shows its text by these rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from cellerate.data.tokenizers import Tokenizer
from cellerate.errors import ConfigError
from cellerate.messages import argument


class TextStream:
    """The text of one sequence while its ids arrive.

    Args:
        tokenizer: What the ids mean.
        stop: Texts that end it. The first to be complete counts; if several complete at once, the leftmost.
        prompt: (N,) the ids that it continues, on which its first space may depend.

    Attributes:
        stopped: Whether a stop text has come. Nothing may be pushed after that.

    Raises:
        ConfigError: A stop text is empty, or `stop` is not a list of texts.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], prompt: np.ndarray) -> None:
        if isinstance(stop, str):
            raise ConfigError(
                f"{argument('stop')} is the text {stop!r}; expected a list of texts: [{stop!r}]."
            )
        if not isinstance(stop, Collection) or not all(isinstance(text, str) for text in stop):
            raise ConfigError(f"{argument('stop')} is {stop!r:.100}; expected a list of texts.")
        if not all(stop):
            raise ConfigError("a stop text is empty: it would end every generation at once.")
        self.stopped = False
        self._decoder = tokenizer.stream_decoder(prompt)
        self._stop = tuple(stop)
        self._held = ""

    def push(self, ids: np.ndarray) -> str:
        """Takes the next (N,) ids; returns what can be shown now: whole characters, no part of a stop text."""
        return self._show(self._decoder.push_all(ids))

    def finish(self) -> str:
        """Returns what was still held back."""
        shown = "" if self.stopped else self._show(self._decoder.finish()) + self._held
        self._held = ""
        return shown

    def _show(self, text: str) -> str:
        if not self._stop:
            return text
        held = self._held + text
        places = [(place, place + len(text)) for text in self._stop if (place := held.find(text)) >= 0]
        if places:
            self.stopped, self._held = True, ""
            first = min(end for _, end in places)
            return held[: min(place for place, end in places if end == first)]
        keep = max(_overlap(held, text) for text in self._stop)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]


def pieces(
    chunks: Iterable[np.ndarray], tokenizer: Tokenizer, stop: Sequence[str], prompt: np.ndarray
) -> Iterator[str]:
    """The text of a sequence's ids, piece by piece, up to the first stop text.

    Args:
        chunks: (N,) ids each. No more are requested once a stop text has come.
        tokenizer: What the ids mean.
        stop: Texts that end the sequence; they are not shown.
        prompt: (N,) the ids that the sequence continues.

    Returns:
        An iterator over pieces that are safe to show. The arguments are checked at once.

    Raises:
        ConfigError: A stop text is empty.
    """
    return _pieces(chunks, TextStream(tokenizer, stop, prompt))


def _pieces(chunks: Iterable[np.ndarray], stream: TextStream) -> Iterator[str]:
    for ids in chunks:
        if piece := stream.push(ids):
            yield piece
        if stream.stopped:
            return
    if rest := stream.finish():
        yield rest


def _overlap(text: str, stop: str) -> int:
    """The length of the longest ending of `text` that is a beginning of `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-n:])), 0)
