"""The next-token chain on the native core, one time step at a time: what text generation runs.

Unlike in training, the weights are packed once, in float32, bfloat16 or int8, there are few rows, and the whole loop
of drawing and reading ids runs in one native call. Only this module uses the core's `StepModel`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.kernels import codes
from cellerate.kernels.decoder.arguments import check_whole
from cellerate.kernels.decoder.contract import ChainNode, CheckedRequest, Steps, checked_chain
from cellerate.kernels.native import core, empty
from cellerate.program import PRECISIONS
from cellerate.settings import check_choice


class StepModel(Steps):
    """A next-token model: an embedding, LSTMs, and the layers between them and the logits.

    It never changes after it is made, and any number of threads may use it at once. It keeps the instruction
    set that was in use when it was made. In float32 the results depend neither on the instruction set nor on
    the threads; in bfloat16 they may depend on the instruction set.

    Rounding: bfloat16 rounds weights and the inputs of every product to bfloat16. int8 rounds the weights of
    each output to 127 steps of their largest (ties to even), h of an LSTM with tanh and sigmoid to 1/127, and
    any other input of a product to 127 steps of the largest in its row. Sums, c, and the product of the
    embeddings with the kernel of an LSTM directly after them are always float32.

    Args:
        chain: {"op": "embedding", "embeddings": (V, E), "masks_zero": False}, where `masks_zero` means that
            id 0 leaves the state as it is; then at least one LSTM among any of
            {"op": "lstm", "kernel": (D, 4H), "recurrent_kernel": (H, 4H), "bias": (4H,) or None,
            "activation", "recurrent_activation"},
            {"op": "layer_norm", "gamma": (F,) or None, "beta": (F,) or None, "epsilon"},
            {"op": "affine", "scale": (F,), "offset": (F,)} and
            {"op": "dense", "kernel": (K, N), "bias": (N,) or None, "activation"}. Arrays are float32. The
            width of the last node is the number of logits.
        precision: How weights are kept, one of `program.PRECISIONS`.
        threads: How many threads each call uses; None to measure, at the first generation, what is fastest.

    Attributes:
        vocabulary_size: V; ids are in [0, V).
        outputs: The number of logits.
        state_size: S, the width of a state: h and c of each LSTM, one after another, float32.
        packed_bytes: The size of the packed weights.
        target: The instruction set that it keeps.

    Raises:
        ConfigError: The chain is not valid, or a shape, a dtype or an option does not fit.
        ModelError: A weight is a NaN or an infinity.
        BackendError: The native core is not installed.
        MemoryError: There is no room for the packed weights.
    """

    # Enough rows to use each weight well, and few enough for their states to stay in a core's cache.
    rows_at_once = 64
    most_drawn = 256

    def __init__(
        self, chain: Sequence[Mapping[str, Any]], *, precision: str = "float32", threads: int | None = None
    ) -> None:
        check_choice("precision", precision, PRECISIONS)
        if threads is not None:
            check_whole("threads", threads, 1, 1024)
        nodes = [_native_node(node) for node in checked_chain(chain)]
        try:
            self._native = core().StepModel(nodes, precision, threads or 0)
        except ArithmeticError as error:
            raise ModelError(str(error)) from None
        except ValueError as error:
            raise ConfigError(f"{error}.") from None
        self.precision = precision
        self.vocabulary_size: int = self._native.vocabulary
        self.outputs: int = self._native.outputs
        self.state_size: int = self._native.state_size
        self.packed_bytes: int = self._native.packed_bytes
        self.target: str = self._native.target

    def step(self, state: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `Steps.step`; the core itself looks at the arrays, which takes a tenth of the time."""
        if isinstance(state, np.ndarray) and state.ndim == 2:
            after, logits = np.empty_like(state), np.empty((len(state), self.outputs), np.float32)
            try:
                if self._native.step(state, ids, after, logits):
                    return after, logits
            except (IndexError, ValueError):
                pass  # what follows says what is wrong
        return super().step(state, ids)

    def _score(
        self, state: np.ndarray, ids: np.ndarray, lengths: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        after = np.empty_like(state)
        result = np.empty((len(ids), ids.shape[1] - 1), np.float32)
        self._call(len(ids), ids.shape[1], ids, lengths, state, after, None, result)
        return after, result

    def _draw(
        self,
        state: np.ndarray,
        after: np.ndarray,
        logits: np.ndarray,
        rows: Sequence[CheckedRequest],
        ids: np.ndarray,
        log_probabilities: np.ndarray,
    ) -> list[tuple[int, bool]]:
        native = [
            (row.rules.native(), row.previous, row.position, row.count, row.stop_ids, row.cancelled)
            for row in rows
        ]
        drawn: list[tuple[int, bool]] = self._native.generate(
            state, after, logits, native, ids, log_probabilities
        )
        return drawn

    def _run(
        self, state: np.ndarray, ids: np.ndarray, lengths: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        after = empty(state.shape, np.float32)
        logits = empty((len(state), self.outputs), np.float32)
        self._call(len(state), ids.shape[1], np.ascontiguousarray(ids), lengths, state, after, logits, None)
        return after, logits

    def _call(self, *arguments: Any) -> None:
        try:
            self._native.run(*arguments)
        except IndexError as error:
            raise DataError(str(error)) from None
        except ValueError as error:
            raise ConfigError(f"{error}.") from None


def _native_node(node: ChainNode) -> tuple[Any, ...]:
    """A node as the core's constructor takes it."""
    kinds = ("activation", "recurrent_activation")
    coded = {name: codes.of_activation(getattr(node, name)) for name in kinds}
    return tuple((node._asdict() | coded).values())
