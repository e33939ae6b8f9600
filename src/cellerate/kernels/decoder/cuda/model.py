"""The next-token chain on an NVIDIA GPU, like `decoder.cpu.StepModel` on the CPU: NumPy arrays in and out.

`decoder.contract` checks the arguments, `plan` says which kernel runs, and `batch` knows where arrays lie on the GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cellerate.errors import BackendError, ConfigError, ModelError
from cellerate.kernels.cuda import launch
from cellerate.kernels.decoder.contract import CheckedRequest, Steps, checked_chain
from cellerate.kernels.decoder.cuda import plan
from cellerate.kernels.decoder.cuda.batch import Batch, Loaded, seen_by, window_of
from cellerate.kernels.decoder.cuda.plan import Generator, Layer
from cellerate.kernels.decoder.cuda.records import ROW, sampling_record
from cellerate.kernels.decoder.cuda.weights import parts, weights
from cellerate.messages import argument
from cellerate.settings import check_choice

# Every block of the GPU counts what the penalty sees. Where the counts would take more than this, several calls share
# the rows, each with at least `_LEAST_ROWS`.
_MOST_COUNTS_BYTES = 1 << 30
_LEAST_ROWS = 8
# How long a kernel runs, in seconds, and the most ids that it draws: its start must not cost much beside it, a
# cancellation or an interrupt waits for its end, and its ids take memory.
_SECONDS_PER_LAUNCH, _SECONDS_UNCANCELLED, _MOST_IDS = 0.04, 1.0, 1 << 25


class CudaStepModel(Steps):
    """A next-token model on an NVIDIA GPU, Hopper or later: an embedding, LSTMs, and a linear dense layer.

    It never changes after it is made, and any number of threads may use it: they take turns. The results of a row
    depend neither on the other rows nor on the number of steps per call.

    Rounding: bfloat16 and float16 round weights, the table of the first layer, and h where it is multiplied. Sums, c,
    and the state are always float32. `Layout` in `kernels/lstm/cuda/operands.cuh` says how float32 is multiplied.

    Args:
        chain: As `StepModel` takes it: an embedding, LSTMs of at most 1024 units, a dense.
        precision: One of `plan.PRECISIONS`.
        device: The GPU's number.

    Attributes:
        device: The GPU's number.
        generator: The options its kernel is compiled for, except for the number of rows.
        packed_bytes: The size of weights and table on the GPU.

    Raises:
        ConfigError: The chain is not valid, or a shape, a dtype or an option does not fit.
        ModelError: A weight is a NaN or an infinity, or the chain has a node that only the CPU runs.
        BackendError: There is no such GPU, its memory is too small, or a package is missing.
    """

    # Starting a kernel costs as much as some steps, and a full wave of clusters little more than a single row.
    rows_at_once = 8192
    most_drawn = 4096

    def __init__(
        self, chain: Sequence[Mapping[str, Any]], *, precision: str = "float32", device: int = 0
    ) -> None:
        check_choice("precision", precision, plan.PRECISIONS)
        embedding, lstms, dense = parts(checked_chain(chain))
        check_gpu(device)
        layers = tuple(Layer(lstm.outputs, lstm.activation, lstm.recurrent_activation) for lstm in lstms)
        self.generator = Generator(
            precision, layers, embedding.inputs, dense.outputs, masks_zero=embedding.masks_zero
        )
        if not plan.fitting(self.generator):
            raise ModelError(
                "the model's layers are too many or too wide for the shared memory of a GPU's blocks; it runs with "
                f"{argument('device', 'cpu')}."
            )
        if self.generator.head.rounds > plan.MOST_ROUNDS:
            raise ModelError(
                f"the model gives {dense.outputs} logits, too many for the {self.generator.blocks} thread blocks "
                f"that its {max(layer.units for layer in layers)} units are computed in; it runs with "
                f"{argument('device', 'cpu')}."
            )
        self.precision, self.device = precision, device
        self.vocabulary_size, self.outputs = embedding.inputs, dense.outputs
        self.state_size = 2 * sum(layer.units for layer in layers)
        arrays = weights(self.generator, embedding, lstms, dense)
        self.packed_bytes = sum(array.nbytes for array in arrays.values())
        self._model = Loaded(self.generator, arrays, self.state_size, device)
        self._lock = threading.Lock()

    @property
    def seconds_per_step(self) -> float:
        """The time per step of the kernel that ran last, for all rows, including its start and the wait for it."""
        return self._model.seconds_per_step

    def _run(
        self, state: np.ndarray, ids: np.ndarray, lengths: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        after, logits, _ = self._read(state, ids, lengths, scored=False)
        return after, logits

    def _score(
        self, state: np.ndarray, ids: np.ndarray, lengths: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        after, _, found = self._read(state, ids, lengths, scored=True)
        return after, found[:, 1:]

    def _read(
        self, state: np.ndarray, ids: np.ndarray, lengths: np.ndarray | None, *, scored: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The state after the ids (B, T), the logits, and, if `scored`, the log probability of each id."""
        if not np.isfinite(state).all():
            raise ConfigError(
                "state holds a NaN or an infinity; expected finite numbers, such as those of initial_state() or read()."
            )
        rows, width = ids.shape
        found = np.zeros((rows, width if scored else 0), np.float32)
        if rows == 0:
            return state.copy(), np.zeros((0, self.outputs), np.float32), found
        counts = np.full(rows, width) if lengths is None else lengths
        asked = np.zeros(rows, ROW)
        with self._lock:
            batch, begin = Batch(self._model, state, None, every_step=scored), 0
            while begin < width:
                end = min(width, begin + batch.steps(_SECONDS_UNCANCELLED))
                asked["length"] = np.clip(counts - begin, 0, end - begin)
                batch.read(asked, ids[:, begin:end], wants_logits=scored or end == width)
                if scored:
                    some = np.empty((rows, end - begin), np.float32)
                    batch.results("log_probabilities", some)
                    # The first id of all has nothing before it.
                    there = (np.arange(begin, end) < counts[:, None]) & (np.arange(begin, end) > 0)
                    found[:, begin:end] = np.where(there, some, 0)
                begin = end
            return *batch.finish(), found

    def _draw(
        self,
        state: np.ndarray,
        after: np.ndarray,
        logits: np.ndarray,
        rows: Sequence[CheckedRequest],
        ids: np.ndarray,
        log_probabilities: np.ndarray,
    ) -> list[tuple[int, bool]]:
        drawn: list[tuple[int, bool]] = []
        most = self._most_rows(rows)
        for begin in range(0, len(rows), most):
            some = slice(begin, begin + most)
            with self._lock:
                drawn += self._draw_some(
                    state[some], after[some], logits[some], rows[some], ids[some], log_probabilities[some]
                )
        return drawn

    def _most_rows(self, rows: Sequence[CheckedRequest]) -> int:
        """The most rows of a call for which there is room to count what the penalty sees."""
        if all(row.rules.repetition_penalty == 1 for row in rows):
            return len(rows)
        each = 4 * self.generator.blocks * (self.outputs + max(window_of(row) for row in rows))
        return max(_LEAST_ROWS, _MOST_COUNTS_BYTES // each)

    def _draw_some(
        self,
        state: np.ndarray,
        after: np.ndarray,
        logits: np.ndarray,
        rows: Sequence[CheckedRequest],
        ids: np.ndarray,
        log_probabilities: np.ndarray,
    ) -> list[tuple[int, bool]]:
        asked = np.zeros(len(rows), ROW)
        asked["sampling"] = [sampling_record(row.rules, self.outputs) for row in rows]
        asked["window"] = [window_of(row) for row in rows]
        asked["stops"] = [len(row.stop_ids) for row in rows]
        asked["first_stop"] = np.cumsum(asked["stops"]) - asked["stops"]
        stop_ids = np.concatenate([row.stop_ids for row in rows])
        counts = np.array([row.count for row in rows], np.int64)
        start = np.array([row.position for row in rows], np.uint64)
        previous = np.array([len(row.previous) for row in rows], np.int64)
        flags = [(place, row.cancelled) for place, row in enumerate(rows) if row.cancelled is not None]
        drawn, ended = np.zeros(len(rows), np.int64), counts == 0
        diverged = np.zeros(len(rows), bool)
        batch = Batch(self._model, state, logits, every_step=True)
        while True:
            for place, flag in flags:
                ended[place] |= flag[0] != 0
            if ended.all():
                break
            left = np.where(ended, 0, counts - drawn)
            most = batch.steps(_SECONDS_PER_LAUNCH if flags else _SECONDS_UNCANCELLED)
            steps = min(int(left.max()), most, max(1, _MOST_IDS // len(rows)))
            asked["count"] = np.minimum(left, steps)
            asked["position"] = start + drawn.astype(np.uint64)
            asked["came"] = previous + drawn
            got = batch.draw(asked, steps, stop_ids, seen_by(rows, ids, drawn, self.outputs))
            diverged |= got < 0
            got = np.maximum(got, 0)
            _take(batch, "ids", steps, drawn, got, ids)
            _take(batch, "log_probabilities", steps, drawn, got, log_probabilities)
            drawn += got
            ended |= (got < asked["count"]) | (drawn == counts)
        after[:], found = batch.finish()
        # Rows that read nothing keep the logits that they were given.
        logits[drawn > 0] = found[drawn > 0]
        return list(zip(drawn.tolist(), diverged.tolist(), strict=True))


def _take(batch: Batch, name: str, steps: int, drawn: np.ndarray, got: np.ndarray, to: np.ndarray) -> None:
    """Appends what the last kernel, of `steps` steps, has drawn to what each row drew before."""
    if steps == to.shape[1]:
        batch.results(name, to)
        return
    some = np.empty((len(to), steps), to.dtype)
    batch.results(name, some)
    begin = int(drawn[0])
    if (drawn == begin).all() and (got == steps).all():
        to[:, begin : begin + steps] = some
        return
    for row in np.flatnonzero(got):
        to[row, drawn[row] : drawn[row] + got[row]] = some[row, : got[row]]


def check_gpu(device: int, implementation: str = "") -> None:
    """Checks that the kernels, and all that they need, can run on a GPU.

    Args:
        device: Its number.
        implementation: The implementation by which a caller asked for it; "" for a device.

    Raises:
        BackendError: They cannot.
    """
    reason = launch.why_unavailable(device)
    if reason is None:
        return
    if implementation:
        raise BackendError(
            f"{argument('implementation', implementation)} needs an NVIDIA GPU from Hopper on: {reason.rstrip('.')}. "
            f"Leave {argument('implementation')} out, or see `cellerate env`."
        )
    raise BackendError(
        f"{argument('device')} is 'cuda:{device}', which needs an NVIDIA GPU from Hopper on: "
        f"{reason.rstrip('.')}. Use {argument('device', 'cpu')}, or see `cellerate env`."
    )
