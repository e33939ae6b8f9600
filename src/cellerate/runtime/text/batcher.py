"""Continuous batching: sequences are drawn side by side, join while others run, and leave when they end.

What a sequence draws depends only on its own prompt and rules, never on the sequences beside it.
"""

from __future__ import annotations

import bisect
import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import numpy as np

from cellerate.data.tokenizers import Tokenizer
from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.kernels.decoder.arguments import MOST_STEPS, check_whole, ids_array
from cellerate.kernels.decoder.contract import Steps
from cellerate.kernels.decoder.sampling import Cancellation, Drawn, Request, SamplingRules
from cellerate.messages import argument
from cellerate.runtime.text.prompts import Prompt, PromptReader
from cellerate.runtime.text.streaming import TextStream

Reason = Literal["length", "stop", "cancelled", "failed"]
_Found = TypeVar("_Found")

# Ids drawn in the first step. Few, so that the first words show at once and little is drawn beyond a stop text; each
# later step draws twice as many, up to the model's `most_drawn`.
_FIRST_DRAWN = 8
# A later step draws at least this many, even if some sequences need fewer and wait: a call costs as much as a few ids.
_LEAST_DRAWN = 32
# Errors that concern one sequence. Any other error concerns the machine, and `step` raises it.
_OF_A_SEQUENCE = (ConfigError, DataError, ModelError)


@dataclasses.dataclass(frozen=True)
class Update:
    """The result of a step for one sequence.

    Attributes:
        ticket: The sequence.
        ids: (N,) int32, drawn in this step, without ids after a stop text.
        log_probabilities: (N,) float32, ln of each id's probability under the model itself, before sampling rules.
        text: The new text that can be shown now; empty without a tokenizer.
        reason: Why the sequence ended; None while it goes on.
    """

    ticket: Ticket
    ids: np.ndarray
    log_probabilities: np.ndarray
    text: str
    reason: Reason | None


class Ticket:
    """A sequence in a `Batcher`, and its results. `Batcher.submit` makes it; read it once it has ended.

    Attributes:
        reason: Why it ended: "length" (enough ids), "stop" (a stop text), "cancelled" or "failed"; None before.
        error: The error that made it fail; None otherwise.
    """

    def __init__(
        self,
        prompt: Prompt,
        max_tokens: int,
        rules: SamplingRules,
        tokenizer: Tokenizer | None,
        stop: Sequence[str],
        cancellation: Cancellation | None,
    ) -> None:
        self.reason: Reason | None = None
        self.error: Exception | None = None
        self._prompt, self._left, self._rules = prompt, max_tokens, rules
        self._tokenizer, self._stop = tokenizer, stop
        self._stream = None if tokenizer is None else TextStream(tokenizer, stop, prompt.ids)
        self._cancellation = cancellation
        self._unwanted = False
        self._joins_others = False
        self._next_drawn = _FIRST_DRAWN
        self._state = self._logits = np.empty(0, np.float32)
        self._ids = [np.empty(0, np.int32)]
        self._log_probabilities = [np.empty(0, np.float32)]
        self._shown: list[str] = []
        self._drawn = 0

    @property
    def text(self) -> str:
        """The continuation, without the prompt and without a stop text; empty without a tokenizer."""
        return "".join(self._shown)

    @property
    def ids(self) -> np.ndarray:
        """(N,) int32, the ids drawn up to the end of `text`, or of the stop text."""
        return np.concatenate(self._ids)

    @property
    def log_probabilities(self) -> np.ndarray:
        """(N,) float32, ln of each id's probability under the model itself, before sampling rules."""
        return np.concatenate(self._log_probabilities)

    @property
    def _cancelled(self) -> bool:
        return self._unwanted or (self._cancellation is not None and self._cancellation.cancelled)

    def _request(self, count: int) -> Request:
        previous: np.ndarray | tuple[()] = ()
        if self._rules.repetition_penalty != 1:
            previous = np.concatenate([self._prompt.ids, *self._ids])
        return Request(
            min(count, self._left), self._rules, self._drawn, previous, cancellation=self._cancellation
        )

    def _take(self, drawn: Drawn) -> Update:
        """Takes newly drawn ids, and ends if they complete the sequence."""
        cancelled, ids = self._cancelled, drawn.ids
        text = self._stream.push(ids) if self._stream else ""
        if self._stream and self._stream.stopped:
            self.reason = "stop"
            ids = ids[: self._end_of_stop(ids)]
        elif len(ids) == self._left:
            self.reason = "length"
        elif cancelled:
            self.reason = "cancelled"
        if self._stream and self.reason:
            text += self._stream.finish()
        log_probabilities = drawn.log_probabilities[: len(ids)]
        self._ids.append(ids)
        self._log_probabilities.append(log_probabilities)
        self._drawn += len(ids)
        self._left -= len(ids)
        self._shown.append(text)
        return Update(self, ids, log_probabilities, text, self.reason)

    def _fail(self, error: Exception) -> Update:
        self.reason, self.error = "failed", error
        return Update(self, self._ids[0], self._log_probabilities[0], "", self.reason)

    def _end_of_stop(self, ids: np.ndarray) -> int:
        """The number of the ids just drawn that it takes to complete a stop text."""
        all_ids = np.concatenate([*self._ids, ids])

        def stopped(count: int) -> bool:
            assert self._tokenizer is not None  # noqa: S101 (a stop text needs one)
            # As the text was shown: its first space may depend on the prompt.
            stream = TextStream(self._tokenizer, self._stop, self._prompt.ids)
            stream.push(all_ids[:count])
            return stream.stopped

        end = bisect.bisect_left(range(len(all_ids)), True, self._drawn + 1, key=stopped)
        return end - self._drawn


class Batcher:
    """Draws any number of sequences on one model, each as if it were alone.

    Any thread may call any method. `submit` and `cancel` return at once, even while a step runs in another thread.
    Steps wait for each other, so one thread is enough to drive the batcher. A server submits and cancels from its
    handlers, and calls `step` in a separate thread while the batcher is not `idle`.

    Prompts are read in parts of the model's `most_drawn` ids, so that a long prompt does not stop the other sequences.
    Of the prompts submitted before the same step, the longest begin first: prompts of similar length are then read
    together, and those that take longest begin first. The rest of a long prompt is read after the prompts that already
    wait.

    Args:
        steps: The model.
        tokenizer: What its ids mean; None for ids without text, and without stop texts.
        most_active: How many sequences may be drawn at once. Beyond the model's `rows_at_once` they take turns, those
            that waited longest first, so that all go on and none waits for the end of another; None for
            `rows_at_once`, which is quickest for all together.
        prompt_cache_bytes: The memory for the states after prompts, so that a prompt that begins like an earlier one is
            read only from there on; 0 for none. Prompts read in the same step share equal beginnings in any case.

    Example:
        >>> batcher = Batcher(steps, tokenizer)
        >>> ticket = batcher.submit(tokenizer.encode("Well, Prince,"), max_tokens=400)
        >>> while not batcher.idle:
        ...     for update in batcher.step():
        ...         print(update.text, end="")
    """

    def __init__(
        self,
        steps: Steps,
        tokenizer: Tokenizer | None = None,
        *,
        most_active: int | None = None,
        prompt_cache_bytes: int = 0,
    ) -> None:
        self._steps, self._tokenizer = steps, tokenizer
        self._reader = PromptReader(steps, prompt_cache_bytes)
        self._most_active = most_active or 0
        self._stepping = threading.Lock()
        # Guards the three lists. A step holds it only while it changes them, not while it draws.
        self._lock = threading.Lock()
        self._submitted: list[Ticket] = []
        self._waiting: list[Ticket] = []
        self._active: list[Ticket] = []
        # The number of ids that the sequences drawn last get next.
        self._next_drawn = _FIRST_DRAWN
        # The sequences drawn last, with the states and logits of all of them.
        self._together: tuple[list[Ticket], np.ndarray, np.ndarray] | None = None

    @property
    def recalled(self) -> int:
        """The number of ids of prompts that did not have to be read, because the state after them was remembered."""
        return self._reader.recalled

    @property
    def idle(self) -> bool:
        """True if every sequence has ended, so that a step would do nothing."""
        with self._lock:
            return not (self._submitted or self._waiting or self._active)

    def submit(
        self,
        prompt: np.ndarray,
        *,
        max_tokens: int,
        rules: SamplingRules | None = None,
        stop: Sequence[str] = (),
        cancellation: Cancellation | None = None,
    ) -> Ticket:
        """Adds a sequence, which joins the others at one of the next steps.

        Args:
            prompt: (N,) ids to continue, N at least 1.
            max_tokens: Maximum number of ids to draw.
            rules: How to draw them; None for `SamplingRules()`.
            stop: Texts that end the sequence.
            cancellation: Ends every sequence that was submitted with it, in the middle of a step.

        Raises:
            ConfigError: The prompt or a stop text is empty, or a number is out of range.
            DataError: An id is not in the vocabulary.
        """
        check_whole("max_tokens", max_tokens, 0, MOST_STEPS)
        if len(prompt) == 0:
            raise ConfigError("the prompt is empty: give at least one character to continue.")
        ids = ids_array("ids", prompt, (None,), self._steps.vocabulary_size)
        if self._tokenizer is None and stop:
            raise ConfigError(
                f"{argument('stop')} is {stop!r}, and without a tokenizer there is no text: leave it out."
            )
        rules = rules or SamplingRules()
        ticket = Ticket(self._reader.begin(ids), int(max_tokens), rules, self._tokenizer, stop, cancellation)
        with self._lock:
            ticket._joins_others = bool(self._active)
            self._submitted.append(ticket)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Ends a sequence with what it has, at the end of the current step or at the next; the others go on.

        A sequence that has ended stays as it is.
        """
        ticket._unwanted = True

    def step(self) -> list[Update]:
        """Reads a part of the prompts that there is room for, and draws some ids for each sequence.

        A sequence that fails ends with its error, and the others go on.

        Returns:
            An update for each sequence that drew ids or ended; none if the batcher is idle.

        Raises:
            CellerateError: The model cannot run at all, for example because the GPU is gone. The next step tries
                again.
        """
        with self._stepping:
            with self._lock:
                if self._submitted:
                    new = sorted(self._submitted, key=lambda one: len(one._prompt.ids))
                    self._waiting += reversed(new)
                    self._submitted.clear()
            updates = self._leave_unread() + self._join() if self._waiting else []
            if self._active:
                updates += self._draw()
            if not self._active and not self._waiting:
                self._next_drawn = _FIRST_DRAWN
            return updates

    def _leave_unread(self) -> list[Update]:
        """Ends the sequences that were cancelled before their prompts were read to the end."""
        unwanted = {one: None for one in self._waiting if one._cancelled}
        if not unwanted:
            return []
        with self._lock:
            self._waiting = [one for one in self._waiting if one not in unwanted]
        nothing = Drawn(np.empty(0, np.int32), np.empty(0, np.float32))
        return [one._take(nothing) for one in unwanted]

    def _join(self) -> list[Update]:
        """Reads a part of waiting prompts if there is room; returns the updates of those that failed."""
        steps, waiting = self._steps, self._waiting
        most = max(self._most_active, steps.rows_at_once)
        room = min(most - len(self._active), steps.rows_at_once)
        # A few free places are not worth a call that reads a few prompts.
        if not waiting or room < 1 or (room < steps.rows_at_once // 4 and len(waiting) > room):
            return []
        joining = waiting[:room]
        read, failed, unread = [], [], []
        for one, found in zip(joining, _each(joining, self._read), strict=True):
            if isinstance(found, Exception):
                failed.append(one._fail(found))
            elif not found.is_read:
                unread.append(one)
            else:
                one._state, one._logits = found.state, found.logits
                # A sequence that joins others should show its first words as soon as they did; one that waited for
                # room since they began continues with as many ids as they.
                one._next_drawn = _FIRST_DRAWN if one._joins_others else self._next_drawn
                read.append(one)
        with self._lock:
            waiting[:] = waiting[len(joining) :] + unread
            self._active = read + self._active
        return failed

    def _draw(self) -> list[Update]:
        """Draws some ids for each of the active sequences whose turn it is."""
        rows = self._steps.rows_at_once
        group, others = self._active[:rows], self._active[rows:]
        least = min(one._left for one in group)
        # The more take turns, the shorter each turn.
        most = max(_LEAST_DRAWN, self._steps.most_drawn // -(-len(self._active) // rows))
        wanted = min(one._next_drawn for one in group)
        count = min(most, max(_LEAST_DRAWN, least), wanted)
        results = _each(group, lambda tickets: self._draw_rows(tickets, count))
        self._next_drawn = min(2 * wanted, self._steps.most_drawn)
        updates = []
        for one, found in zip(group, results, strict=True):
            one._next_drawn = min(2 * one._next_drawn, self._steps.most_drawn)
            if isinstance(found, Exception):
                updates.append(one._fail(found))
            else:
                drawn, one._state, one._logits = found
                updates.append(one._take(drawn))
        ended = any(update.reason is not None for update in updates)
        if ended or others:
            with self._lock:
                self._active = others + [one for one in group if one.reason is None]
        if ended:
            self._together = None
        return updates

    def _draw_rows(self, tickets: Sequence[Ticket], count: int) -> list[tuple[Drawn, np.ndarray, np.ndarray]]:
        """Draws ids for sequences; returns what was drawn for each, and its state and logits after that."""
        # If the same sequences were drawn in the last step, their rows still lie in one array.
        if self._together is not None and self._together[0] == tickets:
            _, state, logits = self._together
        else:
            state = np.stack([one._state for one in tickets])
            logits = np.stack([one._logits for one in tickets])
        self._together = None
        drawn, state, logits = self._steps.generate_rows(
            state, logits, [one._request(count) for one in tickets]
        )
        self._together = (list(tickets), state, logits)
        return list(zip(drawn, state, logits, strict=True))

    def _read(self, tickets: Sequence[Ticket]) -> list[Prompt]:
        """Reads the next part of prompts together."""
        prompts = [one._prompt for one in tickets]
        self._reader.read(prompts)
        return prompts


def _each(
    tickets: Sequence[Ticket], call: Callable[[Sequence[Ticket]], Sequence[_Found]]
) -> list[_Found | Exception]:
    """Calls a function on several sequences; returns the result of each, or the error of one that fails."""
    try:
        return list(call(tickets))
    except _OF_A_SEQUENCE as error:
        if len(tickets) == 1:
            return [error]
    # One sequence made the call fail for all. Alone, each gives the same results as together.
    return [found for one in tickets for found in _each([one], call)]
