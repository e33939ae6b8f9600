"""Continuing prompts on a step model from beginning to end: many at once, or one as it comes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np

from cellerate.data.tokenizers import Tokenizer
from cellerate.kernels.decoder.contract import Steps
from cellerate.kernels.decoder.sampling import SamplingRules
from cellerate.runtime.text.batcher import Batcher, Ticket, Update


@dataclasses.dataclass(frozen=True)
class Completion:
    """The continuation of a prompt.

    Attributes:
        text: The continuation, without the prompt and without a stop text.
        ids: (N,) int32, the ids drawn up to the end of `text`, or of the stop text.
        log_probabilities: (N,) float32, ln of each id's probability under the model itself, before sampling rules.
        reason: Why it ended: "length" (enough ids), "stop" (a stop text) or "cancelled".
    """

    text: str
    ids: np.ndarray
    log_probabilities: np.ndarray
    reason: Literal["length", "stop", "cancelled"]


def complete(
    steps: Steps,
    tokenizer: Tokenizer,
    prompts: Sequence[np.ndarray],
    *,
    max_tokens: Sequence[int],
    rules: Sequence[SamplingRules],
    stop: Sequence[str] = (),
    cancelled: Callable[[], bool] = lambda: False,
) -> list[Completion]:
    """Continues prompts side by side, each as if it were alone.

    Args:
        steps: The model.
        tokenizer: What its ids mean.
        prompts: (N,) ids each, N at least 1.
        max_tokens: Maximum number of ids to draw for each prompt.
        rules: How to draw them, for each prompt.
        stop: Texts that end a continuation.
        cancelled: Asked between steps whether to end all of them with what they have.

    Raises:
        ConfigError: A prompt or stop text is empty, or a number is out of range.
        DataError: An id is not in the vocabulary.
        ModelError: A logit is a NaN or an infinity.
    """
    batcher = Batcher(steps, tokenizer)
    tickets = [
        batcher.submit(ids, max_tokens=count, rules=each, stop=stop)
        for ids, count, each in zip(prompts, max_tokens, rules, strict=True)
    ]
    while not batcher.idle:
        if cancelled():
            for ticket in tickets:
                batcher.cancel(ticket)
        _step(batcher)
    return [completion(ticket) for ticket in tickets]


def stream(
    steps: Steps,
    prompt: np.ndarray,
    max_tokens: int,
    rules: SamplingRules,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[np.ndarray]:
    """Continues one prompt, giving (N,) int32 ids as they are drawn: the ids that `complete` would draw.

    Raises what `complete` raises; the arguments are checked when the first ids are requested.
    """
    batcher = Batcher(steps)
    ticket = batcher.submit(prompt, max_tokens=max_tokens, rules=rules)
    while not batcher.idle:
        if cancelled():
            batcher.cancel(ticket)
        for update in _step(batcher):
            yield update.ids


def completion(ticket: Ticket) -> Completion:
    """The completion of a sequence that has ended without failing."""
    assert ticket.reason is not None and ticket.reason != "failed"  # noqa: S101 (as the docstring says)
    return Completion(ticket.text, ticket.ids, ticket.log_probabilities, ticket.reason)


def _step(batcher: Batcher) -> list[Update]:
    """One step; raises the error of a sequence that failed."""
    updates = batcher.step()
    for update in updates:
        if update.ticket.error is not None:
            raise update.ticket.error
    return updates
