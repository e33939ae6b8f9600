"""Reads prompts in parts, so that no sequence waits for the end of a long one, and equal beginnings only once."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from cellerate.kernels.decoder.contract import Steps

# The bytes of a remembered state besides its numbers: two arrays, a tuple, a key and its entry.
_ENTRY_BYTES = 600


class Prompt:
    """A prompt and its progress. `PromptReader.begin` makes it.

    Attributes:
        ids: (N,) int32.
        position: The number of ids read so far.
        state: (S,) float32, the state after them.
        logits: (V,) float32, the logits of the next id, once all ids are read.
    """

    def __init__(self, ids: np.ndarray, part: int, state: np.ndarray) -> None:
        self.ids, self.position, self.state = ids, 0, state
        self.logits = np.empty(0, np.float32)
        self._part = part
        digest = hashlib.blake2b(digest_size=16)
        # For each part, a key of everything up to its end.
        self._keys: list[bytes] = []
        for begin in range(0, len(ids), part):
            digest.update(ids[begin : begin + part].tobytes())
            self._keys.append(digest.digest())

    @property
    def is_read(self) -> bool:
        """True if the whole prompt is read."""
        return self.position == len(self.ids)

    @property
    def next_part(self) -> np.ndarray:
        """The ids to read next."""
        return self.ids[self.position : self.position + self._part]

    @property
    def next_key(self) -> bytes:
        """A key of everything up to the end of the next part."""
        return self._keys[self.position // self._part]

    def ends(self) -> list[tuple[int, bytes]]:
        """The ends of the parts that are not read yet, with their keys, the last one first."""
        first = self.position // self._part
        ends = [min(len(self.ids), (place + 1) * self._part) for place in range(first, len(self._keys))]
        return list(zip(ends, self._keys[first:], strict=True))[::-1]

    def reaches(self, position: int, state: np.ndarray, logits: np.ndarray | None) -> None:
        """Records that the prompt is read up to a position."""
        self.position, self.state = position, state
        if logits is not None:
            self.logits = logits


class PromptReader:
    """Reads prompts a part at a time, and equal beginnings only once.

    Equal parts after equal beginnings are read once if they are read in the same call. The states of earlier calls are
    remembered within a limit, and the least recently used is forgotten first. An LSTM needs one state, however long
    the text before it. A remembered state has the same bits as reading gives.

    Args:
        steps: The model.
        most_bytes: The memory for remembered states; 0 for none.
    """

    def __init__(self, steps: Steps, most_bytes: int = 0) -> None:
        self._steps, self._most_bytes = steps, most_bytes
        self._initial = steps.initial_state()[0]
        # States after beginnings of prompts; logits only where a prompt ended, because there may be many.
        self._known: OrderedDict[bytes, tuple[np.ndarray, np.ndarray | None]] = OrderedDict()
        self._bytes = 0
        self.recalled = 0
        """The number of ids that did not have to be read, because their state was remembered."""

    def begin(self, ids: np.ndarray) -> Prompt:
        """An unread prompt of (N,) int32 ids; N is at least 1."""
        return Prompt(ids, self._steps.most_drawn, self._initial)

    def read(self, prompts: Sequence[Prompt]) -> None:
        """Reads the next part of each prompt that is not read to its end; after an error all are as before.

        Raises:
            CellerateError: As `Steps.read`.
        """
        for prompt in prompts:
            self._recall(prompt)
        alike: dict[tuple[int, bytes], list[Prompt]] = {}
        for prompt in prompts:
            if not prompt.is_read:
                alike.setdefault((prompt.position, prompt.next_key), []).append(prompt)
        if not alike:
            return
        firsts = [same[0] for same in alike.values()]
        parts = [prompt.next_part for prompt in firsts]
        lengths = np.array([len(part) for part in parts])
        ids = np.zeros((len(parts), lengths.max()), np.int32)
        for row, part in enumerate(parts):
            ids[row, : len(part)] = part
        states, logits = self._steps.read(np.stack([prompt.state for prompt in firsts]), ids, lengths)
        for row, ((position, key), same) in enumerate(alike.items()):
            for prompt in same:
                prompt.reaches(position + len(parts[row]), states[row], logits[row])
            self._remember(key, states[row], logits[row] if any(prompt.is_read for prompt in same) else None)

    def _recall(self, prompt: Prompt) -> None:
        """Continues from the longest remembered beginning."""
        for end, key in prompt.ends():
            state, logits = self._known.get(key, (None, None))
            if state is None or (logits is None and end == len(prompt.ids)):
                continue
            self._known.move_to_end(key)
            self.recalled += end - prompt.position
            prompt.reaches(end, state, logits)
            return

    def _remember(self, key: bytes, state: np.ndarray, logits: np.ndarray | None) -> None:
        size = _size(state, logits)
        if size > self._most_bytes:
            return
        # Copies, because a view of a row would keep all rows that were read with it.
        self._forget(key)
        self._known[key] = state.copy(), None if logits is None else logits.copy()
        self._bytes += size
        while self._bytes > self._most_bytes:
            self._forget(next(iter(self._known)))

    def _forget(self, key: bytes) -> None:
        found = self._known.pop(key, None)
        if found is not None:
            self._bytes -= _size(*found)


def _size(state: np.ndarray, logits: np.ndarray | None) -> int:
    return _ENTRY_BYTES + state.nbytes + (0 if logits is None else logits.nbytes)
