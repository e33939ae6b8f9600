"""Generated ids as text that can be shown at once: whole characters only, and nothing of a stop text.

A module of its own because whatever generates (a Keras model, a packed one, a server) shows its text by these
rules.
"""

from collections.abc import Iterable, Iterator, Sequence

from cellerate.data.tokenizer import Tokenizer


def shown(tokens: Iterable[int], tokenizer: Tokenizer) -> Iterator[str]:
    """The text of ids, piece by piece: no piece ends within a character."""
    decoder = tokenizer.stream_decoder()
    for token in tokens:
        if piece := decoder.push(token):
            yield piece
    if rest := decoder.finish():
        yield rest


def until_stop(pieces: Iterable[str], stop: Sequence[str]) -> Iterator[str]:
    """Passes on what cannot be the beginning of a stop text any more, and ends at the first stop text."""
    held = ""
    for piece in pieces:
        held += piece
        found = [place for text in stop if (place := held.find(text)) >= 0]
        if found:
            if held[: min(found)]:
                yield held[: min(found)]
            return
        keep = max((_overlap(held, text) for text in stop), default=0)
        if len(held) > keep:
            yield held[: len(held) - keep]
            held = held[len(held) - keep :]
    if held:
        yield held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-n:])), 0)
