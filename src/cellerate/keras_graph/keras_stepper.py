"""Generating from a Keras model at full speed: one compiled call a token, the recurrent state held outside.

`KerasStepper` joins the graph that runs step by step (`step_graph`), the backend's compiler (`bridges`) and the
checks of a next-token model.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

import keras
import numpy as np

from cellerate.errors import CellerateError, ConfigError, DataError, ModelError
from cellerate.keras_graph.step_graph import StepGraph

BLOCK = 64
"""The number of time steps of a prompt that are read at once."""

State = tuple[Any, ...]


class KerasStepper:
    """Runs a next-token model one token at a time, with explicit state.

    It takes any Functional or Sequential model in which only recurrent layers look back. The model maps ids (B, T)
    or one-hot vectors (B, T, V) to logits or probabilities (B, T, V), or (B, V) for the last step alone. The
    stepper runs the model's own layers and weights without dropout: it copies nothing, so further training takes
    effect at once. A `stateful` layer's own state is neither read nor changed. If an Embedding masks id 0, that id
    leaves the state unchanged.

    Each backend compiles two programs a batch size: one for a single step, one that reads `BLOCK` prompt ids.
    A prompt is read in whole blocks first, then id by id, so that its length never costs a compilation. A
    state is a tuple of the backend's arrays, (B, units) each, on the model's device, never changed in place.

    Attributes:
        vocabulary_size: V; ids run from 0 to V - 1.
        one_hot: Whether the model takes one-hot vectors; the stepper takes ids in any case.
        probabilities: Whether the model ends in a softmax; the stepper then gives the logarithm, as logits.

    Raises:
        ConfigError: `batch_size` is below 1.
        ModelError: The model is not a next-token model, or cannot be run step by step; the message says why.
    """

    def __init__(self, model: keras.Model, *, batch_size: int = 1) -> None:
        """Checks the model; compiling waits for the first call.

        Args:
            model: The model.
            batch_size: The number of sequences for which `initial_state` makes a state by default.
        """
        if not isinstance(model, keras.Model):
            raise ModelError(f"model must be a keras.Model, not {type(model).__name__}.")
        self._batch_size = _positive(batch_size, "batch_size")
        self._model = model
        self._graph = StepGraph(model)
        self.probabilities = self._graph.probabilities
        self.vocabulary_size, self.one_hot = self._check_form()
        bridge = importlib.import_module(f"cellerate.bridges.{keras.backend.backend()}")
        self._variables = list(model.weights)
        self._step = bridge.compile_step(self._one_step, self._variables)
        self._block = bridge.compile_step(self._one_block, self._variables, loops=True)
        if self._graph.untested:
            self._try_out()

    def initial_state(self, batch_size: int | None = None) -> State:
        """The state before the first token.

        Args:
            batch_size: The number of sequences; None for the stepper's own.

        Returns:
            A tuple of arrays of zeros, one or two for each call of a recurrent layer.
        """
        size = self._batch_size if batch_size is None else _positive(batch_size, "batch_size")
        return self._graph.initial_state(size)

    def prefill(self, state: State, ids: np.ndarray) -> tuple[State, np.ndarray]:
        """Reads a prompt.

        Args:
            state: The state before it.
            ids: (B, T) integers, T >= 1.

        Returns:
            The state after it, and the (B, V) float32 logits of the token that follows.

        Raises:
            ConfigError: The shape does not fit.
            DataError: An id is out of the vocabulary.
        """
        ids = self._checked(state, ids, rank=2)
        length = ids.shape[1]
        if length == 0:
            raise ConfigError("ids is empty: a prompt needs at least one id.")
        # A step reads the last id, which has to give logits. In a model without recurrence no other id counts.
        in_blocks = (length - 1) // BLOCK * BLOCK if len(state) else length - 1
        for start in range(0, in_blocks, BLOCK) if len(state) else ():
            state, _ = self._block(state, np.ascontiguousarray(ids[:, start : start + BLOCK]))
        for place in range(in_blocks, length - 1):
            state, _ = self._step(state, np.ascontiguousarray(ids[:, place]))
        state, logits = self._step(state, np.ascontiguousarray(ids[:, -1]))
        return state, logits

    def step(self, state: State, ids: np.ndarray) -> tuple[State, np.ndarray]:
        """Reads one token of each sequence.

        Args:
            state: The state before it.
            ids: (B,) integers.

        Returns:
            The state after it, and the (B, V) float32 logits of the token that follows.

        Raises:
            ConfigError: The shape does not fit.
            DataError: An id is out of the vocabulary.
        """
        return self._step(state, self._checked(state, ids, rank=1))

    def _check_form(self) -> tuple[int, bool]:
        """The vocabulary size, and whether the input is one-hot; `ModelError` if it is not a next-token model."""
        graph, name = self._graph.graph, self._model.name
        given, made = tuple(graph.inputs[0].shape), tuple(graph.outputs[0].shape)
        expected = (
            "A next-token model maps ids (batch, time) to logits (batch, time, vocabulary), or "
            "(batch, vocabulary)"
        )
        if len(made) != (3 if self._graph.output_over_time else 2) or made[-1] is None:
            raise ModelError(f"{expected}; the output of model {name!r} has the shape {made}.")
        size = int(made[-1])
        if size < 2:
            raise ModelError(
                f"{expected}; model {name!r} gives one number, {made}, so it is not a next-token model."
            )
        one_hot = len(given) == 3
        if len(given) not in (2, 3) or (one_hot and given[2] != size):
            raise ModelError(
                f"{expected}; the input of model {name!r} has the shape {given}. A one-hot input must be "
                f"(batch, time, {size}), as wide as the output."
            )
        for embedding, input_dim in self._graph.embedding_sizes:
            if input_dim != size:
                raise ModelError(
                    f"the embedding {embedding!r} takes {input_dim} ids and the output of model {name!r} has "
                    f"{size} values, {made}: a next-token model has as many of both."
                )
        return size, one_hot

    def _checked(self, state: State, ids: np.ndarray, *, rank: int) -> np.ndarray:
        array = np.asarray(ids)
        if array.ndim != rank:
            form = "(batch,)" if rank == 1 else "(batch, time)"
            raise ConfigError(f"ids must have the shape {form}, not {array.shape}.")
        if array.dtype.kind not in "iu":
            raise DataError(f"ids must be integers, not {array.dtype}.")
        if len(state) and state[0].shape[0] != len(array):
            raise ConfigError(
                f"ids are for {len(array)} sequences, but the state is for {state[0].shape[0]}: make it with "
                f"initial_state({len(array)})."
            )
        if array.size and not (array.min() >= 0 and array.max() < self.vocabulary_size):
            raise DataError(
                f"ids run from {array.min()} to {array.max()}, but this model's from 0 to "
                f"{self.vocabulary_size - 1}."
            )
        return np.ascontiguousarray(array, dtype=np.int32)

    def _one_step(self, values: Any, state: State, ids: Any) -> tuple[State, Any]:
        """The function that a backend compiles for one token: ids (B,) to logits (B, V)."""
        ops = keras.ops
        with self._scope(values):
            new_state, output = self._graph.run(self._as_input(ops.expand_dims(ids, 1)), state)
            output = ops.cast(output, "float32")
            if self._graph.output_over_time:
                output = output[:, 0]
            if self.probabilities:
                # The smallest normal number in place of zero keeps the logit finite, and that still means "never".
                output = ops.log(ops.maximum(output, float(np.finfo(np.float32).tiny)))
        return new_state, output

    def _one_block(self, values: Any, state: State, ids: Any) -> tuple[State, None]:
        """The function that a backend compiles for a part of a prompt: ids (B, BLOCK), no logits."""
        with self._scope(values):
            new_state, _ = self._graph.run(self._as_input(ids), state, state_only=True)
        return new_state, None

    def _scope(self, values: Any) -> contextlib.AbstractContextManager[Any]:
        if values is None:  # TensorFlow captures the variables themselves
            return contextlib.nullcontext()
        return keras.StatelessScope(state_mapping=list(zip(self._variables, values, strict=True)))

    def _as_input(self, ids: Any) -> Any:
        dtype = self._graph.graph.inputs[0].dtype
        if self.one_hot:
            # Not `keras.ops.one_hot`: on torch it looks at the values, and no tracer can follow that.
            codes = keras.ops.arange(self.vocabulary_size, dtype="int32")
            return keras.ops.cast(keras.ops.expand_dims(ids, -1) == codes, dtype)
        return keras.ops.cast(ids, dtype)

    def _try_out(self) -> None:
        """Compares steps with the model itself, if a layer is not known to treat every step alike."""
        names = ", ".join(repr(name) for name in dict.fromkeys(self._graph.untested))
        fixed, batch = self._graph.graph.inputs[0].shape[1], self._graph.graph.inputs[0].shape[0] or 1
        length = fixed or 5
        rng = np.random.default_rng(0)
        ids = rng.integers(min(1, self.vocabulary_size - 1), self.vocabulary_size, (batch, length))
        try:
            expected = self._whole(ids)
            state, stepped = self.initial_state(batch), []
            for place in range(length):
                state, logits = self.step(state, ids[:, place])
                stepped.append(logits)
        except CellerateError:
            raise
        except Exception as error:
            raise ModelError(f"{self._refusal(names)} Running a single step failed: {error}") from error
        got = np.stack(stepped, axis=1) if expected.ndim == 3 else stepped[-1]
        # In reduced precision steps differ by rounding; in a layer that mixes steps they differ completely.
        reduced = any(keras.backend.standardize_dtype(v.dtype) != "float32" for v in self.initial_state(1))
        scale = float(np.abs(expected).max())
        if not np.abs(got - expected).max() <= (0.05 if reduced else 1e-3) * max(scale, 1e-3):
            raise ModelError(f"{self._refusal(names)} Run by single steps it gives other values.")

    def _refusal(self, names: str) -> str:
        return (
            f"model {self._model.name!r} cannot be run step by step: it does not treat each time step alike. "
            f"Look at {names}, which are not layers known to do so."
        )

    def _whole(self, ids: np.ndarray) -> np.ndarray:
        """The logits of the model for whole sequences from a zero state; its own state is put back afterwards."""
        holders = [v for layer in self._graph.stateful_layers for v in keras.tree.flatten(layer.states)]
        kept = [keras.ops.copy(v.value) for v in holders]
        for variable in holders:
            variable.assign(keras.ops.zeros_like(variable.value))
        try:
            given = self._as_input(keras.ops.convert_to_tensor(ids, dtype="int32"))
            output = keras.ops.cast(self._graph.graph(given, training=False), "float32")
        finally:
            for variable, value in zip(holders, kept, strict=True):
                variable.assign(value)
        values = keras.ops.convert_to_numpy(output)
        return np.log(np.maximum(values, np.finfo(np.float32).tiny)) if self.probabilities else values


def _positive(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ConfigError(f"{name} must be an integer of at least 1, not {value!r}.")
    return int(value)
