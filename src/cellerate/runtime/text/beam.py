"""Beam search: the likeliest continuations of a prompt that a few candidates at a time can find."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from cellerate.data.tokenizers import Tokenizer
from cellerate.errors import ConfigError, ModelError
from cellerate.kernels.decoder.arguments import MOST_STEPS, check_real, check_whole
from cellerate.kernels.decoder.contract import Steps
from cellerate.kernels.decoder.sampling import DIVERGED
from cellerate.runtime.text.completion import Completion
from cellerate.runtime.text.sampling import log_softmax
from cellerate.runtime.text.streaming import TextStream

_MOST_BEAMS = 1024


def beam_search(
    steps: Steps,
    tokenizer: Tokenizer,
    prompt: np.ndarray,
    *,
    beams: int = 4,
    max_tokens: int = 100,
    stop: Sequence[str] = (),
    length_penalty: float = 1.0,
) -> list[Completion]:
    """Finds likely continuations.

    Each step extends every candidate by every id and keeps the `beams` likeliest. A candidate that completes a stop
    text is finished; the search ends with `beams` finished candidates, or at `max_tokens`.

    Args:
        steps: The model.
        tokenizer: What its ids mean.
        prompt: (N,) ids, N at least 1.
        beams: How many candidates.
        max_tokens: Maximum number of ids of a continuation.
        stop: Texts that end a continuation; they are not in its text.
        length_penalty: Continuations are ranked by ln p / length ** length_penalty: 0 favours short ones.

    Returns:
        `beams` continuations, or fewer if there are no more, best first.

    Raises:
        ConfigError: A number is out of range, or the prompt or a stop text is empty.
        DataError: An id is not in the vocabulary.
        ModelError: A logit is a NaN or an infinity.

    Source:
        Lowerre, "The Harpy Speech Recognition System", 1976; the ranking by length: Wu et al., "Google's Neural
        Machine Translation System", 2016, section 7.
    """
    check_whole("beams", beams, 1, _MOST_BEAMS)
    check_whole("max_tokens", max_tokens, 0, MOST_STEPS)
    check_real("length_penalty", length_penalty, lambda x: x >= 0, "of at least 0")
    prompt = np.asarray(prompt)
    TextStream(tokenizer, stop, prompt)  # checks `stop`
    if len(prompt) == 0:
        raise ConfigError("the prompt is empty: give at least one character to continue.")
    state, logits = steps.read(steps.initial_state(), prompt[None])
    alive = [_Candidate((), (), 0.0)]
    finished: list[tuple[_Candidate, str]] = []
    for _ in range(max_tokens):
        if not np.isfinite(logits).all():
            raise ModelError(DIVERGED)
        each = log_softmax(logits)
        totals = np.array([candidate.total for candidate in alive])[:, None] + each
        count = min(beams, totals.size)
        # A stable sort: of equals, the first candidate and the lowest id win.
        best = np.argsort(-totals, axis=None, kind="stable")[:count]
        parents, ids = np.divmod(best, totals.shape[1])
        extended = [
            alive[parent].extended(int(token), float(each[parent, token]))
            for parent, token in zip(parents, ids, strict=True)
        ]
        going = []
        for row, candidate in enumerate(extended):
            text = _end_of_stop(tokenizer, prompt, candidate, stop)
            if text is None:
                going.append(row)
            else:
                finished.append((candidate, text))
        alive = [extended[row] for row in going]
        if len(finished) >= beams or not alive:
            break
        state, logits = steps.step(state[parents[going]], ids[going])
    found = [(candidate, text, "stop") for candidate, text in finished]
    # Where enough are finished, those that are not were cut short, and nothing ranks them.
    whole = [candidate for candidate in alive if len(candidate.ids) == max_tokens]
    found += [(candidate, _continued(tokenizer, prompt, candidate), "length") for candidate in whole]
    found.sort(key=lambda one: -one[0].total / max(1, len(one[0].ids)) ** length_penalty)
    return [
        Completion(text, np.int32(one.ids), np.float32(one.scores), reason)  # type: ignore[arg-type]
        for one, text, reason in found[:beams]
    ]


@dataclasses.dataclass(frozen=True)
class _Candidate:
    """A continuation and how likely it is: its ids, ln p of each, and their sum."""

    ids: tuple[int, ...]
    scores: tuple[float, ...]
    total: float

    def extended(self, token: int, score: float) -> _Candidate:
        return _Candidate((*self.ids, token), (*self.scores, score), self.total + score)


def _continued(tokenizer: Tokenizer, prompt: np.ndarray, candidate: _Candidate) -> str:
    """The text of a candidate after a prompt."""
    stream = TextStream(tokenizer, (), prompt)
    return stream.push(np.array(candidate.ids, np.int32)) + stream.finish()


def _end_of_stop(
    tokenizer: Tokenizer, prompt: np.ndarray, candidate: _Candidate, stop: Sequence[str]
) -> str | None:
    """The text before the stop text that the last id completed; None if it completed none."""
    if not stop:
        return None
    # An id gives at least one byte, and a character has at most four.
    most = 4 * max(map(len, stop)) + 4
    last = [*prompt[-most:].tolist(), *candidate.ids][-most:]
    if not any(text in tokenizer.decode(last) for text in stop):
        return None
    stream = TextStream(tokenizer, stop, prompt)
    text = stream.push(np.array(candidate.ids, np.int32))
    return text if stream.stopped else None
