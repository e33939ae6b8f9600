"""The calls of a next-token chain, computed one time step at a time, and the checks of their arguments.

Models on the native core and on a GPU share these calls and checks.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cellerate import activations
from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.kernels.decoder.arguments import (
    MOST_STEPS,
    check_real,
    check_whole,
    float_array,
    ids_array,
    whole_array,
)
from cellerate.kernels.decoder.sampling import DIVERGED, Cancellation, Drawn, Request, SamplingRules

KINDS = ("embedding", "lstm", "layer_norm", "affine", "dense")
"""The kinds of nodes of a chain."""


_NO_IDS = np.zeros(0, np.int32)


@dataclasses.dataclass(frozen=True)
class CheckedRequest:
    """The request of one sequence, checked and in the form that the subclasses of `Steps` take.

    Attributes:
        rules: How its ids are drawn.
        previous: (N,) int32, the ids so far.
        position: The position in the sequence of the first id to draw.
        count: The most ids to draw.
        stop_ids: (N,) int32.
        cancelled: (1,) int32, not 0 once it is cancelled; None if it cannot be cancelled.
    """

    rules: SamplingRules
    previous: np.ndarray
    position: int
    count: int
    stop_ids: np.ndarray
    cancelled: np.ndarray | None


class Steps(abc.ABC):
    """A next-token model that computes one time step at a time: its calls, with checked arguments.

    It never changes after it is made, and any number of threads may use it at once.

    Attributes:
        precision: How its weights are kept.
        vocabulary_size: V; ids are in [0, V).
        outputs: The number of logits.
        state_size: S, the width of a state: h and c of each LSTM, one after another, float32; what another layer
            remembers lies between them in the order of the layers.
        rows_at_once: The number of sequences worth computing side by side.
        most_drawn: The number of ids of a sequence worth drawing in one call.
    """

    precision: str
    vocabulary_size: int
    outputs: int
    state_size: int
    rows_at_once: int
    most_drawn: int

    def initial_state(self, batch: int = 1) -> np.ndarray:
        """The state before the first id: (B, S) float32 zeros, for B of at least 0."""
        check_whole("batch", batch, 0, MOST_STEPS)
        return np.zeros((batch, self.state_size), np.float32)

    def step(self, state: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Reads one id per row.

        Args:
            state: (B, S) float32; it is not changed.
            ids: (B,) whole numbers in [0, V).

        Returns:
            The new state (B, S), and the logits (B, V') of the next id, both float32.

        Raises:
            ConfigError: A shape or dtype does not fit, or the state is not finite.
            DataError: An id is not in the vocabulary.
        """
        state = self._state(state)
        ids = ids_array("ids", ids, (len(state),), self.vocabulary_size)
        return self._run(state, ids[:, None], None)

    def read(
        self, state: np.ndarray, ids: np.ndarray, lengths: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Reads several ids per row, with the same results as one `step` after another.

        Args:
            state: (B, S) float32; it is not changed.
            ids: (B, T) whole numbers, T at least 1; those that are read must be in [0, V).
            lengths: (B,) how many of its ids each row reads, from 1 to T; None for all.

        Returns:
            The new state (B, S), and the logits (B, V') after the last id that each row reads, both float32.

        Raises:
            ConfigError: A shape, a dtype or a length does not fit, or the state is not finite.
            DataError: An id is not in the vocabulary.
        """
        return self._run(*self._texts(state, ids, lengths))

    def log_probabilities(
        self, state: np.ndarray, ids: np.ndarray, lengths: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The log probability of each id of given texts.

        Args:
            state: (B, S) float32; it is not changed.
            ids: (B, T) whole numbers, T at least 1; those that are read must be in [0, V).
            lengths: (B,) how many of its ids each row has, from 1 to T; None for all.

        Returns:
            The state (B, S) after the last id of each row, and (B, T - 1) float32,
            ln p(ids[b, t + 1] | state, ids[b, ..t]), with 0 after the end of a row.

        Raises:
            ConfigError: A shape, a dtype or a length does not fit, the number of logits is not the size of the
                vocabulary, or the state is not finite.
            DataError: An id is not in the vocabulary.
        """
        self._check_logits_are_ids()
        state, ids, counts = self._texts(state, ids, lengths)
        return self._score(state, ids, counts)

    def generate(
        self,
        state: np.ndarray,
        logits: np.ndarray,
        count: int,
        rules: SamplingRules | None = None,
        *,
        position: int = 0,
        previous: Sequence[int] | np.ndarray = (),
        stop_ids: Iterable[int] = (),
        cancellation: Cancellation | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Draws ids and reads each, in native calls that do not hold Python's global lock.

        It ends when `count` ids are drawn, when a stop id is drawn, or soon after `cancellation.cancel()`. Drawing
        5 ids, and then 7 from the next position on, gives the same as drawing 12.

        Args:
            state: (1, S) float32; it is not changed.
            logits: (V,) float32, those of the next id, as `step`, `read` or `generate` returned them.
            count: How many ids at most, at least 0.
            rules: How they are drawn; None for `SamplingRules()`.
            position: Of the first id to draw, in its sequence; it and the seed determine the random number.
            previous: (N,) the ids so far, including the prompt's, for the penalty.
            stop_ids: Ids that end the sequence; they are neither returned nor read.
            cancellation: Ends the call from another thread.

        Returns:
            The ids (N,) int32, their log probabilities (N,) float32 by the model itself (ln softmax of the
            logits, without any rule), the state (1, S) after them, and the logits (V,) of the next id.

        Raises:
            ConfigError: A shape, a dtype or a number does not fit, or the state is not finite.
            DataError: An id of `previous` or `stop_ids` is not in the vocabulary.
            ModelError: A logit is a NaN or an infinity.
        """
        request = Request(count, rules or SamplingRules(), position, previous, stop_ids, cancellation)
        following = float_array("logits", logits, (self.outputs,))
        (drawn,), after, following = self.generate_rows(self._state(state, 1), following[None], [request])
        return drawn.ids, drawn.log_probabilities, after, following[0]

    def generate_rows(
        self, state: np.ndarray, logits: np.ndarray, requests: Sequence[Request]
    ) -> tuple[list[Drawn], np.ndarray, np.ndarray]:
        """Draws ids of several sequences side by side, for each sequence the same as `generate` would alone.

        A sequence that has ended waits for the others, which costs as much as drawing. So draw fewer ids per call,
        and pass only the sequences that go on to the next call.

        Args:
            state: (B, S) float32; it is not changed.
            logits: (B, V) float32, those of each sequence's next id.
            requests: One per sequence, B in all.

        Returns:
            What was drawn for each sequence, the states (B, S) after that, and the logits (B, V) of the next ids.

        Raises:
            ConfigError: A shape, a dtype or a number does not fit, or a state is not finite.
            DataError: An id is not in the vocabulary.
            ModelError: A logit is a NaN or an infinity.
        """
        self._check_logits_are_ids()
        state = self._state(state, len(requests))
        following = float_array("logits", logits, (len(requests), self.outputs)).copy()
        rows = [self._row(request) for request in requests]
        self._check_finite(state)
        width = max((request.count for request in requests), default=0)
        ids = np.empty((len(requests), width), np.int32)
        log_probabilities = np.empty(ids.shape, np.float32)
        if ids.size == 0:
            nothing = Drawn(ids[:0].reshape(-1), log_probabilities[:0].reshape(-1))
            return [nothing] * len(requests), state.copy(), following
        after = np.empty_like(state)
        drawn = self._draw(state, after, following, rows, ids, log_probabilities)
        if any(diverged for _, diverged in drawn):
            raise ModelError(DIVERGED)
        found = [
            Drawn(
                *(
                    each[row] if count == width else each[row, :count].copy()
                    for each in (ids, log_probabilities)
                )
            )
            for row, (count, _) in enumerate(drawn)
        ]
        return found, after, following

    def _row(self, request: Request) -> CheckedRequest:
        check_whole("count", request.count, 0, MOST_STEPS)
        check_whole("position", request.position, 0, 2**62)
        previous, stop_ids = request.previous, list(request.stop_ids)
        return CheckedRequest(
            request.rules,
            _NO_IDS
            if isinstance(previous, tuple) and not previous
            else ids_array("previous", previous, (None,), self.vocabulary_size),
            int(request.position),
            int(request.count),
            ids_array("stop_ids", stop_ids, (None,), self.vocabulary_size) if stop_ids else _NO_IDS,
            None if request.cancellation is None else request.cancellation.flag,
        )

    def _texts(
        self, state: np.ndarray, ids: np.ndarray, lengths: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Checks state (B, S), ids (B, T) and lengths (B,), and returns them in the form of `_run` and `_score`."""
        state = self._state(state)
        ids = np.asarray(ids)
        if ids.ndim != 2 or ids.shape[1] < 1:
            raise ConfigError(
                f"ids has shape {ids.shape}; expected (B, T) = ({len(state)}, T) with T at least 1."
            )
        if lengths is None:
            return state, ids_array("ids", ids, (len(state), None), self.vocabulary_size), None
        counts = whole_array("lengths", lengths, (len(state),), ConfigError)
        wrong = np.flatnonzero((counts < 1) | (counts > ids.shape[1]))
        if wrong.size:
            place = int(wrong[0])
            raise ConfigError(f"lengths[{place}] is {int(counts[place])}; expected 1 to {ids.shape[1]}.")
        ids = whole_array("ids", ids, (len(state), None), DataError)
        # Beyond a row's length the ids may be anything; they are not read.
        ids = np.where(np.arange(ids.shape[1]) < counts[:, None], ids, 0)
        ids = ids_array("ids", ids, (len(state), None), self.vocabulary_size)
        return state, ids, counts.astype(np.int32)

    def _state(self, state: np.ndarray, batch: int | None = None) -> np.ndarray:
        return float_array("state", state, (batch, self.state_size))

    def _check_finite(self, state: np.ndarray) -> None:
        if not np.isfinite(state).all():
            raise ConfigError(
                "state holds a NaN or an infinity; expected finite numbers, such as those of initial_state() or read()."
            )

    def _check_logits_are_ids(self) -> None:
        if self.outputs != self.vocabulary_size:
            raise ConfigError(
                f"the model gives {self.outputs} logits but reads ids below {self.vocabulary_size}; expected one logit "
                "for each id. Use step() and read() for a model whose logits do not stand for ids."
            )

    @abc.abstractmethod
    def _run(
        self, state: np.ndarray, ids: np.ndarray, lengths: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """`read`, with checked arguments, except that the state may not be finite."""

    @abc.abstractmethod
    def _score(
        self, state: np.ndarray, ids: np.ndarray, lengths: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """`log_probabilities`, with arguments checked as for `_run`."""

    @abc.abstractmethod
    def _draw(
        self,
        state: np.ndarray,
        after: np.ndarray,
        logits: np.ndarray,
        rows: Sequence[CheckedRequest],
        ids: np.ndarray,
        log_probabilities: np.ndarray,
    ) -> list[tuple[int, bool]]:
        """`generate_rows`: fills `after`, `ids` (B, T) and `log_probabilities` (B, T), and overwrites `logits`.

        Returns:
            For each row, how many ids were drawn, and whether a logit was a NaN or an infinity.
        """


class ChainNode(NamedTuple):
    """A node of a chain, checked.

    Attributes:
        kind: One of `KINDS`.
        inputs: The number of input features; for an embedding, the number of ids.
        outputs: The number of output features.
        kernel: The embeddings, kernel, gamma or scale.
        recurrent_kernel: The recurrent kernel of an LSTM.
        bias: The bias, beta or offset.
        activation: The activation, as `cellerate.activations` writes it.
        recurrent_activation: The recurrent activation, as `cellerate.activations` writes it.
        epsilon: The epsilon of a layer_norm.
        masks_zero: Whether id 0 of an embedding does not change the state.
    """

    kind: str
    inputs: int
    outputs: int
    kernel: np.ndarray | None
    recurrent_kernel: np.ndarray | None
    bias: np.ndarray | None
    activation: str
    recurrent_activation: str
    epsilon: float
    masks_zero: bool


def checked_chain(chain: Sequence[Mapping[str, Any]]) -> list[ChainNode]:
    """The nodes of a chain, checked: each has the arrays and options that it must have.

    Args:
        chain: As in `cpu.StepModel`.

    Raises:
        ConfigError: A node has an unknown op, nodes do not follow each other, or a shape, a dtype or an option does not
            fit.
    """
    nodes: list[ChainNode] = []
    for place, given in enumerate(chain):
        node = ChainNode(*_node(place, given, nodes[-1].outputs if nodes else 0))
        if node.inputs < 1 or node.outputs < 1:
            raise ConfigError(f"chain[{place}]: expected sizes of at least 1.")
        if nodes and node.kind == "embedding":
            raise ConfigError(f"chain[{place}]: expected an embedding only at the start.")
        if nodes and node.inputs != nodes[-1].outputs:
            raise ConfigError(
                f"chain[{place}]: takes {node.inputs} features, but the node before it gives {nodes[-1].outputs}."
            )
        nodes.append(node)
    if not nodes or nodes[0].kind != "embedding":
        raise ConfigError("chain: expected an embedding first.")
    if all(node.kind != "lstm" for node in nodes):
        raise ConfigError("chain: expected at least one lstm.")
    return nodes


def _node(place: int, node: Mapping[str, Any], before: int) -> tuple[Any, ...]:
    """The fields of `ChainNode`; `before` is the width of the node before it."""
    where = f"chain[{place}]"
    kind = node.get("op")
    if kind not in KINDS:
        raise ConfigError(f"{where}: op is {kind!r}; expected one of {', '.join(KINDS)}.")

    def array(name: str, *shape: int | None, optional: bool = False) -> Any:
        value = node.get(name)
        if value is None and optional:
            return None
        if value is None:
            raise ConfigError(f"{where}: {kind} has no {name}; give it one, a float32 array.")
        return float_array(f"{where}: {name}", value, shape)

    def activation(name: str) -> str:
        try:
            activations.read(str(node.get(name)))
        except ConfigError as error:
            raise ConfigError(f"{where}: {name}: {error}") from None
        return str(node.get(name))

    linear = "linear"
    if kind == "embedding":
        table = array("embeddings", None, None)
        masks_zero = node.get("masks_zero", False)
        if not isinstance(masks_zero, bool):
            raise ConfigError(f"{where}: masks_zero is {masks_zero!r}; expected True or False.")
        return (kind, *table.shape, table, None, None, linear, linear, 0.0, masks_zero)
    if kind == "lstm":
        kernel = array("kernel", None, None)
        units = kernel.shape[1] // 4
        recurrent = array("recurrent_kernel", units, 4 * units)
        kernel = float_array(f"{where}: kernel", kernel, (None, 4 * units))
        bias = array("bias", 4 * units, optional=True)
        both = (activation("activation"), activation("recurrent_activation"))
        return (kind, kernel.shape[0], units, kernel, recurrent, bias, *both, 0.0, False)
    if kind == "dense":
        kernel = array("kernel", None, None)
        bias = array("bias", kernel.shape[1], optional=True)
        return (kind, *kernel.shape, kernel, None, bias, activation("activation"), linear, 0.0, False)
    if kind == "affine":
        scale = array("scale", None)
        offset = array("offset", len(scale))
        return (kind, len(scale), len(scale), scale, None, offset, linear, linear, 0.0, False)
    gamma = array("gamma", None, optional=True)
    beta = array("beta", None if gamma is None else len(gamma), optional=True)
    known = gamma if gamma is not None else beta
    width = before if known is None else len(known)
    epsilon = node.get("epsilon")
    check_real(f"{where}: epsilon", epsilon, lambda x: x >= 0, "of at least 0")
    return (kind, width, width, gamma, None, beta, linear, linear, float(epsilon), False)  # type: ignore[arg-type]
