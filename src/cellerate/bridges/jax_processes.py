"""Several JAX processes that train one model: every array of the training spans all processes.

JAX calls this multi-controller: each process runs the same program, and XLA adds what they exchange. Keras's
`DataParallel` places the variables on every device and the rows of a batch on one each.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import keras
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

# How long a process that is done waits for the first one, which still judges the model.
_PATIENCE_S = 7 * 24 * 3600


def join(address: str, count: int, number: int, *, divided: bool = False) -> None:
    """Meets the other processes; call it before anything is computed.

    Args:
        address: Host and port of process 0.
        count: How many processes there are.
        number: Which one this is.
        divided: Whether each has a stage of the model rather than rows of each batch.

    Raises:
        RuntimeError: They do not all come.
    """
    # What processors exchange their arrays through; without it, JAX knows of no other process on them.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # It would catch SIGTERM until training does, and a process that loads its data could not be ended.
    if hasattr(jax.config, "jax_enable_preemption_service"):
        jax.config.update("jax_enable_preemption_service", False)
    # Older versions of JAX wait for five minutes, and cannot be told otherwise.
    known = "shutdown_timeout_seconds" in inspect.signature(jax.distributed.initialize).parameters
    patience = {"shutdown_timeout_seconds": _PATIENCE_S} if known else {}
    jax.distributed.initialize(address, count, number, **patience)
    if divided:
        # The arrays of a stage live in its process alone.
        return
    # Each process reads its own rows, so Keras must not cut them once more.
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))


def place() -> tuple[int, int]:
    """The rank of this process, and the number of those that train together."""
    return jax.process_index(), jax.process_count()


def gathered(values: Sequence[int]) -> np.ndarray:
    """The integers of each process, int32, (processes, values). All processes must call it."""
    return np.asarray(multihost_utils.process_allgather(np.array(values, np.int32)))


def add_up(array: np.ndarray) -> None:
    """Adds up float32 arrays of all processes, to time it."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("process",))
    divided, same = (NamedSharding(mesh, spec) for spec in (PartitionSpec("process"), PartitionSpec()))
    mine = np.broadcast_to(array, (jax.local_device_count(), *array.shape))
    whole = jax.make_array_from_process_local_data(divided, mine)
    _sum_of_all(same)(whole).block_until_ready()


@functools.cache
def _sum_of_all(result: NamedSharding) -> Any:
    return jax.jit(lambda arrays: arrays.sum(axis=0), out_shardings=result)


def joint_loss(loss: Any) -> Any:
    """The loss of the whole batch: here each process computes that anyway."""
    return loss


def joint_logs(trainer: keras.Model, logs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metrics over the rows of all processes, which a step's logs already are."""
    return logs


def replicate(trainer: keras.Model) -> None:
    """Does nothing: Keras's distribution has already prepared the compiled model."""


def settle(trainer: keras.Model) -> None:
    """Makes process 0 hold what all have counted; here that is one array."""


def count_once(trainer: keras.Model) -> None:
    """Leaves sums of metrics that all processes hold to process 0; here they are one array."""


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Lets one process compute without the others."""
    # Otherwise JAX would compare each array that Keras makes with the other processes' arrays, and they make none.
    joint = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(joint)
