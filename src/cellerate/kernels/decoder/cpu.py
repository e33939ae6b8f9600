"""The next-token chain on the native core, one time step at a time: what text generation runs.

It is a program as packed models are (`kernels.program`), whose weights are packed once, in float32, bfloat16,
int8 or int4; the whole loop of drawing and reading ids runs in one native call. Only this module uses the core's
`TextProgram`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.kernels.decoder.arguments import check_whole
from cellerate.kernels.decoder.contract import ChainNode, CheckedRequest, Steps, checked_chain
from cellerate.kernels.native import core, empty
from cellerate.kernels.program.cpu import native_node, rows
from cellerate.program import PRECISIONS, Node
from cellerate.settings import check_choice


class StepModel(Steps):
    """A next-token model: an embedding, LSTMs, and the layers between them and the logits.

    It never changes after it is made, and any number of threads may use it at once. It keeps the instruction
    set that was in use when it was made. In float32 the results depend neither on the instruction set nor on
    the threads; in bfloat16 they may depend on the instruction set.

    Rounding: bfloat16 rounds weights and the inputs of every product to bfloat16. int8 rounds the weights of
    each output to 127 steps of their largest (ties to even), h of an LSTM with tanh and sigmoid to 1/127, and
    any other input of a product to 127 steps of the largest in its row. int4 rounds the weights of each 32 inputs of
    an output to whole numbers from -8 to 7, as `runtime.narrowing` says, and inputs as int8 does. Sums, c, and the
    product of the embeddings with the kernel of an LSTM directly after them are always float32.

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
        checked, native_core = checked_chain(chain), core()
        nodes, outputs = _program(checked)
        places = {place: place for place in range(len(nodes))}
        native = [native_node(node, places, rows()) for node in nodes]
        # The greatest id that is masked: the core gives rows that have ended an id of -1.
        mask = [node.op for node in nodes].index("ids_mask")
        *before, _, whole = native[mask]
        native[mask] = (*before, 0.0 if checked[0].masks_zero else -1.0, whole)
        try:
            self._native = native_core.TextProgram(native, outputs, precision, threads or 0)
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
        self._call(self._native.score, ids, lengths, state, after, result)
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
        self._call(self._native.read, np.ascontiguousarray(ids), lengths, state, after, logits)
        return after, logits

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            function(*arguments)
        except IndexError as error:
            raise DataError(str(error)) from None
        except ValueError as error:
            raise ConfigError(f"{error}.") from None


def _program(chain: list[ChainNode]) -> tuple[list[Node], list[int]]:
    """The chain as a program, and its outputs: the logits, then h and c of each LSTM.

    Its inputs are the ids, then h and c of each LSTM before them.

    Raises:
        ModelError: A weight is a NaN or an infinity.
    """
    nodes = [
        Node("input", "ids", options={"dtype": "int32"}),
        *(Node("input", "state") for node in chain if node.kind == "lstm" for _ in "hc"),
        Node("ids_mask", "mask", {"ids": 0}),
    ]
    states: list[int] = []
    mask, before = len(nodes) - 1, 0
    for place, node in enumerate(chain):
        inputs = {"ids" if node.kind == "embedding" else "x": before}
        if node.kind == "lstm":
            inputs |= {"mask": mask, "h0": len(states) + 1, "c0": len(states) + 2}
        options: dict[str, Any] = {
            "activation": node.activation,
            "recurrent_activation": node.recurrent_activation,
            "epsilon": node.epsilon,
            "masked_output": "previous_state",
        }
        nodes.append(Node(node.kind, "", inputs, _arrays(place, node), options))
        before = len(nodes) - 1
        if node.kind == "lstm":
            for state in "hc":
                states.append(len(nodes))
                nodes.append(Node("lstm_state", "", {"lstm": before}, options={"state": state}))
    return nodes, [before, *states]


def _arrays(place: int, node: ChainNode) -> dict[str, np.ndarray]:
    """The arrays of a node of a chain by name. Raises `ModelError` if a weight is a NaN or an infinity."""
    arrays = {}
    for name, array in zip(
        rows()[node.kind].arrays, (node.kernel, node.recurrent_kernel, node.bias), strict=True
    ):
        if name is None or array is None:
            continue
        if not np.isfinite(array).all():
            raise ModelError(
                f"chain[{place}]: {name} holds a NaN or an infinity: its training has diverged. Go back to an earlier "
                "checkpoint, or train with a lower learning rate or gradient clipping."
            )
        arrays[name] = array
    return arrays
