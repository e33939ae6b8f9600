"""The log probabilities of ids and of their alternatives, as OpenAI's protocol lists them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cellerate.data.tokenizers import Tokenizer
from cellerate.kernels.decoder.contract import Steps

_UNREADABLE = "\N{REPLACEMENT CHARACTER}"


class Details:
    """Four parallel lists with one entry per id, joined from parts."""

    def __init__(self) -> None:
        self.all: dict[str, list[Any]] | None = None

    def add(self, part: dict[str, list[Any]] | None) -> None:
        """Appends a part; None for none."""
        if part is None:
            return
        if self.all is None:
            self.all = {name: list(values) for name, values in part.items()}
            return
        for name, values in part.items():
            self.all[name] += values


class TokenReader:
    """Reads a text id by id with the model, and returns the log probabilities of each id and of the likeliest ids.

    Args:
        steps: The model.
        tokenizer: The tokenizer of its ids.
        count: The number of likeliest ids to list.
        text: The prompt; offsets are counted from its beginning.
    """

    def __init__(self, steps: Steps, tokenizer: Tokenizer, count: int, text: str) -> None:
        self._steps, self._tokenizer, self._count = steps, tokenizer, count
        self._text = text
        self._decoder = tokenizer.stream_decoder()
        self._offset = 0
        self._state = steps.initial_state()
        self._logits: np.ndarray | None = None
        self._names: dict[tuple[int, bool], str] = {}

    def prompt(self, ids: np.ndarray, *, tell: bool) -> dict[str, list[Any]] | None:
        """Read (N,) ids of the prompt; return their details if `tell` is True."""
        if tell:
            return self.drawn(ids)
        self._state, self._logits = self._steps.read(self._state, ids[np.newaxis])
        self._decoder = self._tokenizer.stream_decoder(ids)
        self._offset = len(self._text)
        return None

    def drawn(self, ids: np.ndarray) -> dict[str, list[Any]]:
        """Read the next (N,) ids; return their details. The log probability of the very first id is None."""
        details: dict[str, list[Any]] = {
            name: [] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        }
        for number in ids.tolist():
            details["tokens"].append(self._name(number, begins=self._logits is None))
            details["text_offset"].append(self._offset)
            likely, top = self._likelihoods(number)
            details["token_logprobs"].append(likely)
            details["top_logprobs"].append(top)
            self._offset += len(self._decoder.push(number))
            self._state, self._logits = self._steps.step(self._state, np.array([number]))
        return details

    def _likelihoods(self, number: int) -> tuple[float | None, dict[str, float] | None]:
        if self._logits is None:
            return None, None
        logits = self._logits[0].astype(np.float64)
        logits -= logits.max()
        logits -= np.log(np.exp(logits).sum())
        top = {self._name(each): float(logits[each]) for each in _largest(logits, self._count)}
        # The id itself is always among them, as clients expect.
        if self._count:
            top.setdefault(self._name(number), float(logits[number]))
        return float(logits[number]), top

    def _name(self, number: int, *, begins: bool = False) -> str:
        """The text of an id within a text, or at its beginning; its byte if that is not a whole character."""
        key = number, begins
        if key not in self._names:
            text = self._tokenizer.decode([number]) if begins else self._tokenizer.token_text(number)
            if _UNREADABLE in text or not text:
                text = f"bytes:\\x{number:02x}" if self._tokenizer.kind == "bytes" else f"token_id:{number}"
            self._names[key] = text
        return self._names[key]


def _largest(values: np.ndarray, count: int) -> Sequence[int]:
    """The indices of the largest values, largest first; among equal values the first."""
    count = min(count, len(values))
    if count == 0:
        return []
    if count < len(values):
        # All that may be among them, then in order.
        least = np.partition(values, len(values) - count)[len(values) - count]
        places = np.flatnonzero(values >= least)
    else:
        places = np.arange(len(values))
    order = np.argsort(-values[places], kind="stable")[:count]
    found: list[int] = places[order].tolist()
    return found
