"""Continuing prompts on a step model: many at once, of any lengths, each as if it were alone.

A module of its own because it is the one loop around the generation of a step model: it reads prompts, lets finished
sequences leave and waiting ones join, and knows nothing of models' files.
"""

import bisect
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from cellerate.data.tokenizer import Tokenizer
from cellerate.errors import ConfigError
from cellerate.kernels.arguments import MOST_STEPS, check_whole
from cellerate.kernels.drawing import Cancellation, Request, SamplingRules
from cellerate.kernels.steps import Steps
from cellerate.runtime.streaming import TextStream

# Ids drawn in the first call: few, so that the first words show at once, and that little is drawn beyond a stop text;
# each call after it draws twice as many, up to what the model says.
_FIRST_DRAWN = 8
# A call draws at least so many, though some sequences need fewer and wait: a call costs as much as a few ids.
_LEAST_DRAWN = 32


@dataclasses.dataclass(frozen=True)
class Completion:
    """How a prompt was continued.

    Attributes:
        text: The continuation, without the prompt and without a stop text.
        ids: (N,) int32, those drawn up to the end of `text`, or of the stop text.
        log_probabilities: (N,) float32, ln of how likely the model itself found each, whatever the sampling.
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
    cancellation: Cancellation | None = None,
) -> list[Completion]:
    """Continues prompts, side by side; each as if it were alone.

    Args:
        steps: The model.
        tokenizer: What its ids mean.
        prompts: (N,) ids each, N at least 1.
        max_tokens: How many ids to draw of each at most.
        rules: How those of each are drawn.
        stop: Texts that end a continuation.
        cancellation: Ends all of them, from another thread.

    Raises:
        ConfigError: A prompt or stop text is empty, or a number does not fit.
        DataError: An id is not in the vocabulary.
        ModelError: A logit is a NaN or an infinity.
    """
    waiting = [
        _Sequence(place, ids, count, each, tokenizer, stop)
        for place, (ids, count, each) in enumerate(zip(prompts, max_tokens, rules, strict=True))
    ]
    finished: list[_Sequence] = []
    active: list[_Sequence] = []
    # Prompts of like lengths are read together; those that take longest begin first.
    waiting.sort(key=lambda one: len(one.ids))
    drawn = _FIRST_DRAWN
    while waiting or active:
        room = steps.rows_at_once - len(active)
        # A few free places are not worth the reading of a few prompts.
        if waiting and (room >= steps.rows_at_once // 4 or len(waiting) <= room):
            joining = [waiting.pop() for _ in range(min(room, len(waiting)))]
            _read(steps, joining)
            active += joining
        _draw(steps, active, drawn, cancellation)
        drawn = min(2 * drawn, steps.most_drawn)
        finished += [one for one in active if one.reason]
        active = [one for one in active if not one.reason]
    return [one.completion() for one in sorted(finished, key=lambda one: one.place)]


def stream(
    steps: Steps,
    prompt: np.ndarray,
    max_tokens: int,
    rules: SamplingRules,
    cancellation: Cancellation | None,
) -> Iterator[np.ndarray]:
    """Continues one prompt, giving (N,) int32 ids as they are drawn; what `complete` draws of it.

    Raises what `complete` raises; the arguments are checked when the first ids are asked for.
    """
    one = _Sequence(0, prompt, max_tokens, rules, None)
    _read(steps, [one])
    drawn = _FIRST_DRAWN
    while not one.reason:
        _draw(steps, [one], drawn, cancellation)
        yield one.chunks[-1]
        drawn = min(2 * drawn, steps.most_drawn)


class _Sequence:
    """One prompt and what has come of it."""

    def __init__(
        self,
        place: int,
        ids: np.ndarray,
        max_tokens: int,
        rules: SamplingRules,
        tokenizer: Tokenizer | None,
        stop: Sequence[str] = (),
    ) -> None:
        check_whole("max_tokens", max_tokens, 0, MOST_STEPS)
        if len(ids) == 0:
            raise ConfigError("the prompt is empty: give at least one character to continue.")
        self.place, self.ids, self.left, self.rules = place, np.asarray(ids), int(max_tokens), rules
        self.state = self.logits = np.empty(0, np.float32)
        self.position = 0
        self.chunks: list[np.ndarray] = []
        self.scores: list[np.ndarray] = []
        self.reason: Literal["", "length", "stop", "cancelled"] = ""
        self._text = None if tokenizer is None else TextStream(tokenizer, stop)
        self._tokenizer, self._stop, self._shown = tokenizer, stop, [""]

    def request(self, drawn: int, cancellation: Cancellation | None) -> Request:
        previous: np.ndarray | tuple[()] = ()
        if self.rules.repetition_penalty != 1:
            previous = np.concatenate([self.ids, *self.chunks])
        return Request(min(drawn, self.left), self.rules, self.position, previous, cancellation=cancellation)

    def take(self, ids: np.ndarray, scores: np.ndarray, cancelled: bool) -> None:
        self.chunks.append(ids)
        self.scores.append(scores)
        self.position += len(ids)
        self.left -= len(ids)
        if self._text is not None:
            self._shown.append(self._text.push(ids))
        if self._text is not None and self._text.stopped:
            self.reason = "stop"
        elif self.left == 0:
            self.reason = "length"
        elif cancelled:
            self.reason = "cancelled"

    def completion(self) -> Completion:
        assert self._text is not None and self._tokenizer is not None and self.reason  # noqa: S101 (`complete` makes them so)
        text = "".join(self._shown) + self._text.finish()
        ids, end = np.concatenate(self.chunks), self.position
        if self.reason == "stop":
            # Within the last chunk: the fewest ids that hold a stop text.
            decode, least = self._tokenizer.decode, end - len(self.chunks[-1])
            end = bisect.bisect_left(
                range(end), True, least + 1, key=lambda n: any(stop in decode(ids[:n]) for stop in self._stop)
            )
        return Completion(text, ids[:end], np.concatenate(self.scores)[:end], self.reason)


def _read(steps: Steps, sequences: list[_Sequence]) -> None:
    """Reads their prompts."""
    lengths = np.array([len(one.ids) for one in sequences])
    ids = np.zeros((len(sequences), lengths.max()), sequences[0].ids.dtype)
    for row, one in enumerate(sequences):
        ids[row, : len(one.ids)] = one.ids
    state, logits = steps.read(steps.initial_state(len(sequences)), ids, lengths)
    for row, one in enumerate(sequences):
        one.state, one.logits = state[row], logits[row]


def _draw(steps: Steps, sequences: list[_Sequence], drawn: int, cancellation: Cancellation | None) -> None:
    """Draws up to so many ids of each."""
    drawn = min(drawn, max(_LEAST_DRAWN, min(one.left for one in sequences)))
    found, state, logits = steps.generate_rows(
        np.stack([one.state for one in sequences]),
        np.stack([one.logits for one in sequences]),
        [one.request(drawn, cancellation) for one in sequences],
    )
    cancelled = cancellation is not None and cancellation.cancelled
    for row, one in enumerate(sequences):
        one.state, one.logits = state[row], logits[row]
        one.take(found[row].ids, found[row].log_probabilities, cancelled)
