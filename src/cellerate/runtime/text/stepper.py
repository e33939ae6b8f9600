"""A next-token model under your control: an object with its state, to clone, keep in a file, split and join.

Use it to serve many users, to search or to experiment. For text alone, use `PackedModel.generate`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from cellerate.errors import ConfigError, DataError
from cellerate.kernels.decoder.contract import Steps
from cellerate.kernels.decoder.sampling import Drawn, Request, SamplingRules
from cellerate.messages import argument
from cellerate.runtime.cell_format import FLOAT32, read_container, write_container
from cellerate.runtime.rows import distinct_rows

_FORMAT = "stepper"


class Stepper:
    """Sequences that a next-token model reads, side by side, and what it remembers of each.

    The state stands for all that was read, so a prefix whose state is kept need not be read again. One stepper must
    not be used by several threads at once; clones of it may.

    Args:
        steps: The model.
        batch_size: How many sequences, from 0; more can `join`.
        fingerprint: Identifies the model in saved files; None if the stepper need not be saved.

    Attributes:
        state: (B, S) float32, h and c of each LSTM; must not be changed in place.
        logits: (B, V) float32, for the next id of each sequence; zeros before the first id is read.

    Example:
        >>> stepper = cellerate.load("book.cell").stepper()
        >>> logits = stepper.read(model.tokenizer.encode("Well, ")[None])
        >>> fork = stepper.clone()
        >>> stepper.step([logits[0].argmax()])
    """

    def __init__(self, steps: Steps, batch_size: int = 1, *, fingerprint: str | None = None) -> None:
        self._steps = steps
        self._fingerprint = fingerprint
        self.state = steps.initial_state(batch_size)
        self.logits = np.zeros((batch_size, steps.outputs), np.float32)

    @property
    def batch_size(self) -> int:
        """The number of sequences there are."""
        return len(self.state)

    def step(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Reads one id of each sequence.

        Args:
            ids: (B,) whole numbers.

        Returns:
            (B, V) float32, the logits of the next ids, which are also in `logits` from now on.

        Raises:
            ConfigError: There are not B ids.
            DataError: An id is not in the vocabulary.
        """
        self.state, self.logits = self._steps.step(self.state, np.asarray(ids))
        return self.logits

    def read(self, ids: np.ndarray, lengths: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        """Reads several ids of each sequence, as step after step would.

        Args:
            ids: (B, T) whole numbers.
            lengths: (B,) how many of them each sequence reads, from 1 to T; None for all.

        Returns:
            (B, V) float32, the logits of the next ids, which are also in `logits` from now on.

        Raises:
            ConfigError: A shape or a length does not fit.
            DataError: An id is not in the vocabulary.
        """
        counts = None if lengths is None else np.asarray(lengths)
        self.state, self.logits = self._steps.read(self.state, np.asarray(ids), counts)
        return self.logits

    def draw(
        self,
        count: int | Sequence[int],
        rules: SamplingRules | Sequence[SamplingRules] | None = None,
        *,
        position: int | Sequence[int] = 0,
        previous: Sequence[Sequence[int] | np.ndarray] | None = None,
        stop_ids: Iterable[int] = (),
    ) -> list[Drawn]:
        """Draws ids for each sequence and reads them, in one native call.

        Args:
            count: Maximum number of ids to draw: one number for all sequences, or B of them.
            rules: How to draw them: the same for all, with streams that count up from the rules' own, or B rules;
                None for `SamplingRules()`.
            position: Place in its sequence of the first id to draw: one for all, or B. With the seed and the stream
                it determines the random numbers, so give the next place to go on with a sequence.
            previous: B sequences of ids so far, the prompt's among them, for the repetition penalty.
            stop_ids: Ids that end a sequence; they are neither returned nor read.

        Returns:
            For each sequence the ids, and their log probabilities under the model itself.

        Raises:
            ConfigError: An argument does not have B entries, or a number is out of range.
            ModelError: A logit is a NaN or an infinity.
        """
        rows = self.batch_size
        if rules is None or isinstance(rules, SamplingRules):
            first = rules or SamplingRules()
            rules = [dataclasses.replace(first, stream=first.stream + row) for row in range(rows)]
        given = {
            "count": [count] * rows if isinstance(count, int | np.integer) else count,
            "rules": rules,
            "position": [position] * rows if isinstance(position, int | np.integer) else position,
            "previous": [()] * rows if previous is None else previous,
        }
        for name, values in given.items():
            if len(values) != rows:
                raise ConfigError(
                    f"{argument(name)} has {len(values)} entries; expected {rows}, one a sequence."
                )
        stops = tuple(stop_ids)
        rows_of = [dict(zip(given, row, strict=True)) for row in zip(*given.values(), strict=True)]
        requests = [Request(**row, stop_ids=stops) for row in rows_of]
        drawn, self.state, self.logits = self._steps.generate_rows(self.state, self.logits, requests)
        return drawn

    def clone(self) -> Stepper:
        """A second stepper that has read the same and is independent from here on."""
        return self._with(self.state.copy(), self.logits.copy())

    def join(self, other: Stepper) -> None:
        """Appends the sequences of another stepper of the same model; the other stepper keeps them too.

        Raises:
            ConfigError: It belongs to another model.
        """
        if other._steps is not self._steps:
            raise ConfigError("the other stepper is of another model; expected one of the same.")
        self.state = np.concatenate([self.state, other.state])
        self.logits = np.concatenate([self.logits, other.logits])

    def leave(self, rows: Sequence[int] | np.ndarray) -> Stepper:
        """Takes sequences out; the sequences after them move up.

        Args:
            rows: (N,) which sequences, each in [0, B) and none twice.

        Returns:
            A stepper with these sequences, in the order of `rows`.

        Raises:
            ConfigError: There is no such sequence, or one is named twice.
        """
        chosen = distinct_rows(rows, self.batch_size, "sequence")
        left = self._with(self.state[chosen], self.logits[chosen])
        self.state = np.delete(self.state, chosen, axis=0)
        self.logits = np.delete(self.logits, chosen, axis=0)
        return left

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the state into a file, whole or not at all; `restore` reads it back.

        Raises:
            ConfigError: There is no sequence, or the stepper was made without a fingerprint.
            OutputError: The file could not be written.
        """
        if self._fingerprint is None:
            raise ConfigError("this stepper cannot be saved: make it with PackedModel.stepper().")
        if self.batch_size == 0:
            raise ConfigError("there is no sequence to save; expected at least one.")
        metadata = {"kind": _FORMAT, "model": self._fingerprint}
        write_container(path, metadata, {"state": self.state, "logits": self.logits})

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Goes back to a state that `save` wrote from this very model; on failure nothing changes.

        Raises:
            DataError: There is no such file, or it is damaged or belongs to another model.
        """
        metadata, tensors = read_container(Path(path))
        if metadata.get("kind") != _FORMAT or tensors.keys() != {"state", "logits"}:
            raise DataError(f"{path} holds no state of a stepper: give a file that Stepper.save wrote.")
        state, logits = tensors["state"], tensors["logits"]
        size = self._steps.state_size, self._steps.outputs
        fits = state.ndim == logits.ndim == 2 and (state.shape[1], logits.shape[1]) == size
        fits = fits and len(state) == len(logits) and state.dtype == logits.dtype == FLOAT32
        if metadata.get("model") != self._fingerprint or not fits:
            raise DataError(
                f"{path} is a state of another model, or of one packed otherwise: restore it with that one."
            )
        if not (np.isfinite(state).all() and np.isfinite(logits).all()):
            raise DataError(f"{path} holds a NaN or an infinity; save the state again.")
        self.state, self.logits = state.copy(), logits.copy()

    def _with(self, state: np.ndarray, logits: np.ndarray) -> Stepper:
        other = Stepper(self._steps, 0, fingerprint=self._fingerprint)
        other.state, other.logits = state, logits
        return other
