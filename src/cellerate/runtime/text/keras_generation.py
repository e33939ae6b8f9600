"""Generating ids: runs the prompt once, then one step a token, and gives out each id as soon as it is drawn.

It needs only the `Stepper` protocol, which `keras_graph.keras_stepper` implements for Keras models; packed models
draw inside their kernels instead. It knows ids, not text: tokenizers, stop strings and streaming of characters
are built on top of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from cellerate.errors import ConfigError, DataError
from cellerate.kernels.decoder.sampling import SamplingRules
from cellerate.messages import argument
from cellerate.runtime.text.sampling import sample

State = Any
"""The state that a stepper passes from step to step; opaque, and never changed in place."""


class Stepper(Protocol):
    """A next-token model that runs one step at a time; the caller holds its state.

    No call changes the state it is given, so one state can be continued in several ways.
    """

    vocabulary_size: int

    def initial_state(self, batch_size: int = 1) -> State:
        """The state before the first token, for `batch_size` sequences."""
        ...

    def prefill(self, state: State, ids: np.ndarray) -> tuple[State, np.ndarray]:
        """Reads (B, T) ids; returns the new state and the (B, V) float32 logits after the last one."""
        ...

    def step(self, state: State, ids: np.ndarray) -> tuple[State, np.ndarray]:
        """Reads (B,) ids; returns the new state and the (B, V) float32 logits of the next token."""
        ...


def generate_ids(
    stepper: Stepper,
    prompt_ids: Sequence[int] | np.ndarray,
    *,
    max_tokens: int,
    rules: SamplingRules | None = None,
    stop_ids: Iterable[int] = (),
) -> Iterator[int]:
    """Continues a prompt, one id at a time.

    The arguments are checked at once, before the first id is requested.

    Args:
        stepper: The model.
        prompt_ids: (N,) the ids to continue, N >= 1.
        max_tokens: Maximum number of ids to give, >= 0.
        rules: How to draw each id; None for `SamplingRules()`. The penalty sees the prompt too.
        stop_ids: Generation ends when one of these is drawn; that id is not given out.

    Returns:
        An iterator over the generated ids, without the prompt.

    Raises:
        ConfigError: The prompt is empty, `max_tokens` is negative, or a stop id is out of the vocabulary.
        DataError: A prompt id is not an integer, or out of the vocabulary.
    """
    prompt = np.asarray(prompt_ids)
    if prompt.ndim != 1:
        raise ConfigError(f"prompt_ids must be one sequence of ids, not an array of shape {prompt.shape}.")
    if prompt.size == 0:
        raise ConfigError("prompt_ids is empty: give at least one id for the model to continue.")
    if not np.issubdtype(prompt.dtype, np.integer):
        raise DataError(f"prompt_ids must be integers, not {prompt.dtype}.")
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int | np.integer) or max_tokens < 0:
        raise ConfigError(f"{argument('max_tokens')} must be an integer of at least 0, not {max_tokens!r}.")
    size = stepper.vocabulary_size
    outside = np.flatnonzero((prompt < 0) | (prompt >= size))
    if outside.size:
        place = int(outside[0])
        raise DataError(
            f"prompt_ids[{place}] is {int(prompt[place])}, but this model's ids run from 0 to {size - 1}. "
            "Encode the prompt with the tokenizer the model was trained with."
        )
    stops = frozenset(int(stop) for stop in stop_ids)
    for stop in stops:
        if not 0 <= stop < size:
            raise ConfigError(f"stop_ids holds {stop}, but this model's ids run from 0 to {size - 1}.")
    return _generate(stepper, prompt.astype(np.int64), int(max_tokens), rules or SamplingRules(), stops)


def _generate(
    stepper: Stepper, ids: np.ndarray, max_tokens: int, rules: SamplingRules, stops: frozenset[int]
) -> Iterator[int]:
    if max_tokens == 0:
        return
    state, logits = stepper.prefill(stepper.initial_state(1), ids[None])
    for position in range(max_tokens):
        drawn, _ = sample(logits, rules, position, [ids])
        token = int(drawn[0])
        if token in stops:
            return
        yield token
        if rules.repetition_penalty != 1:
            ids = np.concatenate([ids, drawn])
        if position + 1 < max_tokens:
            state, logits = stepper.step(state, drawn)
