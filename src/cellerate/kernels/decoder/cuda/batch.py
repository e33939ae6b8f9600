"""A model on a GPU, and a batch of rows that it computes: memory, and one kernel after another.

This module knows where arrays lie on the GPU. `decoder.contract` defines the calls of a model.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import numpy as np

from cellerate.kernels.cuda import launch
from cellerate.kernels.cuda.kernel import clusters
from cellerate.kernels.decoder.contract import CheckedRequest
from cellerate.kernels.decoder.cuda import plan
from cellerate.kernels.decoder.cuda.plan import Generator
from cellerate.kernels.decoder.cuda.records import GenerateArguments

# The seconds that a step is taken to need until one was measured, and the fewest steps of a kernel.
_SECONDS_PER_STEP, _LEAST_STEPS = 5e-6, 16


class Loaded:
    """A model's weights on a GPU, and the memory that its calls use one after another.

    Args:
        generator: The model's kernel, with any number of rows.
        weights: The weights by the names of the kernel's arguments.
        state_size: S.
        device: The GPU's number.

    Attributes:
        generator: The model's kernel, with any number of rows.
        state_size: S.
        device: The GPU's number.
        weights: The memory of each array of weights.
        seconds_per_step: The time per step of the kernel that ran last, including its start and the wait for it.
        seconds_per_wave: For each kernel that has run, how long a step takes for the clusters that run at once.

    Raises:
        BackendError: There is not enough memory.
    """

    def __init__(
        self, generator: Generator, weights: dict[str, np.ndarray], state_size: int, device: int
    ) -> None:
        self.generator, self.state_size, self.device = generator, state_size, device
        self.seconds_per_step = 0.0
        self.seconds_per_wave: dict[Generator, float] = {}
        self._rooms: dict[str, launch.DeviceMemory] = {}
        self.weights = {
            name: launch.DeviceMemory(max(1, array.nbytes), device) for name, array in weights.items()
        }
        for name, array in weights.items():
            if array.size:
                self.weights[name].write(array)

    def room(self, name: str, count: int) -> launch.DeviceMemory:
        """Memory of at least `count` bytes; calls with the same name share it."""
        found = self._rooms.get(name)
        if found is None or found.count < count:
            self._rooms.pop(name, None)
            found = self._rooms[name] = launch.DeviceMemory(max(1, count), self.device)
        return found

    def filled(self, name: str, array: np.ndarray) -> launch.DeviceMemory:
        """The memory of `room`, with an array copied to its beginning."""
        memory = self.room(name, array.nbytes)
        if array.size:
            memory.write(np.ascontiguousarray(array))
        return memory


class Batch:
    """Rows whose states and logits stay on the GPU from one kernel to the next.

    Args:
        model: The model; nobody else may use it meanwhile.
        state: (B, S) float32, B at least 1.
        logits: (B, V) float32, those of the first id; None where an id is read before one is drawn.
        every_step: Whether every step needs logits: to draw, or to score.
    """

    def __init__(
        self, model: Loaded, state: np.ndarray, logits: np.ndarray | None, *, every_step: bool
    ) -> None:
        def resident(kernel: Generator) -> int:
            return launch.resident(kernel, model.device)

        self._model, self._every_step, self._rows = model, every_step, len(state)
        self._kernel = plan.choose(model.generator, self._rows, resident)
        self._clusters = clusters(self._kernel.rows, self._rows)
        self._waves = -(-self._clusters // max(1, resident(self._kernel)))
        self._state = model.filled("state", state)
        self._has_logits = logits is not None
        if logits is None:
            self._logits = model.room("logits", 4 * self._rows * model.generator.outputs)
        else:
            self._logits = model.filled("logits", logits)

    def steps(self, seconds: float) -> int:
        """The number of steps the next kernel should have, to run for about `seconds`."""
        each = self._model.seconds_per_wave.get(self._kernel, _SECONDS_PER_STEP) * self._waves
        return max(_LEAST_STEPS, int(seconds / each))

    def read(self, asked: np.ndarray, ids: np.ndarray, *, wants_logits: bool) -> None:
        """Reads ids.

        Args:
            asked: (B,) of `ROW`; `length` says how many ids each row has.
            ids: (B, T) int32.
            wants_logits: Whether the next kernel or `finish` needs the logits.
        """
        rest = {"given": self._model.filled("given", ids)}
        self._run(asked, ids.shape[1], rest, wants_logits=wants_logits)

    def draw(self, asked: np.ndarray, steps: int, stop_ids: np.ndarray, penalty: Seen | None) -> np.ndarray:
        """Draws ids and reads them.

        Args:
            asked: (B,) of `ROW`.
            steps: T, how many ids at most.
            stop_ids: (N,) int32, those of all rows.
            penalty: What the penalty has seen; None if no row has one.

        Returns:
            (B,) int32, how many ids each row drew, or -1 where the logits were not finite.
        """
        room, kernel = self._model.room, self._kernel
        rest = {
            "stop_ids": self._model.filled("stop_ids", stop_ids),
            "ids": room("ids", 4 * self._rows * steps),
        }
        recent = 0
        if penalty is not None:
            recent = penalty.ring.shape[1]
            count = 4 * self._clusters * kernel.blocks * kernel.rows
            rest["times"] = self._model.filled("times", penalty.times)
            rest["ring"] = self._model.filled("ring", penalty.ring)
            rest["own_times"] = room("own_times", count * kernel.outputs)
            rest["own_ring"] = room("own_ring", count * recent)
        return self._run(asked, steps, rest, recent=recent, wants_logits=True)

    def _run(
        self,
        asked: np.ndarray,
        steps: int,
        rest: dict[str, launch.DeviceMemory],
        *,
        recent: int = 0,
        wants_logits: bool,
    ) -> np.ndarray:
        """Runs a kernel with the arguments that all calls have and `rest`; returns how many ids each row drew."""
        model, kernel = self._model, self._kernel
        held = {
            "rows": model.filled("rows", asked),
            "drawn": model.room("drawn", 4 * self._rows),
            # The same memory: all blocks of a cluster have read the states before any block writes them.
            "state": self._state,
            "new_state": self._state,
            **model.weights,
            **rest,
        }
        if self._every_step:
            held["log_probabilities"] = model.room("log_probabilities", 4 * self._rows * steps)
        if self._has_logits:
            held["logits"] = self._logits
        if wants_logits:
            held["new_logits"] = self._logits
        if kernel.logits_scratch_bytes:
            held["all_logits"] = model.room("all_logits", self._clusters * kernel.logits_scratch_bytes)
        arguments = GenerateArguments(
            batch=self._rows,
            steps=steps,
            states=model.state_size,
            recent=recent,
            every_step=int(self._every_step),
            **{name: memory.address for name, memory in held.items()},
        )
        drawn = np.empty(self._rows, np.int32)
        began = time.perf_counter()
        with launch.current(model.device):
            launch.launch(kernel, arguments, model.device, 0)
        held["drawn"].read(drawn, 0)
        taken = time.perf_counter() - began
        done = steps if "given" in rest else max(1, min(steps, int(drawn.max()) + 1))
        model.seconds_per_step = taken / done
        model.seconds_per_wave[kernel] = model.seconds_per_step / self._waves
        self._has_logits = wants_logits
        return drawn

    def results(self, name: str, to: np.ndarray) -> None:
        """Copies the "ids" or "log_probabilities" of the last kernel's steps into a contiguous array (B, T)."""
        self._model.room(name, to.nbytes).read(to, 0)

    def finish(self) -> tuple[np.ndarray, np.ndarray]:
        """The states (B, S) and the logits (B, V); the last kernel must have been asked for the logits."""
        state = np.empty((self._rows, self._model.state_size), np.float32)
        logits = np.empty((self._rows, self._model.generator.outputs), np.float32)
        self._state.read(state, 0)
        self._logits.read(logits, 0)
        return state, logits


@dataclasses.dataclass(frozen=True)
class Seen:
    """The ids that the penalty has seen.

    Attributes:
        times: (B, V) how often it has seen each id.
        ring: (B, W) the last ids; the n-th of all is at n modulo the row's window.
    """

    times: np.ndarray
    ring: np.ndarray


def window_of(row: CheckedRequest) -> int:
    """The number of last ids that the penalty sees; 0 for all, and where the window has room for all ids."""
    window = row.rules.penalty_window or 0
    forgets = row.rules.repetition_penalty != 1 and window < len(row.previous) + row.count
    return window if forgets else 0


def seen_by(rows: Sequence[CheckedRequest], ids: np.ndarray, drawn: np.ndarray, outputs: int) -> Seen | None:
    """The ids that the penalty has seen once each row has drawn `drawn` ids (B, T); None if no row has one."""
    if all(row.rules.repetition_penalty == 1 for row in rows):
        return None
    windows = [window_of(row) for row in rows]
    times = np.zeros((len(rows), outputs), np.int32)
    ring = np.zeros((len(rows), max(1, *windows)), np.int32)
    for place, (row, window) in enumerate(zip(rows, windows, strict=True)):
        if row.rules.repetition_penalty == 1:
            continue
        seen = np.concatenate([row.previous, ids[place, : drawn[place]]])
        recent = np.arange(max(0, len(seen) - window) if window else 0, len(seen))
        times[place] = np.bincount(seen[recent], minlength=outputs)
        if window:
            ring[place, recent % window] = seen[recent]
    return Seen(times, ring)
