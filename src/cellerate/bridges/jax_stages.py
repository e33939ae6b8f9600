"""A pipeline stage on JAX: its part of the model, forward and backward, and its messages to the other stages.

The arrays of a stage live in its process alone, so each stage is its own program, with its own shapes and weights. JAX
has no messages between processes, but a computation may span the devices of some processes only. So a message is a
computation over two devices that permutes an array between them; XLA sends the array by gloo or NCCL.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


class StagePart:
    """A function of a stage that runs forward and later, in another order, backward.

    Args:
        run: Called with (fixed, x, states, training), returns (y, states). `fixed` has no gradient; `x` may be None.
        trainable: The Keras variables that get a gradient.
        others: The variables that the function changes, such as seeds and metrics.
    """

    def __init__(self, run: Callable[..., Any], trainable: Sequence[Any], others: Sequence[Any]) -> None:
        self._run, self._trainable, self._others = run, list(trainable), list(others)
        self._forward = jax.jit(self._with_tape)
        self._infer = jax.jit(self._without_tape)
        self._backward = jax.jit(_pulled_back, donate_argnums=3)
        self._sums: list[Any] | None = None

    def _pure(
        self, training: bool, fixed: Any, others: Any, trainable: Any, x: Any, states: Any
    ) -> tuple[Any, Any]:
        pairs = [
            *zip(self._trainable, trainable, strict=True),
            *zip(self._others, others, strict=True),
        ]
        with keras.StatelessScope(state_mapping=pairs) as scope:
            made = self._run(fixed, x, list(states), training)
        return made, [scope.get_current_value(variable) for variable in self._others]

    def _with_tape(self, fixed: Any, others: Any, trainable: Any, x: Any, states: Any) -> Any:
        (y, after), tape, others = jax.vjp(
            functools.partial(self._pure, True, fixed, others), trainable, x, states, has_aux=True
        )
        return y, after, tape, others

    def _without_tape(self, fixed: Any, others: Any, trainable: Any, x: Any, states: Any) -> Any:
        return self._pure(False, fixed, others, trainable, x, states)

    def _values(self) -> tuple[list[Any], list[Any]]:
        return [v.value for v in self._others], [v.value for v in self._trainable]

    def _keep(self, values: Sequence[Any]) -> None:
        for variable, value in zip(self._others, values, strict=True):
            variable.assign(value)

    def forward(self, fixed: Any, x: Any, states: Sequence[Any]) -> tuple[Any, list[Any], Any]:
        """Returns y, the states, and the tape for `backward`."""
        y, after, tape, others = self._forward(fixed, *self._values(), x, list(states))
        self._keep(others)
        return y, after, (tape, *map(_shapes, (y, after)))

    def infer(self, fixed: Any, x: Any, states: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Computes y and the states without dropout."""
        (y, after), others = self._infer(fixed, *self._values(), x, list(states))
        self._keep(others)
        return y, after

    def backward(self, tape: Any, dy: Any, dstates: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Returns the gradients of x and of the states, and sums the weights' gradients; None stands for zeros."""
        pull, y, after = tape
        dy = _zeros(y) if dy is None else dy
        dstates = [_zeros(shape) if one is None else one for shape, one in zip(after, dstates, strict=True)]
        if self._sums is None:
            self._sums = [jnp.zeros_like(variable.value) for variable in self._trainable]
        dx, dbefore, self._sums = self._backward(pull, dy, dstates, self._sums)
        return dx, dbefore

    def take_gradients(self) -> list[Any]:
        """Returns the sums of the weights' gradients, and starts new sums."""
        found, self._sums = self._sums, None
        return [] if found is None else found


def _pulled_back(pull: Any, dy: Any, dstates: Any, sums: Any) -> Any:
    dweights, dx, dbefore = pull((dy, dstates))
    return dx, dbefore, jax.tree.map(jnp.add, sums, dweights)


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype), tree)


def _zeros(shape: Any) -> Any:
    return jnp.zeros(shape.shape, shape.dtype)


class StageLink:
    """The connection to the other processes of a pipeline.

    Args:
        stages: The number of stages of the model; processes k·stages to (k+1)·stages - 1 hold one copy of it.
    """

    def __init__(self, stages: int) -> None:
        self._number = jax.process_index()
        self._everyone = tuple(range(jax.process_count()))
        self._alike = self._everyone[self._number % stages :: stages]
        self._sent: list[Any] = []

    def send(self, value: Any, to: int) -> None:
        """Sends a tensor to a process, without waiting for it."""
        self._sent.append(_message(self._number, to)(_spanning((self._number, to), value)))

    def receive(self, shape: Sequence[int], dtype: str, source: int) -> Any:
        """Waits for a tensor of a process."""
        placeholder = jnp.zeros(tuple(shape), dtype)
        found = _message(source, self._number)(_spanning((source, self._number), placeholder))
        return found.addressable_shards[0].data[0]

    def finish(self) -> None:
        """Waits until all messages are sent."""
        jax.block_until_ready(self._sent)
        self._sent.clear()

    def mean_of_copies(self, gradients: Sequence[Any]) -> list[Any]:
        """The means of gradients over the processes with the same stage."""
        copies = len(self._alike)
        if copies == 1:
            return list(gradients)
        return scaled([_added_up(self._alike, one) for one in gradients], 1 / copies)

    def sums(self, values: Sequence[float], *, of_copies: bool = False) -> np.ndarray:
        """The sums of numbers, float32, over all processes or over the processes with the same stage."""
        members = self._alike if of_copies else self._everyone
        return np.asarray(_added_up(members, jnp.asarray(values, jnp.float32)))


@functools.cache
def _devices() -> dict[int, Any]:
    """The default device of each process, by the process's number."""
    found: dict[int, Any] = {}
    for device in jax.devices():
        found.setdefault(device.process_index, device)
    return found


@functools.cache
def _mesh(members: tuple[int, ...]) -> Mesh:
    return Mesh(np.array([_devices()[number] for number in members]), ("process",))


def _spanning(members: tuple[int, ...], value: Any) -> Any:
    """An array with one part from each member process; this process's part is `value`."""
    divided = NamedSharding(_mesh(members), PartitionSpec("process"))
    return jax.make_array_from_single_device_arrays((len(members), *value.shape), divided, [value[None]])


@functools.cache
def _message(source: int, to: int) -> Callable[[Any], Any]:
    """The computation that the sender and the receiver of a message both run."""
    spec = PartitionSpec("process")
    permuted = functools.partial(jax.lax.ppermute, axis_name="process", perm=[(0, 1)])
    return jax.jit(jax.shard_map(permuted, mesh=_mesh((source, to)), in_specs=spec, out_specs=spec))


def _added_up(members: tuple[int, ...], value: Any) -> Any:
    """The sum of the member processes' arrays, of which `value` is this process's."""
    return _sum_of(members)(_spanning(members, value)).addressable_shards[0].data


@functools.cache
def _sum_of(members: tuple[int, ...]) -> Callable[[Any], Any]:
    same = NamedSharding(_mesh(members), PartitionSpec())
    return jax.jit(lambda arrays: arrays.sum(axis=0), out_shardings=same)


def _squares(gradients: Sequence[Any]) -> Any:
    return sum((jnp.sum(jnp.square(one.astype(jnp.float32))) for one in gradients), jnp.zeros(()))


def squares(gradients: Sequence[Any]) -> float:
    """The sum of the squares of all gradients."""
    return float(_compiled_squares(list(gradients)))


def scaled(gradients: Sequence[Any], factor: float) -> list[Any]:
    """The gradients times a number."""
    found: list[Any] = _compiled_scaling(list(gradients), factor)
    return found


def _scaling(gradients: Sequence[Any], factor: Any) -> list[Any]:
    return [one * factor for one in gradients]


_compiled_squares, _compiled_scaling = jax.jit(_squares), jax.jit(_scaling)


class StageUpdate:
    """The update of a stage's weights by the optimizer of the whole model.

    Args:
        optimizer: The optimizer, built on all trainable variables.
        trainable: The trainable variables of the stage.
    """

    def __init__(self, optimizer: Any, trainable: Sequence[Any]) -> None:
        self._optimizer, self._trainable = optimizer, list(trainable)
        self._step = jax.jit(self._pure)

    def _pure(self, trainable: Any, state: Any, gradients: Any) -> Any:
        pairs = [
            *zip(self._trainable, trainable, strict=True),
            *zip(self._optimizer.variables, state, strict=True),
        ]
        with keras.StatelessScope(state_mapping=pairs) as scope:
            self._optimizer.apply(gradients, self._trainable)
        return [
            [scope.get_current_value(variable) for variable in group]
            for group in (self._trainable, self._optimizer.variables)
        ]

    def __call__(self, gradients: Sequence[Any]) -> None:
        """Takes a step."""
        groups = (self._trainable, self._optimizer.variables)
        values = [[variable.value for variable in group] for group in groups]
        for variable, value in zip(
            itertools.chain(*groups), itertools.chain(*self._step(*values, list(gradients))), strict=True
        ):
            variable.assign(value)


def settled(values: Any) -> None:
    """Waits until tensors are computed."""
    jax.block_until_ready(values)


def begin_steps(trainer: Any, step: Callable[[Any], dict[str, float]], training: bool) -> Callable[..., Any]:
    """The function that Keras's `fit` or `evaluate` calls for each batch; it calls `step` with the batch.

    Keras passes the values of all variables on as a state. Here they stay in the variables, where the stage reads them.
    """

    def groups() -> list[Any]:
        optimizer = [trainer.optimizer.variables] if training else []
        kept = [trainer.trainable_variables, trainer.non_trainable_variables]
        return [*kept, *optimizer, trainer.metrics_variables]

    def function(state: Any, iterator: Iterator[Any]) -> Any:
        found = groups()
        # Keras removes the values from the variables during an epoch.
        for variable, value in zip(itertools.chain(*found), itertools.chain(*state), strict=True):
            variable.assign(value)
        logs = {}
        for data in itertools.chain(
            [next(iterator)], itertools.islice(iterator, trainer.steps_per_execution - 1)
        ):
            logs = step(data)
        return logs, tuple([variable.value for variable in group] for group in found)

    return function
